"""The notebooks of docs/notebooks, run by real kernels in empty folders.

`python tests/tools/notebooks.py [NAME ...]` runs them and writes their outputs into them: the texts
only, since these are what a page and a diff can show.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
TIMEOUT_S = 120


def environment(folder: Path) -> dict[str, str]:
    """Return variables by which a kernel and its jobs write into `folder` alone."""
    names = ("EDL_HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")
    return {name: str(folder / name.lower()) for name in names}


def run(name: str, folder: Path) -> Any:
    """Return a notebook as it is after its cells were run, in an empty folder.

    Raises CellExecutionError, CellTimeoutError.
    """
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    work = folder / "work"
    work.mkdir(parents=True)
    where = {"metadata": {"path": str(work)}}
    client = NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3", resources=where)
    return client.execute(env={**os.environ, **environment(folder)})


def shown(notebook: Any, folder: Path) -> Any:
    """Return the notebook with its outputs as texts, without what only this run has."""
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [_text(output, folder) for output in cell.outputs]
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def _text(output: Any, folder: Path) -> Any:
    text = output.text if output.output_type == "stream" else output.data["text/plain"]
    text = text.replace(str(folder / "edl_home"), "~/.edl")
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    if output.output_type == "stream":
        return nbformat.v4.new_output("stream", name=output.name, text=text)
    count = {"execution_count": output.execution_count} if "execution_count" in output else {}
    return nbformat.v4.new_output(output.output_type, data={"text/plain": text}, **count)


def main() -> None:
    for name in sys.argv[1:] or NAMES:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            os.environ |= environment(folder)
            notebook = shown(run(name, folder), folder)
            nbformat.write(notebook, FOLDER / f"{name}.ipynb")
            print(f"{name}: {len(notebook.cells)} cells")


if __name__ == "__main__":
    main()

"""Jobs that Python starts: the cells of docs/python.md, from typed functions to a gate."""

from __future__ import annotations

import linecache
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.turns import in_turn

import edl

pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def notebook() -> Iterator[Callable[[str], dict[str, Any]]]:
    """Yield a function that runs a cell as IPython does: in one module, its text in linecache."""
    main, before, cells = types.ModuleType("__main__"), sys.modules["__main__"], []
    sys.modules["__main__"] = main

    def run(text: str) -> dict[str, Any]:
        name = f"<ipython-input-{len(cells)}-0123456789ab>"
        cells.append(name)
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec", dont_inherit=True), vars(main))  # noqa: S102
        return vars(main)

    yield run
    sys.modules["__main__"] = before
    for name in cells:
        del linecache.cache[name]


@in_turn(3)
def test_the_page_runs_cell_by_cell(notebook: Any, tmp_path: Path, monkeypatch: Any) -> None:
    page = (Path(edl.__file__).parent / "docs/python.md").read_text()
    monkeypatch.chdir(tmp_path)

    for cell in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        scope = notebook(cell)

    result, predictions = scope["result"], scope["predictions"]
    assert result.metrics["accuracy"] > 0.95
    assert result.metrics == scope["evaluated"]
    assert (500, 500) == (predictions.records, len(predictions.table()["output"]))
    assert scope["result"].metrics["accuracy"] == scope["values"][-1]
    assert result.goodput["useful"] > 0
    assert [True] * 4 == [job.done() for job in edl.jobs()]

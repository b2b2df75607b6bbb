"""Pages of docs/ that are run as they stand: blocks of Python are files, those of bash a script."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .own import free_port

_BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def pieces(text: str) -> Iterator[tuple[str, str]]:
    """Yield the blocks of a page; of Python with the name of the file that it is."""
    for match in _BLOCK.finditer(text):
        kind, code = match.groups()
        if kind == "python":
            yield re.findall(r"`(\w+\.py)`", text[: match.start()])[-1], code
        elif not code.startswith("pip install"):
            yield "", code


def run_page(
    page: Path,
    folder: Path,
    home: Path,
    ports: Sequence[str],
    change: Callable[[str], str] = lambda script: script,
) -> str:
    """Run a page's blocks in a folder, each port a free one; return what they say.

    `change`: of the whole script, where the machine that tests needs it otherwise.
    """
    script = ["set -euo pipefail"]
    script += [f'edl() {{ {sys.executable} -m edl "$@"; }}']
    script += [f'python() {{ {sys.executable} "$@"; }}']
    for name, code in pieces(page.read_text()):
        if name:
            (folder / name).write_text(code)
        else:
            script += [code, 'echo "===== $SECONDS s"']
    text = "\n".join(script)
    for port in ports:
        text = re.sub(rf"\b{port}\b", str(free_port()), text)
    started = subprocess.Popen(
        ["bash", "-c", change(text)],
        cwd=folder,
        env={**os.environ, "EDL_HOME": str(home), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = started.communicate(timeout=600)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    logs = [path.read_text() for path in sorted(folder.glob("*.log"))]
    assert 0 == started.returncode, (told, logs)
    return told

"""Make the kept folders of this version: see README.md."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]
from kept import books
from kept.cases import CASES, COUNT
from kept.folders import HERE, JOB, ROOT, Kept, moved

from edl.launch import state

MOST_NBYTES = 100_000  # of a case
_KEPT = ("settings.json", "describe.json", "token", "master.json", "journal.", "rendezvous.")
_FOLDERS = ("snapshots", "group", "checkpoints")


def main(version: str, *names: str) -> None:
    for kind, cases in CASES.items():
        for make in cases:
            case = HERE / version / make.__name__
            if not names or case.name in names:
                shutil.rmtree(case, ignore_errors=True)
                with folder() as root:
                    make()
                    keep(case, root)
                expect(case, kind)


def expect(case: Path, kind: str) -> None:
    """Write what this version makes of a case: to be compared with the case's docstring."""
    expected: dict[str, Any] = {"kind": kind, "records": COUNT, "epochs": 2}
    path = case / "expected.json"
    path.write_text(json.dumps(expected))
    with folder() as where:
        placed = Kept(case).place(where / "it") / JOB
        if kind == "launch":
            os.environ["EDL_CHECKPOINT_PATH"] = str(placed / "checkpoints")
            expected = {"kind": kind, "records": 60, **state.load().progress}
        expected["told"] = books.OF[kind](placed)
    path.write_text(json.dumps(expected, indent=1) + "\n")


@contextmanager
def folder() -> Iterator[Path]:
    """Yield a new folder of the case's, which is the current one meanwhile."""
    with tempfile.TemporaryDirectory(prefix="edl-kept-") as made:
        before = os.getcwd()
        os.chdir(made)
        try:
            os.environ["EDL_HOME"] = made
            yield Path(made)
        finally:
            os.chdir(before)


def keep(case: Path, root: Path) -> None:
    """Copy what a job goes on with, without what is of this machine."""
    target = case / JOB
    target.mkdir(parents=True)
    for name in _KEPT:
        for found in Path(JOB).glob(f"{name}*"):
            shutil.copy(found, target)
    for name in _FOLDERS:
        if (Path(JOB) / name).is_dir():
            shutil.copytree(Path(JOB) / name, target / name)
    machine = {
        str(root): ROOT,
        str(Path(__file__).parents[2]): "/edl",
        f'"{socket.gethostname()}"': '"host"',
    }
    moved(case, machine)
    files = [path for path in case.rglob("*") if path.is_file()]
    named = [path for path in files for text in machine if text.encode() in path.read_bytes()]
    assert not named, named
    assert sum(path.stat().st_size for path in files) < MOST_NBYTES


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Make the kept folders of this version: see README.md."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]
from kept import books, served
from kept.cases import CASES, COUNT
from kept.folders import DATA, HERE, JOB, PACKED, ROOT, Kept, moved

from edl.launch import state

MOST_NBYTES = 40_000  # of a case
_KEPT = ("settings.json", "describe.json", "token", "master.json")
_KEPT += ("journal.", "rendezvous.", "before.json")
_FOLDERS = ("snapshots", "group", "checkpoints", "deltas", "exported", "adaptive")
OF = {**books.OF, **served.OF}


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
        expected["told"] = OF[kind](placed)
    path.write_text(json.dumps(expected, indent=1) + "\n")


@contextmanager
def folder() -> Iterator[Path]:
    """Yield a new folder of the case's, which is the current one meanwhile."""
    with tempfile.TemporaryDirectory(prefix="edl-kept-", ignore_cleanup_errors=True) as made:
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
        f'"{socket.gethostname()}"': '"host"',
    }
    moved(case, machine)
    files = [path for path in case.rglob("*") if path.is_file()]
    named = [path for path in files for text in machine if text.encode() in path.read_bytes()]
    assert not named, named
    pack(case)


def pack(case: Path) -> None:
    """Put the job of a case into one file, which says nothing of who made it and when."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(case / PACKED, "w:xz", preset=9) as packed:
        packed.add(case / "jobs", "jobs", filter=plain)
    shutil.rmtree(case / "jobs")
    assert (case / PACKED).stat().st_size < MOST_NBYTES


def elsewhere(code: str) -> None:
    """Run this again by a path that names no machine: programs of torch name the files of code.

    `code`: the checkout whose `edl` writes what is kept.
    """
    here = Path(__file__).resolve().parents[2]
    if Path(__file__).is_relative_to(DATA):
        return
    DATA.mkdir(exist_ok=True)
    for name, target in (("tests", here / "tests"), ("venv", here / ".venv"), ("edl", Path(code))):
        (DATA / name).unlink(missing_ok=True)
        (DATA / name).symlink_to(target.resolve())
    environment = {**os.environ, "PYTHONPATH": str(DATA / "edl" / ".pythonpath")}
    python, script = str(DATA / "venv" / "bin" / "python"), str(DATA / "tests" / "kept" / "make.py")
    os.execve(python, [python, script, *sys.argv[1:]], environment)


if __name__ == "__main__":
    given = sys.argv[1:]
    code = given.pop(1) if len(given) > 1 and given[1].startswith(("/", ".")) else "."
    elsewhere(code)
    main(*given)

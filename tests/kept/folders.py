"""The kept folders: which there are, and how one is put where a job goes on with it.

    <version>/<case>/expected.json   what the job had done, and how it ends
    <version>/<case>/left.tar.xz     jobs/it/..., the job's folder as it was left; the case's is its
                                     EDL_HOME (the first version has it unpacked)

The path of the data stands in sealed files, too, so that it is the same everywhere: `records`. The
job's own folder may be anywhere: paths of it stand in a kept file below ROOT, and `moved` replaces
that.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from tools import jobs

HERE = Path(__file__).parent
ZOO = HERE.parent / "zoo"
ROOT = "/where-it-was-made"
DATA = Path("/tmp/edl-kept")
JOB = "jobs/it"
PACKED = "left.tar.xz"
_SQLITE = b"SQLite format 3\0"


@dataclass(frozen=True)
class Kept:
    """One case of one version."""

    folder: Path

    def __str__(self) -> str:
        return f"{self.folder.parent.name}-{self.folder.name}"

    @cached_property
    def expected(self) -> dict[str, Any]:
        return json.loads((self.folder / "expected.json").read_text())

    def place(self, where: Path) -> Path:
        """Copy the kept folder to `where`, with what its settings name; return `where`."""
        if (self.folder / PACKED).exists():
            with tarfile.open(self.folder / PACKED) as packed:
                packed.extractall(where, filter="data")
        else:
            shutil.copytree(self.folder, where, dirs_exist_ok=True)
        records(self.expected["records"])
        (where / "zoo").symlink_to(ZOO)
        moved(where, {ROOT: str(where)})
        (where / JOB / "logs").mkdir(exist_ok=True)
        (where / "launched").symlink_to(HERE.parent / "launched")
        return where


def all_kept(*kinds: str) -> list[Any]:
    """Return the kept folders of all versions, of these kinds, as a test's parameters.

    The kind is `kind` of expected.json.

    `fails` in expected.json: why the code cannot read it yet; until then the test must fail.
    """
    found = sorted(path.parent for path in HERE.glob("*/*/expected.json"))
    return [
        pytest.param(
            kept,
            id=str(kept),
            marks=pytest.mark.xfail(
                "fails" in kept.expected, reason=kept.expected.get("fails", ""), strict=True
            ),
        )
        for kept in map(Kept, found)
        if kept.expected["kind"] in kinds
    ]


def records(count: int) -> Path:
    """Return the data of so many records, made by whichever test comes first."""
    path = DATA / f"records-{count}.npz"
    if not path.exists():
        DATA.mkdir(exist_ok=True)
        made = jobs.write_records(DATA / f"{os.getpid()}.npz", count)
        made.replace(path)
    return path


def moved(folder: Path, texts: Mapping[str, str]) -> None:
    """Replace texts in all files below a folder, those within SQLite's tables too."""
    for path in (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()):
        data = path.read_bytes()
        if data.startswith(_SQLITE):
            _move_rows(path, texts)
            continue
        made = data
        for old, new in texts.items():
            made = made.replace(old.encode(), new.encode())
        if made != data:
            path.write_bytes(made)


def _move_rows(path: Path, texts: Mapping[str, str]) -> None:
    """Replace texts in all of SQLite's tables; what its log has is in the file then."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            columns = database.execute(f"PRAGMA table_info({table})").fetchall()
            for _, column, *_ in columns:
                for old, new in texts.items():
                    database.execute(
                        f"UPDATE {table} SET {column} = replace({column}, ?, ?)"
                        f" WHERE typeof({column}) = 'text'",
                        (old, new),
                    )
        database.commit()
        database.execute("VACUUM")

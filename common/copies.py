"""Copies on this machine of checkpoints at stores, which are mapped from there.

    $EDL_HOME/copies/<of the URL>/<of the files' sha256>/   the files, each checked and then renamed

A folder's name says what is in it, so a copy is never old. Of each checkpoint_dir the three that
were used last are kept, and those of the last week of any other. Whoever has mapped a file keeps
it, and whoever finds one gone copies it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from .files import FileRecord
from .paths import home
from .places import Place

_KEPT = 3  # who follows a job reads the newest, and may still answer with the one before
_OLD_S = 7 * 24 * 3600.0


def folder(place: Place, files: Sequence[FileRecord]) -> Path:
    """Return the folder for the copies of these files of a checkpoint."""
    content = hashlib.sha256("".join(f"{f.name} {f.sha256}\n" for f in files).encode())
    of_url = hashlib.sha256(str(place.parent).encode()).hexdigest()
    return home() / "copies" / of_url[:16] / content.hexdigest()[:24]


def make_room(used: Path, now: float | None = None) -> None:
    """Make the folder, which is used now, and remove copies that are not any more."""
    now = time.time() if now is None else now
    used.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.utime(used, (now, now))
    for each in used.parent.parent.iterdir():
        keep = _KEPT if each == used.parent else 0
        for path, since in sorted(_ages(each), key=lambda found: found[1], reverse=True)[keep:]:
            if path != used and (keep or now - since > _OLD_S):
                shutil.rmtree(path, ignore_errors=True)


def _ages(each: Path) -> list[tuple[Path, float]]:
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in each.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append((path, path.stat().st_mtime))
    return found

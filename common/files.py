"""Files of this machine that are there whole or not at all, and what a manifest says of one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

Part = bytes | memoryview  # of bytes


@dataclass(frozen=True)
class FileRecord:
    """A file, as a manifest names it."""

    name: str
    nbytes: int
    sha256: str


def record_of(name: str, parts: Sequence[Part]) -> FileRecord:
    """Return what a file of these bytes is."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return FileRecord(name, sum(map(len, parts)), digest.hexdigest())


def write_file(path: Path, *parts: Part) -> FileRecord:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with contextlib.ExitStack() as undo:
        undo.callback(discard, temporary)
        with open(temporary, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        undo.pop_all()
    sync_directory(path.parent)
    return record_of(path.name, parts)


def no_room(error: OSError, where: Path) -> str:
    """Return what a user should know of a disk that is full; "" where the error is another one.

    `where`: what was written to, if the error does not say it.
    """
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # of the disk, or of one's quota
        return ""
    return f"{error.filename or where}: {error.strerror}: make room there"


def discard(path: Path) -> None:
    """Remove a file where it is; whatever keeps it there is of no matter."""
    with contextlib.suppress(OSError):
        path.unlink()


def sync_directory(path: Path) -> None:
    """Have the names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file, which is there whole once this returns."""
    try:
        os.link(source, target)
    except OSError:  # another file system
        with open(source, "rb") as read, open(target, "wb") as written:
            shutil.copyfileobj(read, written)
            written.flush()
            os.fsync(written.fileno())

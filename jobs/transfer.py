"""A file or a folder of a job as one stream, written and read, with its length and checksum.

What is sent is a tar archive of one entry, or an error in words, and an end that says how many
bytes it had and their SHA-256: so whatever broke off on the way is never taken for whole. What is
read stands beside its place under another name until all of it is there and right.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from ..common.errors import JobError, UsageError

_DATA, _ERROR = b"+", b"-"
_ENTRY = "content"  # its name in the archive
_END = struct.Struct(">Q32s")
_BLOCK = 1 << 20


class Sink(Protocol):
    """A place that takes bytes."""

    def write(self, data: bytes, /) -> object: ...


def send(root: Path, path: str, out: Sink, *, also: Sequence[Path] | None = ()) -> None:
    """Write a file or a folder, or why it cannot be had.

    `path` is relative to `root`; `also`: folders in which an absolute one may lie (None: any).
    """
    counted = _Counted(out)
    try:
        found = find(root, path, also=also)
        counted.write(_DATA)
        sink = cast("BinaryIO", counted)
        with tarfile.open(fileobj=sink, mode="w|", bufsize=_BLOCK) as archive:
            archive.add(found, arcname=_ENTRY)
    except UsageError as error:
        counted.write(_ERROR + str(error).encode())
    except OSError as error:  # a file that another process has taken away meanwhile
        counted.spoil(f"{error.filename or path}: {error.strerror or error}")
    counted.end()


def find(root: Path, path: str, *, also: Sequence[Path] | None = ()) -> Path:
    """Return what is meant by a path. Raises UsageError, which says what would be right."""
    if os.path.isabs(path) and also is not None and not also:
        raise UsageError(f"{path} is not relative to the job's folder: leave out the first /.")
    found = Path(os.path.normpath(root / path))
    inside = (root, *(also or ()))
    if also is None and os.path.isabs(path):
        inside = (Path("/"),)
    if not any(found.is_relative_to(each) for each in inside):
        raise UsageError(
            f"{path} leads out of the job's folder and its volumes: name a path in one of them."
            if also
            else f"{path} leads out of the job's folder: leave out '..'."
        )
    if also and not any(found.resolve().is_relative_to(each.resolve()) for each in inside):
        raise UsageError(
            f"{path} leads by a link to {found.resolve()}, out of the job's folder and its volumes."
        )
    if not found.exists():
        near = next(each for each in found.parents if each.is_dir())
        try:
            there = sorted(each.name for each in near.iterdir())[:20]
        except OSError:
            there = []
        listed = f"; in {near} there are: {', '.join(there)}." if there else "."
        raise UsageError(f"There is no {path} in the job's files{listed}")
    return found


class _Counted:
    """A sink that counts what goes through."""

    def __init__(self, out: Sink) -> None:
        self._out = out
        self._nbytes = 0
        self._sum = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._out.write(data)
        self._sum.update(data)
        self._nbytes += len(data)
        return len(data)

    def spoil(self, why: str) -> None:
        """Let nobody take for whole what was written."""
        self._sum.update(why.encode())

    def end(self) -> None:
        self._out.write(_END.pack(self._nbytes, self._sum.digest()))


# -- the other end


def split(said: str) -> tuple[str, str]:
    """Return the job and the path of JOB:PATH. Raises UsageError."""
    job, colon, path = said.partition(":")
    if not colon or not job:
        raise UsageError(f"{said}: say JOB:PATH, as in demo:checkpoints.")
    return job, path or "."


def place_for(name: str, dest: str, force: bool) -> Path:
    """Return where something of that name goes: into `dest` where that is a folder, else there.

    Raises UsageError where something stands there and `force` is not given.
    """
    target = Path(dest).absolute()
    if target.is_dir():
        target = target / (Path(name).name or "files")
    if not target.parent.is_dir():
        raise UsageError(f"There is no folder {target.parent}: make it first.")
    if os.path.lexists(target) and not force:
        raise UsageError(f"{target} is there already: say --force to replace it.")
    return target


def receive(pieces: Iterator[bytes], target: Path) -> int:
    """Read what `send` has written; return its bytes.

    Raises UsageError with the sender's words, JobError where it is not whole: then nothing has
    changed.
    """
    reader = _Reader(pieces)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as made:
        if reader.read(1) == _ERROR:
            said = reader.rest()
            reader.check()
            raise UsageError(said.decode(errors="replace"))
        try:
            source = cast("BinaryIO", reader)
            with tarfile.open(fileobj=source, mode="r|", bufsize=_BLOCK) as archive:
                archive.extractall(made, filter="data")
            reader.rest()
        except (tarfile.TarError, EOFError) as error:
            raise _broken(reader.nbytes, f"{error}") from error
        reader.check()
        entry = Path(made) / _ENTRY
        if not os.path.lexists(entry):
            raise _broken(reader.nbytes, "it is empty")
        if os.path.lexists(target):
            target.rename(Path(made) / "before")
        entry.rename(target)
    return reader.nbytes


def copy(root: Path, path: str, target: Path) -> int:
    """Copy a file or a folder of a job of this machine; return its bytes. Raises as `receive`."""
    out, into = os.pipe()
    with open(out, "rb") as source:

        def write() -> None:
            # a pipe that nobody reads any more
            with contextlib.suppress(BrokenPipeError), open(into, "wb") as sink:
                send(root, path, sink)

        sender = threading.Thread(target=write, name="send", daemon=True)
        sender.start()
        try:
            return receive(_blocks(source), target)
        finally:
            source.close()
            sender.join(60.0)


def _blocks(source: BinaryIO) -> Iterator[bytes]:
    while data := source.read(_BLOCK):
        yield data


def _broken(nbytes: int, why: str) -> JobError:
    return JobError(
        f"the copy broke off or is damaged after {nbytes:,} bytes ({why}): nothing was written; "
        "say it again."
    )


class _Reader:
    """A stream of pieces as a file, without its end, which is kept for `check`."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._kept = b""
        self._over = False
        self._sum = hashlib.sha256()
        self.nbytes = 0

    def read(self, size: int) -> bytes:
        while len(self._kept) < size + _END.size and not self._over:
            piece = next(self._pieces, None)
            self._over = piece is None
            self._kept += piece or b""
        size = max(0, min(size, len(self._kept) - _END.size))
        data, self._kept = self._kept[:size], self._kept[size:]
        self._sum.update(data)
        self.nbytes += len(data)
        return data

    def rest(self) -> bytes:
        found = []
        while data := self.read(_BLOCK):
            found.append(data[:_BLOCK])
        return b"".join(found)

    def check(self) -> None:
        """Raise JobError where the end is not that of what was read."""
        if len(self._kept) != _END.size:
            raise _broken(self.nbytes, "it has no end")
        nbytes, digest = _END.unpack(self._kept)
        if nbytes != self.nbytes:
            raise _broken(self.nbytes, f"{nbytes:,} were sent")
        if digest != self._sum.digest():
            raise _broken(self.nbytes, "its checksum is another")

"""Writes on a condition: a file is written only where it still is what was read.

On a disk a lock beside the file orders those who do so. At S3 the write has the condition itself
(If-None-Match, If-Match). Of other stores, and of servers of S3 that know no conditions, it is
asked what is there before the write and after it: of two who write at the very same moment both
may believe that they were first, until they look again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import EdlError
from .places import Place
from .retry import Backoff, retry
from .stores import Asking, open_store, protocols

_MOST_NBYTES = 1 << 16  # of such a file
_S3 = {"s3", "s3a"}
_LOCK_S = 10.0  # others hold the lock for as long as a small file is written
_LOCK_BACKOFF = Backoff(first_s=0.005, longest_s=0.2)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # of a network's disk


@dataclass(frozen=True)
class Seen:
    """A file as it was read, or written. `mark`: of that very write, at S3."""

    data: bytes
    mark: str = ""


class _Unconditional(EdlError):
    """The server knows no conditions."""


def seen(place: Place, name: str, asking: Asking | None = None) -> Seen | None:
    """Return the file of that name in a place; None: it is not there. Raises OSError."""
    fs, path = _of_s3(place, name)
    try:
        if fs is None:
            return Seen(place.read(name, _MOST_NBYTES))
        return (asking or Asking()).ask("read", f"{place}/{name}", lambda: _read(fs, path))
    except FileNotFoundError:
        return None


def swap(
    place: Place, name: str, data: bytes, before: Seen | None, asking: Asking | None = None
) -> Seen | None:
    """Write a file where it still is `before` (None: not there); None: it is another by now.

    Nobody else writes such `data`: so it is known again where the answer to a write was lost.
    Raises OSError.
    """
    place.make()
    fs, path = _of_s3(place, name)
    if place.is_local:
        with _locked(place.path / f".{name}.lock"):
            return _write_over(place, name, data, before)
    if fs is None:
        return _write_over(place, name, data, before)
    try:
        put = (asking or Asking()).ask(
            "written", f"{place}/{name}", lambda: _put(fs, path, data, before)
        )
    except _Unconditional:
        return _write_over(place, name, data, before)
    if put is not None:
        return put
    now = seen(place, name, asking)
    return now if now is not None and now.data == data else None


def _write_over(place: Place, name: str, data: bytes, before: Seen | None) -> Seen | None:
    """Do as `swap`, by looking before and after the write."""
    if _data(seen(place, name)) != _data(before):
        return None
    place.write(name, data)
    now = seen(place, name)
    return now if _data(now) == data else None


def _data(file: Seen | None) -> bytes | None:
    return None if file is None else file.data


def _of_s3(place: Place, name: str) -> tuple[Any, str]:
    """Return fsspec's S3, and the file's path there; None of any other place."""
    if place.is_local:
        return None, ""
    fs, root = open_store(place.url)
    return (fs if protocols(fs) & _S3 else None), f"{root}/{name}"


def _read(fs: Any, path: str) -> Seen:
    about = fs.info(path)
    if int(about["size"] or 0) > _MOST_NBYTES:
        raise ValueError(f"{about['size']} bytes, where {_MOST_NBYTES} are believed")
    data, mark = fs.cat_file(path), str(about["ETag"])
    if str(fs.info(path)["ETag"]) != mark:
        raise OSError(errno.EBUSY, "it changes as it is read")  # asked again
    return Seen(data, mark)


def _put(fs: Any, path: str, data: bytes, before: Seen | None) -> Seen | None:
    """Put an object on its condition; None: it does not hold. Raises _Unconditional."""
    condition = {"mode": "create"} if before is None else {"IfMatch": before.mark}
    try:
        answer = fs.pipe_file(path, data, **condition)
    except FileExistsError:
        return None
    except OSError as error:
        status = _status(error)
        if status == 412 or (status == 404 and before is not None):
            return None
        if error.errno == errno.ENOSYS:
            raise _Unconditional from error
        raise
    mark = answer.get("ETag") if isinstance(answer, dict) else None
    if mark:
        return Seen(data, str(mark))
    now = _read(fs, path)
    return now if now.data == data else None


def _status(error: OSError) -> int | None:
    """Return the status of HTTP with which a server of S3 has refused."""
    response = getattr(error.__cause__ or error.__context__, "response", None) or {}
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return int(status) if status else None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of this file, which stays; a disk that has no locks goes without."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:  # of another user
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def lock(_left_s: float) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise

    try:
        retry(lock, _LOCK_BACKOFF, _LOCK_S, on=(BlockingIOError,), wait=time.sleep)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked has it open, too
        os.close(descriptor)

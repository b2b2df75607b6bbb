"""Stores of files that fsspec knows by a URL, asked until a deadline.

What fails is tried again with growing pauses; then it is one StoreError, an OSError. A call that
hangs counts as one that fails. What more tries would not change (no such file, no rights) is an
error at once.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from . import background
from .errors import EdlError, UsageError
from .retry import Backoff, retry

log = logging.getLogger(__name__)

_BACKOFF = Backoff(first_s=0.2, longest_s=5.0)
_LEAST_S = 1.0  # for the last try
_AT_ONCE = 4  # files: one connection to a store fills no network, and pieces are of 64 MiB
# Asked for a folder, s3fs would make a bucket of a name that was mistyped.
_BUCKETS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci"}
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError"}  # as botocore names them
_FINAL: tuple[type[Exception], ...] = (  # as it is asked, not as the store is
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ValueError,
    TypeError,
    NotImplementedError,
)

Value = TypeVar("Value")
Item = TypeVar("Item")


class StoreError(OSError):
    """A store did not do what it was asked, for as long as it was asked.

    `strerror` is the last reason, `filename` the URL.
    """

    def __init__(self, what: str, url: str, reason: str, seconds: float) -> None:
        super().__init__(errno.EIO, reason, url)
        tried = f", tried for {seconds:.0f} s" if seconds >= 1 else ""
        self._text = f"{url} cannot be {what}: {reason}{tried}"

    def __str__(self) -> str:
        return self._text


@dataclass(frozen=True)
class Asking:
    """The patience with one call of a store: `patience_s` over all its tries (a guess)."""

    patience_s: float = 30.0
    wait: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def ask(self, what: str, url: str, call: Callable[[], Value]) -> Value:
        """Return what the store answers; `what` is being done to `url`. Raises OSError."""
        began, reason = self.clock(), ""

        def attempt(left_s: float) -> Value:
            nonlocal reason
            try:
                return background.begin(f"{url} {what}", call).result(max(left_s, _LEAST_S))
            except (EdlError, MemoryError):  # not of the store
                raise
            except _FINAL as error:
                raise _Final(error) from error
            except Exception as error:  # no tuple names the errors of all backends
                reason = reason_of(error) or reason or "it does not answer"
                kind = _Final if type(error).__name__ in _NO_CREDENTIALS else _Failed
                raise kind(error) from error

        try:
            return retry(
                attempt,
                _BACKOFF,
                self.patience_s,
                on=(_Failed,),
                wait=self.wait,
                clock=self.clock,
            )
        except _Final as error:
            raise _as_os_error(error.inner, what, url) from error.inner
        except _Failed as error:
            raise StoreError(what, url, reason, self.clock() - began) from error.inner


class _Failed(Exception):
    """A call of a backend that may succeed the next time."""

    def __init__(self, inner: Exception) -> None:
        super().__init__(str(inner))
        self.inner = inner


class _Final(Exception):
    """A call of a backend that says no."""

    def __init__(self, inner: Exception) -> None:
        super().__init__(str(inner))
        self.inner = inner


def _as_os_error(error: Exception, what: str, url: str) -> OSError:
    if isinstance(error, FileNotFoundError) and what != "written":  # else: no such bucket
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
    return StoreError(what, url, reason_of(error), 0.0)


def reason_of(error: Exception) -> str:
    """Return what an error of a store says; "" of one that only says that the time is over."""
    said = (isinstance(error, OSError) and error.strerror) or str(error)
    silent = "" if isinstance(error, TimeoutError) else repr(error)
    return " ".join(said.split()) or silent


def open_store(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path there; None for this machine's.

    Raises UsageError where there is none.
    """
    from fsspec.implementations.local import LocalFileSystem

    host = "/".join(url.split("/")[:3]) if "::" not in url else url
    try:
        fs = _file_system(host, os.getpid())
    except (ImportError, ValueError) as error:
        raise UsageError(
            f"{url} cannot be opened: {error}. Install the fsspec package of that protocol, or "
            "name a local folder."
        ) from error
    root = fs._strip_protocol(url.rpartition("::")[2]).rstrip("/")
    if isinstance(fs, LocalFileSystem):
        return None, root
    fs.dircache.use_listings_cache = False  # others write there, too
    return fs, root


@functools.cache
def _file_system(url: str, _process: int) -> Any:
    """Return what fsspec has for a URL, one for all threads: each would have its own else."""
    import fsspec  # slow, and seldom needed

    return fsspec.core.url_to_fs(url)[0]


def awaited(
    what: str, url: str, call: Callable[[], Value], quiet_s: float = 10.0, most_s: float = 300.0
) -> Value:
    """Return what one long call of a store answers, as the listing of a million files is.

    After `quiet_s` the log tells what is waited for (a guess: nobody wonders before). Raises
    StoreError after `most_s`, and what the call raises.
    """
    future = background.begin(f"{url} {what}", call)
    if not wait((future,), quiet_s).done:
        log.warning("%s is not %s after %.0f s: waiting for its store.", url, what, quiet_s)
        if not wait((future,), most_s - quiet_s).done:
            reason = f"its store has not answered for {most_s:.0f} s: see that it can be reached"
            raise StoreError(what, url, reason, 0.0)
    return future.result()


def protocols(fs: Any) -> set[str]:
    """Return the names by which URLs of a file system may begin."""
    return {fs.protocol} if isinstance(fs.protocol, str) else {*fs.protocol}


def has_folders(fs: Any) -> bool:
    """Tell whether a folder is to be made there before a file; in a bucket there are only names."""
    return not protocols(fs) & _BUCKETS


def at_once(
    fs: Any, work: Callable[[Item], Value], items: Iterable[Item], most: int = _AT_ONCE
) -> Iterator[Value]:
    """Yield what `work` makes of each, in order; `most` at once where `fs` takes several calls."""
    most = most if fs.async_impl else 1
    ahead: deque[Future[Value]] = deque()
    for item in items:
        ahead.append(background.begin("files of a store", functools.partial(work, item)))
        if len(ahead) >= most:
            yield ahead.popleft().result()  # each ends: Asking has a deadline
    while ahead:
        yield ahead.popleft().result()

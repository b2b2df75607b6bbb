"""A lock that many may share, or one may have alone; kernels may share it, too, for a moment."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numba import types
from numpy.typing import NDArray

from ...common.errors import EdlError
from ...common.patience import LIMIT_S, Patience
from ...kernels.compile import INTS_1D, compiled, fetch_add, inlined

_WHAT = "a table's rows, which another thread has"
_ALONE = 1  # of the word: kernels must not begin to share
_SHARER = 2  # of the word: one for each kernel that shares


class SharedLock:
    """A lock that many share by `with lock:`, and that one may have alone.

    Not reentrant. Who wants it alone goes before who comes to share.

    `word` int64[1]: a kernel shares with `try_share`, does not block, and ends with `unshare`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._sharing = 0
        self._alone = False
        self._waiting = 0  # to be alone
        self.word: NDArray[np.int64] = np.zeros(1, np.int64)
        self._add = compiled(_add, INTS_1D, types.int64)

    def __enter__(self) -> None:
        with self._lock:
            patience: Patience | None = None
            while self._alone or self._waiting:
                patience = patience or Patience(_WHAT)
                patience.wait(self._changed)
            self._sharing += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._sharing -= 1
            if self._waiting and not self._sharing:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[Callable[[], None]]:
        """Take the lock for oneself.

        What is yielded goes over to sharing it, with nobody in between.
        """
        patience = Patience(_WHAT)
        with self._changed:
            self._waiting += 1
            try:
                while self._alone or self._sharing:
                    patience.wait(self._changed)
                self._alone = True
            finally:
                self._waiting -= 1
                if not self._alone:
                    self._changed.notify_all()
        self._add(self.word, _ALONE)
        alone = True

        def share() -> None:
            nonlocal alone
            self._add(self.word, -_ALONE)
            with self._changed:
                alone = self._alone = False
                self._sharing += 1
                self._changed.notify_all()

        try:
            until = time.monotonic() + LIMIT_S
            while self.word[0] != _ALONE:  # kernels that are about to end
                os.sched_yield()
                if time.monotonic() > until:
                    raise EdlError(f"gave up waiting for a kernel that shares {_WHAT}")
            yield share
        finally:
            if alone:
                self._add(self.word, -_ALONE)
            with self._changed:
                if alone:
                    self._alone = False
                else:
                    self._sharing -= 1
                self._changed.notify_all()


# -- Compiled by numba


def _add(word, value):  # type: ignore[no-untyped-def]
    fetch_add(np.int64(word.ctypes.data), value)


@inlined
def try_share(address):  # type: ignore[no-untyped-def]
    """Share the lock whose word is at `address`; False where somebody has or gets it alone."""
    if fetch_add(address, _SHARER) & _ALONE == 0:
        return True
    fetch_add(address, -_SHARER)
    return False


@inlined
def unshare(address):  # type: ignore[no-untyped-def]
    fetch_add(address, -_SHARER)

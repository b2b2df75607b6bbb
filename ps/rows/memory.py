"""Memory that is reserved at once and never moves: pages come as they are needed.

A reservation takes address space only, so a column may become as long as the machine's memory
allows, and grows without a copy. Fresh pages are zeros.

A random access to 10 M rows is one cache miss on huge pages and two on small ones, which halves the
speed of a lookup. But a huge page has to be cleared when it is first written, which takes 0.2 ms
and, where a host must first find the memory, 9 ms: a pause. So a thread of the process prepares
huge pages ahead of the use. A writer who overtakes it gets small pages, quickly: the thread leaves
out the huge pages that he comes near to, or he would have to clear one himself. The first 2 MiB are
small pages in any case, so that a small table stays small. Linux.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import queue
import threading
from collections.abc import Callable

import numpy as np
import psutil
from numpy.typing import NDArray

HUGE = 2 << 20
_AHEAD_NBYTES = 64 << 20  # at most; a quarter of what is in use
_NEAR_NBYTES = 8 << 20  # at most, an eighth: what is written while a few huge pages are cleared
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # named since Python 3.13
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # what is shared has no huge pages (shmem_enabled)
_POPULATE_WRITE = 23  # madvise(2), since Linux 5.14; where it fails, pages come when written


def huge_pages(nbytes: int) -> NDArray[np.uint8]:
    """Return fresh private memory of whole pages, huge ones as the machine has them.

    It is there from its first use until the last view of it is gone.
    """
    memory = _aligned(nbytes, _FLAGS)
    _madvise()(memory.ctypes.data, nbytes, mmap.MADV_HUGEPAGE)
    return memory


def _aligned(nbytes: int, flags: int) -> NDArray[np.uint8]:
    everything = np.frombuffer(mmap.mmap(-1, nbytes + HUGE, flags=flags), np.uint8)
    start = -everything.ctypes.data % HUGE
    return everything[start : start + nbytes]


class Memory:
    """`bytes` uint8[n]: zeros, aligned to 2 MiB, freed with the last view of it."""

    def __init__(self, item_nbytes: int, items: int) -> None:
        """Reserve room for `items`, or for half, a quarter, ... if there is no address space."""
        while True:
            nbytes = -(-item_nbytes * items // HUGE) * HUGE
            try:
                self.bytes = _aligned(nbytes, _FLAGS | _NORESERVE)
                break
            except OSError:
                if items < 1 << 20:
                    raise
                items //= 2
        self._lock = threading.Lock()
        self._wanted = self._ready = HUGE
        self._written = 0  # by one who goes on from there

    def use(self, nbytes: int, *, ahead: bool = True, wait: bool = False) -> None:
        """Take note that the first `nbytes` are about to be used.

        They are prepared, and what may follow (`ahead`).

        wait: here and now. For who writes so much that he would overtake the thread.
        """
        if ahead and not wait:
            self._written = nbytes
        if ahead:
            wanted = nbytes + min(nbytes // 4, _AHEAD_NBYTES)
        else:  # all of it soon: the last page too, where that is not much
            wanted = nbytes + (HUGE - 1 if nbytes >= _NEAR_NBYTES else 0)
        wanted = min(wanted // HUGE * HUGE, len(self.bytes))
        if wanted > self._wanted:
            self._wanted = wanted
            if wait:
                self.prepare(wanted)
            else:
                _asked().put((self, wanted))

    def prepare(self, end: int) -> None:
        """Prepare huge pages up to `end`, as the machine has them."""
        with self._lock:
            start, self._ready = self._ready, max(end, self._ready)
            if start >= end:
                return
            first, advise = self.bytes.ctypes.data, _madvise()  # without the GIL
            behind = min(start, self._written) // HUGE * HUGE
            if behind > HUGE:  # what was left out: the kernel may put small pages together
                advise(first + HUGE, behind - HUGE, mmap.MADV_HUGEPAGE)
            for at in range(start, end, HUGE):  # one by one: a writer in between is not held up
                if at >= self._written + min(self._written // 8, _NEAR_NBYTES):
                    advise(first + at, HUGE, mmap.MADV_HUGEPAGE)
                    advise(first + at, HUGE, _POPULATE_WRITE)


@functools.cache
def _madvise() -> Callable[[int, int, int], int]:
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


@functools.cache
def _asked() -> queue.SimpleQueue[tuple[Memory, int]]:
    """Return the queue of what a thread of this process is to prepare."""
    asked: queue.SimpleQueue[tuple[Memory, int]] = queue.SimpleQueue()

    def work() -> None:
        while True:
            memory, end = asked.get()
            memory.prepare(end)
            del memory  # it may be the last to know of it

    threading.Thread(target=work, name="prepare-memory", daemon=True).start()
    return asked


def physical_nbytes() -> int:
    """Return the machine's memory: no column can be longer."""
    return psutil.virtual_memory().total

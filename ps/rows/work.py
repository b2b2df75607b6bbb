"""Pieces of work for two threads: the one that needs them, and one that has a free core.

The process has as many threads for this as cores beyond the first, and asks one where the machine
has a core that is idle at that moment. That thread is sent to another core than who asks it, before
it is woken: in a virtual machine Linux takes a core for busy that has been idle for a millisecond,
and would wake it where it must wait for who asks (docs/performance.md). Whoever needs the pieces
works on them himself, and never waits for one that nobody has begun: if the core has found
something else to do, help comes late or not at all, and cost no more than asking for it.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from ...common.patience import Patience

_LOAD = "/proc/loadavg"
_WHAT = "rows that another core gathers"
_this_core: Callable[[], int] = ctypes.CDLL(None).sched_getcpu


class Work:
    """Pieces of work: `with Work(pieces) as work:` at its end all are done.

    Raises what a piece raised.

    `ahead`: so many pieces are begun at first, and one more each time `release` is called.
    """

    def __init__(self, pieces: Sequence[Callable[[], None]], ahead: int | None = None) -> None:
        self._pieces = pieces
        numbers = iter(range(len(pieces)))
        # both threads take from it: a deque's methods are atomic
        self._left = collections.deque(itertools.islice(numbers, ahead))
        self._later = numbers
        self._done = [False] * len(pieces)
        self._help: Future[None] | None = None

    def __enter__(self) -> Self:
        self._ask()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self._left.extend(self._later)
                while self._do_next():
                    self._ask()
        finally:
            self._left.clear()  # after an error: nobody begins another one
            if self._help is not None and not self._help.cancel():
                Patience(_WHAT).result(self._help)

    def wait(self, number: int) -> None:
        """Wait until this piece is done; they are begun in their order."""
        while not self._done[number]:
            self._ask()
            if not self._do_next():
                assert self._help is not None
                Patience(_WHAT).result(self._help)

    def release(self) -> None:
        """Say that what a piece made is no longer needed: one more may be begun."""
        self._left.extend(itertools.islice(self._later, 1))

    def _ask(self) -> None:
        """Ask a core that is free, if there is one, and if there is work for it."""
        helpers = _helpers()
        if not helpers or len(self._left) < 2:
            return
        if self._help is not None:
            if not self._help.done():
                return
            self._help.result()
        if not _core_is_idle():
            return
        try:
            helper = helpers.pop()
        except IndexError:  # others were faster
            return
        helper.leave_core()
        self._help = helper.submit(self._do_some)
        self._help.add_done_callback(lambda _: helpers.append(helper))

    def _do_some(self) -> None:
        while self._do_next():
            os.sched_yield()  # who waits for this core, as the peer may, goes first

    def _do_next(self) -> bool:
        try:
            number = self._left.popleft()
        except IndexError:
            return False
        self._pieces[number]()
        self._done[number] = True
        return True


class _Helper(ThreadPoolExecutor):
    """An executor of one thread, which helps another one."""

    def __init__(self) -> None:
        super().__init__(1, "work")
        self.thread = self.submit(threading.get_native_id).result()

    def leave_core(self) -> None:
        """Let the thread, which waits, go on on another core than the caller's."""
        with contextlib.suppress(OSError):  # there is no other, or a sandbox forbids it
            others = os.sched_getaffinity(0) - {_this_core()}
            os.sched_setaffinity(self.thread, others)


@functools.cache
def _helpers() -> collections.deque[_Helper]:
    """Return the helpers that are free."""
    return collections.deque(_Helper() for _ in range(len(os.sched_getaffinity(0)) - 1))


def _core_is_idle() -> bool:
    """Tell whether fewer threads run now than the machine has cores.

    It is the fourth field of proc_loadavg(5).
    """
    running = os.pread(_loads(), 64, 0).split()[3].partition(b"/")[0]
    return int(running) < _num_cores()


@functools.cache
def _loads() -> int:
    """Open the load's file for good: to open it each time takes longer than all the rest."""
    return os.open(_LOAD, os.O_RDONLY | os.O_CLOEXEC)


@functools.cache
def _num_cores() -> int:
    return os.cpu_count() or 1

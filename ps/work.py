"""Pieces of work for two threads: the one that needs them, and one that has a free core.

The process has as many threads for this as cores beyond the first, and asks one where the machine
has a core that is idle at that moment. Whoever needs the pieces works on them himself, and never
waits for one that nobody has begun: if the core has found something else to do, help comes late or
not at all, and cost no more than asking for it.
"""

from __future__ import annotations

import collections
import functools
import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

_LOAD = "/proc/loadavg"


class Work:
    """`with Work(pieces) as work:` at its end all are done. Raises what a piece raised.

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
                self._help.result()

    def wait(self, number: int) -> None:
        """Until this piece is done; they are begun in their order."""
        while not self._done[number]:
            self._ask()
            if not self._do_next():
                assert self._help is not None
                self._help.result()

    def release(self) -> None:
        """What a piece made is no longer needed: one more may be begun."""
        self._left.extend(itertools.islice(self._later, 1))

    def _ask(self) -> None:
        """A core that is free, if there is one, and work for it."""
        helpers = _helpers()
        if helpers is None or len(self._left) < 2:
            return
        if self._help is not None:
            if not self._help.done():
                return
            self._help.result()
        if _core_is_idle():
            self._help = helpers.submit(self._do_some)

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


@functools.cache
def _helpers() -> ThreadPoolExecutor | None:
    """None: there is no core for them."""
    spare_cores = len(os.sched_getaffinity(0)) - 1
    return ThreadPoolExecutor(spare_cores, "work") if spare_cores else None


def _core_is_idle() -> bool:
    """Fewer threads run now than the machine has cores: proc_loadavg(5)'s fourth field."""
    running = os.pread(_loads(), 64, 0).split()[3].partition(b"/")[0]
    return int(running) < _num_cores()


@functools.cache
def _loads() -> int:
    """Open for good: to open it each time takes longer than all the rest."""
    return os.open(_LOAD, os.O_RDONLY | os.O_CLOEXEC)


@functools.cache
def _num_cores() -> int:
    return os.cpu_count() or 1

"""Pieces of work for two threads: the one that needs them, and one that has a free core.

The process has as many threads for this as cores beyond the first, and asks one where the machine
has a core that is idle at that moment. Whoever needs the pieces works on them himself, and never
waits for one that nobody has begun: if the core has found something else to do, help comes late or
not at all, and cost no more than asking for it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

_LOAD = Path("/proc/loadavg")


class Work:
    """`with Work(pieces) as work:` at its end all are done. Raises what a piece raised."""

    def __init__(self, pieces: Sequence[Callable[[], None]]) -> None:
        self._pieces = pieces
        self._left = iter(range(len(pieces)))  # both threads take from it: `next` is atomic
        self._done = [False] * len(pieces)
        self._help: Future[None] | None = None

    def __enter__(self) -> Self:
        helpers = _helpers()
        if helpers is not None and _core_is_idle():
            self._help = helpers.submit(self._do_all)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self._do_all()
        finally:
            for _ in self._left:  # after an error: nobody begins another one
                pass
            if self._help is not None and not self._help.cancel():
                self._help.result()

    def wait(self, number: int) -> None:
        """Until this piece is done; they are begun in their order."""
        while not self._done[number]:
            if not self._do_next():
                assert self._help is not None
                self._help.result()

    def _do_all(self) -> None:
        while self._do_next():
            pass

    def _do_next(self) -> bool:
        number = next(self._left, None)
        if number is None:
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
    running = _LOAD.read_text().split()[3].partition("/")[0]
    return int(running) < (os.cpu_count() or 1)

"""Where threads run that work at the same time: not on one core while another one idles.

Linux wakes a thread that waits for a message on the core of the sender, unless it knows an idle one.
On a virtual machine it soon knows none: a core that has been idle for a millisecond counts as taken,
for its virtual CPU does not run (vcpu_is_preempted). So after each pause, as in training, the two
ends of a connection and the threads of a server began on one core, and stayed there for
milliseconds: a pull and a push took up to twice as long (docs/performance.md). Here a thread tells
the kernel where it must not run, for as long as it matters.

All of it is a courtesy. It ends where more threads run than there are cores, and whom the kernel
refuses stays where he is.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Collection, Iterator

_LOAD = "/proc/loadavg"

this: Callable[[], int] = ctypes.CDLL(None).sched_getcpu  # the core that the caller runs on, or -1


def one_is_idle() -> bool:
    """Fewer threads run now than the machine has cores."""
    return _running() < _count()


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """This thread stays on its core, wherever it is woken from."""
    with _only_on(lambda allowed: allowed & {this()}):
        yield


@contextlib.contextmanager
def apart(other: int) -> Iterator[None]:
    """This thread leaves the core `other` alone, at once."""
    with _only_on(lambda allowed: allowed - {other}):
        yield


def send_away(thread: int) -> None:
    """Let a thread of this process (its native id), which waits, go on on another core than this."""
    # those of the main thread: the caller may have left some alone
    _allow(thread, os.sched_getaffinity(os.getpid()) - {this()})


@contextlib.contextmanager
def _only_on(chosen: Callable[[set[int]], set[int]]) -> Iterator[None]:
    if _running() > _count():
        yield
        return
    allowed = os.sched_getaffinity(0)
    _allow(0, chosen(allowed))
    try:
        yield
    finally:
        _allow(0, allowed)


def _allow(thread: int, cores: Collection[int]) -> None:
    with contextlib.suppress(OSError):  # none of them, or a sandbox that forbids it: see above
        os.sched_setaffinity(thread, cores)


def _running() -> int:
    """How many threads run or could: proc_loadavg(5)'s fourth field."""
    return int(os.pread(_loads(), 64, 0).split()[3].partition(b"/")[0])


@functools.cache
def _loads() -> int:
    """Open for good: to open it each time takes longer than all the rest."""
    return os.open(_LOAD, os.O_RDONLY | os.O_CLOEXEC)


@functools.cache
def _count() -> int:
    return os.cpu_count() or 1

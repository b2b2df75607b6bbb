"""Find what a test leaves behind: threads, child processes, descriptors and shared memory.

What one test leaves is the next one's riddle: a thread that logs into its output, a port that is
taken, a machine whose memory fills. Where nothing is left the search takes a fraction of a
millisecond; where something is, it is first given the time to come to its end.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import re
import resource
import select
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

SOON_S = 0.3  # in which nearly all ends by itself
GRACE_S = 90.0  # seldom more than milliseconds; a watch of the Kubernetes API ends after a minute

# What is made once in a process, at its first use, and kept to the end of the process: the event
# loops of grpc.aio and fsspec, the threads of ps/rows/work.py and memory.py, a thread of C that has
# called Python (its entry is never removed), the clock of pytest-timeout, tqdm's monitor and the
# lock of its bars.
_KEPT_LOOPS = re.compile(r"Thread-\d+ \(_poll_wrapper\)|fsspecIO")
_MONITOR = "tqdm_monitor"
_KEPT_THREADS = re.compile(rf"work_\d+|prepare-memory|Dummy-\d+|pytest_timeout .*|{_MONITOR}")
_LOCK = re.compile(r"/dev/shm/sem\.\w+ \(deleted\)")
# epoll and eventfd of the pools of gRPC and of event loops; devices; code that was just imported
# or compiled, whose file is open for a moment; the load that ps/rows/work.py looks at.
_KEPT_FILES = re.compile(
    r"anon_inode:\[event(poll|fd)\]|/dev/(null|urandom|pts/.*)|/proc/loadavg|.*\.(so|nbi|nbc|pyc?)\b.*"
)
MARK = "LEFT_BY_TEST"
_numbers = itertools.count()
_SHARED = ("/memfd:", "/dev/shm/", "/dev/zero")  # the last is shared memory without a name


@dataclass(frozen=True)
class Held:
    """The threads, children, descriptors and mappings that this process has at a moment."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    descriptors: Counter[str]
    mappings: frozenset[str]
    ended_children: tuple[float, ...]

    @classmethod
    def now(cls) -> Held:
        """Return what this process holds now."""
        return cls(
            frozenset(threading.enumerate()),
            frozenset(_children()),
            Counter(_descriptors()),
            frozenset(os.listdir("/proc/self/map_files")),
            tuple(resource.getrusage(resource.RUSAGE_CHILDREN)),
        )


def mark() -> None:
    """Let the processes that are started from now on be known by their environment."""
    os.environ[MARK] = f"{os.getpid()}-{next(_numbers)}"


def left_since(before: Held) -> list[str]:
    """Tell what is held now and was not before, once it has had `GRACE_S` seconds to end."""
    left = _left(before)
    if not left:
        return []
    # A journal, a socket or who stops a thread may be in a cycle of references, mostly a young one:
    # to look at all that torch has made takes a quarter of a second.
    gc.collect(1)
    soon = time.monotonic() + SOON_S
    while left and time.monotonic() < soon:
        time.sleep(0.005)
        left = _left(before)
    if not left:
        return []
    deadline = time.monotonic() + GRACE_S
    gc.collect()
    for thread in _threads(before, Held.now()):
        with contextlib.suppress(RuntimeError):  # it is just being begun: the loop below waits
            thread.join(max(0.0, deadline - time.monotonic()))
    for process in _processes(before, Held.now()):
        _await(process, max(0.0, deadline - time.monotonic()))
    # Threads of C (gRPC's, say) close their descriptors without telling anybody: there is no event.
    while (left := _left(before)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def _left(before: Held) -> list[str]:
    now = Held.now()
    files = now.descriptors - before.descriptors
    loops = sum(1 for each in now.threads - before.threads if _KEPT_LOOPS.fullmatch(each.name))
    for socket in [file for file in files if file.startswith("socket:")][: 2 * loops]:
        del files[socket]  # of the pair that wakes a loop
    shared = [_mapped(place) for place in now.mappings - before.mappings]
    if any(each.name == _MONITOR for each in now.threads - before.threads):
        shared = [file for file in shared if not _LOCK.fullmatch(file)]
    return [
        *(f"thread {thread.name!r}" for thread in _threads(before, now)),
        *(f"process {process} ({_command(process)})" for process in _processes(before, now)),
        *(f"{count} x descriptor of {file}" for file, count in files.items()),
        *(f"shared memory {file}" for file in shared if file.startswith(_SHARED)),
    ]


def _threads(before: Held, now: Held) -> list[threading.Thread]:
    new = now.threads - before.threads
    kept = (_KEPT_LOOPS, _KEPT_THREADS)
    return [each for each in new if not any(names.fullmatch(each.name) for names in kept)]


def _processes(before: Held, now: Held) -> set[int]:
    """Return the children, and the orphans of those that have ended, of after `before`."""
    new = set(now.children - before.children)
    if now.ended_children == before.ended_children:
        return new
    return (new | marked()) - {os.getpid()}


def marked() -> set[int]:
    """Return the processes that were started since the last `mark`, and this one."""
    found, line = {os.getpid()}, f"{MARK}={os.environ.get(MARK)}".encode()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if line in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.add(int(name))
    return found


def _children() -> list[int]:
    found: list[int] = []
    for task in os.listdir("/proc/self/task"):
        try:
            found += map(int, Path(f"/proc/self/task/{task}/children").read_text().split())
        except FileNotFoundError:  # the thread has ended
            continue
    return found


def _await(process: int, timeout_s: float) -> None:
    try:
        ended = os.pidfd_open(process)
    except ProcessLookupError:
        return
    end = select.poll()
    end.register(ended, select.POLLIN)
    end.poll(timeout_s * 1000)
    os.close(ended)


def _command(process: int) -> str:
    try:
        line = Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ").strip()
    except FileNotFoundError:
        return "ended"
    return line[:200] or "ended, and nobody has waited for it"


def _descriptors() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            file = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # the listing's own
            continue
        if not _KEPT_FILES.fullmatch(file):
            found.append(file)
    return found


def _mapped(place: str) -> str:
    try:
        return os.readlink(f"/proc/self/map_files/{place}")
    except FileNotFoundError:  # it is gone meanwhile
        return ""

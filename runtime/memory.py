"""Tell whether the kernel may have killed for want of memory, which a plain SIGKILL does not say.

The kernel counts its kills by memory cgroup, and does not say whom: so one is a guess, told as one.
A kill is told of one process: of the first that is found to have been killed since.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..common.cgroups import MOUNT, OWN, groups_of


def oom_kills(groups: Path = MOUNT, own: Path = OWN) -> int:
    """Return how many processes the kernel has killed so in this process's memory cgroup.

    Its children are in the same one. It is 0 where the kernel does not tell.
    """
    for path in _counters(groups, own):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        found = (line.split() for line in lines if line.startswith("oom_kill "))
        return next((int(words[1]) for words in found), 0)
    return 0


def _counters(groups: Path, own: Path) -> Iterator[Path]:
    """Yield the files that may count: of cgroup v2, and of v1's memory controller."""
    for tree, group in groups_of("memory", own, groups):
        if tree == groups:
            yield group / "memory.events"
        else:
            yield group / "memory.oom_control"
            yield tree / "memory.oom_control"  # where a container sees its own alone


@dataclass(frozen=True)
class Since:
    """The kills, and those of them that were told of, when a process began."""

    kills: int
    told: int


class Kills:
    """The kills for want of memory that the processes of one runtime may have met."""

    def __init__(self, count: Callable[[], int] = oom_kills) -> None:
        """Count by `count`."""
        self._count = count
        self._lock = threading.Lock()
        self._told = 0

    def begin(self) -> Since:
        """Return what is to be compared with when a process that begins now has ended."""
        with self._lock:
            return Since(self._count(), self._told)

    def why(self, code: int, since: Since) -> str:
        """Say how a process may have ended that began then; "": its code says it all."""
        if code != -signal.SIGKILL:
            return ""
        with self._lock:
            if self._count() - since.kills <= self._told - since.told:
                return ""
            self._told += 1
        return (
            "was killed by SIGKILL, which may have been for want of memory: the kernel has killed "
            "a process of its memory group so since it began"
        )

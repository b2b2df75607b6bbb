"""The seam between the master and whatever runs replicas: local processes, pods.

A replica is one process of a role. The runtime starts and stops replicas and reports each exit
once; what should run is decided elsewhere (master/replicas.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Replica:
    """A process.

    `role` is "worker", "server" or "teacher"; `incarnation` is unique per process.

    `started` tells the process from a later one of the same pid (here: ticks since boot). Without a
    pid it does not run yet, and the runtime reports when it does.
    """

    role: str
    index: int
    incarnation: str
    pid: int = 0
    started: int = 0


@dataclass(frozen=True)
class Running:
    """A replica that was started without a pid runs now."""

    replica: Replica


@dataclass(frozen=True)
class Exit:
    """A replica has ended: with an exit code, or by a signal (then `code` is minus its number).

    What lies outside the process (eviction, the loss of a node) is a SIGKILL too. `why`: how it
    ended, in words, where more is known than the code. `unknown`: how cannot be known (it was no
    child of this process), and `code` is only a guess.
    """

    replica: Replica
    code: int
    unknown: bool = False
    why: str = ""


@dataclass(frozen=True)
class Note:
    """Something that the user should know, of a replica or of the runtime itself."""

    replica: Replica | None
    text: str


Report = Running | Exit | Note
OnReport = Callable[[Report], None]


class Runtime(Protocol):
    """The starting, stopping and watching of replicas. Any thread may call, and no call blocks."""

    def start(
        self,
        role: str,
        index: int,
        incarnation: str,
        env: Mapping[str, str],
        arguments: Sequence[str] = (),
    ) -> Replica:
        """Start a replica, with `arguments` after its own.

        Raises EdlError where it cannot be started at all.
        """
        ...

    def adopt(self, replica: Replica) -> None:
        """Watch and stop a replica that another process has started.

        Its end is reported as that of others, also where it has ended already.
        """
        ...

    def stop(self, replica: Replica, grace_s: float) -> None:
        """Ask a replica to end (SIGTERM), and kill it after `grace_s` (0: at once).

        One that is gone already is left alone.
        """
        ...

    def close(self) -> None:
        """Kill everything that still runs, and report nothing more."""
        ...

    def detach(self) -> None:
        """Let go of everything that runs, alive, and report nothing more."""
        ...

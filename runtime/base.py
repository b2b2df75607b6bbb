"""The seam between the master and whatever runs replicas: local processes, pods.

A replica is one process of a role. The runtime starts and stops replicas and reports each exit once;
what should run is decided elsewhere (master/replicas.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Replica:
    """One process. `role` is "worker" or "server"; `incarnation` is unique per process."""

    role: str
    index: int
    incarnation: str
    pid: int = 0


@dataclass(frozen=True)
class Exit:
    """A replica has ended: with an exit code, or by a signal (then `code` is minus its number)."""

    replica: Replica
    code: int


OnExit = Callable[[Exit], None]


class Runtime(Protocol):
    """Starts, stops and watches replicas. Calls may come from any thread and do not block."""

    def start(
        self,
        role: str,
        index: int,
        incarnation: str,
        env: Mapping[str, str],
        arguments: Sequence[str] = (),
    ) -> Replica:
        """Start a replica, with `arguments` after its own. Raises EdlError where it cannot be started at all."""
        ...

    def stop(self, replica: Replica, grace_s: float) -> None:
        """Ask it to end (SIGTERM), kill it after `grace_s` (0: at once). Gone already: nothing."""
        ...

    def close(self) -> None:
        """Kill everything that still runs, and report nothing more."""
        ...

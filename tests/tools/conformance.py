"""Tests of what every runtime promises (runtime/base.py), for local processes and pods alike.

A kit makes a runtime whose workers run a program of PROGRAMS, and acts on a replica from outside.
Tests take the fixture `kit` of their own folder and import what stands here.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Queue
from typing import Protocol

import pytest

from edl.common.errors import EdlError
from edl.runtime.base import Exit, Replica, Report, Running, Runtime

WAIT_S = 300.0
# Each says that it is there in the file EDL_MARK.
_READY = (
    "import ctypes, os, signal, sys\n"
    "def ready():\n"
    "    with open(os.environ['EDL_MARK'], 'a') as mark: mark.write('ready' + chr(10))\n"
)
PROGRAMS = {
    "ends well": _READY + "ready()",
    "fails": _READY + "ready(); sys.exit(7)",
    "crashes": _READY + "ready(); ctypes.string_at(0)",
    "polite": _READY
    + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); ready(); signal.pause()",
    "deaf": _READY
    + "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready()\nwhile True: signal.pause()",
}


class Kit(Protocol):
    """Makes runtimes of one kind, and acts on their replicas from outside."""

    def runtime(self, program: str, report: Callable[[Report], None]) -> Runtime: ...
    def started(self, replica: Replica) -> None:
        """Return when the program has said that it is there."""

    def env(self, replica: str) -> dict[str, str]: ...
    def take_away(self, replica: Replica) -> None:
        """End a replica as a cluster, or somebody with kill -9, does."""

    def there(self, replica: Replica) -> bool: ...


class Reports:
    """The reports of a runtime, in order."""

    def __init__(self) -> None:
        self.queue: Queue[Report] = Queue()

    def __call__(self, report: Report) -> None:
        self.queue.put(report)

    def exit(self) -> Exit:
        while not isinstance(found := self.queue.get(timeout=WAIT_S), Exit):
            assert isinstance(found, Running), found
        return found

    def no_more_exits(self) -> bool:
        return not any(isinstance(each, Exit) for each in list(self.queue.queue))


def begun(kit: Kit, program: str, incarnation: str = "a1") -> tuple[Runtime, Replica, Reports]:
    reports = Reports()
    runtime = kit.runtime(program, reports)
    replica = runtime.start("worker", 0, incarnation, kit.env(incarnation))
    if program not in ("ends well", "fails", "crashes"):
        kit.started(replica)
    return runtime, replica, reports


@pytest.mark.parametrize(
    ("program", "codes"), [("ends well", {0}), ("fails", {7}), ("crashes", {-11})]
)
def test_end_is_told_once_with_its_code(kit: Kit, program: str, codes: set[int]) -> None:
    runtime, replica, reports = begun(kit, program)

    found = reports.exit()
    runtime.close()

    assert (found.replica, found.unknown) == (replica, False)
    assert found.code in codes
    assert reports.no_more_exits()


def test_who_is_taken_away_has_not_failed(kit: Kit) -> None:
    """The policy reads the end as a signal that is no crash."""
    runtime, replica, reports = begun(kit, "polite")

    kit.take_away(replica)
    found = reports.exit()
    runtime.close()

    assert found.replica == replica
    assert found.code in (0, -9)


def test_stop_lets_it_end_in_order(kit: Kit) -> None:
    runtime, replica, reports = begun(kit, "polite")

    runtime.stop(replica, 20.0)
    found = reports.exit()
    runtime.close()

    assert (found.replica, found.code) == (replica, 0)


def test_stop_kills_who_does_not_listen(kit: Kit) -> None:
    runtime, replica, reports = begun(kit, "deaf")

    runtime.stop(replica, 1.0)
    found = reports.exit()
    runtime.stop(replica, 0)  # gone already: nothing
    runtime.close()

    assert (found.replica, found.code) == (replica, -9)
    assert not kit.there(replica)
    assert reports.no_more_exits()


def test_what_a_successor_adopts_is_watched_and_stopped_like_its_own(kit: Kit) -> None:
    first, replica, before = begun(kit, "polite")
    first.detach()
    reports = Reports()
    second = kit.runtime("polite", reports)

    second.adopt(replica)
    assert kit.there(replica)
    second.stop(replica, 20.0)
    found = reports.exit()
    second.close()

    assert found.replica == replica
    assert found.code in (0, -9)
    assert before.no_more_exits()


def test_what_ended_while_nobody_looked_is_told_to_the_successor(kit: Kit) -> None:
    first, replica, _ = begun(kit, "polite")
    first.detach()
    kit.take_away(replica)
    reports = Reports()
    second = kit.runtime("polite", reports)

    second.adopt(replica)
    found = reports.exit()
    second.close()

    assert found.replica == replica
    assert found.code <= 0


def test_close_leaves_nothing_and_starts_nothing(kit: Kit) -> None:
    runtime, replica, reports = begun(kit, "deaf")

    runtime.close()

    assert not kit.there(replica)
    assert reports.no_more_exits()
    with pytest.raises(EdlError, match="the job is ending"):
        runtime.start("worker", 1, "b1", kit.env("b1"))

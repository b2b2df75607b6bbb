"""The injector, on a job that is made up."""

import signal

import pytest

from edl.chaos.injector import Injector
from edl.chaos.schedule import parse, schedule

pytestmark = pytest.mark.fast


class World:
    """Replicas by role, and what they were sent; time passes where somebody waits."""

    def __init__(self, ends_at: float = 1e9, **pids: dict[int, int]) -> None:
        self.now, self.ends_at, self.pids = 100.0, 100 + ends_at, pids
        self.sent: list[tuple[float, int, str]] = []
        self.gone: set[int] = set()

    def wait(self, seconds: float) -> bool:
        self.now = min(self.now + seconds, self.ends_at)
        return self.now >= self.ends_at

    def send(self, pid: int, number: signal.Signals) -> None:
        if pid in self.gone:
            raise ProcessLookupError
        self.sent.append((self.now - 100, pid, signal.Signals(number).name))

    def run(self, *rules: str, for_s: float = float("inf")) -> Injector:
        injector = Injector(
            schedule([parse(rule) for rule in rules], 0),
            lambda: self.pids,
            wait=self.wait,
            now=lambda: self.now,
            clock=lambda: self.now,
            send=self.send,
        )
        injector.run(for_s)
        return injector


def test_each_signal_goes_to_its_process_at_its_moment():
    world = World(worker={0: 7, 1: 8}, ps={0: 9})
    world.run("worker:at=2s,index=1", "ps:at=1s,signal=TERM")

    assert [(1.0, 9, "SIGTERM"), (2.0, 8, "SIGKILL")] == world.sent


def test_a_stopped_process_is_continued_also_between_other_injections():
    world = World(worker={0: 7}, ps={0: 9})
    world.run("worker:at=1s,signal=STOP,for=3s", "ps:at=2s,5s")

    assert [
        (1.0, 7, "SIGSTOP"),
        (2.0, 9, "SIGKILL"),
        (4.0, 7, "SIGCONT"),
        (5.0, 9, "SIGKILL"),
    ] == world.sent


def test_a_stopped_process_is_continued_when_the_injector_ends_first():
    world = World(worker={0: 7})
    world.run("worker:at=1s,signal=STOP,for=60s", for_s=2)

    assert [(1.0, 7, "SIGSTOP"), (2.0, 7, "SIGCONT")] == world.sent


def test_a_replica_that_is_not_there_is_written_down_as_missed():
    world = World(worker={0: 7})
    world.gone.add(7)
    lines = world.run("worker:at=1s", "ps:at=2s", "worker:at=3s,index=4").lines

    assert [
        ("worker", 0, "it has ended already"),
        ("ps", None, "it is not there now"),
        ("worker", 4, "it is not there now"),
    ] == [(line.role, line.index, line.missed) for line in lines]
    assert [] == world.sent


def test_it_ends_with_the_job():
    world = World(ends_at=4.5, worker={0: 7})
    world.run("worker:at=1s,2s,3s,4s,5s,6s")

    assert 4 == len(world.sent)

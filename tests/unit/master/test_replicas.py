from __future__ import annotations

import itertools
import json
import signal

import pytest

from edl.common.clock import FakeClock
from edl.durable.schema import dump, load
from edl.master.membership import SERVER, TEACHER, WORKER
from edl.master.replicas import Phase, Replicas, ReplicasState, Start

pytestmark = pytest.mark.fast


def make(workers: int = 1, servers: int = 0, relaunches: int = 2) -> Replicas:
    names = itertools.count()
    return Replicas(workers, servers, relaunches=relaunches, name=lambda: f"i{next(names)}")


def end(replicas: Replicas, clock: FakeClock, code: int, index: int = 0, role: str = WORKER) -> str:
    """End the process of a place, long after it began."""
    clock.advance(60)
    return replicas.exited(role, index, replicas.slots[role, index].incarnation, code, clock.now())


def test_all_that_is_wanted_is_started_once():
    replicas = make(workers=2, servers=1)

    expected = [Start(SERVER, 0, "i0"), Start(WORKER, 0, "i1"), Start(WORKER, 1, "i2")]
    assert expected == replicas.starts(0.0)
    assert [] == replicas.starts(100.0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_preempted_worker_is_started_again_at_once_and_without_limit(number):
    replicas, clock = make(relaunches=0), FakeClock()
    for number_of_life in range(50):
        assert [WORKER] == [start.role for start in replicas.starts(clock.now())]
        replicas.works(WORKER, 0, f"i{number_of_life}")
        assert "preempted" == end(replicas, clock, -number)

    assert (0, 50) == (replicas.total("failures", WORKER), replicas.total("preemptions", WORKER))


def test_a_worker_that_left_untold_is_replaced():
    replicas, clock = make(), FakeClock()
    replicas.starts(clock.now())
    replicas.works(WORKER, 0, "i0")

    assert "preempted" == end(replicas, clock, 0)

    assert 1 == len(replicas.starts(clock.now()))


@pytest.mark.parametrize(("code", "lives"), [(0, 3), (-signal.SIGKILL, 30)])
def test_a_worker_that_never_gets_to_work_fails_for_good_though_its_ends_look_like_preemption(
    code, lives
):
    replicas, clock = make(relaunches=2), FakeClock()
    ends = 0
    while replicas.starts(clock.now()):
        ends += 1
        end(replicas, clock, code)
        clock.advance(60)

    assert lives == ends
    assert replicas.all_workers_failed is not None


def test_failures_that_the_books_count_do_not_count_again():
    replicas, clock = make(relaunches=0), FakeClock()
    for number in range(5):
        clock.advance(60)
        replicas.starts(clock.now())
        replicas.exited(WORKER, 0, f"i{number}", 7, clock.now(), excused=1)

    assert Phase.WAITING == replicas.slots[WORKER, 0].phase
    assert 5 == replicas.total("failures", WORKER)


def test_a_worker_that_leaves_at_once_is_not_started_again_in_a_rush():
    replicas, clock = make(), FakeClock()
    replicas.starts(clock.now())

    replicas.exited(WORKER, 0, "i0", 0, clock.now())

    assert [] == replicas.starts(clock.now())
    assert 1.0 == replicas.next_start()


@pytest.mark.parametrize("code", [1, 137, -signal.SIGSEGV, -signal.SIGABRT])
def test_a_failed_worker_is_started_again_after_growing_pauses_up_to_the_limit(code):
    replicas, clock = make(relaunches=2), FakeClock()
    pauses = []
    for _ in range(2):
        replicas.starts(clock.now())
        assert "failed" == end(replicas, clock, code)
        pauses.append((replicas.next_start() or 0) - clock.now())
        clock.advance(pauses[-1])
    replicas.starts(clock.now())
    assert replicas.all_workers_failed is None

    end(replicas, clock, code)

    assert [1.0, 2.0] == pauses
    assert replicas.next_start() is None
    failed = replicas.all_workers_failed
    assert failed is not None
    assert (Phase.FAILED, 3) == (failed.phase, failed.failures)


def test_one_worker_that_still_may_run_is_enough():
    replicas, clock = make(workers=2, relaunches=0), FakeClock()
    replicas.starts(clock.now())

    end(replicas, clock, 1)

    assert replicas.all_workers_failed is None


def test_a_server_that_fails_for_good_is_told_with_how_it_ended():
    replicas, clock = make(servers=2, relaunches=1), FakeClock()
    for code, verdict in [(-9, "preempted"), (1, "failed")]:
        clock.advance(60)
        assert 1 in [start.index for start in replicas.starts(clock.now())]
        assert verdict == end(replicas, clock, code, 1, SERVER)
        assert replicas.dead_server is None
    clock.advance(60)
    replicas.starts(clock.now())

    assert "failed" == end(replicas, clock, 1, 1, SERVER)

    dead = replicas.dead_server
    assert dead is not None
    assert (1, "ended with exit code 1") == (dead.index, dead.last_end)
    assert replicas.slots[WORKER, 0].phase == Phase.RUNNING


def test_an_exit_of_an_older_process_is_ignored():
    replicas, clock = make(), FakeClock()
    replicas.starts(clock.now())
    end(replicas, clock, -9)
    replicas.starts(clock.now())

    assert "" == replicas.exited(WORKER, 0, "i0", 1, clock.now())

    assert (Phase.RUNNING, 0) == (
        replicas.slots[WORKER, 0].phase,
        replicas.slots[WORKER, 0].failures,
    )


def test_scaling_down_tells_the_highest_to_leave_and_forgets_them():
    replicas, clock = make(workers=3), FakeClock()
    replicas.starts(clock.now())

    assert 3 == replicas.scale(1)

    assert [False, True, True] == [replicas.is_leaving(WORKER, i) for i in range(3)]
    assert ["finished", "finished"] == [end(replicas, clock, 0, 2), end(replicas, clock, -9, 1)]
    assert [] == replicas.starts(clock.now())


def test_a_worker_that_others_have_started_leaves_when_all_of_ours_do():
    """Broken once: whoever has no place is told to leave at once."""
    replicas = make(workers=2)
    replicas.starts(0.0)
    assert [False, True] == [replicas.is_leaving(role, 1000) for role in (WORKER, TEACHER)]
    replicas.scale(1)
    assert not replicas.is_leaving(WORKER, 1000)
    replicas.scale(0)
    assert replicas.is_leaving(WORKER, 1000)
    replicas.scale(1)
    assert not replicas.is_leaving(WORKER, 1000)
    replicas.end()
    assert replicas.is_leaving(WORKER, 1000)


def test_scaling_up_reuses_indexes_that_have_left_and_no_others():
    replicas, clock = make(workers=3), FakeClock()
    replicas.starts(clock.now())
    replicas.scale(1)
    end(replicas, clock, 0, 1)  # 2 is on its way out

    assert 1 == replicas.scale(3)

    assert [1, 3] == [start.index for start in replicas.starts(clock.now())]


def test_after_the_end_nothing_is_started():
    replicas, clock = make(workers=2, servers=1), FakeClock()
    replicas.starts(clock.now())
    end(replicas, clock, 1, 1)

    replicas.end()

    assert "finished" == end(replicas, clock, -9)
    assert "finished" == end(replicas, clock, -15, 0, SERVER)
    assert ([], None) == (replicas.starts(1e9), replicas.dead_server)


def counts(replicas: Replicas) -> list[int]:
    roles = WORKER, SERVER
    return [replicas.total(what, role) for what in ("preemptions", "failures") for role in roles]


def test_what_has_happened_is_counted_also_of_places_that_are_gone():
    replicas, clock = make(workers=2, servers=2), FakeClock()
    replicas.starts(clock.now())
    for index, role in ((1, WORKER), (1, WORKER), (0, SERVER), (1, SERVER)):
        end(replicas, clock, -9, index, role)
        replicas.starts(clock.now())
    end(replicas, clock, 1, 1, WORKER)

    replicas.scale(1)
    replicas.scale(2)  # a place of the same number, and not the same
    replicas.renew_servers(1)

    assert [2, 2, 1, 0] == counts(replicas)
    memory = load(ReplicasState, json.loads(json.dumps(dump(ReplicasState, replicas.state()))))
    successor, after_a_failure = make(), make()
    successor.restore(memory)
    after_a_failure.forgive(memory)
    assert [2, 2, 1, 0] == counts(successor) == counts(after_a_failure)
    assert 0 == sum(slot.failures for slot in after_a_failure.slots.values())


def test_a_memory_of_an_earlier_version_has_no_places_that_are_gone():
    values = dump(ReplicasState, make().state())

    assert "before" not in values
    assert [] == load(ReplicasState, values).before

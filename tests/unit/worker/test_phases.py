"""The phases of minibatches add up, whoever counts them."""

import threading
from concurrent.futures import Future

import pytest

from edl.worker.phases import COMPUTE, DATA, PULL, PUSH, SERVERS, WORK, Phases, Waits


def test_what_passes_in_a_block_counts_and_a_block_that_raises_does_not():
    clock = iter([1.0, 3.0, 10.0, 20.0, 20.5])
    phases = Phases(lambda: next(clock))
    assert phases.scalars() == {}

    with phases.of(PULL):
        pass
    with pytest.raises(ValueError, match="no"), phases.of(COMPUTE):
        raise ValueError("no")
    with phases.of(PUSH):
        pass
    phases.pushed([30, 10])
    phases.pushed([30, 50])

    assert phases.scalars() == {
        "phase_minibatches": 2.0,
        "phase_data_s": 0.0,
        "phase_compute_s": 0.0,
        "phase_pull_s": 2.0,
        "phase_push_s": 0.5,
        "phase_nbytes": 120.0,
        "phase_hottest_nbytes": 60.0,
    }


def test_threads_lose_nothing_of_each_other():
    phases = Phases()

    def count():
        for _ in range(2000):
            phases.pushed([1, 2])

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert phases.scalars()["phase_nbytes"] == 4 * 2000 * 3


def test_waits_are_summed_by_cause_and_what_is_not_measured_is_not_told():
    clock = iter([1.0, 3.0, 10.0, 20.0, 30.0, 30.5])
    waits = Waits(lambda: next(clock))
    assert waits.scalars() == {}
    waits.measure(DATA)

    with waits.on(DATA):
        pass
    with pytest.raises(ValueError, match="no"), waits.on(DATA):
        raise ValueError("no")
    with waits.on(WORK):
        pass
    with waits.on(DATA):
        pass

    assert waits.scalars() == {"waited_data_s": 2.5}


def test_an_answer_that_is_there_is_not_waited_for():
    clock = iter([1.0, 4.0])
    waits = Waits(lambda: next(clock))
    waits.measure(DATA, SERVERS)
    there, late = Future(), Future()
    there.set_result("a")
    threading.Timer(0.05, lambda: late.set_result("b")).start()

    assert ["a", "b", "b"] == [waits.answer(each) for each in (there, late, late)]

    assert waits.scalars() == {"waited_data_s": 0.0, "waited_servers_s": 3.0}

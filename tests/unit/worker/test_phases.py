"""The phases of minibatches add up, whoever counts them."""

import threading

import pytest

from edl.worker.phases import COMPUTE, PULL, PUSH, Phases


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

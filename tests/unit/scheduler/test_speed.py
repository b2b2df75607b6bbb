"""The speed of a job is that of its own model, else what was measured, else its workers."""

import pytest
from tools.reports import make_report

from edl.common.report import Model, Phases, Sample, StepTimes
from edl.goodput import GoodputFunction, GradParams, PerfParams
from edl.goodput.reported import fitted, servers_points
from edl.goodput.servers import ServersParams
from edl.scheduler.jobs import Shape
from edl.scheduler.speed import speed_of


def sample(workers, rate, seconds=10.0):
    return Sample(1, workers, 1, 64, rate, seconds, 3)


def speeds(report, *workers):
    speed, is_known = speed_of(report)
    return [speed(Shape(count, 0, 1)) for count in workers], is_known


def test_of_a_job_that_says_nothing_only_its_workers_are_known():
    assert speeds(None, 0, 1, 4) == ([0, 1, 4], False)
    assert speeds(make_report(samples=(), model=None), 0, 3) == ([0, 3], False)
    assert speeds(make_report(samples=(sample(2, 7.0, 0.0),), model=None), 2) == ([2], False)


def test_between_what_was_measured_are_lines_and_beyond_it_twice_as_many_are_believed():
    report = make_report(samples=(sample(1, 100.0), sample(4, 250.0)), model=None)

    assert speeds(report, 0, 1, 2, 4, 8, 100) == ([0, 100, 150, 250, 500, 500], True)


def test_configurations_of_as_many_workers_are_taken_together_by_their_time():
    report = make_report(samples=(sample(2, 100.0, 30.0), sample(2, 200.0, 10.0)), model=None)

    assert speeds(report, 2) == ([125], True)


@pytest.mark.parametrize("local_batch", [None, 64])
def test_a_model_of_the_job_s_own_goes_before_what_was_measured(local_batch):
    step = StepTimes(0.1, 0.002, 0.05, 0.01, 0.02, 0.003, 2.0)
    model = Model(step, 2.0, 300.0, 64, 1024, local_batch)
    report = make_report(samples=(sample(1, 1.0),), model=model)
    goodput = GoodputFunction(PerfParams(*vars(step).values()), GradParams(2.0, 300.0), 64)
    expected = [
        goodput.optimize(1, workers, 1024, (None, local_batch), True)[0] for workers in (1, 3)
    ]

    assert speeds(report, 0, 1, 3) == ([0, *map(float, expected)], True)


TRUE = ServersParams(0.02, 1e-4, 0.0, 0.004, 0.0, 1e-5, 0.004, 1e-4, 0.2, 0.0, 0.6)


def phased(workers, servers):
    """What a job of TRUE would measure there."""
    round_s = TRUE.round_s(workers, servers, 128)
    exchange_s = TRUE.exchange_s(workers, servers, 128)
    halves = exchange_s / 2, exchange_s / 2
    phases = Phases(100, 0.0, round_s - exchange_s, *halves, 0.2 + 0.8 / servers)
    return Sample(servers, workers, 1, 128, workers * 128 / round_s, 10.0, 40, phases)


def test_on_servers_the_speed_is_that_of_the_phases_of_both():
    samples = tuple(phased(*place) for place in ((1, 1), (4, 1), (6, 2), (6, 4)))
    report = make_report(samples=samples)
    told = make_report(samples=samples, servers_model=fitted(servers_points(samples)))

    for found in (report, told):
        speed, is_known = speed_of(found)
        assert is_known
        assert speed(Shape()) == 0
        for workers in range(1, 9):
            for servers in range(1, 9):
                expected = TRUE.throughput(workers, servers, 128)
                shape = Shape(workers, servers, 1)
                assert speed(shape) == pytest.approx(expected, rel=0.1), shape


def test_on_servers_at_most_twice_as_many_of_either_are_tried():
    """Broken once: the bound of the servers is that of the workers."""
    speed, _ = speed_of(make_report(samples=(phased(1, 1), phased(3, 1))))

    assert speed(Shape(6, 1, 1)) == speed(Shape(7, 1, 1)) > speed(Shape(5, 1, 1))
    assert speed(Shape(6, 2, 1)) == speed(Shape(6, 3, 1)) > speed(Shape(6, 1, 1))


def test_servers_that_nobody_counts_are_those_that_it_has():
    speed, _ = speed_of(make_report(samples=(phased(1, 1), phased(2, 2))))

    assert speed(Shape(2, 0, 1)) == speed(Shape(2, 2, 1)) > speed(Shape(2, 1, 1))

"""The speed of a job is that of its own model, else what was measured, else its workers."""

import pytest
from tools.reports import make_report

from edl.common.report import Model, Sample, StepTimes
from edl.goodput import GoodputFunction, GradParams, PerfParams
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

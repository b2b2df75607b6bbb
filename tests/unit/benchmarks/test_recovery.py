"""The times of a kill, by the logs of a master and a worker."""

from dataclasses import astuple
from datetime import UTC, datetime

import pytest

from benchmarks.recovery import recovered, survived

KILLED_AT = datetime(2026, 11, 21, 9, 0, 10, tzinfo=UTC).timestamp()


def log(*lines):
    return [f"2026-11-21T09:00:{second}Z {text}" for second, text in lines]


MASTER = log(
    ("09.000", "DEBUG master task=7 attempt=1 worker=0 -> leased"),
    ("10.012", "INFO master worker=0 -> lost reason='was killed by SIGKILL' tasks=2"),
    ("10.015", "DEBUG master task=9 attempt=1 worker=1 -> leased"),
    ("10.020", "INFO master task=7 attempt=2 -> requeued applied=[512]"),
    ("10.021", "INFO master task=8 attempt=2 -> requeued applied=[0]"),
    ("10.030", "DEBUG master task=7 attempt=2 worker=1 -> leased"),
    ("10.250", "DEBUG master task=8 attempt=2 worker=0 -> leased"),
    ("11.000", "INFO master task=9 attempt=2 -> requeued applied=[0]"),
)
WORKER = [
    *log(("01.000", "INFO worker-0 step=1 version=3 loss=0.7 records_per_s=0")),
    "a line of the user's model",
    *log(
        ("10.300", "INFO worker-0 step=1 version=99 loss=0.4 records_per_s=0"),
        ("10.310", "INFO worker-0 step=2 version=100 loss=0.4 records_per_s=0"),
    ),
]


def test_a_recovery_ends_with_the_last_lease_and_the_replacements_first_span():
    took = recovered(KILLED_AT, MASTER, WORKER)

    assert pytest.approx((0.012, 0.250, 0.300), abs=1e-4) == astuple(took)[:3]


def test_the_survivors_steps_before_and_after_are_told_apart():
    steps = [("09.900", "x"), ("09.950", "x"), ("09.980", "x"), ("10.050", "x"), ("10.090", "x")]
    lines = log(*((at, f"INFO worker-1 step={n}") for n, (at, _) in enumerate(steps)))

    found = survived(KILLED_AT, lines)

    expected = {"step_before": 0.04, "longest_before": 0.05}
    expected |= {"step_after": 0.055, "longest_after": 0.07}
    assert pytest.approx(expected, abs=1e-4) == found


def test_a_worker_that_held_no_task_tells_nothing():
    idle = [line.replace("tasks=2", "tasks=0") for line in MASTER]

    assert recovered(KILLED_AT, idle, WORKER) is None


def test_a_task_that_was_wholly_applied_needs_no_lease():
    without = [line for line in MASTER if "task=8 attempt=2 worker" not in line]

    assert recovered(KILLED_AT, without, WORKER).leased == pytest.approx(0.030, abs=1e-4)

"""The master's numbers for Prometheus; event files that TensorBoard reads, written without it."""

import math
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from tools.exposed import status

from edl.common.errors import UsageError
from edl.common.event_file import EventFile
from edl.master.scalars import Scalars

pytestmark = pytest.mark.fast

tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def test_tensorboard_reads_what_was_added(tmp_path):
    file = EventFile(tmp_path / "new" / "tensorboard")
    points = [("loss/train", 0.5, 3), ("eval/ä", math.nan, 0), ("x", 1e300, 2**40), ("x", -2.25, 1)]
    for tag, value, step in points:
        file.add(tag, value, step)
    file.close()

    events = tensorboard.EventAccumulator(str(tmp_path / "new" / "tensorboard"))
    events.Reload()

    read = [(tag, e.value, e.step) for tag in events.Tags()["scalars"] for e in events.Scalars(tag)]
    expected = [(t, math.inf if v > 1e38 else v, s) for t, v, s in points]
    assert sorted(map(str, expected)) == sorted(map(str, read))


def test_a_folder_that_cannot_be_written_is_one_sentence():
    with pytest.raises(UsageError, match="--output: /proc/x cannot be written"):
        EventFile(Path("/proc/x"))


def test_prometheus_is_told_what_is_wanted_what_was_replaced_and_how_the_time_was_used():
    ends = {"worker": 1, "preemptions": 2, "server": 3, "server_preemptions": 4}
    ends |= {"teacher": 5, "teacher_preemptions": 6, "master": 7}
    machine = {"useful_s": 8.0, "idle_s": 4.0, "start_s": 2.0, "recompute_s": 1.0}
    told = status(restarts=ends, usage={"records": 1, "machines": [machine, machine]})
    told["records"]["recomputed"] = 9

    Scalars(None)(told)

    def of(name, **labels):
        return REGISTRY.get_sample_value(f"edl_{name}", labels)

    assert [of("replicas_wanted", role=role) for role in ("worker", "server", "teacher")] == [
        2,
        1,
        0,
    ]
    assert [
        of("restarts", role=role, cause=cause)
        for role in ("worker", "server", "teacher")
        for cause in ("failure", "preemption")
    ] == [1, 2, 3, 4, 5, 6]
    assert of("master_restarts") == 7
    assert [of("machine_seconds", use=use) for use in ("useful", "idle", "start", "recompute")] == [
        16.0,
        8.0,
        4.0,
        2.0,
    ]
    assert (of("records_planned"), of("records_recomputed")) == (8, 9)


def test_a_job_without_end_plans_no_number_of_records():
    Scalars(None)(status(records_total=None))

    assert REGISTRY.get_sample_value("edl_records_planned") == 0

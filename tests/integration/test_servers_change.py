"""The number of servers changes while a job goes on: each record is applied once all the same."""

import contextlib
import os
import signal

import pytest
from tools.jobs import Job, send, write_records
from tools.stage import counts, each
from tools.turns import in_turn

RECORDS = 1200


@pytest.fixture
def counting(tmp_path):
    """A job of the counting model that lasts some seconds; its servers change meanwhile."""
    job = Job(
        tmp_path / "job",
        model_def="counting",
        model_params={"delay_s": 0.05},
        training_data=str(write_records(tmp_path / "records.npz", RECORDS)),
        minibatch_size=4,
        num_minibatches_per_task=4,
        num_workers=2,
        num_ps=1,
        use_async=True,
        snapshot_s=0.5,
        keep_checkpoint_max=1,
    )
    with job:
        yield job


def change(job, servers, workers):
    with contextlib.closing(job.client()) as client:
        client.scale(workers, servers)


def trains_on(job, servers, workers):
    """Wait until the throughput of so many servers and workers was measured."""

    def is_measured(status):
        there = [row for row in status["servers"] if row["state"] == "serving"]
        places = {(each["servers"], each["workers"]) for each in status["report"]["samples"]}
        return len(there) == servers and (servers, workers) in places

    return job.watch(is_measured)


def ended(job):
    assert job.wait() == 0, job.logs()
    result = job.result()
    assert counts(job) == each(RECORDS)
    assert result["records_done"] == RECORDS
    return result


@in_turn(1)
def test_a_job_goes_on_with_more_and_with_fewer_servers_and_says_what_that_cost(counting):
    """Broken once: what was used to begin the servers before is left in the folder, too."""
    trains_on(counting, 1, 2)
    change(counting, 3, 3)
    trains_on(counting, 3, 3)
    change(counting, 2, 1)
    report = trains_on(counting, 2, 1)["report"]

    result = ended(counting)
    assert {sample["servers"] for sample in result["report"]["samples"]} == {1, 2, 3}
    assert report["resize"]["servers"] > 0
    assert (0, 0) == (result["restarts"]["worker"], result["restarts"]["server"])
    assert [row["state"] for row in result["servers"]] == ["left"] * 2
    written = os.listdir(counting.folder / "checkpoints" / "servers")
    assert len(written) == 1, written


@in_turn(0)
def test_nothing_is_lost_where_processes_are_killed_as_the_servers_change(counting):
    """Whoever is killed at a change, before it, as it begins and after it, on either side."""
    trains_on(counting, 1, 2)
    change(counting, 2, 2)
    status = counting.watch(lambda s: any("servers wanted: 2" in e["text"] for e in s["events"]))
    for row in status["workers"]:  # as they hand back, or push
        send(row["pid"], signal.SIGKILL)
    trains_on(counting, 2, 2)
    change(counting, 3, 2)
    send(counting.about()["pid"], signal.SIGKILL)  # the master goes on with it, or never heard
    change(counting, 3, 2)
    status = trains_on(counting, 3, 2)
    for row in status["servers"][:2]:
        send(row["pid"], signal.SIGKILL)

    result = ended(counting)
    assert result["restarts"]["master"] == 1
    assert result["restarts"]["server_preemptions"] == 2

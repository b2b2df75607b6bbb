"""Parameter servers are killed, stopped and killed again; the counting model says what was applied.

Row r of the counting model ends as the number of times that record r was applied, `total` as the
number of records that all pushes together had.
"""

from __future__ import annotations

import re
import signal

import pytest
from tools.jobs import Job, send, write_records
from tools.servers import assert_exact
from tools.turns import some

RECORDS, EPOCHS = 3000, 2


def job_of(folder, **settings):
    defaults = {
        "model_def": "counting",
        "model_params": {"delay_s": 0.01},
        "training_data": str(write_records(folder.parent / "records.npz", RECORDS)),
        "minibatch_size": 16,
        "num_minibatches_per_task": 8,
        "num_epochs": EPOCHS,
        "num_workers": 2,
        "num_ps": 3,
        "lease_s": 2.0,
        "snapshot_s": 0.3,
        "use_async": True,
    }
    return Job(folder, **{**defaults, **settings})


def at(job, part):
    """Return the status once this part of the records is done."""
    return job.watch(
        lambda s: (
            s["records_total"]
            and s["records_done"] >= part * s["records_total"]
            and all(server["pid"] for server in s["servers"])
        )
    )


def lives(job):
    """Return how many incarnations of each role ever registered."""
    lines = (job.folder / "logs" / "master.log").read_text().splitlines()
    said = [line for line in lines if " registered (pid " in line]
    return {role: sum(f" {role} " in line for line in said) for role in ("worker", "server")}


SYNC = {"use_async": False, "grads_to_wait": 2, "envs": {"GRADS_TO_WAIT": "2"}}


@pytest.mark.parametrize(
    ("settings", "victims"),
    [({}, [1]), (SYNC, [0, 2]), ({"transport": "tcp"}, [0, 1, 2])],
    ids=["one-async", "two-sync", "all-tcp"],
)
def test_killed_servers_are_replaced_and_no_worker_is(tmp_path, settings, victims):
    with job_of(tmp_path / "job", **settings) as job:
        for part in (0.25, 0.6):
            status = at(job, part)
            for index in victims:
                assert send(status["servers"][index]["pid"], signal.SIGKILL)
        assert 0 == job.wait(), job.logs()
    assert_exact(job.checkpoint(), RECORDS, EPOCHS)
    assert {"worker": 2, "server": 3 + 2 * len(victims)} == lives(job)


@pytest.mark.parametrize("by", some(["SIGTERM", "the provider's notice"]))
def test_server_that_is_told_to_go_leaves_a_snapshot_for_its_replacement(tmp_path, by):
    """A cluster tells a server so before it takes a machine. Broken once: no last snapshot."""
    gate = tmp_path / "gate"
    command = f"while ! grep -qs $EDL_INCARNATION {gate}; do sleep 0.1; done"
    with job_of(tmp_path / "job", snapshot_s=1000.0, preemption_notice=command) as job:
        status = at(job, 0.3)
        if by == "SIGTERM":
            assert send(status["servers"][1]["pid"], signal.SIGTERM)
        else:
            taken = status["servers"][1], status["workers"][0]
            gate.write_text("\n".join(each["incarnation"] for each in taken))
        job.watch(lambda s: s["restarts"]["server_preemptions"] == 1)
        assert job.wait() == 0

    (back,) = re.findall(r"server 1 is back; (\d+) records", job.logs(tail=1000))
    assert int(back) < 0.1 * RECORDS * EPOCHS  # it had 0.3 of them
    assert job.result()["restarts"]["worker"] == job.result()["restarts"]["server"] == 0
    assert_exact(job.checkpoint(), RECORDS, EPOCHS)

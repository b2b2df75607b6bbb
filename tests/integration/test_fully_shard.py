"""All-reduce with a model that no member holds whole: what it ends with, and what was applied."""

import re
import signal
import threading

import numpy as np
import pytest
from safetensors.torch import load_file
from tools.groups import MINIBATCH, RECORDS, counts, job_of, scale, stopped_in_order, values
from tools.jobs import WAIT_S, send, write_records
from tools.turns import in_turn

from edl.chaos.controller import CONTINUE, OFF, Controller

_SIZES = re.compile(r"values=\[(\d+), (\d+)\]")  # of a member's own part and its mirror


def sharded(folder, *more, **settings):
    return job_of(folder, *more, **{"fully_shard": True, "num_workers": 3, **settings})


@in_turn(2)
def test_a_sharded_elastic_run_ends_as_the_fixed_one(tmp_path):
    """2 -> 3 -> 2 members; one is killed as it computes, the first of the group after a vote."""
    with job_of(tmp_path / "fixed", num_workers=1, delay_s=0.0) as job:
        assert job.wait() == 0, job.logs()
    fixed = values(job)
    moments = {20: ("worker.compute", 1), 50: ("worker.commit", 0)}
    killed = []
    three = threading.Event()  # members are there

    def decide(hit):
        done = hit.about["task"] * RECORDS // 12 // MINIBATCH  # steps, about
        if done >= 35:  # of 96: all are held
            three.wait(WAIT_S)
        due = [m for m, what in moments.items() if m <= done and what == (hit.point, hit.index)]
        if due:
            killed.append(moments.pop(due[0]))
            send(hit.pid, signal.SIGKILL)
        return CONTINUE if moments else OFF

    points = ("worker.compute", "worker.commit")
    with (
        Controller(tmp_path / "faults", points, decide) as controller,
        sharded(tmp_path / "job", num_workers=2, envs={"EDL_FAULTS": controller.variable}) as job,
    ):
        job.watch(lambda s: s["records_done"] >= 0.3 * 2 * RECORDS)
        scale(job, 3)
        job.watch(lambda s: sum(bool(w["pid"]) for w in s["workers"]) == 3)
        three.set()
        job.watch(lambda s: s["records_done"] >= 0.8 * 2 * RECORDS)
        scale(job, 2)
        assert job.wait() == 0, job.logs()

    assert len(killed) == 2
    assert job.result()["version"] == 2 * RECORDS // MINIBATCH
    assert job.result()["restarts"]["worker"] == 0, "a survivor crashed"
    told = [event["text"] for event in job.result()["events"]]
    assert not [text for text in told if "computed again" in text], "a state was lost"
    np.testing.assert_allclose(values(job), fixed, rtol=0, atol=2e-5)
    sizes = {(int(own), int(mirror)) for own, mirror in _SIZES.findall(job.logs(tail=1000))}
    # of 97 parameters in rows of 4, 1, 16 and 1: what two, and what three members have
    assert {(57, 40), (40, 57), (47, 20), (30, 47), (20, 30)} >= sizes >= {(47, 20)}


@in_turn(3)
def test_two_of_three_are_killed_at_once(tmp_path):
    """No mirror is left of one part: all begin from the newest snapshot, the books too."""
    with sharded(tmp_path / "job", "tally", delay_s=0.02, snapshot_s=0.3) as job:
        job.watch(lambda s: s["records_done"] >= 400)
        status = job.watch(lambda s: all(w["pid"] for w in s["workers"]))
        for worker in status["workers"][:2]:
            send(worker["pid"], signal.SIGKILL)
        assert job.wait() == 0, job.logs()

    assert counts(job) == [2.0] * RECORDS
    told = [event["text"] for event in job.result()["events"]]
    again = [t for t in told if "computed again" in t]
    assert len(again) == 1, again
    assert "from step 0" not in again[0], again
    assert job.result()["restarts"]["worker"] == 0, "a survivor crashed"


@pytest.mark.slow
def test_all_stop_and_servers_go_on(tmp_path):
    """The members leave together: one writes what all had, and no step is computed again."""
    stopped = stopped_in_order(sharded(tmp_path / "one", "tally", delay_s=0.02))

    how = {"strategy": "ps", "num_workers": 1, "num_ps": 2, "use_async": True}
    with job_of(tmp_path / "two", "tally", delay_s=0.0, resume=stopped["resume"], **how) as job:
        assert job.wait() == 0, job.logs()

    assert counts(job) == [2.0] * RECORDS


@pytest.mark.slow
def test_two_leave_at_once_and_one_goes_on(tmp_path):
    """Both hand their parts to the one that stays."""
    with sharded(tmp_path / "job", "tally", delay_s=0.02, snapshot_s=0) as job:
        job.watch(lambda s: s["records_done"] >= 300)
        scale(job, 1)
        assert job.wait() == 0, job.logs()

    assert counts(job) == [2.0] * RECORDS
    told = [event["text"] for event in job.result()["events"]]
    assert not [text for text in told if "computed again" in text], told


@in_turn(1)
def test_evaluations_and_the_export_see_the_whole_model(tmp_path):
    data = str(write_records(tmp_path / "records.npz", RECORDS))
    with sharded(
        tmp_path / "job",
        validation_data=data,
        evaluation_steps=20,
        delay_s=0.0,
        output=str(tmp_path / "output"),
    ) as job:
        assert job.wait() == 0, job.logs()

    result = job.result()
    losses = [e["metrics"]["mse"] for e in result["evaluations"]]
    assert len(losses) >= 3
    assert losses[-1] < losses[0]
    exported = load_file(tmp_path / "output" / "model" / "model.safetensors")
    names = [f"layers.{layer}.{what}" for layer in (0, 2) for what in ("weight", "bias")]
    assert np.array_equal(values(job), np.concatenate([exported[n].numpy().ravel() for n in names]))

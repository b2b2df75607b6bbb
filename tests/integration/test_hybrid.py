"""Dense parameters by elastic all-reduce, tables on servers: both books, on real processes."""

import random
import signal

import numpy as np
import pytest
from tools import groups
from tools.groups import MINIBATCH, RECORDS, scale
from tools.jobs import send, write_records
from tools.servers import dense, table
from tools.turns import in_turn

from edl.chaos.controller import CONTINUE, OFF, Controller


def job_of(folder, model_def="hybrid", *, delay_s=0.004, names=True, **more):
    params = {"records": RECORDS, "delay_s": delay_s, "names": names}
    more = {"strategy": "hybrid", "model_params": params, "num_ps": 2, **more}
    return groups.job_of(folder, model_def, **more)


def assert_exact(job, epochs=2):
    checkpoint = job.checkpoint()
    ids, rows = table(checkpoint, "rows")
    assert [float(epochs)] * RECORDS == np.round(dense(checkpoint, "counts"), 3).tolist()
    assert np.arange(RECORDS).tolist() == ids.tolist()
    assert [float(epochs)] * RECORDS == np.round(rows.ravel(), 3).tolist()


@in_turn(0)
def test_an_elastic_run_without_staleness_ends_as_servers_with_one_worker(tmp_path):
    """Members go 1 -> 3 -> 2; the oracle is the parameter server, which has torch.optim's."""
    values = []
    for strategy, delay_s in (("ps", 0.0), ("hybrid", 0.01)):
        how = {"model_def": "pairs", "model_params": {"delay_s": delay_s}, "num_workers": 1}
        how |= {"staleness": 0} if strategy == "hybrid" else {}
        with job_of(tmp_path / strategy, strategy=strategy, **how) as job:
            for share, workers in ((0.2, 3), (0.6, 2)) if strategy == "hybrid" else ():
                job.watch(lambda s, share=share: s["records_done"] >= share * 2 * RECORDS)
                scale(job, workers)
            assert job.wait() == 0, job.logs()
        checkpoint = job.checkpoint()
        assert job.result()["version"] == 2 * RECORDS // MINIBATCH
        names = [f"deep.{layer}.{what}" for layer in (0, 2) for what in ("weight", "bias")]
        rows = [table(checkpoint, name)[1].ravel() for name in ("users", "items")]
        values.append(np.concatenate([*(dense(checkpoint, name) for name in names), *rows]))

    np.testing.assert_allclose(values[1], values[0], rtol=0, atol=2e-5)
    rounds = [e["text"] for e in job.result()["events"] if e["text"].startswith("round ")]
    assert len(rounds) >= 4, rounds


@in_turn(3)
def test_members_and_servers_are_killed(tmp_path):
    """Members are killed before the push and after it, the first too, and a server, at random."""
    rng = random.Random(0)
    points = ("worker.compute", "worker.commit", "ps.push")
    moments = {8: "worker.compute", 20: "ps.push", 30: "worker.commit", 50: "worker.commit"}
    killed = []

    def decide(hit):
        done = hit.about.get("task", 0) * 4
        due = [m for m in moments if m <= done and moments[m] == hit.point]
        if due and rng.random() < 0.5:
            del moments[due[0]]
            killed.append((hit.point, hit.index))
            send(hit.pid, signal.SIGKILL)
        return CONTINUE if moments else OFF

    with (
        Controller(tmp_path / "faults", points, decide) as controller,
        job_of(
            tmp_path / "job",
            num_workers=3,
            snapshot_s=0.3,
            staleness=3,
            names=False,
            envs={"EDL_FAULTS": controller.variable},
        ) as job,
    ):
        assert job.wait() == 0, job.logs()

    assert len(killed) == 4, killed
    assert_exact(job)
    assert job.result()["restarts"]["worker"] == 0, "a survivor crashed"


def test_all_members_are_killed_at_once(tmp_path):
    """The group goes back to its snapshot; the servers do not, and drop what they have."""
    with job_of(tmp_path / "job", delay_s=0.02, snapshot_s=0.3) as job:
        job.watch(lambda s: s["records_done"] >= 400)
        status = job.watch(lambda s: all(w["pid"] for w in s["workers"]))
        for worker in status["workers"]:
            send(worker["pid"], signal.SIGKILL)
        assert job.wait() == 0, job.logs()

    assert_exact(job)


def test_the_master_is_killed_and_a_server_while_it_is_away(tmp_path):
    with job_of(tmp_path / "job", delay_s=0.02, snapshot_s=0.2, staleness=0) as job:
        status = job.watch(lambda s: s["records_done"] >= 300)
        send(job.about()["pid"], signal.SIGKILL)
        send(status["servers"][1]["pid"], signal.SIGKILL)
        assert job.wait() == 0, job.logs()

    assert_exact(job)


@pytest.mark.slow  # the next one stops and goes on as well
def test_a_run_is_stopped_and_goes_on_with_others(tmp_path):
    with job_of(tmp_path / "one", delay_s=0.02) as job:
        job.watch(lambda s: s["records_done"] >= 300)
        send(job.about()["pid"], signal.SIGTERM)
        assert job.wait() == 130, job.logs()
    stopped = job.result()
    assert stopped["resume"] == str(job.checkpoint())
    assert stopped["records_done"] == dense(job.checkpoint(), "counts").sum()
    assert stopped["records_done"] == table(job.checkpoint(), "rows")[1].sum()

    how = {"delay_s": 0.0, "num_workers": 3, "num_ps": 1}
    with job_of(tmp_path / "two", resume=stopped["resume"], **how) as job:
        assert job.wait() == 0, job.logs()

    assert_exact(job)


@in_turn(2)
def test_servers_alone_go_on_with_it_and_it_goes_on_with_theirs(tmp_path):
    """A checkpoint is one of any strategy: hybrid, then ps, then hybrid."""
    resume, seen = "", []
    for strategy in ("hybrid", "ps"):
        how = {"num_workers": 1, "delay_s": 0.02, "use_async": strategy == "ps"}
        with job_of(tmp_path / strategy, strategy=strategy, resume=resume, **how) as job:
            job.watch(lambda s: s["records_done"] >= 300 * (1 + len(seen)))
            send(job.about()["pid"], signal.SIGTERM)
            assert job.wait() == 130, job.logs()
        resume = job.result()["resume"]
        seen.append(job.result()["records_done"])
    with job_of(tmp_path / "last", delay_s=0.0, resume=resume, use_async=False) as job:
        assert job.wait() == 0, job.logs()

    assert_exact(job)


def test_checkpoints_and_evaluations_in_the_midst_are_of_one_state(tmp_path):
    data = str(write_records(tmp_path / "records.npz", RECORDS))
    checkpoints = {"checkpoint_dir": str(tmp_path / "kept"), "checkpoint_steps": 20}
    with job_of(tmp_path / "job", validation_data=data, evaluation_steps=30, **checkpoints) as job:
        assert job.wait() == 0, job.logs()

    assert_exact(job)
    there = sorted((tmp_path / "kept").glob("version-*"))
    assert len(there) >= 3
    for checkpoint in there:
        _, rows = table(checkpoint, "rows")
        assert dense(checkpoint, "counts").sum() == rows.sum(), checkpoint
    assert len(job.result()["evaluations"]) >= 2

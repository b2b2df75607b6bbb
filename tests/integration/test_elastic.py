"""Whole jobs whose workers come and go, and what must not depend on it.

A test's docstring says what was broken once to see it fail.
"""

import signal
import time

import pytest
from tools.jobs import ZOO, Job, send, write_records
from tools.stage import Stage, counts, each, edl, kill_jobs, owner
from tools.turns import in_turn

from edl.jobs.local import LocalJob

MINIBATCH = 16


def staged(folder, stage, records, name="job", **settings):
    """Make a job of tests/zoo/staged.py."""
    return Job(
        folder / name,
        **{
            "model_def": "staged",
            "training_data": str(write_records(folder / "records.npz", records)),
            "minibatch_size": MINIBATCH,
            "num_minibatches_per_task": 4,
            "use_async": True,
            **settings,
            "envs": {**stage.envs, **settings.get("envs", {})},
        },
    )


def test_a_drained_worker_hands_back_where_it_stands_and_nothing_is_computed_twice(tmp_path):
    """Broken once: Worker._hand_back does nothing (the lease then ends with the process, and the
    minibatch that is computed when the signal comes is lost)."""
    stage = Stage(tmp_path, 20)
    job = staged(tmp_path, stage, 128, num_workers=1, shuffle=False)
    with job:
        status = job.watch(lambda s: stage.reached(20))
        first = status["workers"][0]["pid"]
        send(first, signal.SIGTERM)
        stage.open(20)
        assert 0 == job.wait(), job.logs()

    ended = [e["text"] for e in job.result()["events"] if "preempted" in e["text"]]
    assert ["worker 0 ended with exit code 0 (preempted)"] == ended
    batches = stage.computed()
    position = sum(len(batch["records"]) for batch in batches.pop(first))
    log = (job.folder / "logs" / "worker-0.log").read_text()
    assert f"task={1 + position // 64} position={position % 64} -> handed back" in log
    (rest,) = batches.values()
    assert list(range(position, 128)) == [r for batch in rest for r in batch["records"]]
    assert each(128) == counts(job)


@in_turn(1)
def test_workers_are_scaled_up_and_down_from_the_command_line(tmp_path):
    """Broken once: Replicas.scale forgets to mark the slots that must leave."""
    stage = Stage(tmp_path, 20)
    envs = ",".join(f"{key}={value}" for key, value in stage.envs.items())
    data = write_records(tmp_path / "records.npz", 256)
    home, checkpoints = tmp_path / "home", tmp_path / "checkpoints"
    arguments = ["--model_zoo", ZOO, "--model_def", "staged", "--training_data", data]
    arguments += ["--minibatch_size", MINIBATCH, "--num_minibatches_per_task", 2, "--num_workers"]
    arguments += [1, "--no-shuffle", "--use_async", "--envs", envs, "--job_name", "elastic"]
    job = Job(tmp_path / "unused", checkpoint_dir=str(checkpoints))

    edl(home, "train", *arguments, "--checkpoint_dir", checkpoints, "--detach")
    client = LocalJob(home / "jobs" / "elastic").client()
    deadline = time.monotonic() + 300
    try:

        def wait(until):
            revision = 0
            while True:
                revision, status = client.status(revision, wait_s=1.0)
                if until(status):
                    return status
                assert status["exit_code"] is None, status
                assert time.monotonic() < deadline, status

        def states(status):
            return [w["state"] for w in status["workers"]]

        wait(lambda s: stage.reached(20))
        up = edl(home, "scale", "elastic", "--num_workers", 3)
        wait(lambda s: 2 == states(s).count("waiting"))  # all that is not held is done
        down = edl(home, "scale", "--num_workers", 1)
        status = wait(lambda s: 2 == states(s).count("left"))
        assert "waiting" not in states(status)
        stage.open(20)
        wait(lambda s: s["exit_code"] == 0)
    finally:
        client.close()
        kill_jobs(home)

    assert ("1 -> 3", "3 -> 1") == tuple(text.stdout.partition(": ")[2][:6] for text in (up, down))
    assert len(stage.computed()) in (2, 3)  # a fast one may leave nothing to its twin
    assert each(256) == counts(job)


@in_turn(0)
def test_an_evaluation_while_training_reads_one_state_of_all_servers(tmp_path):
    """Broken once: PsTrainer.outputs pulls the present instead of the cut."""
    job = Job(
        tmp_path / "job",
        model_def="twins",
        training_data=str(write_records(tmp_path / "records.npz", 2400)),
        validation_data=str(write_records(tmp_path / "validation.npz", 96)),
        minibatch_size=8,
        num_minibatches_per_task=3,
        num_workers=2,
        num_ps=2,
        use_async=True,
        evaluation_steps=40,
    )
    with job:
        assert 0 == job.wait(), job.logs()

    evaluations = job.result()["evaluations"]
    assert len(evaluations) >= 3
    assert 300 == evaluations[-1]["version"]
    assert len({e["version"] for e in evaluations}) == len(evaluations)
    assert [e["version"] for e in evaluations] == [e["metrics"]["pushes"] for e in evaluations]
    assert {0.0} == {e["metrics"]["spread"] for e in evaluations}


def test_epochs_overlap_where_the_user_wants_it(tmp_path):
    """Broken once: Course.settle never opens one."""
    stage = Stage(tmp_path, 20)
    job = staged(
        tmp_path, stage, 128, num_workers=2, shuffle=False, num_epochs=3, overlap_epochs=True
    )

    def first_minibatches():
        batches = [batch for batches in stage.computed().values() for batch in batches]
        return len([batch for batch in batches if 0 in batch["records"]])

    with job:
        status = job.watch(lambda s: stage.reached(20) and first_minibatches() == 2)
        assert 1 == status["epoch"]
        assert owner(status, 1) is not None  # the first task of epoch 0 is not done yet
        stage.open(20)
        assert 0 == job.wait(), job.logs()

    assert each(128, 3) == counts(job)


@pytest.mark.parametrize(
    ("settings", "version", "minibatches"),
    [
        # 10 minibatches an epoch: with 3 a version the last of each is of one.
        ({"grads_to_wait": 3, "num_epochs": 1}, 4, 10),
        ({"grads_to_wait": 3, "num_epochs": 0, "max_steps": 6}, 6, 16),
        ({"use_async": True, "num_epochs": 0, "max_steps": 13}, 13, 13),
        ({"use_async": True, "num_epochs": 5, "max_steps": 13, "overlap_epochs": True}, 13, 13),
    ],
    ids=["remainder", "sync", "async", "overlap"],
)
def test_versions_and_records_are_exactly_those_that_were_asked_for(
    settings, version, minibatches, tmp_path
):
    """Broken once: (1) the remainder of an epoch is not flushed; (2) Plan._minibatches_of knows no
    max_steps."""
    settings = {"use_async": False, **settings}
    envs = {"GRADS_TO_WAIT": str(settings.get("grads_to_wait", 1))}
    job = staged(
        tmp_path, Stage(tmp_path), 160, num_workers=2, shuffle=False, envs=envs, **settings
    )
    with job:
        assert 0 == job.wait(), job.logs()

    counted = counts(job)
    assert version == job.result()["version"]
    assert minibatches * MINIBATCH == sum(counted.values()) == job.result()["records_done"]
    whole, rest = divmod(minibatches, 10)
    assert {whole, whole + bool(rest)} == {counted.get(record, 0) for record in range(160)}


@in_turn(2)
def test_the_same_seed_means_the_same_minibatches_whatever_the_number_of_workers(tmp_path):
    """Broken once: TaskStream.read adds the process's pid to the seed."""
    found = {}
    for workers in (1, 3):
        stage = Stage(tmp_path / str(workers))
        job = staged(tmp_path / str(workers), stage, 320, num_workers=workers, seed=9, num_epochs=2)
        with job:
            assert 0 == job.wait(), job.logs()
        found[workers] = sorted(
            tuple(batch["records"]) for batches in stage.computed().values() for batch in batches
        )

    assert 40 == len(found[1])
    assert found[1] == found[3]
    assert [] == [batch for batch in found[1] if list(batch) == sorted(batch)]  # shuffled
    assert 40 == len(set(found[1]))  # and differently in each epoch

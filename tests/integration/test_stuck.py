"""Jobs whose code is stuck or ends its process: found, named, bounded (docs/failure-model.md)."""

import time

import numpy as np
from tools.jobs import NO_RESTARTS, Job, write_records
from tools.servers import dense
from tools.stage import counts, each
from tools.turns import in_turn

RECORDS, MINIBATCH = 128, 16
SPAN = set(range(64, 80))  # the minibatch of record 70


def stuck(folder, how, **settings):
    return Job(
        folder / "job",
        **{
            "model_def": "stuck",
            "training_data": str(write_records(folder / "records.npz", RECORDS)),
            "minibatch_size": MINIBATCH,
            "num_minibatches_per_task": 4,
            "num_workers": 1,
            "shuffle": False,
            "envs": {"STUCK": how},
            **settings,
        },
    )


def told(job, text):
    """Return when the user could read a text, in seconds since the job began."""
    at = [event["t"] for event in job.result()["events"] if text in event["text"]]
    assert at, job.result()["events"]
    print(f"{text!r} after {at[0]} s")
    return at[0]


@in_turn(3)
def test_a_worker_that_keeps_the_gil_for_three_leases_is_left_alone_and_trains_on(tmp_path):
    """Broken once: without the keeper it is lost after a lease and killed after three, for ever."""
    job = stuck(tmp_path, "gil", lease_s=2.0, hang_s=60.0)
    with job:
        assert 0 == job.wait(), job.logs()

    assert NO_RESTARTS == job.result()["restarts"]
    assert each(RECORDS) == counts(job)
    assert not [e for e in job.result()["events"] if "lost" in e["text"]]


def test_a_definition_that_hangs_in_import_is_named_with_its_stack_and_ends_the_job(tmp_path):
    began = time.monotonic()
    job = stuck(tmp_path, "import", hang_s=2.0)
    with job:
        assert 1 == job.wait(), job.logs()
    print(f"the cause after {time.monotonic() - began:.1f} s")

    assert "importing the definition stuck has taken 2 s, so it hangs (--hang_s)" in job.logs()
    assert "stuck.py" in (job.folder / "logs" / "describe.log").read_text()


@in_turn(0)
def test_a_minibatch_whose_worker_always_exits_with_0_is_quarantined_and_all_else_is_applied(
    tmp_path,
):
    """Broken once: TaskQueue.ended does nothing; 30 lives in 40 s, and no end."""
    job = stuck(tmp_path, "exit")
    with job:
        assert 3 == job.wait(), job.logs()

    (found,) = job.result()["quarantined"]
    assert SPAN == set(found["records"])
    assert (
        "position 0 of task 2 has ended its worker 3 times; the last time it ended with exit code 0"
        == found["error"]
    )
    told(job, "position 0 of task 2 has ended its worker 2 times")
    assert each(set(range(RECORDS)) - SPAN) == counts(job)


def test_a_minibatch_that_needs_too_much_memory_is_named(tmp_path):
    job = stuck(tmp_path, "memory")
    with job:
        assert 3 == job.wait(), job.logs()

    (found,) = job.result()["quarantined"]
    assert SPAN == set(found["records"])
    assert "MemoryError" in found["error"]
    assert "128. GiB" in found["error"]
    told(job, "worker 0 failed at positions 0-16 of task 2")
    assert each(set(range(RECORDS)) - SPAN) == counts(job)


def test_a_round_whose_members_all_wait_for_each_other_begins_anew(tmp_path):
    """Broken once: Meeting.stalls does nothing: the workers are killed, one after the other."""
    (tmp_path / "marks").mkdir()
    job = stuck(
        tmp_path,
        "",
        model_def="stalled",
        model_params={"records": RECORDS},
        strategy="allreduce",
        num_workers=2,
        hang_s=8.0,
        envs={"MARKS": str(tmp_path / "marks"), "MINIBATCH": str(MINIBATCH)},
    )
    with job:
        assert 0 == job.wait(), job.logs()

    assert NO_RESTARTS == job.result()["restarts"]
    assert told(job, "all 2 workers wait in the same step")
    np.testing.assert_allclose(dense(job.checkpoint(), "counts"), 1, rtol=1e-5)

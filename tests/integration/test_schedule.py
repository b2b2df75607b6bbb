"""Queued jobs share the workers of a machine, and each counts its records once."""

import os
import signal
import subprocess
import sys
import time

from tools.jobs import ZOO, Job, write_records
from tools.stage import counts, each, edl, kill_jobs
from tools.turns import in_turn
from tools.waiting import until

from edl.jobs.local import LocalJob


@in_turn(3)
def test_a_second_job_gets_workers_of_the_first_and_both_end_exact(tmp_path):
    """Broken once: LocalPlace.act begins the second job before the first one shrinks."""
    home = tmp_path / "home"
    jobs = [LocalJob(home / "jobs" / name) for name in ("first", "second")]
    fast = tmp_path / "fast"  # until this is there a job cannot end, however slow the machine is

    def queue(job, records):
        data = write_records(tmp_path / f"{job.name}.npz", records)
        edl(
            *(home, "train", "--queue", "--job_name", job.name, "--training_data", data),
            *("--model_zoo", ZOO, "--model_def", "counting"),
            *("--model_params", f"delay_s=0.4,until={fast}"),
            *("--minibatch_size", 8, "--num_minibatches_per_task", 2, "--num_workers", 3),
            *("--use_async", "--checkpoint_dir", tmp_path / job.name),
        )

    def serve():
        # By the jobs' speeds alone it may be best that the second one waits for the first to end.
        flags = ("schedule", "serve", "--workers", "3", "--every", "0.5", "--patience", "3")
        return subprocess.Popen(
            (sys.executable, "-m", "edl", *flags),
            env={**os.environ, "EDL_HOME": str(home), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )

    serves = serve()
    try:
        queue(jobs[0], 9000)  # it trains still when the second one has begun
        until(lambda: time.sleep(0.1) or jobs[0].status().get("records_done", 0) > 0)
        queue(jobs[1], 1200)
        until(lambda: time.sleep(0.1) or jobs[1].status().get("records_done", 0) > 0)
        serves.kill()  # jobs go on without it, and its successor finds them
        told = serves.communicate(timeout=300)[0]
        plan = home / "schedule" / "plan.json"
        plan.unlink()
        serves = serve()
        until(plan.exists)  # it serves, and knows what a signal means
        fast.touch()
        for job in jobs:
            edl(home, "wait", job.name)
            until(job.result)  # which its master leaves last
        serves.send_signal(signal.SIGINT)
        serves.communicate(timeout=300)
    finally:
        serves.kill()
        serves.wait()
        kill_jobs(home)

    assert 0 == serves.returncode
    lines = [line.split(": ")[:2] for line in told.splitlines()]
    assert ["first", "0 -> 3 workers"] == lines[0]
    shrinks = next((i for i, (_, what) in enumerate(lines) if what.startswith("3 -> ")), 1000)
    begins = next(i for i, (name, _) in enumerate(lines) if name == "second")
    assert shrinks < begins, told
    assert "first" == lines[shrinks][0]
    for job, records in zip(jobs, (9000, 1200), strict=True):
        result = job.result()
        assert (0, records) == (result["exit_code"], result["records_done"])
        assert (0, 0) == (result["restarts"]["worker"], result["restarts"]["master"])
        assert each(records) == counts(
            Job(tmp_path / "unused", checkpoint_dir=str(tmp_path / job.name))
        )

"""All-reduce with a model that no member holds whole: what it ends with, what was applied how often."""

import re
import signal

import numpy as np
import pytest
from groups import MINIBATCH, RECORDS, counts, job_of, scale, values
from jobs import send
from servers import dense

from edl.chaos.controller import CONTINUE, OFF, Controller


def sharded(folder, *more, **settings):
    return job_of(folder, *more, **{"fully_shard": True, "num_workers": 3, **settings})


def test_a_sharded_elastic_run_ends_as_the_fixed_one(tmp_path):
    """2 -> 3 -> 2 members; one is killed as it computes, the first of the group after a vote."""
    with job_of(tmp_path / "fixed", num_workers=1, delay_s=0.0) as job:
        assert job.wait() == 0, job.logs()
    fixed = values(job)
    moments = {20: ("worker.compute", 1), 50: ("worker.commit", 0)}
    killed = []

    def decide(hit):
        done = hit.about["task"] * RECORDS // 12 // MINIBATCH  # steps, about
        due = [m for m, what in moments.items() if m <= done and what == (hit.point, hit.index)]
        if due:
            killed.append(moments.pop(due[0]))
            send(hit.pid, signal.SIGKILL)
        return CONTINUE if moments else OFF

    points = ("worker.compute", "worker.commit")
    with (
        Controller(tmp_path / "faults", points, decide) as controller,
        sharded(
            tmp_path / "job", num_workers=2, envs={"EDL_FAULTS": controller.variable}
        ) as job,
    ):
        for share, workers in ((0.3, 3), (0.8, 2)):
            job.watch(lambda s, share=share: s["records_done"] >= share * 2 * RECORDS)
            scale(job, workers)
        assert job.wait() == 0, job.logs()

    assert len(killed) == 2
    assert job.result()["version"] == 2 * RECORDS // MINIBATCH
    assert job.result()["restarts"]["worker"] == 0, "a survivor crashed"
    told = [event["text"] for event in job.result()["events"]]
    assert not [text for text in told if "computed again" in text], "a state was lost"
    np.testing.assert_allclose(values(job), fixed, rtol=0, atol=2e-5)

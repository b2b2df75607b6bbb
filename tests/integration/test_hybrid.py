"""Dense parameters by elastic all-reduce, tables on servers: both books, on real processes."""

import random
import signal

import numpy as np
import pytest
from jobs import NO_RESTARTS, Job, send, write_records
from servers import dense, table

from edl.chaos.controller import CONTINUE, OFF, Controller

RECORDS, MINIBATCH = 768, 16


def job_of(folder, *, delay_s=0.004, epochs=2, names=True, **more):
    data = str(write_records(folder.parent / "records.npz", RECORDS))
    return Job(
        folder,
        **{
            "strategy": "hybrid",
            "model_def": "hybrid",
            "model_params": {"records": RECORDS, "delay_s": delay_s, "names": names},
            "training_data": data,
            "minibatch_size": MINIBATCH,
            "num_minibatches_per_task": 4,
            "num_epochs": epochs,
            "num_workers": 2,
            "num_ps": 2,
            "lease_s": 3.0,
            "envs": {"MINIBATCH": str(MINIBATCH), **more.pop("envs", {})},
            **more,
        },
    )


def assert_exact(job, epochs=2):
    checkpoint = job.checkpoint()
    ids, rows = table(checkpoint, "rows")
    assert [float(epochs)] * RECORDS == np.round(dense(checkpoint, "counts"), 3).tolist()
    assert np.arange(RECORDS).tolist() == ids.tolist()
    assert [float(epochs)] * RECORDS == np.round(rows.ravel(), 3).tolist()


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_both_sides_apply_each_record_once(tmp_path, staleness):
    how = {"num_workers": 3, "staleness": staleness, "delay_s": 0.0, "names": staleness != 3}
    with job_of(tmp_path / "job", **how) as job:
        assert job.wait() == 0, job.logs()

    assert_exact(job)
    assert job.result()["restarts"] == NO_RESTARTS
    assert job.result()["version"] == 2 * RECORDS // MINIBATCH

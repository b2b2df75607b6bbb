"""The ends of a job: it is stopped, broken, gone on with, evaluated. Real processes."""

import signal

import numpy as np
import pytest
from tools.jobs import Job, write_records
from tools.servers import table
from tools.turns import in_turn

from edl.common import storage

RECORDS, EPOCHS = 3072, 2  # a whole number of minibatches


@pytest.fixture
def settings(tmp_path):
    return {
        "model_def": "counting",
        "model_params": {"delay_s": 0.01},
        "training_data": str(write_records(tmp_path / "records.npz", RECORDS)),
        "minibatch_size": 16,
        "num_minibatches_per_task": 8,
        "num_epochs": EPOCHS,
        "num_workers": 2,
        "num_ps": 2,
        "grads_to_wait": 2,
        "envs": {"GRADS_TO_WAIT": "2"},
    }


def begun(fraction):
    return lambda s: s["records_done"] >= fraction * s["records_total"] > 0


def test_a_stopped_job_goes_on_from_its_checkpoint_on_other_servers(tmp_path, settings):
    with Job(tmp_path / "first", **settings) as first:
        first.watch(begun(0.6))
        client = first.client()
        client.stop("a test")
        client.close()
        assert first.wait() == 130, first.logs()
    stopped = first.result()
    assert stopped["message"].endswith(f"edl train --resume {stopped['checkpoint']}")
    assert 0 < stopped["records_done"] < RECORDS * EPOCHS

    settings |= {"num_ps": 3, "resume": stopped["checkpoint"]}
    with Job(tmp_path / "second", **settings) as second:
        assert second.wait() == 0, second.logs()

    ids, counts = table(second.checkpoint(), "counts")
    assert list(ids) == list(range(RECORDS))
    assert set(counts[:, 0].tolist()) == {float(EPOCHS)}
    assert RECORDS * EPOCHS == second.result()["records_done"]


def test_an_interrupted_master_drains_and_ends_with_130(tmp_path, settings):
    with Job(tmp_path / "job", **settings) as job:
        job.watch(begun(0.1))
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 130, job.logs()

    assert "stopped (SIGINT)" in job.result()["message"]
    assert storage.latest(job.settings.checkpoint_dir) is not None


@in_turn(2)
def test_evaluate_and_predict_start_from_a_checkpoint(tmp_path, settings):
    with Job(tmp_path / "trained", **settings, validation_data=settings["training_data"]) as job:
        assert job.wait() == 0, job.logs()
    assert [0, 1] == [e["epoch"] for e in job.result()["evaluations"]]
    data = {**settings, "checkpoint_dir_for_init": str(job.checkpoint()), "checkpoint_dir": ""}

    with Job(
        tmp_path / "evaluated",
        **{**data, "command": "evaluate", "validation_data": settings["training_data"]},
    ) as evaluated:
        assert evaluated.wait() == 0, evaluated.logs()
    assert evaluated.result()["metrics"] == {"records": pytest.approx(1.0)}

    output = tmp_path / "predictions"
    with Job(
        tmp_path / "predicted",
        **{
            **data,
            "command": "predict",
            "prediction_data": settings["training_data"],
            "output": str(output),
        },
    ) as predicted:
        assert predicted.wait() == 0, predicted.logs()
    assert RECORDS == predicted.result()["records_done"]
    assert list(output.rglob("*"))


def test_max_steps_ends_at_exactly_that_version(tmp_path, settings):
    settings |= {"max_steps": 37, "num_epochs": 1}
    with Job(tmp_path / "job", **settings) as job:
        assert job.wait() == 0, job.logs()

    manifest = storage.read_manifest(job.checkpoint())
    assert 37 == manifest.version
    _, counts = table(job.checkpoint(), "counts")
    assert 37 * 2 * 16 == np.sum(counts)

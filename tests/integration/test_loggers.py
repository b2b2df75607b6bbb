"""One run for one job: nothing comes twice to its loggers, whoever is killed, and it goes on."""

import dataclasses
import importlib.util
import json

import pytest
from tools import logged
from tools.jobs import ZOO, write_records
from tools.stage import Stage

from edl.common.resolve import resolve

RECORDS = 2048


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'mlruns'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    data = str(write_records(tmp_path / "records.npz", RECORDS))
    return {
        "job_name": "demo",
        "run": "demo-1",
        "model_zoo": str(ZOO),
        "model_def": "counting",
        "model_params": {"delay_s": 0.08},
        "training_data": data,
        "validation_data": data,
        "minibatch_size": 16,
        "num_ps": 1,
        "use_async": True,
        "output": str(tmp_path / "out"),
        "snapshot_s": 1.0,
    }


def installed(*names):
    return [name for name in names if importlib.util.find_spec(name)]


def after(share):
    return lambda s: s["records_done"] > share * s["records_total"] > 0


def pid(status, role, index=0):
    return status[role][index]["pid"]


def test_a_run_goes_on_through_deaths_of_a_worker_of_its_process_and_of_the_whole_job(
    tmp_path, settings
):
    pytest.importorskip("tensorboard")
    names = ["jsonl", "tensorboard", *installed("trackio")]
    path = tmp_path / "out" / "demo-1.jsonl"
    held = Stage(tmp_path, RECORDS // 2 - 1, RECORDS - 1)  # each holds a worker
    settings |= {"model_def": "staged", "model_params": {"delay_s": 0.005}, "envs": held.envs}
    settings |= {"validation_data": "", "shuffle": False, "logger": ",".join(names)}
    with logged.LoggedJob(**settings) as job:
        job.strike(pid(job.watch(lambda _: held.reached(RECORDS - 1)), "workers"))
        logged.wait_for(lambda: path.exists() and "loss/train" in logged.jsonl(path))
        job.strike_writer()
        held.open(RECORDS // 2 - 1)
        job.watch(after(0.9))
        job.cut_off()
        held.open(RECORDS - 1)
        job.resume()
        assert 0 == job.wait(), job.log()

    series = logged.jsonl(path)
    logged.rises(series)
    assert {"loss/train", "workers", "restarts", "goodput", "records_per_second"} < series.keys()
    if installed("trackio"):
        assert ("demo-1", series) == logged.trackio(tmp_path / "trackio")
    assert series == logged.tensorboard(tmp_path / "out" / "tensorboard" / "demo-1")


@pytest.mark.slow  # a minute
def test_each_logger_has_one_run_through_three_deaths_and_two_resumes(tmp_path, settings):
    """P8, with the process that writes killed as well, and a logger that raises.

    Broken once: a job that goes on from a checkpoint begins with new cursors.
    """
    for library in ("mlflow", "trackio", "wandb", "tensorboard"):
        pytest.importorskip(library)
    settings |= {"num_epochs": 3, "model_params": {"delay_s": 0.1}, "evaluation_steps": 60}
    settings |= {"logger": "mlflow,trackio,wandb,tensorboard,jsonl"}
    broken = tmp_path / "out" / "demo-1.jsonl"
    broken.mkdir(parents=True)  # where a file should be
    board = tmp_path / "out" / "tensorboard" / "demo-1"
    with logged.LoggedJob(**settings) as job:
        job.strike(pid(job.watch(after(0.1)), "workers"))
        logged.wait_for(lambda: board.exists() and "loss/train" in logged.tensorboard(board))
        job.strike_writer()
        job.strike(pid(job.watch(after(0.2)), "servers"))
        job.watch(after(0.3))
        master = job.job.address()
        job.strike(master[1])
        job.watch(after(0.4))
        job.cut_off()
        job.resume()
        job.watch(after(0.5))
        job.strike_writer()
        job.watch(after(0.6))
        job.job.stop("a test")
        assert 130 == job.wait(), job.log()
        told = [text for text in job.events() if text.startswith("logger ")]
    run, _ = logged.mlflow(f"file://{tmp_path / 'mlruns'}")
    assert "KILLED" == run.info.status
    assert 1 == len(told), told
    assert told[0].startswith("logger jsonl: IsADirectoryError")

    broken.rmdir()
    resumed = resolve("train", {"resume": "demo"})
    with logged.LoggedJob(**dataclasses.asdict(resumed)) as job:
        assert 0 == job.wait(), job.log()
    assert "demo-r1" == resumed.job_name

    expected = logged.tensorboard(board)
    run, of_mlflow = logged.mlflow(f"file://{tmp_path / 'mlruns'}")
    name, of_trackio = logged.trackio(tmp_path / "trackio")
    ids, of_wandb = logged.wandb(tmp_path)
    for series in (expected, of_mlflow, of_trackio, of_wandb, logged.jsonl(broken)):
        logged.rises(series)
    assert (expected, expected) == (of_mlflow, of_trackio)
    assert ({"demo-1"}, "demo-1", "demo-1") == (ids, name, run.data.tags["edl.run"])
    assert ("FINISHED", "3") == (run.info.status, run.data.params["num_epochs"])
    rows = of_wandb.pop("_step")
    assert expected.keys() == of_wandb.keys()
    for name, steps in of_wandb.items():
        assert set(steps) <= set(expected[name])
    missing = sum(len(expected[name]) - len(steps) for name, steps in of_wandb.items())
    counts = {name: len(steps) for name, steps in expected.items()}
    print(json.dumps({"points": counts, "wandb lacks": missing, "wandb rows": len(rows)}))

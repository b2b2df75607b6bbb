"""Arguments of `edl.train` beside the file of `config=`, and the status of a job that is young."""

import re
from pathlib import Path

import pytest

import edl
from edl.api import run as api
from edl.jobs import figures
from edl.jobs.job import whole

CLI = Path(__file__).parents[3] / "docs" / "cli.md"


@pytest.fixture
def given(tmp_path):
    (tmp_path / "data.csv").write_text("a\n1\n")
    (tmp_path / "job.yaml").write_text(
        "early-stopping: accuracy\nnum_ps: 3\nepochs: 7\ncheckpoint_dir: saved\n"
        "optimizer_params: {lr: 0.5}\n"
    )
    return {
        "training_data": str(tmp_path / "data.csv"),
        "validation_data": str(tmp_path / "data.csv"),
        "config": str(tmp_path / "job.yaml"),
    }


def test_none_is_the_default_whatever_the_job_file_says(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with api.wanted("train", "train", "iris", given) as begun:
        told = begun.settings
    with api.wanted(
        *("train", "train", "iris"),
        {**given, "early_stopping": None, "num_epochs": None, "optimizer_params": None},
    ) as begun:
        found = begun.settings

    assert ("accuracy", 7, 3, {"lr": 0.5}) == (
        *(told.early_stopping, told.num_epochs, told.num_ps, told.optimizer_params),
    )
    assert ("", 1, 3, {}) == (
        *(found.early_stopping, found.num_epochs, found.num_ps, found.optimizer_params),
    )


def _documented():
    table = CLI.read_text().partition("are those of `edl status -o json`")[2]
    rows = re.findall(r"^\| (`.*?) \|", table.partition("\n## ")[0], re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_a_job_that_has_told_nothing_has_all_fields_that_are_documented(tmp_path, monkeypatch):
    monkeypatch.setenv("EDL_HOME", str(tmp_path))
    folder = tmp_path / "jobs" / "young"
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text("{}")
    (folder / "queue.json").write_text("{}")

    status = edl.job("young").status()

    assert status["state"] == "queued"
    assert len(_documented()) > 30
    assert _documented() <= status.keys()
    assert ({}, [], None) == (status["metrics"], status["events"], status["loss"])
    assert figures.now(status) == []


def test_what_a_job_has_told_stays_as_it_is():
    told = {"state": "running", "loss": 0.5, "workers": [{"index": 0}], "more": 1}

    assert told == {name: whole(told)[name] for name in told}
    assert {"command": "launch"} == whole({"command": "launch"})

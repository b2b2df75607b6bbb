"""Arguments of `edl.train` beside the file of `config=`."""

import pytest

from edl.api import run as api


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

"""`edl train --init_dense --init_rows`: a job begins with what was trained elsewhere."""

import numpy as np
import pytest
from tools.jobs import ZOO, write_records

import edl
from edl.cli import main as cli
from edl.common import paths
from edl.common.settings import JobSettings
from edl.jobs import start


class Started(Exception):
    """Raised in place of a master's start."""


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Run `edl train` up to the start of the master."""
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    data = write_records(tmp_path / "data.npz", 64)

    def launch(job, lock, _master):
        paths.os.close(lock)
        raise Started(job.folder)

    monkeypatch.setattr(start, "_launch", launch)

    def run(*more):
        flags = ["--job_name", "new", "--model_zoo", ZOO, "--model_def", "counting"]
        return cli.run(["train", *map(str, (*flags, "--training_data", data, *more))])

    return run


def rows_file(path, ids):
    np.savez(path, ids=np.array(ids), weight=np.full((len(ids), 1), 5.0, np.float32))
    return path


def test_the_job_has_a_checkpoint_of_the_files_in_its_folder(train, tmp_path):
    """Broken once: the settings in the folder are those from before."""
    with pytest.raises(Started):
        train("--init_rows", f"counts={rows_file(tmp_path / 'rows.npz', [3, 9])}")

    folder = paths.job_folder("new")
    begin = JobSettings.of_job(folder).checkpoint_dir_for_init
    assert begin == str(folder / "begin")
    found = edl.rows(begin, "counts")
    assert ([3, 9], [[5.0], [5.0]]) == (found.ids.tolist(), found.weight.tolist())


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--init_rows", "count={rows}"], "has no table 'count' (did you mean 'counts'?)"),
        (["--init_rows", "{rows}"], "write TABLE=FILE"),
        (["--init_rows", "counts=none.npz"], "none.npz cannot be read as rows"),
        (["--init_partial"], "--init_partial is of --init_dense"),
        (["--init_rows", "counts={rows}", "--queue"], "`edl checkpoint make`"),
    ],
)
def test_what_does_not_fit_is_one_sentence_and_no_job_is_left(train, tmp_path, capsys, flags, told):
    """Broken once: the folder of a job that could not begin stays, and its name with it."""
    rows = rows_file(tmp_path / "rows.npz", [3, 9])

    assert 2 == train(*(flag.format(rows=rows) for flag in flags))

    err = capsys.readouterr().err
    assert ("edl: error: ", 1) == (err[:12], len(err.splitlines()))
    assert told in err
    assert not paths.job_folder("new").exists()

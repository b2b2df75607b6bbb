"""Jobs that versions before have left are gone on with to their end, record by record.

What is kept, and how a release keeps its own: tests/kept/README.md. Real processes.
"""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
from kept.folders import JOB, all_kept
from tools import jobs
from tools.servers import dense, table
from tools.stage import edl, kill_jobs
from tools.turns import some

from edl.common import storage
from edl.jobs.local import LocalJob, kill

WAIT_S = 300.0  # tells a hang from a busy machine


@pytest.fixture
def placed(tmp_path, monkeypatch):
    """Put a kept folder where its job goes on: in the current one, which is its EDL_HOME."""

    def place(kept):
        monkeypatch.chdir(kept.place(tmp_path / "home"))
        return tmp_path / "home"

    yield place
    kill_jobs(tmp_path / "home")


def of_rows(checkpoint, name, records):
    ids, rows = table(checkpoint, name)
    counts = np.zeros(records)
    counts[ids] = rows[:, 0]
    return np.round(counts, 3).tolist()


def of_dense(checkpoint, name, records):
    counts = np.round(dense(checkpoint, name), 3).tolist()
    assert records == len(counts)
    return counts


# By definition: what tells how often each record was applied.
COUNTERS = {
    "counting": [(of_rows, "counts")],
    "tally": [(of_dense, "counts")],
    "hybrid": [(of_dense, "counts"), (of_rows, "rows")],
}


def counts_of(checkpoints, records):
    """Return how often each record was applied, by all that counts it in the newest checkpoint."""
    manifest = storage.load(checkpoints)
    model_def = manifest.books["settings"]["model_def"]
    found = [read(manifest.directory, name, records) for read, name in COUNTERS[model_def]]
    assert all(each == found[0] for each in found)
    return found[0]


def check(kept, folder):
    """Check that each record was applied once an epoch, but for where it was quarantined."""
    records, epochs = kept.expected["records"], kept.expected["epochs"]
    left_out = kept.expected["told"]["left out"]
    result = json.loads((folder / "result.json").read_text())
    assert ("done", 0) == (result["state"], result["exit_code"])
    assert records * epochs == result["records_done"]
    assert sorted(map(int, left_out)) == sorted(
        r for q in result["quarantined"] for r in q["records"]
    )
    wanted = [float(epochs - left_out.get(str(record), 0)) for record in range(records)]
    assert wanted == counts_of(folder / "checkpoints", records)


@pytest.mark.parametrize("kept", some(all_kept("job"), 4))
def test_a_job_that_was_cut_off_goes_on_where_it_was(kept, placed):
    home = placed(kept)

    edl(home, "train", "--resume", home / JOB)

    check(kept, home / JOB)


@pytest.mark.parametrize("kept", some(all_kept("checkpoint"), 5))
def test_a_new_job_goes_on_with_a_checkpoint(kept, placed):
    home = placed(kept)

    edl(home, "train", "--resume", home / JOB / "checkpoints", "--num_workers", 1)

    check(kept, home / f"{JOB}-r1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kept", [each for each in all_kept("checkpoint") if "fails" not in each.values[0].expected]
)
def test_a_new_job_begins_from_the_parameters_of_a_checkpoint(kept, placed):
    home, records = placed(kept), kept.expected["records"]
    checkpoints = home / JOB / "checkpoints"
    before = storage.load(checkpoints).books["settings"]
    new = {"checkpoint_dir_for_init": str(checkpoints), "checkpoint_dir": "", "num_epochs": 1}

    with jobs.Job(home / "jobs" / "new", **{**before, **new}) as job:
        assert 0 == job.wait(), job.logs()

    there = counts_of(checkpoints, records)
    assert [count + 1 for count in there] == counts_of(job.folder / "checkpoints", records)


@pytest.mark.parametrize("kept", some(all_kept("launch"), 3))
def test_a_launched_job_whose_nodes_are_gone_goes_on_with_another(kept, placed):
    home = placed(kept)
    job, before = LocalJob(home / JOB), LocalJob(home / JOB).address()
    (home / "finish").touch()  # at the end of the pass
    coordinator = subprocess.Popen(
        [sys.executable, "-m", "edl.launch", "--job-dir", job.folder], stdin=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + WAIT_S
        while job.address() == before:
            assert coordinator.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        edl(home, "launch", "--join", "it", "launched/counting.py", home)
        assert 0 == coordinator.wait(WAIT_S)
    finally:
        kill(job, coordinator)

    passes = kept.expected["passes"] + 1
    assert f"{passes} [{passes}]" == (home / "counts").read_text()

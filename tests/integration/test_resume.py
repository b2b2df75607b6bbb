"""Stop and go on, in the midst of an epoch, on other workers and servers. Real processes.

Every job runs the counting model, so that the last checkpoint says how often each record was
applied over all runs together: no gap, no overlap.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from tools.jobs import ZOO, write_records
from tools.servers import dense, table
from tools.stage import edl, kill_jobs, result
from tools.turns import in_turn

from edl.common import storage
from edl.jobs.local import LocalJob

RECORDS, EPOCHS = 2048, 2


@pytest.fixture
def home(tmp_path):
    yield tmp_path / "home"
    kill_jobs(tmp_path / "home")


def counting(tmp_path, **more):
    """Return the flags of a job that ends in seconds once `hurry` was called, else in a minute.

    So a machine that has other work still meets it in its midst.
    """
    flags = {
        "model_zoo": ZOO,
        "model_def": "counting",
        "model_params": f"delay_s=0.2,until={tmp_path / 'hurry'}",
        "training_data": write_records(tmp_path / "records.npz", RECORDS),
        "minibatch_size": 16,
        "num_epochs": EPOCHS,
        "num_workers": 2,
        "num_ps": 2,
        **more,
    }
    return said(flags)


def hurry(tmp_path):
    (tmp_path / "hurry").touch()


def said(flags):
    return [f"--{name}={value}" for name, value in flags.items()]


def interrupt(home, name, records, *arguments):
    """Run `edl train`; Ctrl-C once so many records are done. Return the last line it printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "edl", "train", *arguments],
        env={**os.environ, "EDL_HOME": str(home), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    job, until = LocalJob(home / "jobs" / name), time.monotonic() + 300
    while job.address() is None and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    client = job.client(patience_s=300)
    revision = done = 0
    while done < records and process.poll() is None and time.monotonic() < until:
        revision, status = client.status(revision, wait_s=1.0)
        done = status["records_done"]
    client.close()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=300)
    assert 130 == process.returncode, out
    return out.splitlines()[-1]


def books_of(command):
    """Return the manifest that a printed command names."""
    edl_train_resume = ["edl", "train", "--resume"]
    words = shlex.split(command)
    assert edl_train_resume == words[:3], command
    assert len(words) == 4, command
    return storage.load(words[3])


@in_turn(5, 6)
@pytest.mark.parametrize("mode", ["async", pytest.param("sync", marks=pytest.mark.slow)])
def test_job_that_is_stopped_twice_applies_each_record_once_an_epoch(tmp_path, home, mode):
    """Broken once: open_queue forgets the positions, or Master._stopping takes no checkpoint."""
    wait = 3 if mode == "sync" else 1
    how = {"use_async": "true"} if mode == "async" else {"grads_to_wait": wait}
    first = interrupt(
        home,
        "demo",
        RECORDS // 2,
        *counting(tmp_path, job_name="demo", envs=f"GRADS_TO_WAIT={wait}", **how),
    )
    before = books_of(first)
    assert before.directory.parent == home / "jobs" / "demo" / "checkpoints"
    assert before.books["tasks"], "it was stopped in the midst of an epoch"

    more = said({"num_workers": 3, "num_ps": 1})
    second = interrupt(home, "demo-r1", RECORDS * 3 // 2, *shlex.split(first)[2:], *more)
    assert books_of(second).version > before.version

    last = said({"num_workers": 1, "num_ps": 3, "checkpoint_dir": tmp_path / "c"})
    hurry(tmp_path)
    edl(home, *shlex.split(second)[1:], *last)

    end = storage.load(tmp_path / "c").directory
    ids, counts = table(end, "counts")
    assert list(range(RECORDS)) == list(ids)
    assert {float(EPOCHS)} == set(counts[:, 0].tolist())
    assert RECORDS * EPOCHS == dense(end, "total") == result(home, "demo-r2")["records_done"]


@in_turn(1)
def test_job_that_is_stopped_before_its_next_step_loses_nothing(tmp_path, home):
    """The checkpoint of the same version is not written over."""
    folder = tmp_path / "checkpoints"
    flags = counting(tmp_path, job_name="demo", checkpoint_dir=folder, use_async="true")
    first = books_of(interrupt(home, "demo", RECORDS // 2, *flags)).directory
    written = {path: path.read_bytes() for path in first.iterdir()}

    second = interrupt(home, "demo-r1", 0, f"--resume={folder}")

    assert books_of(second).directory == storage.load(folder).directory
    assert written == {path: path.read_bytes() for path in first.iterdir()}


@in_turn(3)
def test_what_would_make_positions_meaningless_is_refused(tmp_path, home):
    flags = counting(tmp_path, job_name="demo", use_async="true", num_workers=1, num_ps=1)
    stopped = shlex.split(interrupt(home, "demo", 200, *flags))[1:]

    ended = edl(home, *stopped, "--minibatch_size=32", code=2)
    assert "--minibatch_size is not that of the checkpoint" in ended.stderr
    write_records(tmp_path / "records.npz", RECORDS + 1)
    ended = edl(home, *stopped, code=2)
    assert f"records.npz had {RECORDS} records, and has {RECORDS + 1}" in ended.stderr

    rows = next(books_of(" ".join(["edl", *stopped])).directory.glob("*.table-*"))
    rows.write_bytes(rows.read_bytes()[:-1] + b"!")
    ended = edl(home, *stopped, code=2)
    assert f"{rows} is damaged: its sha256 is not the one written down" in ended.stderr


@in_turn(1)
def test_job_whose_processes_were_all_killed_at_once_goes_on_from_its_folder(tmp_path, home):
    """All processes go at once, as when the machine is booted anew."""
    folder = tmp_path / "checkpoints"  # one, at the end
    flags = counting(
        tmp_path, job_name="demo", use_async="true", snapshot_s=0.5, checkpoint_dir=folder
    )
    edl(home, "train", "--detach", *flags)
    job = LocalJob(home / "jobs" / "demo")
    client, (revision, status) = job.client(patience_s=300), (0, {"records_done": 0})
    while status["records_done"] < RECORDS // 2:
        revision, status = client.status(revision, wait_s=1.0)
    client.close()

    kill_jobs(home)

    told = edl(home, "status", "demo", "-o", "json").stdout
    command = json.loads(told)["message"].rpartition(": ")[2]
    assert f"edl train --resume {job.folder}" == command
    refused = edl(home, *shlex.split(command)[1:], "--num_workers=3", code=2).stderr
    assert "has no checkpoint: give no other flags" in refused
    hurry(tmp_path)
    out = edl(home, *shlex.split(command)[1:]).stdout

    assert "; started again (epoch 2)" in out
    done = result(home, "demo")
    assert RECORDS * EPOCHS == done["records_done"]
    ids, counts = table(folder, "counts")
    assert list(range(RECORDS)) == list(ids)
    assert {float(EPOCHS)} == set(counts[:, 0].tolist())


@in_turn(0)
def test_the_same_number_of_other_records_is_refused_and_nothing_is_touched(tmp_path, home):
    """Broken once: of a file whose lines were turned round, records counted once or three times.

    The journal and the checkpoint are each gone on with, once the data is what it was.
    """
    folder = tmp_path / "checkpoints"
    flags = counting(
        tmp_path,
        job_name="demo",
        use_async="true",
        checkpoint_dir=folder,
        checkpoint_steps=10,
    )
    edl(home, "train", "--detach", *flags)
    job = LocalJob(home / "jobs" / "demo")
    client, (revision, status) = job.client(patience_s=300), (0, {"checkpoint": None})
    while not status["checkpoint"]:
        revision, status = client.status(revision, wait_s=1.0)
    client.close()
    kill_jobs(home)
    data, there = tmp_path / "records.npz", files_of(job.folder)
    kept = data.read_bytes()
    np.savez(data, record=np.arange(RECORDS, dtype=np.int64)[::-1])
    assert len(kept) == data.stat().st_size

    for path in (job.folder, folder):
        refused = edl(home, "train", "--resume", path, code=2).stderr
        assert f"{data} has changed since" in refused
        assert refused.count("\n") == 1
    assert there == files_of(job.folder)

    data.write_bytes(kept)
    hurry(tmp_path)
    edl(home, "train", "--resume", folder, "--checkpoint_dir", tmp_path / "other")
    edl(home, "train", "--resume", job.folder)

    for checkpoints in (tmp_path / "other", folder):
        ids, counts = table(checkpoints, "counts")
        assert list(range(RECORDS)) == list(ids)
        assert {float(EPOCHS)} == set(counts[:, 0].tolist())


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

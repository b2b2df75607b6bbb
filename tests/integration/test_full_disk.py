"""A file system that is really full: a tmpfs of a few pages, in a mount namespace of its own."""

import os
import subprocess
import sys

import pytest
from tools.jobs import ZOO, write_records
from tools.servers import assert_exact
from tools.stage import edl, kill_jobs, result
from tools.turns import in_turn

RECORDS = 2048  # their rows are more than the file system holds
_MOUNT = 'mount -t tmpfs -o size=32k none "$0" && exec "$@"'


@pytest.fixture
def full(tmp_path):
    """Yield a folder, and how a command is run that sees a tiny file system there."""
    folder = tmp_path / "full"
    folder.mkdir()
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", _MOUNT, str(folder)]
    try:
        subprocess.run([*inside, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no mount namespace for this user: {error}")
    yield folder, inside
    kill_jobs(tmp_path)


def train(tmp_path, inside, **more):
    flags = {
        "job_name": "demo",
        "model_zoo": ZOO,
        "model_def": "counting",
        "model_params": "delay_s=0.02",
        "training_data": write_records(tmp_path / "records.npz", RECORDS),
        "minibatch_size": 16,
        "num_ps": 1,
        "num_workers": 2,
        "use_async": "true",
        "snapshot_s": 0.3,
        **more,
    }
    return subprocess.run(
        [
            *(*inside, sys.executable, "-m", "edl", "train"),
            *(f"--{name}={value}" for name, value in flags.items()),
        ],
        env={**os.environ, "EDL_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@in_turn(1)
def test_snapshots_that_find_no_room_are_told_of_and_training_goes_on(tmp_path, full):
    folder, inside = full
    checkpoints = tmp_path / "checkpoints"

    ended = train(tmp_path, inside, snapshot_dir=folder, checkpoint_dir=checkpoints)

    assert 0 == ended.returncode, ended.stdout + ended.stderr
    told = [event["text"] for event in result(tmp_path, "demo")["events"]]
    assert any("No space left on device" in text and "snapshot" in text for text in told), told
    assert_exact(checkpoints, RECORDS, 1)


@in_turn(3, 6)
def test_a_last_checkpoint_that_finds_no_room_is_one_clear_error_and_loses_nothing(tmp_path, full):
    folder, inside = full

    ended = train(tmp_path, inside, checkpoint_dir=folder)

    assert 1 == ended.returncode
    said = ended.stderr.splitlines() + ended.stdout.splitlines()
    assert any("cannot be written" in text and "No space left on device" in text for text in said)
    assert not any("Traceback" in text for text in said)
    job = tmp_path / "jobs" / "demo"
    assert f"edl train --resume {job}" == ended.stdout.splitlines()[-1]
    assert not list(folder.iterdir())  # here that file system is not: now there is room

    edl(tmp_path, "train", "--resume", job)

    assert RECORDS == result(tmp_path, "demo")["records_done"]
    assert_exact(folder, RECORDS, 1)


def test_no_room_for_the_jobs_folder_is_one_sentence_before_anything_is_begun(tmp_path, full):
    """Broken once: the master's error was lost with its log, which lay on that disk."""
    folder, inside = full

    ended = train(tmp_path, [*inside, "env", f"EDL_HOME={folder}"])

    assert 2 == ended.returncode, ended.stdout + ended.stderr
    (said,) = ended.stderr.splitlines()
    assert said.startswith(f"edl: error: The jobs' folder {folder / 'jobs'}: ")
    assert "No space left on device" in said

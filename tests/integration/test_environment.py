"""A job in an environment that has next to nothing, as a service manager or cron gives it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tools.jobs import ZOO, write_records
from tools.servers import assert_exact
from tools.stage import kill_jobs

RECORDS = 512
# A user that a cluster chooses for an image (OpenShift): without a name, of group 0. It may read
# what this one may, so that an interpreter below /root is found, and write nothing of it.
USER = 1234567
READS = "-all,+dac_read_search"
AS_USER = ("setpriv", f"--reuid={USER}", "--regid=0", "--clear-groups", f"--inh-caps={READS}")
AS_USER += (f"--ambient-caps={READS}", f"--bounding-set={READS}")


def test_a_job_runs_in_an_environment_of_home_and_path_alone(tmp_path):
    # HOME has the compiled kernels. The tests' own code is found as they found it.
    kept = {"HOME", "PYTHONPATH", "NUMBA_CACHE_DIR"} & os.environ.keys()
    environment = {name: os.environ[name] for name in kept}
    flags = {
        "job_name": "demo",
        "model_zoo": ZOO,
        "model_def": "counting",
        "training_data": write_records(tmp_path / "records.npz", RECORDS),
        "minibatch_size": 16,
        "num_ps": 1,
        "num_workers": 1,
        "checkpoint_dir": tmp_path / "checkpoints",
    }
    try:
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "edl", "train"),
                *(f"--{name}={value}" for name, value in flags.items()),
            ],
            env={
                **environment,
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "EDL_HOME": str(tmp_path / "home"),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        kill_jobs(tmp_path / "home")

    assert 0 == ended.returncode, ended.stdout + ended.stderr
    assert_exact(tmp_path / "checkpoints", RECORDS, 1)


@pytest.fixture
def place():
    """A folder of that user's own, which tmp_path cannot be: the folders above are root's alone."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("to become another user needs root, and setpriv")
    with tempfile.TemporaryDirectory(prefix="edl-of-nobody-", dir="/tmp") as made:
        os.chown(made, USER, 0)
        yield Path(made)


def test_a_user_without_a_name_or_a_home_runs_a_job_where_edl_home_is(place):
    """Broken once: EDL_HOME was not looked at, so that the jobs' folder was to be in /."""
    path = os.pathsep.join(os.path.abspath(each or ".") for each in sys.path)
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/", "PYTHONPATH": path}
    environment["EDL_HOME"] = str(place / "home")
    flags = {
        "job_name": "demo",
        "model_zoo": ZOO,
        "model_def": "plain",
        "strategy": "allreduce",
        "training_data": write_records(place / "records.npz", 64),
        "num_workers": 1,
    }

    def edl(*words: str) -> str:
        ended = subprocess.run(
            [*AS_USER, sys.executable, "-m", "edl", *words],
            env=environment,
            cwd=place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert 0 == ended.returncode, ended.stdout + ended.stderr
        return ended.stdout

    try:
        told = edl("--help")
        before = edl("status")
        edl("train", *(f"--{name}={value}" for name, value in flags.items()))
        after = edl("status", "demo", "--output", "json")
        owners = {each.stat().st_uid for each in (place / "home").rglob("*")}
    finally:
        kill_jobs(place / "home")

    assert ("Usage: edl", "No jobs") == (told[:10], before[:7])
    done = json.loads(after)
    assert ("done", 64) == (done["state"], done["records_done"])
    assert {USER} == owners

"""A job in an environment that has next to nothing, as a service manager or cron gives it."""

import os
import subprocess
import sys

from tools.jobs import ZOO, write_records
from tools.servers import assert_exact
from tools.stage import kill_jobs

RECORDS = 512


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

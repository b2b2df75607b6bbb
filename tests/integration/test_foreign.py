"""A worker in another language, written from docs/protocol.md, in a job with ours."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tools.jobs import WAIT_S, Job, write_records
from tools.stage import counts, each
from tools.turns import in_turn

from edl.common.identity import Identity

SOURCE = Path(__file__).parents[1] / "foreign"
PROTOS = Path(__file__).parents[2] / "proto"
RECORDS = 600
NPM_S = 120


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Return the worker's file, beside the packages that it imports."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("Node.js is not installed")
    folder = tmp_path_factory.mktemp("foreign")
    for name in ("package.json", "package-lock.json", "worker.mjs"):
        shutil.copy(SOURCE / name, folder)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        ended = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=NPM_S, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not answer in {NPM_S} s")
    if ended.returncode:
        pytest.skip(f"npm cannot install the client's packages: {ended.stderr.strip()[-200:]}")
    return folder / "worker.mjs"


@in_turn(3)
def test_a_worker_in_javascript_is_killed_and_another_ends_the_job_exactly(foreign, tmp_path):
    """Broken once: it does not tell a server of a span that has no part there; rows of another
    shard are pushed to it."""
    identity = Identity.create("a token")
    job = Job(
        tmp_path / "job",
        identity,
        model_def="counting",
        model_params={"delay_s": 0.3},
        training_data=str(write_records(tmp_path / "records.npz", RECORDS)),
        minibatch_size=5,
        num_minibatches_per_task=4,
        num_workers=1,
        num_ps=2,
        shuffle=False,
        use_async=True,
        lease_s=6.0,  # after which the killed one's task is another's
    )

    def worker():
        command = ["node", str(foreign), job.about()["address"], str(PROTOS)]
        variables = {**os.environ, **identity.variables()}
        return subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    with job:
        first = worker()
        try:
            for _ in range(6):  # in the midst of its second task
                assert first.stdout.readline().startswith("task "), job.logs()
        finally:
            first.kill()
            first.communicate()
        second = worker()
        try:
            told, wrong = second.communicate(timeout=WAIT_S)
        finally:
            second.kill()
        assert 0 == second.returncode, (told, wrong)
        assert told.splitlines()[-1].startswith(("FINISHED", "the master is gone"))
        assert 0 == job.wait(), job.logs()

    assert len(told.splitlines()) > 20
    assert each(RECORDS) == counts(job)

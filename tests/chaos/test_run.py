"""`edl chaos run` on a real job: it hits what it says, writes it down, and ends in the end."""

import json

import pytest
from tools import jobs, stage
from tools.turns import in_turn

from edl.chaos import cell
from edl.jobs.local import LocalJob

# Its last minibatch waits for the gate.
HELD = """
import os, time
from edl.chaos import counting
from edl.chaos.counting import loss, metrics, model, optimizer

def feed(records, mode):
    last = records["record"].max() + 1 == int(os.environ["RECORDS"])
    while last and os.path.exists(os.environ["GATE"]):
        time.sleep(0.005)
    return counting.feed(records, mode)
"""


@pytest.fixture
def home(tmp_path):
    yield tmp_path / "home"
    stage.kill_jobs(tmp_path / "home")


@in_turn(0, 2)
def test_a_job_of_ones_own_survives_the_faults_that_are_asked_for(home, tmp_path):
    records, gate = 4096, tmp_path / "gate"
    gate.touch()
    (tmp_path / "held.py").write_text(HELD)
    stage.edl(
        home,
        *("train", "--detach", "--job_name", "hit", "--model_def", tmp_path / "held.py"),
        *("--model_params", "delay_s=0.01", "--envs", f"GATE={gate},RECORDS={records}"),
        *("--no-shuffle", "--snapshot_s", 0.5, "--checkpoint_dir", tmp_path / "checkpoints"),
        *("--training_data", jobs.write_records(tmp_path / "records.npz", records)),
        *("--minibatch_size", 16, "--num_minibatches_per_task", 8, "--num_ps", 2, "--use_async"),
    )
    client = LocalJob(home / "jobs/hit").client(patience_s=300)
    revision = done = 0
    while not done:  # then all are there: who is not cannot be hit
        revision, status = client.status(revision, wait_s=1.0)
        done = status["records_done"]
    client.close()
    said = stage.edl(
        home,
        *("chaos", "run", "hit", "--kill", "worker:every=500ms,count=3", "--kill", "ps:at=1s"),
        *("--stop", "worker:at=700ms,for=200ms", "--seed", 7),
    ).stdout.splitlines()
    gate.unlink()
    stage.edl(home, "logs", "-f", "hit", "--tail", 0)  # until it has ended
    told = [json.loads(line) for line in (home / "jobs/hit/chaos.jsonl").read_text().splitlines()]

    assert 0 == stage.result(home, "hit")["exit_code"]
    assert {0} == {*cell.counted(tmp_path / "checkpoints", records, 1, 2).values()}
    assert len(told) + 1 == len(said)
    assert {"SIGKILL", "SIGSTOP"} == {line["signal"] for line in told} - {"SIGCONT"}
    stopped = [line for line in told if line["signal"] == "SIGSTOP" and not line["missed"]]
    assert len(stopped) == sum(line["signal"] == "SIGCONT" for line in told)
    assert any(line["role"] == "ps" and not line["missed"] for line in told)
    over = stage.edl(home, "chaos", "run", "hit", "--kill", "worker:at=1s", code=1)
    assert "edl: error: Job 'hit' is over: done.\n" == over.stderr
    wrong = stage.edl(home, "chaos", "run", "hit", "--kill", "workr:at=1s", code=2)
    assert "'workr' is none of worker, ps, master" in wrong.stderr

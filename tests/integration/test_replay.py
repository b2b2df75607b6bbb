"""`edl replay` of real jobs: bit for bit, also across kills; and what is broken is found."""

import dataclasses
import json
import signal

import pytest
import torch
from safetensors.numpy import load_file
from tools.jobs import Job, send, write_records
from tools.turns import in_turn

from edl.common.errors import UsageError
from edl.replay.command import replay

RECORDS = 2048


def job(tmp_path, **more):
    settings = {
        "model_def": "factors",
        "training_data": str(write_records(tmp_path / "records.npz", RECORDS)),
        "minibatch_size": 16,
        "num_epochs": 2,
        "num_workers": 2,
        "num_ps": 2,
        "deterministic": True,
        "envs": {"DELAY_S": "0.015"},
    }
    return Job(tmp_path / "job", **{**settings, **more})


@pytest.fixture(autouse=True)
def _torch():
    """Undo after the tests that a replay makes torch deterministic, for good."""
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def replayed(job, code=0, until="", output="", losses=""):
    """Return what `edl replay` prints."""
    out = []
    assert code == replay(str(job.folder), until, str(output), str(losses), out.append), out
    return out


def begun(fraction):
    return lambda s: s["records_done"] >= fraction * s["records_total"] > 0


def kill_a_worker(running):
    status = running.watch(begun(0.3))
    assert send(status["workers"][0]["pid"], signal.SIGKILL)


MODES = {
    "async": {"use_async": True, "lr_staleness_modulation": True, "precision": "fp16"},
    "sync": {"grads_to_wait": 3, "staleness": 1, "precision": "bf16"},
}


@in_turn(1)
@pytest.mark.parametrize("mode", ["async", pytest.param("sync", marks=pytest.mark.slow)])
def test_job_whose_worker_was_killed_is_repeated_bit_for_bit(tmp_path, mode):
    with job(tmp_path, **MODES[mode]) as running:
        kill_a_worker(running)
        assert running.wait() == 0, running.logs()

    out = replayed(running)

    assert ["epoch 0: 2,048 records", "epoch 1: 2,048 records"] == [
        line.partition(" · ")[0] for line in out[:2]
    ]
    assert out[-1].startswith("identical: 8 tensors, 128 rows (")


def test_what_was_not_so_is_found_and_named(tmp_path):
    """Two steps change places; another one was computed on something else."""
    met = tmp_path / "met"
    met.mkdir()
    envs = {"DELAY_S": "0.015", "MEET_IN": str(met)}
    with job(tmp_path, use_async=True, num_epochs=1, min_workers=2, envs=envs) as running:
        assert running.wait() == 0, running.logs()
    trace = next((running.folder / "trace").glob("server-1-*.jsonl"))
    recorded = trace.read_text()

    def swapped(first, second):
        lines = recorded.splitlines(keepends=True)
        one, other = json.loads(lines[first]), json.loads(lines[second])
        one["at"], other["at"] = other["at"], one["at"]  # as if they had come in that order
        lines[first], lines[second] = (json.dumps(each) + "\n" for each in (other, one))
        return "".join(lines)

    steps = [json.loads(line) for line in recorded.splitlines()[1:]]
    pairs = range(20, len(steps) - 2)
    apart = [n for n in pairs if steps[n + 1]["on"] <= steps[n]["at"]]  # two workers'
    trace.write_text(swapped(apart[0] + 1, apart[0] + 2))
    out = replayed(running, code=1)[-1]
    found = ("are not those that are computed here", "nothing in the trace leads there")
    assert "different: " in out
    assert any(text in out for text in found)

    trace.write_text(recorded)
    assert "identical" in replayed(running)[-1]
    lines = recorded.splitlines(keepends=True)
    before = steps[20]["on"] - 1
    lines[21] = json.dumps({**steps[20], "on": before}) + "\n"
    trace.write_text("".join(lines))
    out = replayed(running, code=1)[-1]
    assert f"computed on its version {before}: no worker's trace has that" in out


@in_turn(0)
def test_state_at_a_moment_is_shown_and_written(tmp_path):
    with job(tmp_path, use_async=True, num_epochs=1) as running:
        assert running.wait() == 0, running.logs()

    state, losses = tmp_path / "state.safetensors", tmp_path / "losses.csv"
    out = replayed(running, until="3:64", output=state, losses=losses)

    assert out[0].startswith("versions of the servers: ")
    assert any(line.startswith("deep.0.weight  [32, 16]  norm ") for line in out)
    assert {"users.ids", "items.rows", "norm.running_mean"} <= set(load_file(state))
    header, first, *_ = losses.read_text().splitlines()
    assert "epoch,task,start,end,attempt,version,loss" == header
    assert first.startswith(("0,1,0,16,1,0,0.", "0,2,0,16,1,0,0."))


@in_turn(0)
@pytest.mark.parametrize("mode", ["async", pytest.param("sync", marks=pytest.mark.slow)])
def test_job_whose_server_was_replaced_is_repeated_bit_for_bit(tmp_path, mode):
    with job(tmp_path, **MODES[mode], snapshot_s=0.5) as running:
        status = running.watch(begun(0.4))
        assert send(status["servers"][1]["pid"], signal.SIGKILL)
        assert running.wait() == 0, running.logs()

    out = replayed(running)

    assert out[0].startswith("epoch 0: 2,048 records")
    assert "identical: 8 tensors, 128 rows" in out[-1]
    assert 2 == len(list((running.folder / "trace").glob("server-1-*")))


@in_turn(3)
def test_job_that_was_gone_on_with_is_repeated_from_its_checkpoint(tmp_path):
    with job(tmp_path, grads_to_wait=3) as first:
        first.watch(begun(0.4))
        client = first.client()
        client.stop("a test")
        client.close()
        assert first.wait() == 130, first.logs()
    assert "identical: 8 tensors" in replayed(first)[-1]

    again = {"resume": first.result()["checkpoint"], "num_ps": 3, "num_workers": 1}
    settings = dataclasses.asdict(first.settings) | again
    for name in ("checkpoint_dir", "job_name"):
        del settings[name]
    with Job(tmp_path / "second", **settings) as second:
        assert second.wait() == 0, second.logs()
    assert "identical: 8 tensors, 128 rows" in replayed(second)[-1]


def test_job_without_a_trace_says_so(tmp_path):
    with job(tmp_path, deterministic=False, num_epochs=1, envs={}) as running:
        assert running.wait() == 0, running.logs()

    with pytest.raises(UsageError, match="only a training job with --deterministic records one"):
        replayed(running)
    assert not (running.folder / "trace").exists()

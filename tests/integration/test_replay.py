"""`edl replay` of real jobs: bit for bit, also across kills; and what is broken is found."""

import dataclasses
import json
import signal

import pytest
from jobs import Job, send, write_records
from safetensors.numpy import load_file
from stage import edl

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
        "envs": {"DELAY_S": "0.005"},
    }
    return Job(tmp_path / "job", **{**settings, **more})


def begun(fraction):
    return lambda s: s["records_done"] >= fraction * s["records_total"] > 0


def kill_a_worker(running):
    status = running.watch(begun(0.3))
    assert send(status["workers"][0]["pid"], signal.SIGKILL)


MODES = {
    "async": {"use_async": True, "lr_staleness_modulation": True},
    "sync": {"grads_to_wait": 3, "staleness": 1},
}


@pytest.mark.parametrize("mode", MODES)
def test_job_whose_worker_was_killed_is_repeated_bit_for_bit(tmp_path, mode):
    with job(tmp_path, **MODES[mode]) as running:
        kill_a_worker(running)
        assert running.wait() == 0, running.logs()

    out = edl(tmp_path, "replay", running.folder).stdout.splitlines()

    assert ["epoch 0: 2,048 records", "epoch 1: 2,048 records"] == [
        line.partition(" · ")[0] for line in out[:2]
    ]
    assert out[-1].startswith("identical: 8 tensors, 128 rows (")


def test_what_was_not_so_is_found_and_named(tmp_path):
    """Two steps change places; then a loss of the definition changes; then a row of the checkpoint."""
    with job(tmp_path, use_async=True, num_epochs=1, validation_data="") as running:
        assert running.wait() == 0, running.logs()
    trace = next((running.folder / "trace").glob("server-1-*.jsonl"))
    recorded = trace.read_text()

    def swapped(first, second):
        lines = recorded.splitlines(keepends=True)
        one, other = json.loads(lines[first]), json.loads(lines[second])
        one["at"], other["at"] = other["at"], one["at"]  # as if they had come in that order
        lines[first], lines[second] = (json.dumps(each) + "\n" for each in (other, one))
        return "".join(lines)

    spans = [json.loads(line).get("span", [0]) for line in recorded.splitlines()]
    neighbours = [n for n in range(20, 60) if spans[n][0] != spans[n + 1][0]]
    trace.write_text(swapped(neighbours[0], neighbours[0] + 1))
    out = edl(tmp_path, "replay", running.folder, code=1).stdout
    print(out)
    assert "different: " in out and "are not those that are computed here" in out

    trace.write_text(recorded)
    assert "identical" in edl(tmp_path, "replay", running.folder).stdout
    trace.write_text(recorded.replace('"on":7,', '"on":6,', 1))
    out = edl(tmp_path, "replay", running.folder, code=1).stdout
    assert "computed on its version 6: no worker's trace has that" in out


def test_state_at_a_moment_is_shown_and_written(tmp_path):
    with job(tmp_path, use_async=True, num_epochs=1) as running:
        assert running.wait() == 0, running.logs()

    state, losses = tmp_path / "state.safetensors", tmp_path / "losses.csv"
    flags = ["--until", "3:64", "--output", state, "--losses", losses]
    out = edl(tmp_path, "replay", running.folder, *flags).stdout

    assert out.startswith("versions of the servers: ")
    assert "deep.0.weight  [32, 16]  norm " in out
    assert {"users.ids", "items.rows", "norm.running_mean"} <= set(load_file(state))
    first = losses.read_text().splitlines()[:2]
    assert ["epoch,task,start,end,attempt,version,loss", "0,1,0,16,1,0,"] == [
        first[0],
        first[1].rpartition(",")[0].replace("0,2,", "0,1,") + ",",
    ]


def test_job_that_was_gone_on_with_is_repeated_from_its_checkpoint(tmp_path):
    with job(tmp_path, grads_to_wait=3) as first:
        first.watch(begun(0.4))
        client = first.client()
        client.stop("a test")
        client.close()
        assert first.wait() == 130, first.logs()
    out = edl(tmp_path, "replay", first.folder).stdout
    assert "identical: 8 tensors" in out

    again = {"resume": first.result()["checkpoint"], "num_ps": 3, "num_workers": 1}
    settings = dataclasses.asdict(first.settings) | again
    for name in ("checkpoint_dir", "job_name"):
        del settings[name]
    with Job(tmp_path / "second", **settings) as second:
        assert second.wait() == 0, second.logs()
    out = edl(tmp_path, "replay", second.folder).stdout
    assert "identical: 8 tensors, 128 rows" in out


def test_job_without_a_trace_says_so(tmp_path):
    with job(tmp_path, deterministic=False, num_epochs=1, envs={}) as running:
        assert running.wait() == 0, running.logs()

    ended = edl(tmp_path, "replay", running.folder, code=2)

    assert "only a training job with --deterministic records one" in ended.stderr
    assert not (running.folder / "trace").exists()

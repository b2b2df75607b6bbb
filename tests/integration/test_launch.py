"""`edl launch`: real agents, a real script, real kills; each record is counted once per pass."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from tools.launched import DEADLINE_S, SCRIPT, Launched, workers
from tools.turns import in_turn

from edl.launch import state

# What a script is told: by torchrun too, and by us.
_TOLD = """
    RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE
    ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS
    TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE
    TORCH_NCCL_ASYNC_ERROR_HANDLING
    EDL_NUM_NODES EDL_NUM_REPLICAS EDL_REPLICA_RANK EDL_NUM_RESTARTS EDL_CHECKPOINT_PATH
"""
TOLD = set(_TOLD.split())


@pytest.fixture
def launched(tmp_path: Path):
    made: list[Launched] = []

    def make(*flags: str) -> Launched:
        made.append(Launched(tmp_path, *flags))
        return made[-1]

    yield make
    for each in made:
        each.__exit__()


@in_turn(4, 6)
def test_every_record_counts_once_whoever_joins_or_is_killed(launched):
    job = launched("--nodes", "1:2", "--local_nodes", "1").start()
    alone = job.counting(round=1, world=1)

    joined = job.join()
    job.counting(round=2, world=2)
    os.kill(workers(joined.pid)[0], signal.SIGKILL)
    job.counting(round=3, world=2)
    os.kill(job.job.address()[1], signal.SIGKILL)  # the coordinator
    job.watch(lambda status: any("goes on" in event["text"] for event in status["events"]))
    agent = alone["nodes"][0]["pid"]  # of rank 0
    (orphan,) = workers(agent)
    os.kill(agent, signal.SIGKILL)
    ended = job.counting(round=4, world=1)

    assert 0 == job.finish(), job.said()
    assert 0 == joined.wait(DEADLINE_S)
    assert ["1 1", "2 2", "2 2", "1 1"] == job.seen()
    assert not psutil.pid_exists(orphan)
    assert job.counted_once_per_pass()
    assert 1 == ended["failures"]  # the killed worker; the lost node is none


@in_turn(1)
def test_nodes_of_this_machine_are_scaled_and_no_step_is_lost_or_repeated(launched, tmp_path):
    job = launched("--nodes", "1:2", "--local_nodes", "1")
    job.start(str(SCRIPT), str(tmp_path), "drain")
    job.counting(round=1, world=1)

    up = job.edl("scale", "it", "2", name="up")
    job.counting(round=2, world=2)
    job.watch(lambda status: status["throughput"] is not None)  # it listens
    down = job.edl("scale", "it", "--nodes", "1", name="down")
    job.counting(round=3, world=1)
    too_many = job.edl("scale", "it", "3", name="too_many")

    assert [0, 0, 1] == [each.wait(DEADLINE_S) for each in (up, down, too_many)]
    assert "it: 1 -> 2 nodes wanted" in (tmp_path / "up.out").read_text()
    assert "choose a number from 1 to 2" in (tmp_path / "too_many.out").read_text()
    assert 0 == job.finish(), job.said()
    assert list(range(1, len(job.steps()) + 1)) == job.steps()
    assert ["1 1", "2 2", "1 1"] == job.seen()


@pytest.mark.slow
def test_a_planned_change_neither_loses_nor_repeats_a_step(launched, tmp_path):
    job = launched("--nodes", "1:2", "--local_nodes", "1")
    job.start(str(SCRIPT), str(tmp_path), "drain")
    job.counting(round=1, world=1)
    joined = job.join()
    job.counting(round=2, world=2)
    before = job.steps()
    job.watch(lambda status: len(job.steps()) > len(before) + 2)  # it listens

    joined.send_signal(signal.SIGTERM)
    job.counting(round=3, world=1)

    assert 0 == job.finish(), job.said()
    assert 130 == joined.wait(DEADLINE_S)
    assert list(range(1, len(job.steps()) + 1)) == job.steps()
    assert ["1 1", "2 2", "1 1"] == job.seen()


@in_turn(3)
def test_at_ctrl_c_all_ranks_save_after_the_same_step(launched, tmp_path, monkeypatch):
    job = launched("--nodes", "2").start(str(SCRIPT), str(tmp_path), "drain")
    job.counting(round=1, world=2)
    job.watch(lambda status: status["throughput"] is not None)

    job.main.send_signal(signal.SIGINT)

    assert 130 == job.wait(), job.said()
    monkeypatch.setenv("EDL_CHECKPOINT_PATH", str(job.job.folder / "checkpoints"))
    (counts,), progress = state.load().state.values(), state.load().progress
    expected = [progress["passes"] + (i < progress["position"]) for i in range(len(counts))]
    assert expected == counts.tolist()
    assert sum(expected) > 0


def test_a_failing_script_ends_the_job_with_its_rank_its_node_and_its_words(launched, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(
        "import os\n"
        f"print('told', sorted({TOLD} & set(os.environ)))\n"
        "print('tries', os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "raise ValueError('too hot')\n"
    )

    job = launched("--nodes", "1", "--max_restarts", "1").start(str(script))

    assert 1 == job.wait()
    said = (job.folder / "launch.out").read_text()
    assert "rank 0 on node-0 (127.0.0.1) ended with exit code 1, after 1 restarts." in said
    assert "ValueError: too hot" in said
    assert f"rank-0.round-2 | told {sorted(TOLD)}" in said
    assert "rank-0.round-2 | tries 1" in said

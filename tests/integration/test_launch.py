"""`edl launch`: real agents, a real script, real kills; each record is counted once per pass."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from edl.common.identity import Identity
from edl.jobs.local import LocalJob, kill
from edl.launch import state
from edl.master.client import MasterClient

SCRIPT = Path(__file__).parents[1] / "launched" / "counting.py"
DEADLINE_S = 300.0
# What a script is told: by torchrun too, and by us.
_TOLD = """
    RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE
    ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS
    TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE
    TORCH_NCCL_ASYNC_ERROR_HANDLING
    EDL_NUM_NODES EDL_NUM_REPLICAS EDL_REPLICA_RANK EDL_NUM_RESTARTS EDL_CHECKPOINT_PATH
"""
TOLD = set(_TOLD.split())


class Launched:
    """`edl launch` as a process, and others that join; `with` ends them all."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.job = LocalJob(self.home / "jobs" / "it")
        self.flags = [*flags, "--job_name", "it", "--last_call", "0s"]
        self.processes: list[subprocess.Popen[bytes]] = []

    def edl(self, *arguments: str, name: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.out", "wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "edl", *arguments],
                env={**os.environ, "EDL_HOME": str(self.home), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        self.processes.append(process)
        return process

    def start(self, *script: str) -> Self:
        self.script = list(script or (str(SCRIPT), str(self.folder)))
        self.main = self.edl("launch", *self.flags, *self.script, name="launch")
        return self

    def join(self) -> subprocess.Popen[bytes]:
        return self.edl("launch", "--join", "it", *self.script, name="join")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.main.poll() is None:
            kill(self.job, self.main)
        for process in self.processes:
            process.kill()
            process.wait(300)

    def watch(self, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first status of which `until` is true."""
        deadline = time.monotonic() + DEADLINE_S
        while self.job.address() is None:
            assert self.main.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)
        identity = Identity.of_folder(self.job.folder)
        client = MasterClient(
            self.job.address()[0],
            token=identity.token,
            identity=identity,
            patience_s=300.0,
            where=lambda: self.job.address()[0],
        )
        revision = 0
        try:
            while True:
                revision, status = client.status(revision, 1.0)
                if until(status):
                    return status
                assert time.monotonic() < deadline, f"{status}\n{self.said()}"
        finally:
            client.close()

    def counting(self, round: int, world: int) -> dict[str, Any]:
        """Wait until a round counts: its script has started and reported."""
        return self.watch(
            lambda status: (
                (status["round"], status["world_size"]) == (round, world)
                and len(self.seen()) >= round
            )
        )

    def seen(self) -> list[str]:
        path = self.folder / "seen"
        return path.read_text().splitlines() if path.exists() else []

    def steps(self) -> list[int]:
        return [int(line) for line in (self.folder / "steps").read_text().splitlines()]

    def finish(self) -> int:
        (self.folder / "finish").touch()
        return self.wait()

    def wait(self) -> int:
        try:
            return self.main.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.said()) from None

    def said(self) -> str:
        paths = [*self.folder.glob("*.out"), *self.job.folder.glob("logs/*.log")]
        return "\n".join(f"---- {path.name}\n{path.read_text()[-3000:]}" for path in paths)

    def counted_once_per_pass(self) -> bool:
        passes, counts = (self.folder / "counts").read_text().split(" ", 1)
        return int(passes) > 0 and counts == f"[{passes}]"


def workers(agent: int) -> list[int]:
    return [child.pid for child in psutil.Process(agent).children()]


@pytest.fixture
def launched(tmp_path: Path):
    made: list[Launched] = []

    def make(*flags: str) -> Launched:
        made.append(Launched(tmp_path, *flags))
        return made[-1]

    yield make
    for each in made:
        each.__exit__()


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

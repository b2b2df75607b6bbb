"""`edl launch` as a process, with others that join it: what the tests of launched scripts start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil

from edl.common.identity import Identity
from edl.jobs.local import LocalJob, kill
from edl.master.client import MasterClient

SCRIPT = Path(__file__).parents[1] / "launched" / "counting.py"
DEADLINE_S = 300.0


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
        while (address := self.job.address()) is None:
            assert self.main.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)
        identity = Identity.of_folder(self.job.folder)
        client = MasterClient(
            address[0],
            token=identity.token,
            identity=identity,
            patience_s=300.0,
            where=lambda: (self.job.address() or address)[0],
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


class Storm:
    """A job whose rank 0 holds after a step, and what happens to it there."""

    def __init__(self, job: Launched) -> None:
        self.job = job

    def reach(self, round: int, step: int, world: int) -> None:
        """Let the replicas of this round, so many, make this step; wait until they have."""
        from launched import books  # torch, which few need

        books.set_limit(self.job.folder, round, step)
        ledgers = [self.job.folder / f"books-{rank}" for rank in range(world)]
        deadline = time.monotonic() + DEADLINE_S
        while any(self._last(ledger) != [round, step] for ledger in ledgers):
            assert self.job.main.poll() is None, self.job.said()
            assert time.monotonic() < deadline, self.job.said()
            time.sleep(0.05)

    def watch_round(self, round: int) -> None:
        self.job.watch(lambda status: status["round"] == round)

    def _last(self, path: Path) -> list[int]:
        """Return the round and the step of the last line."""
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(word) for word in lines[-1].split()[:2]] if lines else [0, 0]


def workers(agent: int) -> list[int]:
    return [child.pid for child in psutil.Process(agent).children()]

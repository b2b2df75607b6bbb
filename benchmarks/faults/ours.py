"""Ours: 2 workers and 2 servers, asynchronous, everything else as a job has it by default."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from benchmarks.faults import events
from benchmarks.faults.books import Row, balance, stall, worst
from benchmarks.faults.programs import Unavailable
from benchmarks.measure import commit
from benchmarks.watching import follow
from edl import __version__
from edl.common import storage
from edl.common.errors import EdlError
from edl.common.settings import JobSettings
from edl.jobs import local as jobs
from edl.jobs.start import start

VERSION = f"edl {__version__} ({commit().partition(',')[0]})"
START_S = 300.0  # the first job of an installation compiles its kernels
DEADLINE_S = 60.0
KILLS = 4
_LEASE_S = 2.0  # of the stopped worker
_SNAPSHOT_S = 1.0  # the default is longer than all of this takes


def worker(_peers: Path) -> Row:
    return _job("kill -9 of a worker, in a task", lambda job: job.kill("workers"))


def server(_peers: Path) -> Row:
    fault = f"kill -9 of a server (snapshots every {_SNAPSHOT_S:g} s)"
    return _job(fault, lambda job: job.kill("servers"), snapshot_s=_SNAPSHOT_S)


def master(_peers: Path) -> Row:
    return _job("kill -9 of the master", lambda job: job.kill_master())


def same_task(_peers: Path) -> Row:
    fault = f"kill -9 of whoever does one and the same task, {KILLS} times"
    return _job(fault, _kill_the_same, delay_s=0.05, num_minibatches_per_task=64)


def zombie(_peers: Path) -> Row:
    fault = f"a worker is stopped past its lease ({_LEASE_S:g} s), then goes on"
    return _job(fault, _stop_and_go_on, lease_s=_LEASE_S, delay_s=0.1)


@dataclass
class _Job:
    """A running job, and what was done to it."""

    job: jobs.LocalJob
    journal: Path
    pids: tuple[int, ...] = ()  # of the killed or stopped
    at: float = 0.0  # the last kill

    def follow(self, until: Callable[[jobs.Status], bool]) -> jobs.Status:
        """Return the first status that is so. Raises Unavailable."""
        try:
            return follow(self.job, until, START_S)
        except (EdlError, TimeoutError) as error:
            raise Unavailable(f"there is nothing to kill: {error}") from error

    def send(self, pid: int, number: int) -> None:
        self.at = time.monotonic()
        os.kill(pid, number)
        self.pids += (pid,)

    def kill(self, role: str) -> None:
        status = self.follow(_well_under_way)
        self.send(status[role][0]["pid"], signal.SIGKILL)

    def kill_master(self) -> None:
        self.follow(_well_under_way)
        address = self.job.address()
        assert address is not None
        self.send(address[1], signal.SIGKILL)

    def steps(self) -> dict[int, list[dict[str, Any]]]:
        """Return the steps by pid, of the processes that have done one."""
        return {
            int(path.stem): [json.loads(line) for line in path.read_text().splitlines()]
            for path in self.journal.glob("*.jsonl")
        }


def _well_under_way(status: jobs.Status) -> bool:
    """Tell whether enough is done, and worker 0 is in the midst of a task."""
    first = status["workers"][0]
    return bool(
        status["records_done"] >= 0.4 * events.RECORDS
        and first["pid"]
        and first["task"] is not None
    )


def _kill_the_same(job: _Job) -> None:
    """Kill whoever does one and the same task.

    It is one that has just begun: the end of one may be over before anybody sees who does it.
    """
    before = job.follow(_well_under_way)["workers"][0]["task"]
    task = job.follow(lambda s: s["workers"][0]["task"] not in (None, before))["workers"][0]["task"]
    for _ in range(KILLS):
        row = _holder(job.follow(_somebody_does(task, job.pids)), task, job.pids)
        job.send(row["pid"], signal.SIGKILL)


def _somebody_does(task: int, dead: Sequence[int]) -> Callable[[jobs.Status], bool]:
    return lambda status: bool(_holder(status, task, dead))


def _holder(status: jobs.Status, task: int, dead: Sequence[int]) -> dict[str, Any]:
    """Return the worker that does the task; {} if none."""
    rows = (row for row in status["workers"] if row["pid"] and row["pid"] not in dead)
    return next((dict(row) for row in rows if row["task"] == task), {})


def _stop_and_go_on(job: _Job) -> None:
    job.send(job.follow(_well_under_way)["workers"][0]["pid"], signal.SIGSTOP)
    time.sleep(2 * _LEASE_S)
    os.kill(job.pids[0], signal.SIGCONT)


def _job(
    fault: str, act: Callable[[_Job], None], delay_s: float = events.DELAY_S, **more: Any
) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal"
        journal.mkdir()
        records = Path(folder) / "records.npz"
        np.savez(records, record=np.arange(events.RECORDS, dtype=np.int64))
        params = {"delay_s": delay_s, "journal": str(journal)}
        settings = JobSettings(
            **{
                "job_name": f"bench-faults-{secrets.token_hex(3)}",
                "model_zoo": str(Path(__file__).parent),
                "model_def": "counting",
                "model_params": params,
                "training_data": str(records),
                "checkpoint_dir": str(Path(folder) / "checkpoints"),
                "minibatch_size": events.BATCH,
                "num_minibatches_per_task": events.BATCHES,
                "use_async": True,
                "num_workers": 2,
                "num_ps": 2,
                **more,
            }
        )
        job, process = start(settings)
        try:
            ours = _Job(job, journal)
            act(ours)
            over = _ended(job, process)
            return _row(fault, ours, over, Path(folder) / "checkpoints")
        finally:
            jobs.kill(job, process)


def _ended(job: jobs.LocalJob, process: subprocess.Popen[bytes]) -> bool:
    give_up = time.monotonic() + DEADLINE_S
    while process.poll() is None or not job.is_over():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.05)
    return True


def _row(fault: str, ours: _Job, over: bool, checkpoints: Path) -> Row:
    result = ours.job.result()
    done = result is not None and result["state"] == "done"
    if done:
        outcome = "the job goes on and ends"
    elif result is not None:
        outcome = f"the job fails: {result['message'].partition(' (')[0]}"
    else:
        outcome = "the job ends with the master" if over else f"hangs (> {DEADLINE_S:g} s)"
    survivors = {pid: steps for pid, steps in ours.steps().items() if pid not in ours.pids}
    # A replacement has no step before the fault: how long it took to come is not a stall.
    stalls = [
        stall([step["at"] for step in steps], ours.at, None if done else time.monotonic())
        for steps in survivors.values()
        if steps[0]["at"] < ours.at and (done or not over)
    ]
    counts = counts_of(checkpoints, events.RECORDS).tolist() if done else []
    return Row("edl", fault, VERSION, outcome, balance(counts) if done else None, worst(stalls))


def counts_of(checkpoints: Path, records: int) -> np.ndarray:
    """Return how often the newest checkpoint has each record; float64[records]."""
    found = storage.latest(str(checkpoints))
    counts = np.zeros(records)
    for path in found.directory.glob("*.safetensors") if found else ():
        with safetensors.safe_open(path, "numpy") as file:
            if json.loads(file.metadata()["edl"]).get("rows") == "counts":
                counts[file.get_tensor("ids")] = file.get_tensor("weight")[:, 0]
    return counts

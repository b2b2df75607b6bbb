"""Run a real job (master, servers and workers as processes) and look at its books."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import numpy as np

from edl.common import storage
from edl.common.identity import Identity
from edl.common.settings import JobSettings
from edl.master.client import MasterClient

ZOO = Path(__file__).parents[1] / "zoo"
WAIT_S = 300.0  # tells a hang from a busy machine
NO_RESTARTS = {
    "worker": 0,
    "server": 0,
    "preemptions": 0,
    "server_preemptions": 0,
    "teacher": 0,
    "teacher_preemptions": 0,
    "master": 0,
}  # of a status


class Job:
    """A job of real processes. `with Job(tmp_path, ...) as job: job.wait()`."""

    def __init__(self, folder: Path, identity: Identity | None = None, **settings: Any) -> None:
        self.folder = folder
        self.identity = identity or Identity(secrets.token_hex(8))
        self.token = self.identity.token
        folder.mkdir(parents=True, exist_ok=True)
        self.settings = JobSettings(
            **{
                "job_name": folder.name,
                "model_zoo": str(ZOO),
                "checkpoint_dir": str(folder / "checkpoints"),
                **settings,
            }
        )
        (folder / "settings.json").write_text(self.settings.to_json())
        (folder / "logs").mkdir(exist_ok=True)
        self.revision = 0

    def __enter__(self) -> Self:
        with open(self.folder / "logs" / "master.log", "ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "edl.master", "--job-dir", str(self.folder)],
                env={**os.environ, **self.identity.variables(), "OMP_NUM_THREADS": "1"},
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self

    def __exit__(self, *exception: object) -> None:
        pids = [r["pid"] for r in self._replicas()]
        if self.process.poll() is None:
            pids = [self.about()["pid"], *pids]
            self.process.send_signal(signal.SIGKILL)  # the supervisor first
            self.process.wait(WAIT_S)
        for pid in pids:
            for number in (signal.SIGCONT, signal.SIGKILL):
                send(pid, number)

    def about(self) -> dict[str, Any]:
        """Return what the master says of where it serves; wait until it does."""
        address = self.folder / "master.json"
        deadline = time.monotonic() + WAIT_S
        while not address.exists():
            assert self.process.poll() is None, self.logs()
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.02)
        about: dict[str, Any] = json.loads(address.read_text())
        return about

    def client(self) -> MasterClient:
        return MasterClient(
            self.about()["address"], token=self.token, identity=self.identity, patience_s=60
        )

    def watch(self, until: Any, timeout_s: float = WAIT_S) -> dict[str, Any]:
        """Follow the status until `until(status)`; return that status."""
        client = self.client()
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                self.revision, status = client.status(self.revision, wait_s=1.0)
                self.last = status
                if until(status):
                    return status
                if time.monotonic() > deadline:
                    raise AssertionError(f"{status}\n{self.logs()}")
        finally:
            client.close()
            self.revision = 0

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Return the master's exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end in {timeout_s} s\n{self.logs()}") from None

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return found

    def logs(self, tail: int = 60) -> str:
        parts = []
        for path in sorted((self.folder / "logs").glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-tail:]
            parts.append(f"---- {path.name}\n" + "\n".join(lines))
        return "\n".join(parts)

    def _replicas(self) -> list[dict[str, Any]]:
        status = getattr(self, "last", None)
        if self.process.poll() is None and (self.folder / "master.json").exists():
            client = self.client()
            try:
                _, status = client.status()
            finally:
                client.close()
        status = status or {}
        return [*status.get("workers", []), *status.get("servers", [])]

    # -- the books

    def checkpoint(self) -> Path:
        found = storage.latest(self.settings.checkpoint_dir)
        assert found is not None, self.logs()
        return found.directory


def counting_job(folder: Path, records: int, delay_s: float, **settings: Any) -> Job:
    """Return a job of the counting model on two servers and two workers that push at will."""
    given = {
        "model_def": "counting",
        "model_params": {"delay_s": delay_s},
        "training_data": str(write_records(folder.parent / "records.npz", records)),
        "minibatch_size": 16,
        "num_minibatches_per_task": 4,
        "num_workers": 2,
        "num_ps": 2,
        "lease_s": 5.0,
        "use_async": True,
    }
    return Job(folder, **{**given, **settings})


def send(pid: int | None, number: int) -> bool:
    """Signal a process; False where it is gone."""
    if not pid:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def write_records(path: Path, count: int) -> Path:
    np.savez(path, record=np.arange(count, dtype=np.int64))
    return path

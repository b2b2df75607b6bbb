"""Three systems that train one model together (tallying.py), to be killed one member at a time.

Each starts its members, starts again what ended as its own recipe does, and at the end says how
often each record is in the model.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import safetensors

from benchmarks.faults import tallying
from benchmarks.faults.books import Books, balance
from benchmarks.faults.pauses import Journal
from benchmarks.faults.programs import Program, Unavailable, home
from edl.common import storage
from edl.common.settings import JobSettings
from edl.jobs import local as jobs
from edl.jobs.start import start

RECORDS = 14_400 * tallying.MINIBATCH  # more than any run has time for: each is due once
_TASK = 8 * tallying.MINIBATCH  # records of a task, by default
_END_S = 90.0
_AHEAD_STEPS = 40  # from the order to stop to the step after which all do


class Group:
    """A system with so many members. `detect_s`: after how long silence is death."""

    name: ClassVar[str]

    def __init__(
        self, folder: Path, members: int, detect_s: float, ballast: int, delay_s: float
    ) -> None:
        self.folder, self.members, self.detect_s = folder, members, detect_s
        self.journal_folder = folder / "journal"
        self.journal_folder.mkdir(parents=True)
        self.model = {
            "records": RECORDS,
            "ballast": ballast,
            "delay_s": delay_s,
            "journal": str(self.journal_folder),
        }
        self.journals: dict[int, list[dict[str, Any]]] = {}
        self._read: dict[int, int] = {}  # characters, by pid

    def start(self) -> None:
        raise NotImplementedError

    def tend(self) -> None:
        """Start again what ended, where nobody else does."""

    def end(self) -> Books:
        """Stop the group in order, and count the records."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill all that is left of the group."""
        raise NotImplementedError

    def look(self, only: int | None = None) -> Mapping[int, Journal]:
        """Return the journals as they are now; of one process, if only that is asked for."""
        pids = [only] if only else [int(p.stem) for p in self.journal_folder.glob("*.jsonl")]
        for pid in pids:
            with open(self.journal_folder / f"{pid}.jsonl") as file:
                file.seek(self._read.get(pid, 0))
                text = file.read()
            whole = text[: text.rfind("\n") + 1]  # ASCII: as many bytes as characters
            self._read[pid] = self._read.get(pid, 0) + len(whole)
            if whole:
                self.journals.setdefault(pid, []).extend(map(json.loads, whole.splitlines()))
        return self.journals

    def pids(self) -> dict[int, int]:
        """Return the newest process of each rank."""
        ups = [e for lines in self.look().values() for e in lines if e["event"] == "up"]
        return {e["rank"]: e["pid"] for e in sorted(ups, key=lambda e: e["at"])}

    def step(self) -> int:
        """Return the newest step."""
        lines = (e for lines in self.look().values() for e in lines[-5:])
        return max((e["step"] for e in lines if e["event"] == "step"), default=0)


class Ours(Group):
    """A group of `edl train --strategy allreduce`, as it is by default but for the lease."""

    name = "edl"

    def start(self) -> None:
        data = self.folder / "records.npz"
        np.savez(data, record=np.arange(RECORDS, dtype=np.int64))
        self._job, self._process = start(
            JobSettings(
                job_name=f"bench-kills-{secrets.token_hex(3)}",
                strategy="allreduce",
                model_zoo=str(Path(__file__).parent),
                model_def="tallying",
                model_params=self.model,
                training_data=str(data),
                checkpoint_dir=str(self.folder / "checkpoints"),
                minibatch_size=tallying.MINIBATCH,
                num_workers=self.members,
                worker_threads=1,
                lease_s=self.detect_s,
            )
        )

    def end(self) -> Books:
        address = self._job.address()
        assert address is not None
        os.kill(address[1], signal.SIGTERM)
        give_up = time.monotonic() + _END_S
        while self._process.poll() is None or not self._job.is_over():
            if time.monotonic() > give_up:
                raise Unavailable(f"the job does not end: {self._job.last_words()}")
            time.sleep(0.1)
        counts = np.round(dense(self.folder / "checkpoints", "counts"))
        there = int((counts >= 1).sum())
        repeated = int((counts - 1)[counts > 1].sum())
        return Books(lost=_done(self.folder / "checkpoints") - there, repeated=repeated)

    def kill(self) -> None:
        jobs.kill(self._job, self._process)


class Torchft(Group):
    """A lighthouse and replica groups of one process each. What ends is started again at once.

    `ddp`: by its DistributedDataParallel, as in its examples; else the manager's allreduce is
    called for all gradients at once, after the backward pass.
    """

    name = "torchft"

    def __init__(self, peers: Path, ddp: bool, *about: Any) -> None:
        super().__init__(*about)
        self._ddp = ddp
        self._home = home(peers, "torchft")
        self._stack = contextlib.ExitStack()
        self._replicas: dict[int, Program] = {}

    def start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # As in its README, but for when a silent replica is dead.
        flags = ["--min_replicas", 1, "--quorum_tick_ms", 100, "--join_timeout_ms", 10000]
        flags += ["--heartbeat_timeout_ms", round(1e3 * self.detect_s), "--bind", f"[::]:{port}"]
        self._stack.enter_context(Program([self._home / "bin/torchft_lighthouse", *flags]))
        self._address = f"http://127.0.0.1:{port}"
        for rank in range(self.members):
            self._replica(rank)

    def _replica(self, rank: int) -> None:
        about = {"rank": rank, "members": self.members, "folder": str(self.folder), **self.model}
        about["ddp"] = self._ddp
        command = [self._home / "bin/python", "-m", "benchmarks.faults.torchft_member"]
        given = json.dumps({**about, "timeout_s": self.detect_s})
        more = {"TORCHFT_LIGHTHOUSE": self._address}
        self._replicas[rank] = self._stack.enter_context(Program([*command, given], more))

    def tend(self) -> None:
        for rank, program in self._replicas.items():
            if (code := program.process.poll()) is not None:
                if code != -signal.SIGKILL:
                    print(f"torchft: rank {rank} ended: {program.last_words()}", file=sys.stderr)
                self._replica(rank)

    def end(self) -> Books:
        step = self.step() + _AHEAD_STEPS
        (self.folder / "stop").write_text(str(step))
        files = [self.folder / f"counts-{rank}" for rank in range(self.members)]
        _wait(files, self)
        counts = max((_counts(file) for file in files), key=lambda c: float(c.sum()))
        share = RECORDS // self.members
        claimed = [
            record
            for rank in range(self.members)
            for record in range(rank * share, int((self.folder / f"position-{rank}").read_text()))
        ]
        return balance(counts.tolist(), claimed)

    def kill(self) -> None:
        self._stack.close()


class Torchrun(Group):
    """A group of torch.distributed.run: one agent starts all members again where one ends."""

    name = "torchrun"

    def start(self) -> None:
        given = json.dumps(
            {
                "members": self.members,
                "folder": str(self.folder),
                "timeout_s": self.detect_s,
                **self.model,
            }
        )
        how = ["--standalone", "--nproc-per-node", self.members, "--max-restarts", 1000]
        how += ["--log-dir", self.folder / "logs", "--redirects", "2"]
        module = ["-m", "benchmarks.faults.torchrun_member", given]
        # By default restarted ranks may read each other's addresses of the attempt before, since
        # the agent's store is shared by all attempts: gloo then fails to connect, again and again.
        more = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        command = [sys.executable, "-m", "torch.distributed.run", *how, *module]
        self._agent = Program(command, more)

    def end(self) -> Books:
        (self.folder / "stop").write_text(str(self.step() + _AHEAD_STEPS))
        _wait([self.folder / "counts"], self)
        step = int((self.folder / "stop").read_text())
        counts = _counts(self.folder / "counts").tolist()
        return balance(counts, range(step * tallying.MINIBATCH))

    def kill(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._agent.process.pid).children(recursive=True):
                child.kill()
        self._agent.__exit__()


def _wait(files: list[Path], group: Group) -> None:
    give_up = time.monotonic() + _END_S
    while not all(file.exists() for file in files):
        if time.monotonic() > give_up:
            raise Unavailable(f"{group.name} does not stop")
        time.sleep(0.1)


def _counts(file: Path) -> np.ndarray:
    import torch

    found: np.ndarray = torch.load(file).numpy()
    return found


def _done(checkpoints: Path) -> int:
    """Count the records that the newest checkpoint calls done: of one epoch, all opened."""
    found = storage.latest(str(checkpoints))
    assert found is not None
    positions = [position for _, _, position, *_ in found.books["tasks"]]
    return RECORDS - sum(_TASK - position for position in positions)


def dense(checkpoints: Path, name: str) -> np.ndarray:
    """Return a dense tensor of the newest checkpoint, flat."""
    found = storage.latest(str(checkpoints))
    parts = {}
    for path in found.directory.glob("*.safetensors") if found else ():
        with safetensors.safe_open(path, "numpy") as file:
            chunks = json.loads(file.metadata()["edl"])["chunks"]
            for number, (tensor, chunk, *_) in enumerate(chunks):
                if tensor == name:
                    parts[chunk] = file.get_tensor(f"{number}.value")
    return np.concatenate([parts[chunk] for chunk in sorted(parts)])

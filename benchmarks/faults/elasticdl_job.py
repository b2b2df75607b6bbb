"""A job of ElasticDL: its dispatcher, two of its Go servers, two workers of ours in its manner.

    python -m benchmarks.faults.elasticdl_job run BINARY WHEEL PYTHON FAULT
    python -m benchmarks.faults.elasticdl_job worker NUMBER SOCKET

In namespaces of its own (benchmarks/peers/elasticdl.py says why). A worker does what ElasticDL's
does: a task is reported when all of it is pushed; an error of a server ends it. It reads nothing
ahead, which is the kindest case: with shuffling and prefetching ElasticDL acknowledges records that
it has not trained. Rows r are on server r % 2.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np

from benchmarks.faults import events
from benchmarks.faults.elasticdl_tasks import connect
from benchmarks.faults.programs import Event, Program, Unavailable, records_of
from benchmarks.peers import micro
from benchmarks.peers.elasticdl import MASTER_PORT, PORT, Client, furnish

SERVERS = 2
CHECKPOINT_STEPS = 100
START_S, END_S = 60.0, 60.0
KILLS = 4
_KILL_AT = 2.5 * CHECKPOINT_STEPS * events.BATCH  # records; midway between two checkpoints
_TABLE = "counts"


# -- The worker


def work(number: int, socket: str) -> None:
    tasks = connect(socket)
    clients = [Client(PORT + index) for index in range(SERVERS)]
    for client in clients:
        client.describe_table(_TABLE, 1)
    while not tasks.finished():
        task = tasks.get(number)
        if task is None:
            time.sleep(0.1)  # its own sleeps for 5 s
            continue
        task_number, start, end = task
        for first, stop in events.batches(start, end):
            _step(clients, first, stop)
            events.say("step", first=first, end=stop, task=start)
        tasks.done(task_number)


def _step(clients: list[Client], first: int, end: int) -> None:
    shares = [
        np.arange(first + (index - first) % SERVERS, end, SERVERS) for index in range(SERVERS)
    ]
    for client, ids in zip(clients, shares, strict=True):
        client.pull_rows(_TABLE, ids)
    time.sleep(events.DELAY_S)
    for client, ids in zip(clients, shares, strict=True):
        one_hot = np.full((len(ids), 1), -1 / micro.LR, np.float32)
        client.push(rows={_TABLE: (ids, one_hot)})


# -- The job


class Job:
    """A job of ElasticDL: its servers, its dispatcher, and workers of ours."""

    def __init__(self, stack: contextlib.ExitStack, binary: str, wheel: str, python: str) -> None:
        self._enter = stack.enter_context
        self._binary = binary
        self.folder = Path(self._enter(tempfile.TemporaryDirectory()))
        self._socket = str(self.folder / "tasks")
        command = [python, "-m", "benchmarks.faults.elasticdl_tasks", wheel, self._socket]
        self._enter(Program(command)).must_say("ready", START_S)
        self.tasks = connect(self._socket)
        self.servers = [self._server(index) for index in range(SERVERS)]
        for index in range(SERVERS):
            Client(PORT + index)  # it serves
        self.live: dict[int, Program] = {}
        self.everybody: list[Program] = []

    def _server(self, index: int, restored: str = "") -> Program:
        flags = {
            "port": PORT + index,
            "ps_id": index,
            "num_ps_pods": SERVERS,
            "master_addr": f"127.0.0.1:{MASTER_PORT}",
            "use_async": "true",
            "opt_type": "SGD",
            "opt_args": f"learning_rate={micro.LR};momentum=0.0;nesterov=false;",
            "checkpoint_dir": self.folder / "checkpoints",
            "checkpoint_steps": CHECKPOINT_STEPS,
            "keep_checkpoint_max": 3,
            "checkpoint_dir_for_init": restored,
        }
        api = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
        command = [self._binary, *(f"-{name}={value}" for name, value in flags.items())]
        return self._enter(Program(command, api))

    def worker(self) -> Program:
        number = len(self.everybody)
        command = [sys.executable, "-m", "benchmarks.faults.elasticdl_job", "worker"]
        program = self._enter(Program([*command, number, self._socket]))
        self.live[number] = program
        self.everybody.append(program)
        return program

    def replace(self, number: int) -> None:
        """Do what its master does once a worker's pod has failed."""
        del self.live[number]
        self.tasks.lose(number)
        self.worker()

    def until(self, so: Callable[[], bool], timeout_s: float) -> bool:
        give_up = time.monotonic() + timeout_s
        while not so():
            if time.monotonic() > give_up:
                return False
            time.sleep(0.002)
        return True

    def trained(self) -> set[int]:
        return records_of(*self.everybody)

    def under_way(self) -> None:
        if not self.until(lambda: len(self.trained()) >= _KILL_AT, START_S):
            raise Unavailable(f"no training: {self.everybody[0].last_words()}")

    def holder(self, task: int) -> int | None:
        """Return the worker that is in the midst of the task that begins at this record."""
        for number, program in self.live.items():
            steps = program.said("step")
            if steps and steps[-1]["task"] == task and steps[-1]["first"] > task:
                return number
        return None

    def restore_server(self, index: int) -> str:
        """Start a server again from the newest checkpoint that is complete; return which."""
        versions = sorted(
            (int(path.name.partition("-")[2]), path)
            for path in (self.folder / "checkpoints").glob("version-*")
            if len(list(path.glob("*.ckpt"))) == SERVERS
        )
        newest = versions[-1][1] if versions else None
        self.servers[index] = self._server(index, str(newest or ""))
        Client(PORT + index)
        return newest.name if newest else "nothing"

    def counts(self) -> list[float]:
        counts = np.zeros(events.RECORDS)
        for index in range(SERVERS):
            ids = np.arange(index, events.RECORDS, SERVERS)
            client = Client(PORT + index)
            client.describe_table(_TABLE, 1)
            counts[ids] = client.pull_rows(_TABLE, ids)[:, 0]
        return counts.tolist()


def worker(job: Job) -> tuple[float, str]:
    job.under_way()
    if not job.until(lambda: _is_half_way(job.live[0].said("step")[-1]), START_S):
        raise Unavailable("worker 0 is never in the midst of a task")
    at = job.live[0].kill()
    job.replace(0)
    return at, "the task is done again from its beginning"


def _is_half_way(step: Event) -> bool:
    return bool(step["end"] - step["task"] == events.TASK // 2)


def same_task(job: Job) -> tuple[float, str]:
    job.under_way()
    start = job.live[0].said("step")[-1]["task"]
    at = time.monotonic()
    for kill in range(KILLS):
        if not job.until(lambda: job.holder(start) is not None, END_S / 6):
            return at, f"the task is dropped after {kill} kills, with a line in the log"
        number = job.holder(start)
        assert number is not None
        at = job.live[number].kill()
        job.replace(number)
    return at, "the task is done again from its beginning"


def server(job: Job) -> tuple[float, str]:
    job.under_way()
    at = job.servers[1].kill()
    workers = dict(job.live)
    crashed = job.until(
        lambda: all(each.process.poll() is not None for each in workers.values()), START_S
    )
    restored = job.restore_server(1)
    for number in workers:
        job.replace(number)
    hung = "crash" if crashed else f"hang (> {START_S:g} s)"
    return at, f"all workers {hung}; a new server has {restored}; all workers started again"


def run(binary: str, wheel: str, python: str, fault: str) -> None:
    furnish()
    master = grpc.server(ThreadPoolExecutor(1))
    master.add_insecure_port(f"127.0.0.1:{MASTER_PORT}")
    master.start()
    with contextlib.ExitStack() as stack:
        job = Job(stack, binary, wheel, python)
        for _ in range(2):
            job.worker()
        at, outcome = {f.__name__: f for f in (worker, same_task, server)}[fault](job)
        over = job.until(
            lambda: all(each.process.poll() is not None for each in job.live.values()), END_S
        )
        survivors = [each for number, each in job.live.items() if number < 2]
        steps = [[step["at"] for step in each.said("step")] for each in survivors]
        if not survivors:  # how long nobody stepped
            steps = [sorted(s["at"] for each in job.everybody for s in each.said("step"))]
        events.say(
            "end",
            counts=job.counts(),
            trained=sorted(job.trained()),
            steps=steps,
            killed_at=at,
            outcome=outcome,
            over=over,
            finished=job.tasks.finished(),
        )
    master.stop(None)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(*sys.argv[2:6])
    else:
        work(int(sys.argv[2]), sys.argv[3])
    sys.stdout.flush()
    os._exit(0)  # its channels' threads

"""A real master behind real gRPC on port 0, over servers and a runtime that a test commands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from edl.common import rpc
from edl.common.clock import MonotonicClock
from edl.common.errors import Fenced, Unreachable
from edl.common.identity import Identity
from edl.common.places import Place
from edl.common.settings import JobSettings
from edl.durable.journal import Journal
from edl.master.books.plan import plan_of, sources_of, split
from edl.master.books.saved import queue_of as queue_from
from edl.master.books.task_queue import TaskQueue
from edl.master.client import MasterClient
from edl.master.core import MEMORY
from edl.master.groups.servers import Cut, Snapshot
from edl.master.judge import judges_of
from edl.master.master import Master
from edl.master.opening import Books
from edl.master.servicer import MasterServicer
from edl.master.state import restore
from edl.proto import master_pb2 as pb
from edl.proto import master_pb2_grpc
from edl.ps.books.ledger import Entry, Ledger, Span, Verdict
from edl.runtime.base import Exit, Replica

TOKEN = "secret"
IDENTITY = Identity(TOKEN, "a certificate", "its key")  # handed on; nothing here encrypts
WAIT_S = 300.0  # far beyond what anything here takes, on a busy machine


class FakeServers:
    """Servers whose shards are ledgers. `down`: calls find nobody until it is cleared."""

    def __init__(self, shards: int) -> None:
        self.ledgers = [Ledger() for _ in range(shards)]
        self.pushes = 0
        self.down = threading.Event()
        self.calls: list[str] = []
        self.pinned: set[str] = set()
        self.known: set[str] = set()  # cuts of which it is noted what changes after them
        self.full = False  # no delta can be written
        self.uneven: dict[int, tuple[int, ...]] = {}
        self.lock = threading.Lock()

    def push(self, span: Span, shard: int | None = None) -> list[Verdict]:
        with self.lock:
            verdicts = []
            for number in range(len(self.ledgers)) if shard is None else [shard]:
                verdicts.append(self.ledgers[number].offer(span))
                if verdicts[-1] is Verdict.APPLY:
                    self.ledgers[number].advance(span)
                    self.pushes += 1
            return verdicts

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.down.is_set():
            raise Unreachable("nobody there")

    def fence(self, attempts: Mapping[int, int]) -> Mapping[int, Sequence[int]]:
        self._call("fence")
        with self.lock:
            return {t: [led.fence(t, a) or 0 for led in self.ledgers] for t, a in attempts.items()}

    def fence_one(self, shard: int, address: str, attempts: Mapping[int, int]) -> Mapping[int, int]:
        self._call(f"fence {shard} at {address}")
        with self.lock:
            answers = {t: self.ledgers[shard].fence(t, a) for t, a in attempts.items()}
            return {t: applied for t, applied in answers.items() if applied is not None}

    def replace(self, addresses: Sequence[str], version: int) -> None:
        self.calls.append(f"replace {version}")

    def lose(self, shard: int, entries: Sequence[Entry] = ()) -> None:
        """Lose what a shard holds, but for what a snapshot has."""
        with self.lock:
            self.ledgers[shard] = Ledger(entries)
            self.pinned.clear()
            self.known.clear()

    def take_cut(self, name: str, hold_s: float) -> Cut | None:
        self._call("cut")
        with self.lock:
            by_shard = [{e.task: e.applied for e in led.entries()} for led in self.ledgers]
            tasks = {task for there in by_shard for task in there}
            found = {t: tuple(there.get(t, 0) for there in by_shard) for t in tasks}
            self.uneven = {t: at for t, at in found.items() if len(set(at)) > 1}
            if self.uneven:
                return None
            self.pinned.add(name)
            applied = {e.task: e.applied for led in self.ledgers for e in led.entries()}
            return Cut(name, self.pushes, applied)

    def unpin(self, name: str) -> None:
        self._call("unpin")
        self.pinned.discard(name)

    def snapshot(self, cut: str, directory: Path) -> Snapshot:
        self._call("snapshot")
        return Snapshot((Place(directory).write("shard", b"x"),), {"seed": 0}, len(self.ledgers))

    def values(
        self, cut: str, directory: Place, since: str, *, let_go: bool
    ) -> tuple[Snapshot, dict[str, int]] | None:
        self._call(f"values {since}".rstrip())
        if self.full:
            raise OSError(28, "No space left on device")
        assert cut in self.pinned
        if since and since not in self.known:
            return None
        if let_go:
            self.pinned.remove(cut)
        self.known = {cut, since}
        files = (directory.write("shard", b"x" * (2 if since else 100)),)
        return Snapshot(files, {"seed": 0}, len(self.ledgers)), {"t": 1}

    def flush(self) -> int:
        self._call("flush")
        return self.pushes

    def version(self) -> int:
        self._call("version")
        return self.pushes

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""


class FakeRuntime:
    """A runtime of processes that live until a test ends them, or at once when told to stop."""

    def __init__(self, report: Callable[[Exit], None]) -> None:
        self._report = report
        self.running: dict[tuple[str, int], Replica] = {}
        self.started: list[Replica] = []
        self.arguments: dict[tuple[str, int], tuple[str, ...]] = {}
        self.changed = threading.Condition()

    def start(self, role, index, incarnation, env, arguments=()) -> Replica:
        assert IDENTITY.variables().items() <= env.items()
        with self.changed:
            replica = Replica(role, index, incarnation, 1000 + len(self.started))
            self.running[role, index] = replica
            self.arguments[role, index] = tuple(arguments)
            self.started.append(replica)
            self.changed.notify_all()
        return replica

    def adopt(self, replica: Replica) -> None:
        """Adopt a replica that runs already; report the end of one that does not."""
        if self.running.get((replica.role, replica.index)) != replica:
            self._report(Exit(replica, -9, unknown=True))

    def detach(self) -> None:
        self.kept, self.running = self.running, {}

    def stop(self, replica: Replica, grace_s: float) -> None:
        self.end(replica, 0 if grace_s else -9)

    def end(self, replica: Replica, code: int) -> None:
        with self.changed:
            if self.running.get((replica.role, replica.index)) != replica:
                return
            del self.running[replica.role, replica.index]
            self.changed.notify_all()
        self._report(Exit(replica, code))

    def close(self) -> None:
        self.running.clear()

    def wait_for(self, role: str, index: int, after: str = "") -> Replica:
        """Return the process of this place, once it is another than incarnation `after`."""

        def there() -> Replica | None:
            found = self.running.get((role, index))
            return found if found is not None and found.incarnation != after else None

        with self.changed:
            assert self.changed.wait_for(there, WAIT_S), f"no {role} {index}"
            found = there()
            assert found is not None
            return found


class FakeWorker:
    """A worker's words, one at a time, over gRPC."""

    def __init__(self, job: FakeJob, index: int, incarnation: str = "") -> None:
        self.job = job
        name = incarnation or job.runtime.wait_for("worker", index).incarnation
        self.replica = pb.Replica(role=pb.WORKER, index=index, incarnation=name)
        self.client = MasterClient(
            job.address, token=TOKEN, replica=self.replica, patience_s=WAIT_S
        )
        job.clients.append(self.client)
        self.registered = self.client.register(pid=1)

    def lease(self, wait_s: float = WAIT_S) -> pb.Task:
        reply = self.client.get_task(wait_s)
        assert pb.GetTaskReply.TASK == reply.outcome, pb.GetTaskReply.Outcome.Name(reply.outcome)
        return reply.task

    def train(self, task: pb.Task, until: int | None = None) -> None:
        """Push the task's spans to all shards, up to position `until`."""
        size = task.end - task.start
        until = size if until is None else until
        position = task.position
        while position < until:
            stops = [b for b in (*task.boundaries, size, until) if b > position]
            end = min(position + self.job.settings.minibatch_size, *stops)
            verdicts = self.job.servers.push(Span(task.id, task.attempt, position, end))
            assert not {Verdict.FENCED, Verdict.GAP} & set(verdicts)
            position = end

    def done(self, task: pb.Task, result: bytes = b"") -> bool:
        return self.client.report_done(
            task.id,
            task.attempt,
            records=0,
            result=result,
            slot_map_version=self.job.master.group.version,
        )

    def fail(self, task: pb.Task, start: int, end: int, record: int | None = None) -> bool:
        failure = pb.Failure(start=start, end=end, record=record, error="ValueError: bad record")
        return self.client.report_failed(task.id, task.attempt, failure, records=0)

    def work(self, result: bytes = b"{}") -> int:
        """Work on everything there is, to the end; return the number of tasks done."""
        tasks = 0
        while True:
            reply = self.client.get_task(WAIT_S)
            if reply.outcome != pb.GetTaskReply.TASK:
                assert pb.GetTaskReply.FINISHED == reply.outcome
                self.leave()
                return tasks
            if reply.task.kind == pb.TRAIN:
                self.train(reply.task)
            assert self.done(reply.task, result)
            tasks += 1

    def leave(self, code: int = 0) -> None:
        replica = self.job.runtime.running.get(("worker", self.replica.index))
        if replica is not None:
            self.job.runtime.end(replica, code)


class FakeJob:
    def __init__(
        self, folder: Path, described: dict[str, Any], restore: str = "", **settings: Any
    ) -> None:
        self.restore = restore
        books = settings.pop(
            "books", None
        )  # of a checkpoint, that the servers do not answer about yet
        self.claims = settings.pop("claims", None)
        defaults = {
            "num_workers": 1,
            "num_ps": 2,
            "minibatch_size": 2,
            "num_minibatches_per_task": 2,
            "shuffle": False,
            "lease_s": 60.0,
        }
        self.folder, self.described = folder, described
        self.inherited: dict[tuple[str, int], Replica] = {}
        self.error: Fenced | None = None
        self.settings = JobSettings(**{**defaults, **settings})
        self.servers = FakeServers(self.settings.num_ps)
        self.clients: list[MasterClient] = []
        self.journal = Journal(folder / "journal.sqlite")
        self.queue = TaskQueue(
            plan_of(self.settings, described), tolerance=self.settings.task_fault_tolerance
        )
        if books is not None:
            self.servers.down.set()
            self.queue = queue_from(self.queue.plan, books)
        self.master = self.make_master(described)
        servicer = MasterServicer(self.master)
        self.server = rpc.AsyncServer(
            lambda s: master_pb2_grpc.add_MasterServicer_to_server(servicer, s), token=TOKEN
        )
        self.address = self.server.address
        self.code: int | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.ready = threading.Event()
        self.thread.start()
        assert self.ready.wait(WAIT_S)
        for index in range(self.settings.num_ps):
            self.register_server(index)
        self.cli = self.client()

    def make_master(self, described: dict[str, Any]) -> Master:
        pieces = self.settings.minibatch_size * self.settings.num_minibatches_per_task
        return Master(
            settings=self.settings,
            job_dir=self.folder,
            books=Books(
                self.journal,
                self.queue,
                self.restore,
                split(sources_of(described, "validation"), pieces),
                judges_of(self.settings, described.get("metrics", {})),
            ),
            connect=lambda addresses: self.servers,
            clock=MonotonicClock(),
            identity=IDENTITY,
            claims=self.claims,
        )

    def restart(self, failed: str | None = None) -> None:
        """Let another master take over from the journal, at the same address; the one before ends.

        failed: it has ended already, and the job with it.
        """
        old, thread, runtime, server = self.master, self.thread, self.runtime, self.server
        journal = self.journal
        self.journal = Journal(self.folder / "journal.sqlite")
        self.queue = TaskQueue(old.queue.plan, tolerance=self.settings.task_fault_tolerance)
        restore(self.queue, self.journal)
        self.master = self.make_master(self.described)
        memory = self.journal.get(MEMORY)
        assert memory is not None
        self.master.resume("was killed by SIGKILL", memory, failed)
        old.loop.post(lambda: None)  # it looks, and finds that it is the older one
        thread.join(WAIT_S)
        assert failed is not None or isinstance(self.error, Fenced)
        for thread in threading.enumerate():  # of a master that was killed none would be left
            if thread.name == "master-background":
                thread.join(WAIT_S)
        journal.close()
        server.stop(0)
        servicer = MasterServicer(self.master)
        self.server = rpc.AsyncServer(
            lambda s: master_pb2_grpc.add_MasterServicer_to_server(servicer, s),
            token=TOKEN,
            port=int(self.address.rpartition(":")[2]),
        )
        self.ready.clear()
        self.inherited = runtime.kept if failed is None else {}
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self.ready.wait(WAIT_S)

    def _run(self) -> None:
        def start_runtime(report: Callable[[Exit], None]) -> FakeRuntime:
            self.runtime = FakeRuntime(report)
            self.runtime.running.update(self.inherited)
            self.ready.set()
            return self.runtime

        try:
            self.code = self.master.run(start_runtime)
        except Fenced as error:
            self.error = error

    def register_server(self, index: int, after: str = "", port: int = 7000) -> MasterClient:
        """Register the server that comes after incarnation `after`; return its line."""
        replica = self.runtime.wait_for("server", index, after)
        about = pb.Replica(role=pb.SERVER, index=index, incarnation=replica.incarnation)
        client = self.client(about)
        client.register(f"127.0.0.1:{port + index}")
        return client

    def kill_server(self, index: int, entries: Sequence[Entry] = ()) -> MasterClient:
        """Kill server `index`; its replacement has `entries` in its ledger, and registers."""
        server = self.runtime.wait_for("server", index)
        self.runtime.end(server, -9)
        self.servers.lose(index, entries)
        return self.register_server(index, server.incarnation, port=8000)

    def client(self, replica: pb.Replica | None = None) -> MasterClient:
        client = MasterClient(self.address, token=TOKEN, replica=replica, patience_s=WAIT_S)
        self.clients.append(client)
        return client

    def worker(self, index: int = 0, incarnation: str = "") -> FakeWorker:
        return FakeWorker(self, index, incarnation)

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first status for which this holds."""
        revision = 0
        for _ in range(400):
            revision, status = self.cli.status(revision, WAIT_S)
            if holds(status):
                return status
        raise AssertionError(status)

    def is_whole(self) -> bool:
        """Tell whether every task of the plan is applied to its end on every shard."""
        plan = self.queue.plan
        sizes = {}
        for epoch in range(plan.epochs):
            first = plan.first_id_of(epoch)
            for number in range(first, first + plan.tasks_of(epoch)):
                _, (_, start, end) = plan.task(number)
                sizes[number] = end - start
        return all({n: led.applied(n) for n in sizes} == sizes for led in self.servers.ledgers)

    def end(self) -> dict[str, Any]:
        """Return the last status, once the master has ended."""
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive(), self.master.status_json()
        return self.master._lookers.status()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        if self.thread.is_alive():
            self.master.loop.post(lambda: self.master.core.fail("the test is over"))
            self.thread.join(WAIT_S)
        self.server.stop(0)
        self.journal.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., FakeJob]]:
    """Yield `start(training=[("a", 8)], num_workers=2, ...)` -> a job that runs."""
    jobs: list[FakeJob] = []

    def make(
        training: list[tuple[str, int]] | None = None,
        validation: list[tuple[str, int]] | None = None,
        prediction: list[tuple[str, int]] | None = None,
        **settings: Any,
    ) -> FakeJob:
        described = {
            "training": training if training is not None else [("a", 8)],
            "validation": validation or [],
            "prediction": prediction or [],
            "metrics": {"auc": "max", "loss": "min"},
            "shard": 4,  # of an analysis
        }
        jobs.append(FakeJob(tmp_path, described, **settings))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


@pytest.fixture
def replayed() -> Callable[[FakeJob], TaskQueue]:
    """Return a function that makes a queue from a job's journal alone."""

    def replay(job: FakeJob) -> TaskQueue:
        queue = TaskQueue(job.queue.plan, tolerance=job.settings.task_fault_tolerance)
        restore(queue, job.journal)
        return queue

    return replay

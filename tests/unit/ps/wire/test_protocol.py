"""A worker written from docs/protocol.md alone: gRPC, protobuf, and nothing of edl's clients."""

from __future__ import annotations

import hashlib
import json
import math
import struct
import threading
import uuid

import grpc
import pytest
from tools.turns import in_turn

from edl.common import rpc
from edl.common.clock import MonotonicClock
from edl.common.identity import Identity
from edl.common.settings import JobSettings
from edl.durable.journal import Journal
from edl.master.books.plan import plan_of
from edl.master.books.task_queue import TaskQueue
from edl.master.groups.servers import RemoteServers
from edl.master.master import Master
from edl.master.opening import Books
from edl.master.servicer import MasterServicer
from edl.proto import master_pb2, master_pb2_grpc, ps_pb2, ps_pb2_grpc

TOKEN = "secret"
WAIT_S = 60.0
MODEL = {
    "dense": [{"name": "w", "shape": [3], "kind": "parameter"}],
    "tables": [
        {
            "name": "t", "dim": 2, "initializer": "zeros", "scale": 0.05, "dtype": "float32",
            "rounding": "nearest",
        }
    ],
    "optimizer": {"name": "SGD", "lr": 1.0},
    "seed": 0,
}  # fmt: skip
M64 = (1 << 64) - 1


# -- The client


def name_hash(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def shard_of_chunk(tensor, chunk, num_shards):
    turn = name_hash(f"dense/{tensor}") / 2**64 + chunk * (math.sqrt(5) - 1) / 2
    return math.floor(turn % 1 * 1024) * num_shards // 1024


def shard_of_row(table, row, num_shards):
    z = ((row & M64) ^ name_hash(f"table/{table}")) + 0x9E3779B97F4A7C15 & M64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & M64
    return ((z ^ z >> 31) >> 33) % 1024 * num_shards // 1024


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


def ids(*values):
    return struct.pack(f"<{len(values)}q", *values)


class Client:
    def __init__(self, master):
        self.token = [("x-edl-token", TOKEN)]
        self.options = [("grpc.enable_http_proxy", 0)]
        channel = grpc.insecure_channel(master, self.options)
        self.master = master_pb2_grpc.MasterStub(channel)
        self.me = master_pb2.Replica(role=master_pb2.WORKER, index=0, incarnation=uuid.uuid4().hex)
        self.ask("Register", pid=1)
        servers = self.ask("GetServers", replica=False, wait_s=WAIT_S)
        self.servers_version = servers.slot_map_version
        self.shards = [
            ps_pb2_grpc.ParameterServerStub(grpc.insecure_channel(address, self.options))
            for address in servers.addresses
        ]

    def ask(self, method, *, replica=True, **fields):
        if replica:
            fields["replica"] = self.me
        request = getattr(master_pb2, f"{method}Request")(**fields)
        return getattr(self.master, method)(request, timeout=2 * WAIT_S, metadata=self.token)

    def call(self, shard, method, request):
        metadata = [*self.token, ("edl-shard", str(shard))]
        return getattr(self.shards[shard], method)(request, timeout=WAIT_S, metadata=metadata)

    def init(self):
        for shard in range(len(self.shards)):
            mine = shard == shard_of_chunk("w", 0, len(self.shards))
            chunk = ps_pb2.DenseChunk(tensor="w", chunk=0, data=floats(0, 0, 0))
            request = ps_pb2.InitRequest(
                model_json=json.dumps(MODEL), chunks=[chunk] if mine else [], complete=True
            )
            self.call(shard, "Init", request)

    def pull(self, rows):
        """Pull the dense tensor, the rows by id, and the versions by shard."""
        dense, found, versions = None, {}, []
        for shard in range(len(self.shards)):
            mine = [row for row in rows if shard_of_row("t", row, len(self.shards)) == shard]
            tables = [ps_pb2.Rows(table="t", ids=ids(*mine))] if mine else []
            reply = self.call(shard, "Pull", ps_pb2.PullRequest(dense=True, tables=tables))
            versions.append(reply.version)
            for chunk in reply.dense:
                dense = struct.unpack("<3f", chunk.data)
            if mine:
                values = struct.unpack(f"<{2 * len(mine)}f", reply.tables[0].values)
                found |= {row: values[2 * n : 2 * n + 2] for n, row in enumerate(mine)}
        return dense, found, versions

    def push(self, task, start, end, rows, shards=None):
        """Push -1 to each element for each record, on these shards; return the outcomes."""
        _, _, versions = self.pull(rows)
        num, outcomes = len(self.shards), []
        for shard in range(num) if shards is None else shards:
            mine = [row for row in rows if shard_of_row("t", row, num) == shard]
            has_w = shard == shard_of_chunk("w", 0, num)
            chunk = ps_pb2.DenseChunk(tensor="w", chunk=0, data=floats(*[-float(len(rows))] * 3))
            table = ps_pb2.Rows(table="t", ids=ids(*mine), values=floats(*[-1.0] * 2 * len(mine)))
            request = ps_pb2.PushRequest(
                span=ps_pb2.Span(task=task.id, attempt=task.attempt, start=start, end=end),
                version=versions[shard],
                dense=[chunk] if has_w else [],
                tables=[table] if mine else [],
            )
            reply = self.call(shard, "Push", request)
            outcomes.append(ps_pb2.PushReply.Outcome.Name(reply.outcome))
        return outcomes

    def train(self, task, minibatch):
        at, size = task.position, task.end - task.start
        while at < size:
            end = min(at + minibatch, size, *(b for b in task.boundaries if b > at))
            outcomes = self.push(task, at, end, [task.start + p for p in range(at, end)])
            assert {"APPLIED", "DUPLICATE"} >= set(outcomes)
            at = end

    def done(self, task):
        fields = {"task": task.id, "attempt": task.attempt, "done": True}
        return self.ask("ReportTask", **fields, slot_map_version=self.servers_version).accepted

    def lease(self):
        """Lease a task; None at the end, also where the master has left before it was asked."""
        request = uuid.uuid4().hex
        while True:
            over = ""
            try:
                reply = self.ask("GetTask", request_id=request, wait_s=10.0)
            except grpc.RpcError as error:
                over = error.details()
            if over:
                assert "the job is over" == over
                return None
            outcome = master_pb2.GetTaskReply.Outcome.Name(reply.outcome)
            if outcome != "WAIT":
                return reply.task if outcome == "TASK" else None

    def work(self):
        while (task := self.lease()) is not None:
            if task.kind == master_pb2.TRAIN:
                self.train(task, minibatch=2)
            assert self.done(task)


# -- What it talks to


class NoProcesses:
    """A runtime whose only worker is the client; the servers are the test's."""

    def __init__(self, report):
        self._report, self.ended = report, threading.Event()

    def start(self, role, index, incarnation, env, arguments=()):
        from edl.runtime.base import Replica

        return Replica(role, index, incarnation, 0)

    def stop(self, replica, grace_s):
        from edl.runtime.base import Exit

        self._report(Exit(replica, 0))

    def adopt(self, replica):
        """Do nothing: no replica was there before."""

    detach = close = lambda self: None


class Job:
    """A real master and two real servers, all in this process and behind gRPC."""

    def __init__(self, start_shards, folder):
        self.shards = start_shards(2)
        settings = JobSettings(
            num_workers=1, num_ps=2, minibatch_size=2, num_minibatches_per_task=2, shuffle=False,
            num_epochs=1, use_async=True, checkpoint_dir=str(folder / "c"), lease_s=60.0,
            drain_grace_s=0.0,
        )  # fmt: skip
        described = {"training": [["a", 8]], "validation": [], "prediction": []}
        self.queue = TaskQueue(plan_of(settings, described))
        self.journal = Journal(folder / "journal.sqlite")
        (folder / "logs").mkdir()
        self.master = Master(
            settings=settings, job_dir=folder, books=Books(self.journal, self.queue),
            connect=lambda found: RemoteServers(found, TOKEN),
            clock=MonotonicClock(), identity=Identity(TOKEN),
        )  # fmt: skip
        servicer = MasterServicer(self.master)
        self.server = rpc.AsyncServer(
            lambda s: master_pb2_grpc.add_MasterServicer_to_server(servicer, s), token=TOKEN
        )
        self.thread = threading.Thread(target=lambda: self.master.run(NoProcesses), daemon=True)
        self.thread.start()
        stub = master_pb2_grpc.MasterStub(rpc.Channel(self.server.address, TOKEN))
        for index, address in enumerate(self.shards.addresses):
            replica = master_pb2.Replica(
                role=master_pb2.SERVER, index=index, incarnation=str(index)
            )
            request = master_pb2.RegisterRequest(replica=replica, address=address)
            stub.Register(request, timeout=WAIT_S)
            store = self.shards.stores[index]
            store.leased.expect(lambda store=store: self._tell(store))

    def _tell(self, store):
        """Tell a store what a server's heartbeat does."""
        below, asks = self.queue.plan.first_id_of(self.queue.opened), store.leased.asks
        threading.Thread(target=store.leased.tell, args=(below, asks)).start()

    def end(self):
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive(), self.master.status_json()
        return json.loads(self.master.status_json())

    def close(self):
        if self.thread.is_alive():
            self.master.loop.post(lambda: self.master.core.fail("the test is over"))
            self.thread.join(WAIT_S)
        self.server.stop(0)
        self.journal.close()


@pytest.fixture
def job(start_shards, tmp_path):
    made = Job(start_shards, tmp_path)
    yield made
    made.close()


def assert_each_record_counted_once(client):
    dense, rows, _ = client.pull(range(8))
    assert (8.0, 8.0, 8.0) == dense
    assert dict.fromkeys(range(8), (1.0, 1.0)) == rows


def test_a_client_of_the_page_trains_a_job_to_its_end(job):
    client = Client(job.server.address)
    client.init()

    client.work()

    assert_each_record_counted_once(client)
    status = job.end()
    assert ("done", 0, 8) == (status["state"], status["exit_code"], status["records_done"])


@in_turn(3)
def test_a_client_that_leaves_a_shard_out_loses_nothing_and_wedges_nothing(job):
    client = Client(job.server.address)
    client.init()
    first = client.lease()
    for at in (0, 2):
        client.push(first, at, at + 2, [first.start + at, first.start + at + 1], shards=[0])
    assert client.done(first)

    client.work()

    assert_each_record_counted_once(client)
    status = job.end()
    assert ("done", 0, 8) == (status["state"], status["exit_code"], status["records_done"])
    assert "stands at 4 on server 0, 0 on server 1" in str(status["events"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"id": 999_999}, "there is no task 999999"),
        ({"attempt": 7}, "task 1 was never leased under attempt 7"),
    ],
    ids=["of no task", "of no attempt"],
)
def test_a_client_that_pushes_what_it_has_not_leased_is_refused(job, change, why):
    client = Client(job.server.address)
    client.init()
    task = client.lease()
    wrong = master_pb2.Task.FromString(task.SerializeToString())
    for name, value in change.items():
        setattr(wrong, name, value)

    with pytest.raises(grpc.RpcError) as refused:
        client.push(wrong, 0, 2, [0, 1])
    client.train(task, minibatch=2)
    assert client.done(task)
    client.work()

    assert grpc.StatusCode.INVALID_ARGUMENT == refused.value.code()
    assert why in refused.value.details()
    assert_each_record_counted_once(client)
    assert "done" == job.end()["state"]

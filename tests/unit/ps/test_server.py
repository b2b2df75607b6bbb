"""The process: `python -m edl.ps` against a master that a test plays."""

from __future__ import annotations

import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import urllib.request

import grpc
import numpy as np
import pytest
from tools.turns import in_turn

from edl.common import paths, rpc
from edl.common.errors import CheckpointError, Unreachable
from edl.common.identity import Identity
from edl.common.settings import JobSettings
from edl.master.client import MasterClient
from edl.nn import optimizers
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.proto import master_pb2 as pb
from edl.proto import master_pb2_grpc, ps_pb2, ps_pb2_grpc
from edl.ps import server as server_module
from edl.ps.books.aggregation import Update
from edl.ps.books.ledger import Span
from edl.ps.control import PsControl
from edl.ps.snapshots.recorder import Coverage
from edl.ps.worker_client import PsClient

SPEC = ModelSpec((DenseSpec("w", (3,)),), (TableSpec("t", 2),), optimizers.SGD(1.0))
WAIT = {"timeout_s": 120.0}  # a fresh checkout compiles its kernels meanwhile


class PlayedMaster(master_pb2_grpc.MasterServicer):
    """A master that notes what it hears, and answers what the test set."""

    def __init__(self, settings):
        self.settings = settings
        self.reply = pb.HeartbeatReply()
        self.registered = queue.Queue()
        self.beats = queue.Queue()

    def Register(self, request, context):
        self.registered.put(request)
        return pb.RegisterReply(settings_json=self.settings.to_json())

    def Heartbeat(self, request, context):
        self.beats.put(request)
        return self.reply

    def await_version(self, version):
        while self.beats.get(timeout=300).version != version:
            pass


@pytest.fixture
def launch():
    """Yield a function that starts a server process.

    launch(*arguments, incarnation=, job_dir=, **settings) -> (played master, its server, process,
    registration)
    """
    stops = []

    def start(*arguments, incarnation="ps-0-1", job_dir="", **settings):
        master = PlayedMaster(JobSettings(**settings))
        server = rpc.Server(
            lambda s: master_pb2_grpc.add_MasterServicer_to_server(master, s), token="secret"
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "edl.ps", "--index", "0", "--incarnation", incarnation]
            + ["--master", server.address, *arguments],
            env={**os.environ, "EDL_TOKEN": "secret", "EDL_JOB_DIR": str(job_dir)},
            stderr=subprocess.PIPE,
            text=True,
        )
        stops.append((server, process))
        return master, server, process, master.registered.get(timeout=300)

    yield start
    for server, process in stops:
        process.kill()
        process.communicate()
        server.stop(0)


@in_turn(0)
def test_a_server_registers_serves_counts_and_drains_with_0(launch):
    master, _, process, hello = launch(use_async=True, checkpoint_steps=2)
    client = PsClient([hello.address], token="secret", spec=SPEC)
    client.init(SPEC, {"w": np.zeros(3, np.float32)}, **WAIT)
    ids = np.arange(5)
    for p in (0, 1, 1):
        rows = {"t": (ids, np.ones((5, 2), np.float32))}
        client.push(Span(0, 1, min(p, 1), min(p, 1) + 1), (0,), tables=rows, **WAIT)
    master.await_version(2)
    master.reply = pb.HeartbeatReply(low_water=1)
    control = PsControl([hello.address], token="secret")
    while control.describe(**WAIT)[0].ledger_tasks:
        master.beats.get(timeout=300)
    control.close()
    with urllib.request.urlopen(f"http://{hello.metrics_address}/metrics", timeout=300) as page:
        metrics = page.read().decode()
    client.close()
    process.send_signal(signal.SIGTERM)

    assert 0 == process.wait(300), process.stderr.read()
    assert (pb.SERVER, 0, "ps-0-1") == (
        hello.replica.role,
        hello.replica.index,
        hello.replica.incarnation,
    )
    for line in (
        'edl_ps_embedding_rows{shard="0",table="t"} 5.0',
        "edl_ps_duplicate_pushes_total 1.0",
        'edl_ps_pushes_total{outcome="applied"} 2.0',
        "edl_ps_gradient_staleness_steps_count 2.0",
        'edl_ps_rpc_duration_seconds_count{code="OK",method="Push"} 3.0',
    ):
        assert line in metrics


def test_a_version_that_the_master_waits_for_is_told_at_once(monkeypatch):
    monkeypatch.setattr(server_module, "_BEAT_S", 60.0)
    master = PlayedMaster(JobSettings(use_async=True, checkpoint_steps=2))
    played = rpc.Server(
        lambda s: master_pb2_grpc.add_MasterServicer_to_server(master, s), token="secret"
    )
    server = server_module.Server(
        index=0, incarnation="x", master=played.address, identity=Identity("secret")
    )
    store = server.open_store(server.register(20.0), "")
    store.init(SPEC, {("w", 0): np.zeros(3, np.float32)}, True)
    ends = []
    beats = threading.Thread(target=lambda: ends.append(server.beat_until_end(store, 5.0)))
    beats.start()

    try:
        for p in range(2):
            store.push(Span(0, 1, p, p + 1), 0, Update())
        master.await_version(2)
    finally:
        server.drain()
        beats.join(300)
        server.close()
        played.stop(0)

    assert [0] == ends


@in_turn(1)
def test_a_master_that_drains_ends_a_server_with_0(launch):
    master, _, process, _ = launch()

    master.reply = pb.HeartbeatReply(drain=True)

    assert 0 == process.wait(300)


@in_turn(0)
def test_a_fenced_server_ends_with_1(launch):
    master, _, process, _ = launch()

    master.reply = pb.HeartbeatReply(fenced=True)

    assert 1 == process.wait(300)
    assert "declared this server lost" in process.stderr.read()


@in_turn(2)
def test_a_server_without_a_master_ends_with_1_and_one_line(launch):
    master, server, process, _ = launch(master_timeout_s=1.0)
    master.beats.get(timeout=300)

    server.stop(0)

    assert 1 == process.wait(300)
    errors = [line for line in process.stderr.read().splitlines() if "ERROR" in line]
    assert 1 == len(errors)
    assert "has not answered for 1 s" in errors[0]


def test_a_checkpoint_that_cannot_be_read_ends_a_server_with_1(launch, tmp_path):
    _, _, process, _ = launch(checkpoint_dir_for_init=str(tmp_path / "nowhere"))

    assert 1 == process.wait(300)
    assert "there is no complete checkpoint in" in process.stderr.read()


@in_turn(3)
def test_a_killed_server_is_replaced_by_one_that_has_what_was_safe(launch, tmp_path):
    """The replacement has at least what was told as coverage, its ledger too; the user is told."""
    job = {"job_dir": tmp_path, "use_async": True, "snapshot_s": 0.05}
    master, _, process, hello = launch(**job)
    client = PsClient([hello.address], token="secret", spec=SPEC)
    client.init(SPEC, {"w": np.zeros(3, np.float32)}, **WAIT)
    coverage, ids = None, np.arange(5)
    for p in itertools.count():
        rows = {"t": (ids, np.full((5, 2), -1, np.float32))}
        client.push(Span(0, 1, p, p + 1), (p,), tables=rows, **WAIT)
        beat = master.beats.get(timeout=300)
        if beat.HasField("coverage"):
            coverage = beat.coverage
        if coverage and coverage.snapshot > 3:
            break
    process.kill()
    client.close()

    master, _, process, hello = launch(
        "--recover", f"ps-0-1:{coverage.snapshot}", incarnation="ps-0-2", **job
    )
    client = PsClient([hello.address], token="secret", spec=SPEC)
    control = PsControl([hello.address], token="secret")
    first = control.describe(**WAIT)[0].version
    zeros = {"w": np.zeros(3, np.float32)}
    pulled = client.pull({"t": ids}, dense=zeros, full=True, **WAIT)
    position = control.fence({0: 2}, **WAIT)[0][0]
    control.close()
    notes = []
    while not any("restored" in note for note in notes):
        notes += master.beats.get(timeout=300).notes
    client.close()

    assert coverage.tasks[0].position <= first <= p + 1
    initial = pulled.rows["t"] - first
    assert np.abs(initial).max() < 1
    assert first == position
    assert any("restored from snapshot" in note for note in notes)  # it may have died as it pruned


def test_a_server_that_cannot_be_recovered_says_so_and_ends_with_1(launch, tmp_path):
    _, _, process, _ = launch("--recover", "ps-0-1:7", incarnation="ps-0-2", job_dir=tmp_path)

    assert 1 == process.wait(300)
    errors = process.stderr.read()
    assert "server 0 cannot be recovered" in errors
    assert "start the job again from a checkpoint" in errors


@in_turn(2)
def test_a_replacement_without_any_snapshot_begins_as_the_job_did(launch, tmp_path):
    master, *_ = launch("--recover", "ps-0-1:0", incarnation="ps-0-2", job_dir=tmp_path)

    notes = []
    while not notes:
        notes += master.beats.get(timeout=300).notes

    assert "no snapshot of ps-0-1 is there" in notes[0]


def test_a_server_finds_a_master_that_came_back_at_another_address(tmp_path):
    masters = [PlayedMaster(JobSettings()) for _ in range(2)]
    first, second = [
        rpc.Server(
            lambda s, m=m: master_pb2_grpc.add_MasterServicer_to_server(m, s), token="secret"
        )
        for m in masters
    ]
    line = MasterClient(first.address, token="secret", where=lambda: paths.master_address(tmp_path))
    line.call_once("Heartbeat", pb.HeartbeatRequest(version=1))
    (tmp_path / "master.json").write_text(json.dumps({"address": second.address}))
    first.stop(0)

    with pytest.raises(Unreachable):
        line.call_once("Heartbeat", pb.HeartbeatRequest(version=2))
    line.call_once("Heartbeat", pb.HeartbeatRequest(version=2))

    line.close()
    second.stop(0)
    assert [1, 2] == [master.beats.get_nowait().version for master in masters]


@pytest.fixture
def in_process(monkeypatch):
    """Yield (played master, server), in this process."""
    monkeypatch.setattr(server_module, "_BEAT_S", 0.02)
    master = PlayedMaster(JobSettings(use_async=True))
    played = rpc.Server(
        lambda s: master_pb2_grpc.add_MasterServicer_to_server(master, s), token="secret"
    )
    server = server_module.Server(
        index=0, incarnation="x", master=played.address, identity=Identity("secret")
    )
    yield master, server
    server.close()
    played.stop(0)


def test_a_torn_server_ends_with_1_and_one_line(in_process, caplog, monkeypatch):
    _, server = in_process
    store = server.open_store(server.register(20.0))
    store.init(SPEC, {("w", 0): np.zeros(3, np.float32)}, True)

    def fail(*_):
        raise MemoryError

    store.leased.tell(1, 0)
    monkeypatch.setattr(store._state.parameters, "apply", fail)
    with pytest.raises(MemoryError):
        store.push(Span(0, 1, 0, 1), 0, Update({("w", 0): np.zeros(3, np.float32)}))

    assert 1 == server.beat_until_end(store, 5.0)
    assert ["a step failed half way (see above): ending, to be replaced"] == [
        record.getMessage() for record in caplog.records if record.levelname == "ERROR"
    ]


def test_a_server_without_memory_for_a_checkpoint_ends_with_1_to_be_replaced(
    in_process, caplog, monkeypatch
):
    _, server = in_process
    store = server.open_store(server.register(20.0))
    store.init(SPEC, {("w", 0): np.zeros(3, np.float32)}, True)

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(server_module.snapshot, "write", fail)
    channel = rpc.Channel(server.address, "secret")
    stub = ps_pb2_grpc.ParameterServerStub(channel)
    request = ps_pb2.SnapshotRequest(cut="c", directory="/nowhere")
    with pytest.raises(Unreachable, match="server 0 is out of memory: it is replaced"):
        rpc.call(stub.Snapshot, request, 300)
    channel.close()

    assert 1 == server.beat_until_end(store, 5.0)
    assert ["out of memory as it wrote a checkpoint"] == [
        record.getMessage().partition(":")[0]
        for record in caplog.records
        if record.levelname == "ERROR"
    ]


def test_a_server_that_still_reads_beats_as_starting(in_process, monkeypatch):
    master, server = in_process
    settings = server.register(20.0)
    heard = []

    def slow(*_):
        heard.append(master.beats.get(timeout=300).state)
        raise CheckpointError("never mind")

    monkeypatch.setattr(server_module.storage, "load", slow)
    with pytest.raises(CheckpointError):
        server.open_store(settings, "somewhere")

    assert ["starting"] == heard


def test_notes_are_repeated_until_a_beat_is_answered(in_process):
    master, server = in_process
    store = server.open_store(server.register(20.0))
    covered = Coverage(3, 0, ())
    server._tell("a note", covered)
    real, server._master._stub = server._master._stub, None
    with pytest.raises(AttributeError):
        server._beat(store)
    server._master._stub = real

    for _ in range(2):
        server._beat(store)

    beats = [master.beats.get(timeout=300) for _ in range(2)]
    assert [["a note"], []] == [list(beat.notes) for beat in beats]
    assert [3, 0] == [beat.coverage.snapshot for beat in beats]


def test_calls_of_an_older_master_are_refused(start_shards):
    shards = start_shards(1)
    channel = grpc.insecure_channel(shards.addresses[0])
    stub = ps_pb2_grpc.ParameterServerStub(channel)

    def call(method, request, epoch):
        metadata = [("x-edl-token", "secret"), ("edl-master-epoch", str(epoch))]
        return getattr(stub, method)(request, timeout=300, metadata=metadata)

    call("Fence", ps_pb2.FenceRequest(master_epoch=2), 2)
    for method, request in {
        "Fence": ps_pb2.FenceRequest(master_epoch=2),
        "Freeze": ps_pb2.FreezeRequest(cut="c", timeout_s=1),
        "Pin": ps_pb2.PinRequest(cut="c", timeout_s=1),
        "Unpin": ps_pb2.UnpinRequest(cut="c"),
        "Snapshot": ps_pb2.SnapshotRequest(cut="c", directory="x"),
        "Flush": ps_pb2.FlushRequest(),
        "Retire": ps_pb2.RetireRequest(low_water=5),
    }.items():
        with pytest.raises(grpc.RpcError, match="epoch 2 has taken over") as refused:
            call(method, request, 1)
        assert grpc.StatusCode.FAILED_PRECONDITION == refused.value.code()
    channel.close()


def test_a_server_starts_without_torch():
    code = "import sys, edl.ps.__main__; sys.exit('torch' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode

"""The process: `python -m edl.ps` against a master that a test plays."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import urllib.request

import numpy as np
import pytest

from edl.common import rpc
from edl.common.identity import Identity
from edl.common.settings import JobSettings
from edl.nn import optimizers
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.proto import master_pb2 as pb
from edl.proto import master_pb2_grpc
from edl.ps import server as server_module
from edl.ps.aggregation import Update
from edl.ps.client import PsClient, Span

SPEC = ModelSpec((DenseSpec("w", (3,)),), (TableSpec("t", 2),), optimizers.SGD(1.0))
WAIT = {"timeout_s": 20.0}


class PlayedMaster(master_pb2_grpc.MasterServicer):
    """Notes what it hears; answers what the test set."""

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
        while self.beats.get(timeout=20).version != version:
            pass


@pytest.fixture
def launch():
    """launch(**settings) -> (played master, its server, process, registration)"""
    stops = []

    def start(**settings):
        master = PlayedMaster(JobSettings(**settings))
        server = rpc.Server(
            lambda s: master_pb2_grpc.add_MasterServicer_to_server(master, s), token="secret"
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "edl.ps", "--index", "0", "--incarnation", "ps-0-1"]
            + ["--master", server.address],
            env={**os.environ, "EDL_TOKEN": "secret"},
            stderr=subprocess.PIPE,
            text=True,
        )
        stops.append((server, process))
        return master, server, process, master.registered.get(timeout=60)

    yield start
    for server, process in stops:
        process.kill()
        process.communicate()
        server.stop(0)


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
    while client.describe(**WAIT)[0].ledger_tasks:
        master.beats.get(timeout=20)
    with urllib.request.urlopen(f"http://{hello.metrics_address}/metrics", timeout=10) as page:
        metrics = page.read().decode()
    client.close()
    process.send_signal(signal.SIGTERM)

    assert 0 == process.wait(20), process.stderr.read()
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
        beats.join(20)
        server.close()
        played.stop(0)

    assert [0] == ends


def test_a_master_that_drains_ends_a_server_with_0(launch):
    master, _, process, _ = launch()

    master.reply = pb.HeartbeatReply(drain=True)

    assert 0 == process.wait(20)


def test_a_fenced_server_ends_with_1(launch):
    master, _, process, _ = launch()

    master.reply = pb.HeartbeatReply(fenced=True)

    assert 1 == process.wait(20)
    assert "declared this server lost" in process.stderr.read()


def test_a_server_without_a_master_ends_with_1_and_one_line(launch):
    master, server, process, _ = launch(master_timeout_s=1.0)
    master.beats.get(timeout=20)

    server.stop(0)

    assert 1 == process.wait(20)
    errors = [line for line in process.stderr.read().splitlines() if "ERROR" in line]
    assert 1 == len(errors)
    assert "has not answered for 1 s" in errors[0]


def test_a_checkpoint_that_cannot_be_read_ends_a_server_with_1(launch, tmp_path):
    _, _, process, _ = launch(checkpoint_dir_for_init=str(tmp_path / "nowhere"))

    assert 1 == process.wait(20)
    assert "there is no complete checkpoint in" in process.stderr.read()


def test_a_server_starts_without_torch():
    code = "import sys, edl.ps.__main__; sys.exit('torch' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode

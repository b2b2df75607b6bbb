"""Servers with a certificate, where others reach them: every carrier, and who is refused."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest
from tools import own

from edl.common.errors import EdlError, Unauthenticated
from edl.common.identity import Identity
from edl.nn import optimizers
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.ps.books.aggregation import Policy
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.control import PsControl
from edl.ps.metrics import Metrics
from edl.ps.server import Listeners
from edl.ps.servicer import ParameterServerServicer
from edl.ps.wire.plane import Plane
from edl.ps.worker_client import PsClient
from edl.wire.reach import Caller

TOKEN = "secret"
SPEC = ModelSpec((DenseSpec("w", (3,)),), (TableSpec("t", 2),), optimizers.SGD(lr=1.0))
WAIT = {"timeout_s": 120.0}  # a fresh checkout compiles its kernels meanwhile


@pytest.fixture
def server(monkeypatch, certified):
    """The address of a server at this machine's own address, and its store."""
    monkeypatch.setenv("EDL_HOST", own.address())
    store = Store(index=0, slot_map=SlotMap(1), policy=Policy(use_async=True))
    listeners = Listeners(ParameterServerServicer(0, store), certified)
    yield listeners.address, store
    listeners.close(0)


@pytest.mark.parametrize("transport", ["grpc", "tcp", "unix", "shm", "auto"])
def test_a_push_and_a_pull_are_served_off_loopback(server, certified, transport):
    address, store = server
    ids = np.arange(1000)
    client = PsClient([address], token=TOKEN, spec=SPEC, transport=transport, identity=certified)
    client.init(SPEC, {"w": np.zeros(3, np.float32)}, **WAIT)

    before = client.pull({"t": ids}, **WAIT).rows["t"]
    client.push(Span(0, 1, 0, 8), (0,), tables={"t": (ids, np.ones((1000, 2), np.float32))}, **WAIT)
    after = client.pull({"t": ids}, **WAIT).rows["t"]
    client.close()

    assert address.startswith(own.address())
    assert 1 == store.version
    np.testing.assert_allclose(before - 1, after, atol=1e-6)


@pytest.mark.parametrize(
    ("transport", "encrypts"), [("tcp", [True]), ("auto", [False])], ids=["tcp", "same host"]
)
def test_off_loopback_tcp_is_encrypted_and_a_socket_of_this_host_is_not(
    server, certified, transport, encrypts, monkeypatch
):
    address, _ = server
    seen = []
    greeted = Caller._greeted

    def greet(self, sock, tls):
        seen.append(tls)
        return greeted(self, sock, tls)

    monkeypatch.setattr(Caller, "_greeted", greet)
    client = PsClient([address], token=TOKEN, spec=SPEC, transport=transport, identity=certified)
    client.init(SPEC, {"w": np.zeros(3, np.float32)}, **WAIT)
    client.pull({"t": np.arange(3)}, **WAIT)
    client.close()

    assert encrypts == seen


def test_in_another_network_namespace_of_this_host_shared_memory_gives_way_to_tls(
    server, certified, monkeypatch
):
    """Two pods of one node have one boot id, and do not see each other's abstract sockets."""
    address, store = server
    connect = socket.socket.connect

    def unseen(self, where):
        if self.family == socket.AF_UNIX:
            raise ConnectionRefusedError(111, "Connection refused")
        return connect(self, where)

    monkeypatch.setattr(socket.socket, "connect", unseen)
    client = PsClient([address], token=TOKEN, spec=SPEC, identity=certified)
    client.init(SPEC, {"w": np.zeros(3, np.float32)}, **WAIT)
    client.push(Span(0, 1, 0, 8), (0,), **WAIT)
    client.close()

    assert 1 == store.version


def test_a_client_of_another_certificate_is_refused(server):
    client = PsControl([server[0]], token=TOKEN, identity=Identity.create(TOKEN))

    with pytest.raises(Unauthenticated, match="another job's certificate"):
        client.describe(**WAIT)
    client.close()


def test_a_plane_without_a_certificate_does_not_listen_off_loopback():
    with pytest.raises(EdlError, match="set EDL_IDENTITY"):
        Plane(lambda: None, Metrics(0).calls, index=0, identity=Identity(TOKEN), host=own.address())


def test_a_server_off_loopback_without_a_certificate_ends_with_one_line():
    env = {**os.environ, **Identity(TOKEN).variables(), "EDL_HOST": own.address()}
    command = [
        sys.executable,
        "-m",
        "edl.ps",
        "--index=0",
        "--incarnation=a",
        "--master=127.0.0.1:1",
    ]

    ended = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=300, check=False
    )

    (line,) = ended.stderr.splitlines()
    assert 1 == ended.returncode
    assert f"{own.address()} is not on loopback" in line

"""Pull and push over a TCP proxy that is slow, half open or resets, to a real server: with and
without TLS."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tools import proxy, servers
from tools.waiting import FAR_S

from edl.common.errors import Unreachable
from edl.common.identity import Identity
from edl.nn import optimizers
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.proto import ps_pb2 as pb
from edl.ps.books.aggregation import Policy
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.server import Listeners
from edl.ps.servicer import ParameterServerServicer
from edl.ps.wire.connection import PlaneEndpoint, PlaneShardConnection
from edl.ps.wire.shard import ShardPull, ShardPush
from edl.ps.worker_client import PsClient, PushOutcome

SPEC = ModelSpec(
    (DenseSpec("w", (300_000,)),),
    (TableSpec("t", 2, initializer="zeros"),),
    optimizers.SGD(-1.0),
)
IDS = np.arange(10, dtype=np.int64)
ONES = np.ones((10, 2), np.float32)


@dataclass
class Line:
    """A server whose tensor plane is reached through `proxy` only."""

    store: Store
    proxy: proxy.Proxy
    address: str
    transport: str
    identity: Identity

    def client(self) -> PsClient:
        client = PsClient(
            [self.address],
            token=servers.TOKEN,
            spec=SPEC,
            transport=self.transport,
            identity=self.identity,
        )
        client.init(SPEC, {"w": np.zeros(300_000, np.float32)}, timeout_s=FAR_S)
        return client

    def connection(self, stall_s: float) -> PlaneShardConnection:
        there = PlaneEndpoint("127.0.0.1", self.proxy.port, "", "")
        return PlaneShardConnection(
            there, self.identity, 1, transport=self.transport, stall_s=stall_s
        )


@pytest.fixture(params=["tcp", "tls"])
def line(request) -> Iterator[Line]:
    identity = Identity.create(servers.TOKEN)
    store = Store(index=0, slot_map=SlotMap(1), policy=Policy(use_async=True))
    servicer = ParameterServerServicer(0, store)
    listeners = Listeners(servicer, identity)
    with proxy.Proxy(f"127.0.0.1:{servicer.listening.tcp_port}") as between:
        servicer.listening = replace(servicer.listening, tcp_port=between.port)
        yield Line(store, between, listeners.address, request.param, identity)
    listeners.close()


def rows(client: PsClient) -> list[float]:
    pulled = client.pull({"t": IDS}, timeout_s=FAR_S)
    return sorted(set(pulled.rows["t"].reshape(-1).tolist()))


def push(client: PsClient, start: int) -> PushOutcome:
    span = Span(1, 1, start, start + 1)
    return client.push(span, (0,), tables={"t": (IDS, ONES)}, timeout_s=FAR_S).outcome


def test_a_connection_that_was_reset_is_made_anew_and_nothing_is_applied_twice(line):
    client = line.client()
    for start in range(5):
        assert PushOutcome.APPLIED == push(client, start)
        line.proxy.reset()

    assert [5.0] == rows(client)
    client.close()


def test_a_half_open_connection_is_given_up_long_before_the_deadline_and_replaced(line):
    line.client().close()
    connection = line.connection(stall_s=0.3)
    pull = ShardPull(False, None, {"t": IDS})
    assert pb.PullReply.OK == connection.start_pull(pull, FAR_S)().outcome
    line.proxy.go_deaf()
    began = time.monotonic()
    with pytest.raises(Unreachable, match="nothing has moved for 0.3 s"):
        connection.start_push(ShardPush(Span(1, 1, 0, 1), 0, [], {"t": (IDS, ONES)}), FAR_S)()

    assert time.monotonic() - began < FAR_S / 2
    assert pb.PullReply.OK == connection.start_pull(pull, FAR_S)().outcome
    assert 2 == line.proxy.accepted
    connection.close()


def test_a_slow_link_is_no_dead_one_as_long_as_something_moves(line):
    """1.2 MB at 1.5 MB/s take longer than `stall_s`."""
    line.client().close()
    connection = line.connection(stall_s=0.4)
    line.proxy.bytes_per_s = 1.5e6
    began = time.monotonic()
    pulled = connection.start_pull(ShardPull(True, None), FAR_S)()

    assert 300_000 == sum(values.size for _, _, values in pulled.dense)
    assert time.monotonic() - began > 0.4
    assert 1 == line.proxy.accepted
    connection.close()


def test_calls_reach_the_replacement_at_another_address(line):
    """The old address is deaf; the client is told the new one while its push waits."""
    client = line.client()
    push(client, 0)
    line.proxy.go_deaf()
    outcomes = []
    pushing = threading.Thread(target=lambda: outcomes.append(push(client, 1)))
    servicer = ParameterServerServicer(0, line.store)
    replacement = Listeners(servicer, line.identity)
    pushing.start()
    client.update([replacement.address], 2)
    pushing.join(FAR_S)

    assert [PushOutcome.APPLIED] == outcomes
    assert [2.0] == rows(client)
    client.close()
    replacement.close()


@pytest.mark.parametrize("line", ["tcp"], indirect=True)
def test_a_replacement_is_known_at_once_while_a_call_waits_for_a_silent_server(line):
    """A worker's heartbeat tells its client so: it must not wait with the call and be lost."""
    line.client().close()
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as pool:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        client = PsClient([address], token=servers.TOKEN, spec=SPEC, identity=line.identity)
        pulled = pool.submit(client.pull, {"t": IDS}, timeout_s=FAR_S)
        there, _ = silent.accept()  # it says nothing; gRPC gives up after 20 s

        pool.submit(client.update, [line.address], 2).result(timeout=300.0)

        assert pulled.result(timeout=FAR_S).initialized
        client.close()
        there.close()

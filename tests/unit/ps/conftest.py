"""Shards behind real gRPC servers on loopback, as many as a test asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from edl.common import rpc
from edl.nn.model_spec import ModelSpec
from edl.proto import ps_pb2_grpc
from edl.ps.aggregation import Policy
from edl.ps.client import PsClient
from edl.ps.servicer import ParameterServerServicer
from edl.ps.slots import SlotMap
from edl.ps.store import Store

TOKEN = "secret"


class Shards:
    """Stores, their servers and a client."""

    def __init__(self, stores: list[Store], spec: ModelSpec | None) -> None:
        self.stores = stores
        self.servers = [_serve(store) for store in stores]
        self.addresses = [server.address for server in self.servers]
        self.client = PsClient(self.addresses, token=TOKEN, spec=spec)

    def stop(self) -> None:
        self.client.close()
        for server in self.servers:
            server.stop(0)


def _serve(store: Store) -> rpc.Server:
    servicer = ParameterServerServicer(store.index, store)
    return rpc.Server(
        lambda server: ps_pb2_grpc.add_ParameterServerServicer_to_server(servicer, server),
        token=TOKEN,
    )


StartShards = Callable[..., Shards]


@pytest.fixture
def start_shards() -> Iterator[StartShards]:
    """start_shards(count, spec=None, policy=None) -> Shards; async unless told otherwise"""
    started = []

    def start(
        count: int = 1, spec: ModelSpec | None = None, policy: Policy | None = None
    ) -> Shards:
        policy = policy or Policy(use_async=True)
        stores = [Store(index=i, slot_map=SlotMap(count), policy=policy) for i in range(count)]
        started.append(Shards(stores, spec))
        return started[-1]

    yield start
    for shards in started:
        shards.stop()

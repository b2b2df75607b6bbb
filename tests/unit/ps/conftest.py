"""Shards behind real listeners on loopback, as many as a test asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from edl.common import rpc
from edl.common.identity import Identity
from edl.nn import optimizers
from edl.nn.model_spec import ModelSpec
from edl.ps.books.aggregation import Policy
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.client import open_shard
from edl.ps.control import PsControl
from edl.ps.server import Listeners
from edl.ps.servicer import ParameterServerServicer
from edl.ps.worker_client import PsClient

TOKEN = "secret"


class Shards:
    """Stores, their servers, a worker's client and a master's."""

    def __init__(self, stores: list[Store], spec: ModelSpec | None, transport: str) -> None:
        self.stores = stores
        self.servers = [
            Listeners(ParameterServerServicer(store.index, store), Identity(TOKEN))
            for store in stores
        ]
        self.addresses = [server.address for server in self.servers]
        spec = spec or ModelSpec((), (), optimizers.SGD(1.0))
        self.client = PsClient(self.addresses, spec, token=TOKEN, transport=transport)
        self.control = PsControl(self.addresses, token=TOKEN)

    def call(self, method: str, request: Any) -> Any:
        """Make an RPC of the first shard, as any other client does."""
        shard = open_shard(0, self.addresses[0], TOKEN, Identity(TOKEN))
        try:
            return rpc.call(getattr(shard.stub, method), request, 300.0)
        finally:
            shard.close()

    def stop(self) -> None:
        self.client.close()
        self.control.close()
        for server in self.servers:
            server.close(0)


StartShards = Callable[..., Shards]


@pytest.fixture(scope="session")
def certified() -> Identity:
    """Return an identity with a certificate."""
    return Identity.create(TOKEN)


@pytest.fixture
def transport() -> str:
    """Return how the client's pulls and pushes travel; a module may say otherwise."""
    return "auto"


@pytest.fixture
def start_shards(transport: str) -> Iterator[StartShards]:
    """Yield start_shards(count, spec=None, policy=None) -> Shards; async unless told otherwise."""
    started = []

    def start(
        count: int = 1, spec: ModelSpec | None = None, policy: Policy | None = None
    ) -> Shards:
        policy = policy or Policy(use_async=True)
        SlotMap(2).partition("", np.empty(0, np.int64))  # compiled before the test looks
        stores = [Store(index=i, slot_map=SlotMap(count), policy=policy) for i in range(count)]
        started.append(Shards(stores, spec, transport))
        return started[-1]

    yield start
    for shards in started:
        shards.stop()

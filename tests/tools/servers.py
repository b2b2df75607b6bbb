"""Real parameter servers (on loopback) inside the test's process, and reading checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edl.common import storage
from edl.common.identity import Identity
from edl.common.pieces import decode
from edl.nn.model_spec import ModelSpec
from edl.ps.books.aggregation import Policy
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.server import Listeners
from edl.ps.servicer import ParameterServerServicer
from edl.ps.snapshots import cut as snapshot
from edl.ps.worker_client import PsClient

TOKEN = "a token"


@contextmanager
def serving(
    num_servers: int,
    spec: ModelSpec,
    policy: Policy | None = None,
    stores: Sequence[Store] | None = None,
) -> Iterator[PsClient]:
    """Yield a client of `num_servers` empty servers, or of those of these stores."""
    if stores is None:
        stores = empty(num_servers, policy)
    servers = [
        Listeners(ParameterServerServicer(store.index, store), Identity(TOKEN)) for store in stores
    ]
    client = PsClient([server.address for server in servers], spec, token=TOKEN)
    try:
        yield client
    finally:
        client.close()
        for server in servers:
            server.close()


def empty(num_servers: int, policy: Policy | None = None) -> list[Store]:
    """Return the stores of so many shards, which know no model yet."""
    return [
        Store(index=index, slot_map=SlotMap(num_servers), policy=policy or Policy(staleness=0))
        for index in range(num_servers)
    ]


def write_checkpoint(
    stores: Sequence[Store], directory: Path, books: dict[str, Any] | None = None
) -> Path:
    """Write the state of stores that rest as a checkpoint; return its folder."""
    files = []
    for store in stores:
        store.pins.freeze("saved", 10.0)
        pinned, _ = store.pins.pin("saved", {}, 10.0)
        assert pinned, "the store knows no model"
        written, version = snapshot.write(store, "saved", directory)
        files += written
        store.pins.unpin("saved")
    storage.write_manifest(
        directory, version=version, num_shards=len(stores), num_slots=1024, files=files, books=books
    )
    return directory


def restored(checkpoint: str | Path) -> Store:
    """Return one shard that holds all of a checkpoint, ledger included."""
    store = Store(index=0, slot_map=SlotMap(1), policy=Policy())
    snapshot.restore(store, storage.load(checkpoint), new_job=False)
    return store


def table(checkpoint: str | Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return ids int64[n], ascending, and rows float32[n, dim] of a checkpoint's table."""
    ids, rows = [], []
    manifest = storage.load(checkpoint)
    for record in manifest.files:
        if not record.name.endswith(".safetensors"):
            continue
        tensors, about = decode(storage.read_checked(manifest, record))
        if about.get("rows") == name:
            ids.append(tensors["ids"])
            rows.append(tensors["weight"])
    everything = np.concatenate(ids) if ids else np.zeros(0, np.int64)
    order = np.argsort(everything)
    return everything[order], np.concatenate(rows)[order] if rows else np.zeros((0, 1), np.float32)


def assert_exact(checkpoint: str | Path, records: int, epochs: int) -> None:
    """Check that a job of the counting model has applied each of its records once an epoch."""
    ids, counts = table(checkpoint, "counts")
    assert np.array_equal(np.arange(records), ids)
    assert {float(epochs)} == set(counts.ravel().tolist())
    assert [records * epochs] == dense(checkpoint, "total").tolist()


def dense(checkpoint: str | Path, name: str) -> np.ndarray:
    """Return a dense tensor of a checkpoint, flat."""
    store = restored(checkpoint)
    chunks = sorted(
        (number, chunk.value) for (tensor, number), chunk in store.pins.chunks("") if tensor == name
    )
    return np.concatenate([weight.reshape(-1) for _, weight in chunks])

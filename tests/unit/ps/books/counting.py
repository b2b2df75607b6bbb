"""A store that counts, so that its values can be compared with a ledger record by record.

At the rate -1 a gradient of 1 adds 1. Each position of a task has a row of its own, and all
positions share some rows and all dense chunks.
"""

from __future__ import annotations

import numpy as np

from edl.nn import optimizers
from edl.nn.model_spec import CHUNK_ELEMENTS, DenseSpec, ModelSpec, TableSpec
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store

ASYNC = Policy(use_async=True)
TASKS, POSITIONS, SHARED = 4, 64, 5
LONG_S = 1e6


def model(elements=4, lr=-1.0):
    return ModelSpec(
        (DenseSpec("w", (elements,)),), (TableSpec("t", 2, "zeros"),), optimizers.SGD(lr)
    )


def one_store(policy=ASYNC, spec=None):
    spec = spec or model()
    store = Store(index=0, slot_map=SlotMap(1), policy=policy)
    elements = spec.dense[0].elements
    first = range(0, elements, CHUNK_ELEMENTS)
    sizes = [min(CHUNK_ELEMENTS, elements - start) for start in first]
    store.init(spec, {("w", i): np.zeros(n, np.float32) for i, n in enumerate(sizes)}, True)
    return store


def shared_ids():
    return -1 - np.arange(SHARED, dtype=np.int64)


def gradients(store, span):
    """Return 1 for every chunk, the shared rows, and the row of each position of the span."""
    own = span.task * POSITIONS + np.arange(span.start, span.end, dtype=np.int64)
    ids = np.concatenate([shared_ids(), own])
    count = span.end - span.start
    grads = np.ones((len(ids), 2), np.float32)
    grads[:SHARED] = count
    chunks = store.pins.chunks("")
    return Update(
        {key: np.full(len(chunk.value), count, np.float32) for key, chunk in chunks},
        {"t": (ids, grads)},
    )


def push(store, span, version=0, **options):
    return store.push(span, version, gradients(store, span), **options)


def assert_holds(store, ledger, cut=""):
    """Check that the values are what the ledger says has been applied, record by record."""
    ids = np.concatenate([shared_ids(), np.arange(TASKS * POSITIONS, dtype=np.int64)])
    _, chunks, (rows,) = store.pull(dense=True, known_version=None, tables=[("t", ids)], cut=cut)
    applied = {entry.task: entry.applied for entry in ledger}
    total = sum(applied.values())
    for key, data in chunks:
        np.testing.assert_array_equal(np.frombuffer(data, np.float32), total, err_msg=str(key))
    np.testing.assert_array_equal(rows[:SHARED], total)
    counted = rows[SHARED:, 0].reshape(TASKS, POSITIONS)
    for task in range(TASKS):
        expected = np.arange(POSITIONS) < applied.get(task, 0)
        np.testing.assert_array_equal(counted[task], expected, err_msg=f"task {task}")

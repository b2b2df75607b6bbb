"""The cost of a shard's own snapshots: pauses of pushes, seconds and CPU, bytes; a restore.

One shard in this process, rows of dim 16 with Adagrad. Two threads push 2,000 rows each, as fast as
they can, without and with snapshots in turn: a base, then deltas, one every `INTERVAL_S`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time

import numpy as np

from benchmarks.measure import spread
from edl.kernels.malloc import keep_freed_memory
from edl.nn import optimizers
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.rows.table import RowBlock
from edl.ps.snapshots import recovery
from edl.ps.snapshots.chain import Folder
from edl.ps.snapshots.recorder import Recorder

ROWS = 2_600_000
PUSH = 2000
DIM = 16
PAUSE_S = 0.01  # of a worker between two pushes: its computing
DELTAS = 4
INTERVAL_S = 1.0
ROUNDS = 2
SPEC = ModelSpec((DenseSpec("w", (1000,)),), (TableSpec("t", DIM),), optimizers.Adagrad())


def snapshots(rows: int = ROWS) -> str:
    """Make Markdown: latencies of pushes; each kind of snapshot; a restore."""
    keep_freed_memory()
    store, ids = filled(rows)
    folder = tempfile.mkdtemp()
    alone, beside, bases, deltas = [], [], [], []
    try:
        for number in range(ROUNDS):
            alone += pushed(store, ids, lambda: time.sleep(INTERVAL_S * DELTAS), 2 * number)
            recorder = Recorder(store, Folder(folder, "job", 0), f"i{number}")

            def take(recorder: Recorder = recorder) -> None:
                for k in range(1 + DELTAS):
                    found = taken(recorder)
                    (deltas if k else bases).append(found)
                    time.sleep(INTERVAL_S)

            beside += pushed(store, ids, take, 2 * number + 1)
        return "\n\n".join(
            [
                latencies({"no snapshots": alone, "beside snapshots": beside}),
                kinds({"base": bases, "delta": deltas}),
                restored(folder, f"i{ROUNDS - 1}"),
            ]
        )
    finally:
        shutil.rmtree(folder)


def filled(rows: int) -> tuple[Store, np.ndarray]:
    store = Store(index=0, slot_map=SlotMap(1), policy=Policy(use_async=True))
    store.init(SPEC, {("w", 0): np.zeros(1000, np.float32)}, True)
    ids = np.random.default_rng(0).permutation(rows).astype(np.int64) * 461_168_601_842 + 11
    for start in range(0, rows, 100_000):
        some = ids[start : start + 100_000]
        zeros = np.full((len(some), DIM), 0.01, np.float32)
        store.restorer.insert_rows(
            "t", RowBlock(some, zeros, (zeros,), np.zeros(len(some), np.int64))
        )
    return store, ids


def pushed(store: Store, ids: np.ndarray, meanwhile: object, number: int) -> list[float]:
    """Return the milliseconds of each push of two threads while `meanwhile()` runs."""
    stop, took = threading.Event(), [[], []]

    def push(thread: int) -> None:
        rng = np.random.default_rng(100 * number + thread)
        grads = rng.standard_normal((PUSH, DIM), np.float32) * 1e-3
        task = 2 * number + thread
        position = 0
        while not stop.wait(PAUSE_S):
            chosen = ids[np.unique((len(ids) * rng.random(PUSH) ** 3).astype(np.int64))]
            update = Update(
                {("w", 0): np.zeros(1000, np.float32)}, {"t": (chosen, grads[: len(chosen)])}
            )
            began = time.perf_counter()
            store.push(Span(task, 1, position, position + 1), store.version, update)
            took[thread].append(1e3 * (time.perf_counter() - began))
            position += 1

    threads = [threading.Thread(target=push, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    meanwhile()  # type: ignore[operator]
    stop.set()
    for thread in threads:
        thread.join()
    return took[0] + took[1]


def taken(recorder: Recorder) -> tuple[float, float, float]:
    """Take a snapshot; return seconds, CPU seconds of the thread, MB."""
    began, cpu = time.perf_counter(), time.thread_time()
    link = recorder.take()
    assert link is not None
    return time.perf_counter() - began, time.thread_time() - cpu, link.nbytes / 1e6


def restored(folder: str, incarnation: str) -> str:
    times = []
    for number in range(3):
        store = Store(index=0, slot_map=SlotMap(1), policy=Policy(use_async=True))
        began = time.perf_counter()
        found = recovery.restore(
            store, Folder(folder, "job", 0), f"new{number}", of=incarnation, at_least=1
        )
        times.append(time.perf_counter() - began)
        assert found.link is not None
        del store
    return f"A restore of the base and {DELTAS} deltas: {spread(times)} s."


def latencies(found: dict[str, list[float]]) -> str:
    lines = ["| a push, ms | pushes | median | 99 % | 99.9 % | worst |", "|---" * 6 + "|"]
    for name, took in found.items():
        figures = " | ".join(f"{f:.2f}" for f in np.percentile(took, [50, 99, 99.9, 100]))
        lines.append(f"| {name} | {len(took):,} | {figures} |")
    return "\n".join(lines)


def kinds(found: dict[str, list[tuple[float, float, float]]]) -> str:
    lines = ["| snapshot | s | CPU s of its thread | MB |", "|---" * 4 + "|"]
    for name, figures in found.items():
        columns = " | ".join(spread(list(column)) for column in zip(*figures, strict=True))
        lines.append(f"| {name} | {columns} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(snapshots(*(int(a) for a in sys.argv[1:])))

"""The cost of the ledger to a push: the same pushes into a store with its ledger and without.

In process, so that nothing else is in the way: 2,000 rows of dim 16 with Adagrad and 1,000 dense
values a push, 16 pushes a task, as the plane hands them over.
"""

from __future__ import annotations

import itertools

import numpy as np

from benchmarks.measure import Sample, alternate, sample, spread, table
from benchmarks.snapshots import DIM, PUSH, filled
from edl.kernels.malloc import keep_freed_memory
from edl.ps.books.aggregation import Update
from edl.ps.books.ledger import Ledger, Span, Verdict
from edl.ps.books.store import Store

ROWS = 1_000_000
PUSHES, SPANS = 2_000, 16
ROUNDS = 9
_tasks = itertools.count()


class _None(Ledger):
    """A ledger that lets everything through and remembers nothing."""

    def offer(self, _span: Span) -> Verdict:
        return Verdict.APPLY

    def advance(self, span: Span) -> None:
        pass

    def applied(self, _task: int) -> int:
        return 0


def ledger() -> str:
    keep_freed_memory()
    store, ids = filled(ROWS)
    rng = np.random.default_rng(0)
    chosen = [np.unique(ids[rng.integers(0, ROWS, PUSH)]) for _ in range(64)]
    grads = rng.standard_normal((PUSH, DIM), np.float32) * 1e-3
    dense = np.zeros(1000, np.float32)
    updates = [Update({("w", 0): dense}, {"t": (some, grads[: len(some)])}) for some in chosen]

    def pushes(books: Ledger) -> Sample:
        store._state.ledger = books
        return sample(PUSHES, lambda: _push(store, updates))

    found = alternate({"none": lambda: pushes(_None()), "ledger": lambda: pushes(Ledger())}, ROUNDS)
    alone = [sample(PUSHES, lambda: _books(Ledger())) for _ in range(ROUNDS)]
    lines = table(found, ["none"], ("pushes/s", 1.0), ("CPU us a push", 1e6))
    return f"{lines}\n\nThe ledger alone: {spread([1e6 * s.cost for s in alone])} us of CPU a push."


def _books(books: Ledger) -> None:
    """Ask of the ledger what a push asks."""
    for number in range(PUSHES):
        task, position = divmod(number, SPANS)
        if position == 0:
            books.retire(task - 8)
        span = Span(task, 1, position, position + 1)
        books.offer(span)
        books.advance(span)
        books.applied(task)


def _push(store: Store, updates: list[Update]) -> None:
    task = -1
    for number in range(PUSHES):
        position = number % SPANS
        if position == 0:
            task = next(_tasks)
            store.masters.retire(task - 8)  # as many are open with a few workers
        span = Span(task, 1, position, position + 1)
        store.push(span, store.version, updates[number % len(updates)])


if __name__ == "__main__":
    print(ledger())

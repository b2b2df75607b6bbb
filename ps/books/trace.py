"""The trace of a shard of a --deterministic job: the servers' half of `edl replay`.

<job>/trace/server-INDEX-INCARNATION.jsonl: how the incarnation began, then a line for each push
that is applied and each flush, written before the step is made, so before its push is acknowledged.
What changes nothing (duplicate, fenced, gap, stale) is not written. The file goes through the
kernel and not to the disk: processes die here, not machines.

In such a job pushes are applied one at a time, and a pull is answered with copies that are made
under the store's lock: all of it is of exactly the version that it names.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..rows.halves import widened
from ..rows.optimizers import Floats
from .aggregation import Update
from .ledger import Span
from .parameters import RowPlan


class Lines:
    """A file of JSON lines of one process; a line is in the kernel when `add` returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, values: dict[str, Any]) -> None:
        line = memoryview(json.dumps(values, separators=(",", ":")).encode() + b"\n")
        while line:
            line = line[os.write(self._file, line) :]

    def close(self) -> None:
        os.close(self._file)


class ShardTrace:
    """The trace of one incarnation."""

    def __init__(self, folder: Path, index: int, incarnation: str) -> None:
        self._about = {"server": index, "incarnation": incarnation}
        self._lines = Lines(folder / f"server-{index}-{incarnation}.jsonl")

    def begin(self, **start: object) -> None:
        """Write where workers find this incarnation, and what it began from."""
        self._lines.add({**self._about, **start})

    def __call__(self, span: Span | None, on: int, update: Update | None, version: int) -> None:
        """Note that a push computed on version `on` is going to be applied at `version`.

        No span: a flush.
        """
        if span is None or update is None:
            self._lines.add({"flush": True, "at": version})
            return
        place = [span.task, span.attempt, span.start, span.end]
        self._lines.add({"span": place, "on": on, "at": version, "sum": digest(update)})


def digest(update: Update) -> str:
    """Return a text that is equal where two updates are, bit for bit."""
    sums = hashlib.blake2b(digest_size=12)
    for key, values in sorted(update.dense.items()):
        sums.update(repr(key).encode() + values.tobytes())
    for table, (ids, grads) in sorted(update.rows.items()):
        sums.update(table.encode() + ids.tobytes() + grads.tobytes())
    return sums.hexdigest()


class TakenRows(RowPlan):
    """A plan of rows that were read when it was made, and stay as they were."""

    __slots__ = ("_taken",)

    def __init__(self, plan: RowPlan) -> None:
        super().__init__(plan.dim, plan.dtype, plan._table, plan._ids, plan._cut)
        self._taken = np.empty((len(plan._ids), plan.dim), plan.dtype)
        plan.gather(0, len(plan._ids), self._taken)

    def gather(self, start: int, stop: int, out: np.ndarray[Any, Any]) -> None:
        out[...] = self._taken[start:stop]

    def values(self) -> Floats:
        if self.dtype == np.uint16:
            return widened(self._taken, self._table.spec.dtype)
        return self._taken

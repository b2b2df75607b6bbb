"""The table store on one core against what the memory allows, its growth, and two threads.

The limits are kernels of this file over the table's own rows, told the row numbers in advance, so
without an index: the same layout, copy and arithmetic, each row asked for 32 rows before its turn.
The two-miss limit adds the time of a lookup in the index alone to that of such a pass. An update
writes the index line too: three lines of dim 16 with Adagrad where the scatter has two.

Figures of one core are CPU time, which what else runs on the machine disturbs least, and no other
core helps. They alternate call by call, each with a batch that has not been used for a while.
"""

from __future__ import annotations

import functools
import gc
import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.measure import Found, Sample, alternate, ratio, sample, spread
from edl.kernels.compile import (
    BYTES_1D,
    FLOATS_1D,
    FLOATS_2D,
    FLOATS_2D_IN,
    INTEGER,
    INTS_1D_IN,
    compiled,
)
from edl.kernels.malloc import keep_freed_memory
from edl.nn import optimizers as specs
from edl.nn.model_spec import TableSpec
from edl.ps.rows import work as shared_work
from edl.ps.rows.memory import huge_pages
from edl.ps.rows.optimizers import make_rule
from edl.ps.rows.passes import copy_row, prefetch_row
from edl.ps.rows.step import RowAt, coefficients, constants_of, step
from edl.ps.rows.table import Table

BATCH = 100_000
REQUEST = 1000  # ids of a push, where pauses are looked for
_ROW_NBYTES = 128 + 8 + 27  # of dim 16 with Adagrad: the row, its id, its part of the index
ROUNDS = 9
LR = 1e-3
SKEW = 1.05  # of the zipf ids
BATCHES = 9  # different ones, in turn: all together they are larger than any cache
CALLS = 45  # of each kind, in alternation
Ints = np.ndarray[Any, np.dtype[np.int64]]


def store() -> str:
    """Make Markdown: lookups and updates, two threads, growth, start."""
    shared_work._core_is_idle = lambda: False
    rows = 10_000_000 if psutil.virtual_memory().available > 12 << 30 else 2_000_000
    parts = [f"{rows:,} rows, {BATCH:,} unique ids a call; M rows/s of one core by CPU time."]
    lines = ["| | M rows/s | of the known rows | of the two-miss limit |", "|---|---|---|---|"]
    for dim in (16, 64):
        for optimizer in (specs.Adagrad(), specs.Adam()):
            filled = Filled(dim, optimizer, rows)
            for name, ids in (("uniform", filled.uniform()), ("zipf", filled.zipf())):
                found = alternate(filled.variants(ids), CALLS)
                title = f"dim {dim}, {type(optimizer).__name__}, {name}"
                lines += _lines(title, found, with_gather=isinstance(optimizer, specs.Adagrad))
            if (dim, type(optimizer)) == (16, specs.Adagrad):
                threads = filled.threads()
            del filled
    parts += ["\n".join(lines), threads, growth(rows), start()]
    return "\n\n".join(parts)


@dataclass
class Batch:
    """The ids of one call, and the rows that they are."""

    ids: Ints
    rows: Ints


class Filled:
    """A table of `rows` rows, the ids any 62 bits."""

    def __init__(self, dim: int, optimizer: specs.Optimizer, rows: int) -> None:
        self._rng = np.random.default_rng(0)
        self._dim, self._count = dim, rows
        self._rule = make_rule(optimizer)
        self._table = Table(TableSpec("t", dim), 0, self._rule)
        self._ids = self._rng.permutation(rows).astype(np.int64) * 461_168_601_842 + 11
        state = list(self._rule.state.values())
        for start in range(0, rows, BATCH):
            ids = self._ids[start : start + BATCH]
            self._table._rows.append(ids, np.full((len(ids), dim), 0.01, np.float32), state)
        self._grads = self._rng.standard_normal((BATCH, dim), np.float32) * 1e-3
        self._out = np.empty((BATCH, dim), np.float32)

    def uniform(self) -> list[Batch]:
        return [self._batch(self._rng.permutation(self._count)) for _ in range(BATCHES)]

    def zipf(self) -> list[Batch]:
        """Draw unique ids, as a worker sends them: the frequent rows are in every batch."""
        order, power = self._rng.permutation(self._count), 1 - SKEW
        batches = []
        for _ in range(BATCHES):
            chosen: Ints = np.empty(0, np.int64)
            while len(chosen) < BATCH:
                u = self._rng.random(4 * BATCH)
                rank = (1 + u * (float(self._count) ** power - 1)) ** (1 / power)
                chosen = np.unique([*chosen, *rank.astype(np.int64) - 1])
            batches.append(self._batch(order[self._rng.permutation(chosen)]))
        return batches

    def _batch(self, rows: Ints) -> Batch:
        return Batch(self._ids[rows[:BATCH]], rows[:BATCH].copy())

    def _known(self) -> tuple[Callable[[Batch, Any], object], Callable[[Batch], object]]:
        """Return the limits: a gather, and a scatter, of known rows."""
        columns = self._table._rows
        stride = int(columns.layout["stride"][0])
        memory, rule, constants = columns.memory, self._rule, self._rule.constants(LR)
        known = (BYTES_1D, INTEGER, INTS_1D_IN)
        gather = compiled(_gather_known(self._dim), *known, FLOATS_2D)
        scatter = compiled(
            _scatter_known(rule.kind, self._dim, len(rule.state)),
            *known,
            FLOATS_2D_IN,
            FLOATS_1D,
            FLOATS_2D,
        )
        return (
            lambda b, out: gather(memory, stride, b.rows, out),
            lambda b: scatter(memory, stride, b.rows, self._grads, constants, rule.by_step),
        )

    def variants(self, batches: list[Batch]) -> dict[str, Callable[[], Sample]]:
        columns = self._table._rows
        gather, scatter = self._known()
        works: dict[str, Callable[[Batch], object]] = {
            "gather": lambda b: gather(b, self._out),
            "find": lambda b: columns.index.find(b.ids),
            "lookup": lambda b: self._table.gather(b.ids, self._out),
            "scatter": scatter,
            "update": lambda b: self._table.apply(b.ids, self._grads, LR),
        }

        def timed(work: Callable[[Batch], object], first: int) -> Callable[[], Sample]:
            turn = itertools.cycle(batches[first:] + batches[:first])

            def call() -> None:
                work(next(turn))

            return lambda: sample(BATCH, call)

        return {name: timed(work, 2 * k) for k, (name, work) in enumerate(works.items())}

    def threads(self) -> str:
        """Measure lookups and updates of one thread, and of two at the same time.

        Gathers and scatters of known rows too: what two cores have of the memory.
        """
        batches = self.uniform()[:3]
        outs = [np.empty_like(self._out) for _ in range(2)]
        gather, scatter = self._known()
        works: dict[str, Callable[[int, Batch], object]] = {
            "gathers of known rows": lambda thread, b: gather(b, outs[thread]),
            "scatters of known rows": lambda _thread, b: scatter(b),
            "lookups": lambda thread, b: self._table.gather(b.ids, outs[thread]),
            "updates": lambda _thread, b: self._table.apply(b.ids, self._grads, LR),
        }
        lines = ["| | M rows/s | of one thread | CPU ns a row | times one by CPU time |"]
        lines += ["|---|---|---|---|---|"]
        with ThreadPoolExecutor(2) as pool:

            def variant(work: Callable[[int, Batch], object], count: int) -> Callable[[], Sample]:
                def one(thread: int) -> None:
                    for b in batches[thread:] + batches[:thread]:
                        work(thread, b)

                def all_of_them() -> None:
                    for done in [pool.submit(one, thread) for thread in range(count)]:
                        done.result()

                return lambda: sample(BATCH * len(batches) * count, all_of_them)

            for name, work in works.items():
                found = alternate({f"{k}": variant(work, k) for k in (1, 2)}, ROUNDS)
                for count, samples in found.items():
                    wall = ratio(samples, found["1"], lambda s: s.rate)
                    times = [
                        int(count) * a.cost / b.cost
                        for a, b in zip(found["1"], samples, strict=True)
                    ]
                    rate = spread([s.rate / 1e6 for s in samples])
                    cost = spread([s.cost * 1e9 for s in samples])
                    title = f"{name}, {count} thread{'s' * (count != '1')}"
                    lines.append(f"| {title} | {rate} | {wall} | {cost} | {spread(times)} |")
        return "\n".join(lines)


def _lines(title: str, found: Found, with_gather: bool) -> list[str]:
    kinds = [("update", "scatter")]
    if with_gather:
        kinds = [("lookup", "gather"), *kinds]
    lines = []
    for mine, limit in kinds:
        two_miss = [
            Sample(a.amount, a.wall_s + b.wall_s, a.cpu_s + b.cpu_s)
            for a, b in zip(found[limit], found["find"], strict=True)
        ]
        of_misses = _ratio(found[mine], two_miss)
        of_limit = _ratio(found[mine], found[limit])
        lines.append(f"| {title}: {limit} of known rows | {_rate(found[limit])} | 1 | |")
        lines.append(f"| {title}: {mine} | {_rate(found[mine])} | {of_limit} | {of_misses} |")
    return lines


def _rate(samples: Any) -> str:
    return spread([1e-6 / s.cost for s in samples])


def _ratio(mine: Any, theirs: Any) -> str:
    return ratio(mine, theirs, lambda s: 1 / s.cost)


def growth(rows: int) -> str:
    """Push 1,000 new ids each, until the table has all its rows; then the same ids again.

    At full speed twice, the second into memory that the first has had: in a virtual machine the
    first touch of a page may take the host milliseconds, whoever touches it. Where no row is new
    nothing grows: what pauses there are is the machine's. "Nothing but ... bytes a row": as much
    fresh memory, written in the same steps.
    """
    keep_freed_memory()  # as a server does
    columns = ["median", "99.9 %", "worst", "over 5 ms"]
    heads = ["1,000 ids a push: ms", *columns, *(f"CPU: {c}" for c in columns)]
    lines = [f"| {' | '.join(heads)} | index bytes a row |", "|---" * 10 + "|"]
    ids = np.random.default_rng(0).permutation(rows).astype(np.int64) * 461_168_601_842
    grads = np.zeros((REQUEST, 16), np.float32)
    for name, rate in (("fresh memory", None), ("again", None), ("500,000 rows/s", 500_000)):
        gc.collect()  # the table before
        table = Table(TableSpec("t", 16), 0, make_rule(specs.Adagrad()))
        sizes: list[float] = []

        def push(start: int, table: Table = table, sizes: list[float] = sizes) -> None:
            table.apply(ids[start : start + REQUEST], grads, LR)
            if start >= 10_000:
                sizes.append(table._rows.index.nbytes / len(table))

        for title in (name, f"{name}, no row new"):
            pauses = _pauses(push, rows, rate)
            lines.append(f"| {title} | {pauses} | {min(sizes):.1f}-{max(sizes):.1f} |")
        del push, table
        memory = huge_pages(_ROW_NBYTES * rows)

        def touch(start: int, memory: NDArray[np.uint8] = memory) -> None:
            memory[_ROW_NBYTES * start : _ROW_NBYTES * (start + REQUEST)] = 1

        lines.append(
            f"| {name}, nothing but {_ROW_NBYTES} bytes a row | {_pauses(touch, rows, rate)} | |"
        )
        del touch, memory
    return "\n".join(lines)


def _pauses(work: Callable[[int], None], rows: int, rate: int | None) -> str:
    took, used = [], []
    due = time.perf_counter()
    for start in range(0, rows, REQUEST):
        if rate is not None:
            due += REQUEST / rate
            time.sleep(max(0.0, due - time.perf_counter()))
        began, cpu = time.perf_counter(), time.thread_time()
        work(start)
        took.append(1e3 * (time.perf_counter() - began))
        used.append(1e3 * (time.thread_time() - cpu))
    figures = []
    for times in (took, used):
        figures += [f"{f:.2f}" for f in np.percentile(times, [50, 99.9, 100])]
        figures.append(f"{sum(t > 5 for t in times):,} of {len(times):,}")
    return " | ".join(figures)


def start() -> str:
    """Start a process that imports the store and makes a table, its kernels cached."""
    code = (
        "from edl.nn.model_spec import TableSpec; from edl.nn.optimizers import Adam\n"
        "from edl.ps.rows.optimizers import make_rule; from edl.ps.rows.table import Table\n"
        "Table(TableSpec('t', 16), 0, make_rule(Adam()))"
    )
    took = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        took.append(time.perf_counter() - began)
    return f"A process from nothing to a table, kernels cached: {spread(took)} s."


# -- The limits, compiled by numba: row numbers known, no index.


@functools.cache
def _gather_known(dim: int) -> Any:
    def gather(memory, stride, rows, out):  # type: ignore[no-untyped-def]
        base, target, nbytes = np.int64(memory.ctypes.data), np.int64(out.ctypes.data), 4 * dim
        for i in range(len(rows)):
            if i + 32 < len(rows):
                prefetch_row(base + rows[i + 32] * stride, nbytes)
            copy_row(base + rows[i] * stride, target + i * nbytes, nbytes)

    return gather


@functools.cache
def _scatter_known(rule: int, dim: int, states: int) -> Any:
    def scatter(memory, stride, rows, grads, constants, by_step):  # type: ignore[no-untyped-def]
        base, g = np.int64(memory.ctypes.data), np.int64(grads.ctypes.data)
        told = coefficients(constants_of(constants), np.int64(by_step.ctypes.data), 0, 0)
        for i in range(len(rows)):
            if i + 32 < len(rows):
                prefetch_row(base + rows[i + 32] * stride, 4 * dim * (1 + states))
            w = base + rows[i] * stride
            a = w + 4 * dim
            step(rule, dim, RowAt(w, a, a + 4 * dim, a + 8 * dim, g + 4 * dim * i), told)

    return scatter


if __name__ == "__main__":
    print(store())

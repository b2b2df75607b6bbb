"""Pull and push through real server processes on every carrier, against the store in process.

Every cycle is a pull and then a push of a span of its own, ledger, checks and identity included, by
the client that workers use. Clients and servers are processes of their own wherever there is more
than one client.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.measure import Sample, alternate, sample, table
from benchmarks.processes import processes
from edl.common.identity import Identity
from edl.kernels.malloc import keep_freed_memory
from edl.nn.model_spec import CHUNK_ELEMENTS, DenseSpec, ModelSpec, TableSpec
from edl.nn.optimizers import SGD, Adagrad
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.answers import Outcome
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.server import Listeners
from edl.ps.servicer import ParameterServerServicer
from edl.ps.worker_client import PsClient, PushOutcome

TOKEN = "benchmark"
DEADLINE_S = 120.0
POLICY = Policy(use_async=True)
CARRIERS = {"shared memory": "shm", "unix socket": "unix", "TCP": "tcp", "plain gRPC": "grpc"}
ROWS, BATCH, DIM = 2_000_000, 100_000, 16
CYCLES = 3  # pulls and pushes of one sample
ROW_CYCLES = 12  # of a sample of rows, and before it: 0.1 s each
OWN_WORK_S = 0.03  # of a worker, between a push and the next pull
ROUNDS = 9

Floats = np.ndarray[Any, np.dtype[np.float32]]
Ids = np.ndarray[Any, np.dtype[np.int64]]
Rows = Mapping[str, tuple[Ids, Floats]]  # table: ids, gradients
Dense = Mapping[str, Floats]
Batch = tuple[Rows, Dense]


class Here:
    """A store in this process."""

    pids: tuple[int, ...] = ()

    def __init__(self, spec: ModelSpec, dense: Dense) -> None:
        self._store = Store(index=0, slot_map=SlotMap(1), policy=POLICY)
        self._store.init(spec, dict(_chunks(dense)), True)
        self._into = {name: np.empty_like(values) for name, values in dense.items()}
        self._rows: dict[str, Floats] = {}
        self._spans = _spans(0)

    def pull(self, rows: Rows, dense: Dense) -> None:
        asked = [(name, ids) for name, (ids, _) in rows.items()]
        plan = self._store.plan_pull(dense=bool(dense), known_version=None, tables=asked, cut="")
        assert plan is not None
        for (name, ids), part in zip(asked, plan.tables, strict=True):
            if name not in self._rows or len(self._rows[name]) != len(ids):
                self._rows[name] = np.empty((len(ids), part.dim), part.dtype)
            part.gather(0, len(ids), self._rows[name])
        for (name, number), values in plan.chunks:
            first = number * CHUNK_ELEMENTS
            self._into[name][first : first + len(values)] = values

    def push(self, rows: Rows, dense: Dense) -> None:
        pushed = self._store.push(next(self._spans), 0, Update(dict(_chunks(dense)), dict(rows)))
        assert pushed.outcome is Outcome.APPLIED


class There:
    """An end of servers, each a process of its own, and of a client in this one."""

    def __init__(self, client: PsClient, pids: Sequence[int], dense: Dense, task: int = 0) -> None:
        self.pids = tuple(pids)
        self._client = client
        self._into = {name: np.empty_like(values) for name, values in dense.items()}
        self._versions = (0,) * client.num_shards
        self._spans = _spans(task)

    def pull(self, rows: Rows, dense: Dense) -> None:
        tables = {name: ids for name, (ids, _) in rows.items()}
        into = self._into if dense else None
        self._client.pull(tables, dense=into, full=True, timeout_s=DEADLINE_S)

    def push(self, rows: Rows, dense: Dense) -> None:
        span, versions = next(self._spans), self._versions
        pushed = self._client.push(span, versions, dense=dense, tables=rows, timeout_s=DEADLINE_S)
        assert pushed.outcome is PushOutcome.APPLIED


def rows() -> str:
    """Pull, then push 100,000 unique rows of a table of 2 M, dim 16, Adagrad, over and over.

    Each sample begins with as many cycles that do not count: after a pause the scheduler puts
    client and server on one core for the first five to eight, while the other one idles.
    """
    return _rows(lambda end, batches: _cycles(BATCH, end, batches, ROW_CYCLES, ROW_CYCLES))


def rows_between() -> str:
    """Do as `rows`, but before each cycle the worker's end computes."""
    return _rows(_apart)


def _rows(sampled: Callable[[Here | There, list[Batch]], Callable[[], Sample]]) -> str:
    batches = row_batches(ROW_CYCLES)
    spec = ModelSpec((), (TableSpec("t", DIM),), Adagrad())
    with contextlib.ExitStack() as stack:
        ends: dict[str, Here | There] = {"store in process": Here(spec, {})}
        for name, transport in CARRIERS.items():
            ends[name] = stack.enter_context(serving(1, spec, {}, transport))
        for end in ends.values():
            fill(end)
        found = alternate({n: sampled(end, batches) for n, end in ends.items()}, ROUNDS)
    cost = ("CPU ms per 100,000 rows", BATCH * 1e3)
    return table(found, ["store in process", "plain gRPC"], ("M rows/s", 1e-6), cost)


def row_batches(count: int, seed: int = 0) -> list[Batch]:
    """Make batches of BATCH unique rows of ROWS."""
    rng = np.random.default_rng(seed)
    grads = rng.standard_normal((BATCH, DIM), np.float32)
    return [({"t": (rng.permutation(ROWS)[:BATCH], grads)}, {}) for _ in range(count)]


def fill(end: Here | There) -> None:
    """Make all rows of the table."""
    everything = np.random.default_rng(1).permutation(ROWS).astype(np.int64)
    grads = np.zeros((BATCH, DIM), np.float32)
    for ids in everything.reshape(-1, BATCH):
        end.push({"t": (ids, grads)}, {})


def dense() -> str:
    """Pull, then push 100 MB in 25 tensors, SGD. memcpy copies the same 200 MB."""
    return _dense(25, CYCLES, 5)


def dense_1gb() -> str:
    """Pull, then push 1 GB in 250 tensors, SGD. memcpy copies the same 2 GB."""
    return _dense(250, 1, 5, ("shared memory", "TCP"))


def _dense(
    tensors: int, cycles: int, rounds: int, carriers: Sequence[str] = tuple(CARRIERS)
) -> str:
    rng = np.random.default_rng(0)
    grads = {f"w{i}": rng.standard_normal(1_000_000, np.float32) for i in range(tensors)}
    copies = {name: np.zeros_like(values) for name, values in grads.items()}
    spec = ModelSpec(tuple(DenseSpec(n, v.shape) for n, v in grads.items()), (), SGD(lr=1e-3))

    def copy() -> None:
        for _ in range(2 * cycles):
            for name, values in grads.items():
                np.copyto(copies[name], values)

    with contextlib.ExitStack() as stack:
        ends: dict[str, Here | There] = {"store in process": Here(spec, grads)}
        for name in carriers:
            ends[name] = stack.enter_context(serving(1, spec, grads, CARRIERS[name]))
        ends["2 servers, TCP"] = stack.enter_context(serving(2, spec, grads, "tcp"))
        variants: dict[str, Callable[[], Sample]] = {"memcpy": lambda: sample(cycles, copy)}
        for name, end in ends.items():
            variants[name] = _cycles(1, end, [({}, grads)], cycles)
        found = alternate(variants, rounds)
    cost = ("CPU ms per cycle", 1e3)
    return table(found, ["store in process", "memcpy"], ("cycles/s", 1.0), cost)


def workers() -> str:
    """Run the cycles of `rows` by clients that are processes, all at the same time."""
    spec = ModelSpec((), (TableSpec("t", DIM),), Adagrad())
    shapes = [(1, 1), (2, 1), (2, 2)]
    with contextlib.ExitStack() as stack:
        variants = {}
        for clients, servers in shapes:
            crowd = stack.enter_context(crowded(clients, servers, spec, "auto"))
            name = f"{clients} worker{'s' * (clients > 1)} + {servers} server{'s' * (servers > 1)}"
            variants[name] = lambda crowd=crowd: crowd.sample(CYCLES)
        found = alternate(variants, ROUNDS)
    cost = ("CPU ms per 100,000 rows", BATCH * 1e3)
    return table(found, ["1 worker + 1 server"], ("M rows/s", 1e-6), cost)


# -- Processes


@contextlib.contextmanager
def serving(count: int, spec: ModelSpec, dense: Dense, transport: str = "auto") -> Iterator[There]:
    """Start `count` server processes that know the model; yield their client in this process."""
    with server_processes(count) as (addresses, pids):
        client = PsClient(addresses, token=TOKEN, spec=spec, transport=transport)
        try:
            client.init(spec, dense, timeout_s=DEADLINE_S)
            yield There(client, pids, dense)
        finally:
            client.close()


@contextlib.contextmanager
def server_processes(count: int, policy: Policy = POLICY) -> Iterator[tuple[list[str], list[int]]]:
    """Start empty servers; yield their addresses and pids."""
    keep_freed_memory()  # as every worker and server does
    with processes(_serve, [(index, count, policy) for index in range(count)]) as (lines, pids):
        yield [line.recv() for line in lines], pids


class Crowd:
    """A crowd of client processes that cycle together; `amount` is that of all in one cycle."""

    def __init__(self, lines: list[Connection], pids: list[int], amount: int) -> None:
        self._lines = lines
        self._pids = pids
        self._amount = amount

    def sample(self, cycles: int) -> Sample:
        def work() -> None:
            for line in self._lines:
                line.send(cycles)
            for line in self._lines:
                line.recv()

        return sample(cycles * self._amount, work, self._pids)


@contextlib.contextmanager
def crowded(clients: int, servers: int, spec: ModelSpec, transport: str) -> Iterator[Crowd]:
    """Start `clients` client processes of `servers` server processes, the table filled."""
    with server_processes(servers) as (addresses, pids):
        client = PsClient(addresses, token=TOKEN, spec=spec, transport=transport)
        try:
            client.init(spec, {}, timeout_s=DEADLINE_S)
            fill(There(client, (), {}, task=0))
        finally:
            client.close()
        arguments = [(n, addresses, spec, transport) for n in range(1, clients + 1)]
        with processes(_cycle, arguments) as (lines, more):
            yield Crowd(lines, [*pids, *more], BATCH * clients)


@contextlib.contextmanager
def exchanging(clients: int, servers: int, elements: int, transport: str) -> Iterator[Crowd]:
    """Start sync steps of one tensor.

    Each client pushes its gradient, and gets the values of the version that is made of all of them,
    in one round trip. What an all-reduce and a step would do.
    """
    spec = ModelSpec((DenseSpec("w", (elements,)),), (), SGD(lr=1e-3))
    policy = Policy(use_async=False, grads_to_wait=clients, staleness=0)
    with server_processes(servers, policy) as (addresses, pids):
        arguments = [(n, addresses, spec, transport) for n in range(clients)]
        with processes(_exchange, arguments) as (lines, more):
            for line in lines:
                line.recv()  # the model is there
            yield Crowd(lines, [*pids, *more], 1)


def _serve(line: Connection, index: int, count: int, policy: Policy) -> None:
    keep_freed_memory()
    store = Store(index=index, slot_map=SlotMap(count), policy=policy)
    listeners = Listeners(ParameterServerServicer(index, store), Identity(TOKEN))
    line.send(listeners.address)
    line.recv()
    listeners.close()


def _cycle(
    line: Connection, task: int, addresses: list[str], spec: ModelSpec, transport: str
) -> None:
    keep_freed_memory()
    client = PsClient(addresses, token=TOKEN, spec=spec, transport=transport)
    end = There(client, (), {}, task)
    turn = itertools.cycle(row_batches(2, seed=task))
    while (cycles := line.recv()) is not None:
        for rows, dense in itertools.islice(turn, cycles):
            end.pull(rows, dense)
            end.push(rows, dense)
        line.send("done")
    client.close()


def _exchange(
    line: Connection, task: int, addresses: list[str], spec: ModelSpec, transport: str
) -> None:
    keep_freed_memory()
    client = PsClient(addresses, token=TOKEN, spec=spec, transport=transport)
    grad = np.random.default_rng(task).standard_normal(spec.dense[0].shape, np.float32)
    into = {"w": np.zeros_like(grad)}
    client.init(spec, into, timeout_s=DEADLINE_S)
    versions = client.pull({}, dense=into, full=True, timeout_s=DEADLINE_S).versions
    spans = _spans(task)
    line.send("ready")
    while (cycles := line.recv()) is not None:
        for span in itertools.islice(spans, cycles):
            pushed = client.push(
                span, versions, dense={"w": grad}, dense_into=into, timeout_s=DEADLINE_S
            )
            assert pushed.outcome is PushOutcome.APPLIED
            assert pushed.pulled
            versions = pushed.versions
        line.send("done")
    client.close()


def _cycles(
    amount: int,
    end: Here | There,
    batches: list[Batch],
    cycles: int = CYCLES,
    unmeasured: int = 0,
) -> Callable[[], Sample]:
    """Return a function that times pull and push, over and over the batches.

    Before, `unmeasured` of them each time.
    """
    turn = itertools.cycle(batches)

    def work(count: int = cycles) -> None:
        for rows, dense in itertools.islice(turn, count):
            end.pull(rows, dense)
            end.push(rows, dense)

    def run() -> Sample:
        work(unmeasured)
        return sample(amount * cycles, work, end.pids)

    return run


def _apart(end: Here | There, batches: list[Batch]) -> Callable[[], Sample]:
    """Return a function that times one cycle of each batch.

    Each begins after OWN_WORK_S of another work.
    """
    values = np.zeros(1 << 15, np.float32)

    def compute() -> None:
        until = time.perf_counter() + OWN_WORK_S
        while time.perf_counter() < until:
            np.exp(values, out=values)
            values.fill(0)

    def cycle(rows: Rows, dense: Dense) -> None:
        end.pull(rows, dense)
        end.push(rows, dense)

    def run() -> Sample:
        found = []
        for rows, dense in batches:
            compute()
            found.append(sample(BATCH, functools.partial(cycle, rows, dense), end.pids))
        return Sample(*(sum(of) for of in zip(*map(dataclasses.astuple, found), strict=True)))

    return run


def _chunks(dense: Dense) -> Iterator[tuple[tuple[str, int], Floats]]:
    for name, values in dense.items():
        flat = values.reshape(-1)
        for number, first in enumerate(range(0, len(flat), CHUNK_ELEMENTS)):
            yield (name, number), flat[first : first + CHUNK_ELEMENTS]


def _spans(task: int) -> Iterator[Span]:
    """Yield one task, position by position: a ledger takes no span twice and no gap."""
    return (Span(task, 1, position, position + 1) for position in itertools.count())

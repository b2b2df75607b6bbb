"""Pull and push: through real server processes over gRPC, against the same store in this process."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.measure import Sample, alternate, sample, table
from edl.common import rpc
from edl.common.malloc import keep_freed_memory
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.nn.optimizers import SGD, Adagrad
from edl.proto import ps_pb2_grpc
from edl.ps.aggregation import Policy, Update
from edl.ps.client import PsClient, PushOutcome, Span
from edl.ps.servicer import ParameterServerServicer
from edl.ps.slots import SlotMap
from edl.ps.store import Outcome, Store

TOKEN = "benchmark"
DEADLINE_S = 60.0
POLICY = Policy(use_async=True)
ROWS, BATCH, DIM = 2_000_000, 100_000, 16
TENSORS, ELEMENTS = 25, 1_000_000  # 100 MB of float32
CYCLES = 3  # pulls and pushes of one sample
ROUNDS = 9

Floats = np.ndarray[Any, np.dtype[np.float32]]
Rows = Mapping[str, tuple[np.ndarray[Any, np.dtype[np.int64]], Floats]]  # table: ids, gradients


class Here:
    """A store in this process."""

    pids: tuple[int, ...] = ()

    def __init__(self, spec: ModelSpec, dense: Mapping[str, Floats]) -> None:
        self._store = Store(index=0, slot_map=SlotMap(1), policy=POLICY)
        self._store.init(spec, {(name, 0): values for name, values in dense.items()}, True)
        self._spans = _spans()

    def pull(self, rows: Rows, dense: Mapping[str, Floats]) -> None:
        asked = [(name, ids) for name, (ids, _) in rows.items()]
        self._store.pull(dense=bool(dense), known_version=None, tables=asked)

    def push(self, rows: Rows, dense: Mapping[str, Floats]) -> None:
        update = Update({(name, 0): grad for name, grad in dense.items()}, dict(rows))
        pushed = self._store.push(next(self._spans), 0, update)
        assert pushed.outcome is Outcome.APPLIED


class There:
    """Servers, each a process of its own, and a client in this one."""

    def __init__(
        self, client: PsClient, pids: tuple[int, ...], dense: Mapping[str, Floats]
    ) -> None:
        self.pids = pids
        self._client = client
        self._into = {name: np.empty_like(values) for name, values in dense.items()}
        self._versions = (0,) * client.num_shards
        self._spans = _spans()

    def pull(self, rows: Rows, dense: Mapping[str, Floats]) -> None:
        tables = {name: ids for name, (ids, _) in rows.items()}
        into = self._into if dense else None
        self._client.pull(tables, dense=into, full=True, timeout_s=DEADLINE_S)

    def push(self, rows: Rows, dense: Mapping[str, Floats]) -> None:
        span, versions = next(self._spans), self._versions
        pushed = self._client.push(span, versions, dense=dense, tables=rows, timeout_s=DEADLINE_S)
        assert pushed.outcome is PushOutcome.APPLIED


def rows() -> str:
    """Pull, then push 100,000 unique rows of a table of 2 M, dim 16, Adagrad."""
    rng = np.random.default_rng(0)
    everything = rng.permutation(ROWS).astype(np.int64)
    grads = rng.standard_normal((BATCH, DIM), np.float32)
    batches = [{"t": (rng.permutation(ROWS)[:BATCH], grads)} for _ in range(2 * CYCLES)]
    spec = ModelSpec((), (TableSpec("t", DIM),), Adagrad())
    with serving(1, spec, {}) as there:
        ends = {"store in process": Here(spec, {}), "1 server process, gRPC": there}
        for end in ends.values():
            for ids in everything.reshape(-1, BATCH):
                end.push({"t": (ids, grads)}, {})
        found = alternate(
            {name: _cycles(BATCH, end, [(b, {}) for b in batches]) for name, end in ends.items()},
            ROUNDS,
        )
    cost = ("CPU ms per 100,000 rows", BATCH * 1e3)
    return table(found, ["store in process"], ("M rows/s", 1e-6), cost)


def dense() -> str:
    """Pull, then push 100 MB in 25 tensors, SGD. memcpy copies the same 200 MB."""
    rng = np.random.default_rng(0)
    grads = {f"w{i}": rng.standard_normal(ELEMENTS, np.float32) for i in range(TENSORS)}
    copies = {name: np.zeros_like(values) for name, values in grads.items()}
    spec = ModelSpec(tuple(DenseSpec(name, (ELEMENTS,)) for name in grads), (), SGD())

    def copy() -> None:
        for _ in range(2 * CYCLES):
            for name, values in grads.items():
                np.copyto(copies[name], values)

    with serving(1, spec, grads) as one, serving(2, spec, grads) as two:
        ends = {
            "store in process": Here(spec, grads),
            "1 server process, gRPC": one,
            "2 server processes, gRPC": two,
        }
        found = alternate(
            {
                "memcpy": lambda: sample(CYCLES, copy),
                **{name: _cycles(1, end, [({}, grads)]) for name, end in ends.items()},
            }
        )
    cost = ("CPU ms per cycle", 1e3)
    return table(found, ["store in process", "memcpy"], ("cycles/s", 1.0), cost)


@contextlib.contextmanager
def serving(count: int, spec: ModelSpec, dense: Mapping[str, Floats]) -> Iterator[There]:
    """`count` server processes that know the model."""
    keep_freed_memory()  # as every worker and server does
    spawn = multiprocessing.get_context("spawn")
    lines = [spawn.Pipe() for _ in range(count)]
    processes = [
        spawn.Process(target=_serve, args=(index, count, line), daemon=True)
        for index, (_, line) in enumerate(lines)
    ]
    for process in processes:
        process.start()
    client = PsClient([line.recv() for line, _ in lines], token=TOKEN, spec=spec)
    try:
        client.init(spec, dense, timeout_s=DEADLINE_S)
        yield There(client, tuple(process.pid or 0 for process in processes), dense)
    finally:
        client.close()
        for (line, _), process in zip(lines, processes, strict=True):
            line.send("end")
            process.join(DEADLINE_S)


def _serve(index: int, count: int, line: Connection) -> None:
    keep_freed_memory()
    store = Store(index=index, slot_map=SlotMap(count), policy=POLICY)
    servicer = ParameterServerServicer(index, store)
    server = rpc.Server(
        lambda grpc_server: ps_pb2_grpc.add_ParameterServerServicer_to_server(
            servicer, grpc_server
        ),
        token=TOKEN,
    )
    line.send(server.address)
    line.recv()
    server.stop()


def _cycles(
    amount: int, end: Here | There, batches: list[tuple[Rows, Mapping[str, Floats]]]
) -> Callable[[], Sample]:
    """CYCLES times pull and push, over and over the batches."""
    turn = itertools.cycle(batches)

    def work() -> None:
        for rows, dense in itertools.islice(turn, CYCLES):
            end.pull(rows, dense)
            end.push(rows, dense)

    return lambda: sample(amount * CYCLES, work, end.pids)


def _spans() -> Iterator[Span]:
    """One task, position by position: a ledger takes no span twice and no gap."""
    return (Span(0, 1, position, position + 1) for position in itertools.count())

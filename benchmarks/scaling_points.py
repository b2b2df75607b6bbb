"""The points of benchmarks/scaling.py: calls by size of the table, by crowd, by their own size."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import psutil

from benchmarks.measure import cpu_s
from benchmarks.model import Costs, Work, fit
from benchmarks.parameters import DEADLINE_S, POLICY, TOKEN, There
from benchmarks.processes import processes
from edl.common.identity import Identity
from edl.kernels.malloc import keep_freed_memory
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.nn.optimizers import Adagrad
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.server import Listeners
from edl.ps.servicer import ParameterServerServicer
from edl.ps.worker_client import PsClient

CARRIERS = {"TCP": "tcp", "shared memory": "shm"}
ACROSS_HOSTS = {"TCP with TLS": "tls"}
ALL = {**CARRIERS, **ACROSS_HOSTS}
BATCH, DIM = 100_000, 16


@dataclass(frozen=True)
class Extent:
    """The extent of a run; figures are medians of `rounds` samples of about `sample_s`."""

    sizes: Sequence[int] = tuple(round(10 ** (n / 2)) for n in range(10, 17))
    clients: Sequence[int] = (1, 2, 4, 8, 16, 32, 64)
    servers: Sequence[int] = (1, 2, 4, 8, 16)
    sharers: Sequence[int] = (1, 4, 16)
    rows: int = 1_000_000  # of the tables behind 2 and 3
    calls: Sequence[int] = (1, 64, 1_000, 10_000, 100_000)  # rows of one
    dims: Sequence[int] = (4, 16, 64)
    chunk_nbytes: Sequence[int] = (1 << 12, 1 << 20, 1 << 24)
    rounds: int = 5
    sample_s: float = 0.15


QUICK = Extent(
    sizes=(100_000, 300_000),
    clients=(1, 2, 4),
    servers=(1, 2),
    sharers=(2,),
    rows=100_000,
    calls=(1, 1_000, 30_000),
    dims=(4, 16),
    chunk_nbytes=(1 << 12, 1 << 20),
    rounds=1,
    sample_s=0.02,
)
BATCHES = {"clients": 2_000, "servers": 20_000}  # rows of one call of the crowds
CROWD_OF_SERVERS = 2  # clients, where the servers are counted
CYCLE = ("pull", "push")
SHARE = 1_200  # rows that the job's workers ask of each of its servers
SHARE_ELEMENTS = 7_000  # and dense elements, where a push does not bring them back
SHARE_KINDS = (*CYCLE, "pull dense")
CROWD_ROWS = 1_000_000  # of one sample


@dataclass(frozen=True)
class Took:
    """The seconds of one call or cycle: wall, and the CPU time at both ends."""

    wall_s: float
    client_s: float
    server_s: float

    @property
    def cpu_s(self) -> float:
        return self.client_s + self.server_s


def cores() -> int:
    return len(os.sched_getaffinity(0))


# -- Processes


@contextlib.contextmanager
def serving(count: int) -> Iterator[tuple[list[str], list[int], Identity]]:
    """Start empty servers; yield addresses, pids, and the identity that they ask for."""
    identity = Identity.create(TOKEN)
    with processes(_serve, [(n, count, identity) for n in range(count)]) as (lines, pids):
        yield [line.recv() for line in lines], pids, identity


def _serve(line: Connection, index: int, count: int, identity: Identity) -> None:
    keep_freed_memory()
    store = Store(index=index, slot_map=SlotMap(count), policy=POLICY)
    listeners = Listeners(ParameterServerServicer(index, store), identity)
    line.send(listeners.address)
    line.recv()
    listeners.close()


@contextlib.contextmanager
def ends(
    count: int, spec: ModelSpec, carriers: Mapping[str, str]
) -> Iterator[tuple[dict[str, There], list[int]]]:
    """Yield a client of `count` servers on each carrier, and the servers' pids."""
    zeros = {d.name: np.zeros(d.shape, np.float32) for d in spec.dense}
    with serving(count) as (addresses, pids, identity), contextlib.ExitStack() as stack:
        found = {}
        for task, (name, transport) in enumerate(carriers.items()):
            client = PsClient(
                addresses, token=TOKEN, spec=spec, transport=transport, identity=identity
            )
            stack.callback(client.close)
            found[name] = There(client, pids, zeros, task)
        client.init(spec, zeros, timeout_s=DEADLINE_S)
        yield found, pids


@dataclass(frozen=True)
class _Aim:
    """The next work of a client process."""

    addresses: tuple[str, ...]
    identity: Identity
    transport: str
    batch: int
    rows: int
    elements: int = 0  # of a dense tensor, pulled and pushed each time


def _client(line: Connection, task: int) -> None:
    keep_freed_memory()
    aims: dict[tuple[tuple[str, ...], str], tuple[There, PsClient]] = {}
    rng = np.random.default_rng(task)
    while (asked := line.recv()) is not None:
        if isinstance(asked, _Aim):
            key = (asked.addresses, asked.transport)
            if key not in aims:
                for _, client in aims.values():
                    client.close()
                aims.clear()
                client = PsClient(
                    asked.addresses,
                    token=TOKEN,
                    spec=_crowd_spec(asked.elements),
                    transport=asked.transport,
                    identity=asked.identity,
                )
                # The carriers of one cluster push as tasks of their own.
                own = len(ALL) * task + list(ALL.values()).index(asked.transport)
                aims[key] = There(client, (), _zeros(asked.elements), own), client
            end, _ = aims[key]
            dense = _zeros(asked.elements)
            grads = rng.standard_normal((asked.batch, DIM), np.float32)
            batches = [_some(rng, asked.batch, asked.rows) for _ in range(4)]
            kinds, cycles = CYCLE, 2
        else:
            kinds, cycles = asked
        for number in range(cycles):
            rows = {"t": (batches[number % len(batches)], grads)}
            for kind in kinds:
                name, _, with_dense = kind.partition(" ")
                getattr(end, name)(rows, dense if with_dense else {})
        line.send("done")


def _crowd_spec(elements: int) -> ModelSpec:
    dense = [DenseSpec(name, values.shape) for name, values in _zeros(elements).items()]
    return ModelSpec(tuple(dense), (TableSpec("t", DIM),), Adagrad())


def _zeros(elements: int) -> dict[str, np.ndarray]:
    return {"w": np.zeros(elements, np.float32)} if elements else {}


# -- 1: sizes


def by_size(extent: Extent) -> dict[int, dict[str, Took]]:
    """Measure a pull and a push of BATCH rows by carrier and size of the table: seconds a row."""
    spec = ModelSpec((), (TableSpec("t", DIM),), Adagrad())
    room = psutil.virtual_memory().available / 2
    found: dict[int, dict[str, Took]] = {}
    with ends(1, spec, CARRIERS) as (clients, pids):
        server = psutil.Process(pids[0])
        empty = server.memory_info().rss
        filler = clients["shared memory"]
        held = 0
        for wanted in extent.sizes:
            if held:
                a_row = (server.memory_info().rss - empty) / held
                wanted = min(wanted, int(room / a_row) // BATCH * BATCH)
                if wanted < 1.5 * held:
                    break
            fill(filler, "t", DIM, held, wanted)
            held = wanted
            rng = np.random.default_rng(held)
            grads = rng.standard_normal((BATCH, DIM), np.float32)
            turn = [{"t": (_some(rng, BATCH, held), grads)} for _ in range(8)]
            calls = {}
            for name, end in clients.items():
                calls[f"pull, {name}"] = _over(turn, end.pull)
                calls[f"push, {name}"] = _over(turn, end.push)
            found[held] = {
                name: _per(took, BATCH) for name, took in timed(calls, pids, extent).items()
            }
            _progress(f"{held:,} rows")
    return found


def fill(end: There, table: str, dim: int, start: int, stop: int) -> None:
    """Make the rows [start, stop)."""
    grads = np.zeros((BATCH, dim), np.float32)
    for first in range(start, stop, BATCH):
        ids = np.arange(first, min(stop, first + BATCH), dtype=np.int64)
        end.push({table: (ids, grads[: len(ids)])}, {})


def _some(rng: np.random.Generator, count: int, rows: int) -> np.ndarray:
    return rng.choice(rows, count, replace=False).astype(np.int64)


def _over(batches: Sequence[dict], call: Callable[[dict, dict], None]) -> Callable[[], None]:
    number = 0

    def once() -> None:
        nonlocal number
        call(batches[number % len(batches)], {})
        number += 1

    return once


def timed(
    calls: Mapping[str, Callable[[], None]], pids: Sequence[int], extent: Extent
) -> dict[str, Took]:
    """Return the median of each, in alternation, after a warm-up. The client is this process."""
    me = [os.getpid()]
    found: dict[str, list[Took]] = {name: [] for name in calls}
    counts = {}
    for name, call in calls.items():
        call()
        began = time.perf_counter()
        call()
        counts[name] = max(1, int(extent.sample_s / (time.perf_counter() - began)))
    for _ in range(extent.rounds):
        for name, call in calls.items():
            began, own, theirs = time.perf_counter(), cpu_s(me), cpu_s(pids)
            for _ in range(counts[name]):
                call()
            wall_s = time.perf_counter() - began
            took = Took(wall_s, cpu_s(me) - own, cpu_s(pids) - theirs)
            found[name].append(_per(took, counts[name]))
    return {name: median(samples) for name, samples in found.items()}


def median(samples: Sequence[Took]) -> Took:
    """Return the median of each figure by itself."""
    columns = zip(*(dataclasses.astuple(took) for took in samples), strict=True)
    return Took(*(statistics.median(column) for column in columns))


def _per(took: Took, amount: float) -> Took:
    return Took(took.wall_s / amount, took.client_s / amount, took.server_s / amount)


def _progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


# -- 3: calls of many sizes


@dataclass(frozen=True)
class Calls:
    """The pulls and the pushes of one carrier, measured."""

    pulls: list[tuple[Work, Took]]
    pushes: list[tuple[Work, Took]]


def by_call(extent: Extent) -> dict[str, Calls]:
    """Measure calls of all carriers, those across hosts too, of one server and of two."""
    found = {name: Calls([], []) for name in (*CARRIERS, *ACROSS_HOSTS)}
    for servers in (1, 2):
        _call(servers, extent, found)
    return found


def _call(servers: int, extent: Extent, found: dict[str, Calls]) -> None:
    tables = tuple(TableSpec(f"t{dim}", dim) for dim in extent.dims)
    dense = tuple(DenseSpec(f"w{n}", (n // 4,)) for n in extent.chunk_nbytes)
    spec = ModelSpec(dense, tables, Adagrad())
    rng = np.random.default_rng(0)
    with ends(servers, spec, ALL) as (clients, pids):
        for table in tables:
            fill(clients["TCP"], table.name, table.dim, 0, extent.rows)
            for count in extent.calls:
                grads = rng.standard_normal((count, table.dim), np.float32)
                turn = [{table.name: (_some(rng, count, extent.rows), grads)} for _ in range(16)]
                calls = {}
                for name, end in clients.items():
                    calls[name, "pull"] = _over(turn, end.pull)
                    calls[name, "push"] = _over(turn, end.push)
                _note(found, Work.of(servers, count, table.dim), timed(calls, pids, extent))
            _progress(f"calls of dim {table.dim}, {servers} servers")
        values = {d.name: rng.standard_normal(d.shape, np.float32) for d in dense}
        for name, grads in values.items():
            calls = {(n, "push"): _dense(e.push, {name: grads}) for n, e in clients.items()}
            _note(found, Work.of(servers, 0, 0, grads.nbytes), timed(calls, pids, extent))
        calls = {(n, "pull"): _dense(e.pull, values) for n, e in clients.items()}
        nbytes = sum(extent.chunk_nbytes)
        _note(found, Work.of(servers, 0, 0, nbytes), timed(calls, pids, extent))


def _dense(call: Callable[[dict, dict], None], values: dict) -> Callable[[], None]:
    return lambda: call({}, values)


def _note(found: dict[str, Calls], work: Work, took: Mapping[tuple[str, str], Took]) -> None:
    for (name, kind), one in took.items():
        calls = found[name]
        (calls.pulls if kind == "pull" else calls.pushes).append((work, one))


def costs_of(calls: Calls) -> Costs:
    return Costs(
        client_pull=fit([(work, took.client_s) for work, took in calls.pulls]),
        server_pull=fit([(work, took.server_s) for work, took in calls.pulls]),
        client_push=fit([(work, took.client_s) for work, took in calls.pushes]),
        server_push=fit([(work, took.server_s) for work, took in calls.pushes]),
    )


# -- 2: crowds


@dataclass(frozen=True)
class Crowd:
    """A crowd. `took`: one cycle (pull + push of `batch` rows) of a client, while all go round."""

    clients: int
    servers: int
    batch: int
    took: Took

    @property
    def rows_s(self) -> float:
        return self.clients * self.batch / self.took.wall_s

    @property
    def row_cpu_s(self) -> float:
        return self.took.cpu_s / self.batch


def by_crowd(extent: Extent) -> dict[str, list[Crowd]]:
    """Measure by carrier: the clients against one server, then a few clients against many."""
    shapes = [(n, 1, BATCHES["clients"]) for n in extent.clients]
    shapes += [(CROWD_OF_SERVERS, n, BATCHES["servers"]) for n in extent.servers]
    found: dict[str, list[Crowd]] = {name: [] for name in CARRIERS}
    most = max(clients for clients, _, _ in shapes)
    with processes(_client, [(task,) for task in range(1, most + 1)]) as (lines, pids):
        for servers in sorted({servers for _, servers, _ in shapes}):
            with serving(servers) as (addresses, server_pids, identity):
                _fill_crowd(addresses, identity, extent.rows)
                for clients, _, batch in [s for s in shapes if s[1] == servers]:
                    for name, transport in CARRIERS.items():
                        aim = _Aim(tuple(addresses), identity, transport, batch, extent.rows)
                        (took,) = _together(
                            lines[:clients], pids[:clients], server_pids, aim, extent, [CYCLE]
                        )
                        found[name].append(Crowd(clients, servers, batch, took))
                    _progress(f"{clients} clients, {servers} servers")
    return found


def by_share(extent: Extent) -> dict[tuple[str, int], dict[str, Took]]:
    """Measure pulls and a push of a server's share, all at a time, by carrier and clients."""
    found = {}
    most = max(extent.sharers)
    with (
        processes(_client, [(task,) for task in range(1, most + 1)]) as (lines, pids),
        serving(1) as (addresses, server_pids, identity),
    ):
        _fill_crowd(addresses, identity, extent.rows, SHARE_ELEMENTS)
        for name, transport in ALL.items():
            aim = _Aim(tuple(addresses), identity, transport, SHARE, extent.rows, SHARE_ELEMENTS)
            for clients in extent.sharers:
                took = _together(
                    lines[:clients],
                    pids[:clients],
                    server_pids,
                    aim,
                    extent,
                    [(kind,) for kind in SHARE_KINDS],
                )
                found[name, clients] = dict(zip(SHARE_KINDS, took, strict=True))
            _progress(f"shares of {name}")
    return found


def _fill_crowd(addresses: list[str], identity: Identity, rows: int, elements: int = 0) -> None:
    spec = _crowd_spec(elements)
    client = PsClient(addresses, token=TOKEN, spec=spec, transport="auto", identity=identity)
    try:
        client.init(spec, _zeros(elements), timeout_s=DEADLINE_S)
        fill(There(client, (), {}), "t", DIM, 0, rows)
    finally:
        client.close()


def _ask(lines: Sequence[Connection], what: _Aim | tuple[Sequence[str], int]) -> None:
    for line in lines:
        line.send(what)
    for line in lines:
        line.recv()


def _together(
    lines: Sequence[Connection],
    clients: Sequence[int],
    servers: Sequence[int],
    aim: _Aim,
    extent: Extent,
    turns: Sequence[Sequence[str]],
) -> list[Took]:
    """Return the medians of turns, each of some kinds of calls, of all clients at the same time."""
    _ask(lines, aim)
    cycles = max(2, int(CROWD_ROWS * extent.sample_s / 0.15) // (aim.batch * len(lines)))
    samples: list[list[Took]] = [[] for _ in turns]
    for _ in range(extent.rounds):
        for kinds, took in zip(turns, samples, strict=True):
            took.append(_cycle(lines, clients, servers, cycles, kinds))
    return [median(took) for took in samples]


def _cycle(
    lines: Sequence[Connection],
    clients: Sequence[int],
    servers: Sequence[int],
    cycles: int,
    kinds: Sequence[str],
) -> Took:
    began, own, theirs = time.perf_counter(), cpu_s(clients), cpu_s(servers)
    _ask(lines, (kinds, cycles))
    wall_s = time.perf_counter() - began
    client_s, server_s = cpu_s(clients) - own, cpu_s(servers) - theirs
    each = cycles * len(lines)
    return Took(wall_s / cycles, client_s / each, server_s / each)

"""The time of one step, part by part, at the worker and at the server.

    python -m benchmarks.breakdown [--steps 60] [--transports shm tcp]     from the repository root

Two steps: a minibatch of the DeepFM that the peers run (benchmarks/peers/work.py), and a cycle of
pull and push of 100,000 rows. A worker and a server, each a process, nothing overlapped, so that
the parts of a step add up to it. Every part is the wall and the CPU time of some functions, less
those of other parts that they call; a thread that waits for its peer is in "wait". The clocks cost
about 1 us a call, and are in the sums. Writes its tables into docs/performance.md too.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks import measure, page, parameters
from benchmarks.measure import cpu_s
from benchmarks.parameters import DEADLINE_S, POLICY, TOKEN
from benchmarks.peers import ours
from benchmarks.peers import work as w
from benchmarks.processes import processes
from edl.common.identity import Identity
from edl.kernels.malloc import keep_freed_memory
from edl.nn.model_spec import ModelSpec, TableSpec
from edl.nn.optimizers import Adagrad
from edl.ps.books import parameters as held
from edl.ps.books import store
from edl.ps.books.slots import SlotMap
from edl.ps.server import Listeners
from edl.ps.servicer import ParameterServerServicer
from edl.ps.wire import link, request, session
from edl.ps.worker_client import PsClient, PushOutcome
from edl.wire import stream
from edl.worker.model import model_spec
from edl.worker.servers import rows as table_rows
from edl.worker.servers import trainer as ps_trainer

WARM_UP = 10
NAMES = {"shm": "shared memory", "tcp": "TCP", "unix": "unix socket", "grpc": "plain gRPC"}


@dataclass
class Part:
    """The seconds of one part, of all calls since the last reset."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


class Clocks:
    """Clocks of functions by part, less the parts called in the same thread, until `close`."""

    def __init__(self) -> None:
        self.parts: dict[str, Part] = defaultdict(Part)
        self._lock = threading.Lock()
        self._open = threading.local()
        self._undo = contextlib.ExitStack()

    def reset(self) -> None:
        with self._lock:
            self.parts.clear()

    def close(self) -> None:
        """Put back the functions that are watched."""
        self._undo.close()

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        outer: Part | None = getattr(self._open, "inner", None)
        inner = self._open.inner = Part()
        began, used = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            wall_s, cpu_s = time.perf_counter() - began, time.thread_time() - used
            self._open.inner = outer
            if outer is not None:
                outer.wall_s += wall_s
                outer.cpu_s += cpu_s
            with self._lock:
                mine = self.parts[name]
                mine.wall_s += wall_s - inner.wall_s
                mine.cpu_s += cpu_s - inner.cpu_s

    def watch(self, owner: Any, function: str, name: str) -> None:
        """Time a function of a class, a module or an object from now on."""
        plain = getattr(owner, function)

        @functools.wraps(plain)
        def timed(*arguments: Any, **named: Any) -> Any:
            with self.part(name):
                return plain(*arguments, **named)

        setattr(owner, function, timed)
        self._undo.callback(setattr, owner, function, plain)


def watch_worker(clocks: Clocks) -> None:
    trainer = ps_trainer.PsTrainer
    clocks.watch(trainer, "prepare", "dedup")
    clocks.watch(trainer, "begin", "other")
    clocks.watch(trainer, "gradients", "other")
    clocks.watch(table_rows.PulledRows, "rows", "gather")
    clocks.watch(torch.Tensor, "backward", "backward")
    clocks.watch(table_rows, "add_by_place", "segment sum")
    clocks.watch(ps_trainer, "finite", "finite")
    clocks.watch(PsClient, "pull", "pull: cut, join")
    clocks.watch(PsClient, "push", "push: cut, join")
    clocks.watch(link.Link, "send_pull", "pull: send")
    clocks.watch(link.Link, "pulled", "pull: receive")
    clocks.watch(link.Link, "send_push", "push: send")
    clocks.watch(link.Link, "pushed", "push: receive")
    clocks.watch(link.Link, "_replied", "wait")


def watch_server(clocks: Clocks) -> None:
    clocks.watch(session.Session, "_answered", "frames")
    clocks.watch(request.Receiver, "receive", "receive")
    clocks.watch(request.Receiver, "_take", "buffers")
    clocks.watch(store.Store, "check_rows", "check")
    clocks.watch(store.Store, "plan_pull", "books")
    clocks.watch(store.Store, "push", "books")
    clocks.watch(held.RowPlan, "gather", "lookup")
    clocks.watch(held.Parameters, "apply", "update")
    clocks.watch(stream.Stream, "send", "send")
    clocks.watch(stream.Stream, "write", "send")


@dataclass(frozen=True)
class Found:
    """The times of one step: wall, parts of both ends, and CPU of the whole processes."""

    step_s: float
    worker: Mapping[str, Part]
    server: Mapping[str, Part]
    worker_cpu_s: float
    server_cpu_s: float


@contextlib.contextmanager
def serving(spec: ModelSpec, transport: str) -> Iterator[tuple[PsClient, Connection, int]]:
    """Start a server process under clocks; yield its client, its line and its pid.

    The line is asked "parts" or "reset".
    """
    with processes(_serve, [()]) as ([line], [pid]):
        identity = Identity(TOKEN)
        client = PsClient(
            [line.recv()], token=TOKEN, spec=spec, transport=transport, identity=identity
        )
        try:
            yield client, line, pid
        finally:
            client.close()


def _serve(line: Connection) -> None:
    keep_freed_memory()
    clocks = Clocks()
    watch_server(clocks)
    shard = store.Store(index=0, slot_map=SlotMap(1), policy=POLICY)
    listeners = Listeners(ParameterServerServicer(0, shard), Identity(TOKEN))
    line.send(listeners.address)
    while (asked := line.recv()) is not None:
        line.send(dict(clocks.parts))
        if asked == "reset":
            clocks.reset()
    listeners.close()


def measured(
    step: Callable[[int], None], steps: int, clocks: Clocks, line: Connection, pid: int
) -> Found:
    """Run the steps; the first ones warm up."""
    for number in range(WARM_UP):
        step(number)
    clocks.reset()
    _ask(line, "reset")
    pids = ([os.getpid()], [pid])
    before = [cpu_s(p) for p in pids]
    began = time.perf_counter()
    for number in range(WARM_UP, WARM_UP + steps):
        step(number)
    wall_s = time.perf_counter() - began
    used = [(cpu_s(p) - b) / steps for p, b in zip(pids, before, strict=True)]
    server = _ask(line, "parts")
    return Found(wall_s / steps, _a_step(clocks.parts, steps), _a_step(server, steps), *used)


def _ask(line: Connection, what: str) -> dict[str, Part]:
    line.send(what)
    parts: dict[str, Part] = line.recv()
    return parts


def _a_step(parts: Mapping[str, Part], steps: int) -> dict[str, Part]:
    return {name: Part(p.wall_s / steps, p.cpu_s / steps) for name, p in parts.items()}


# -- The two steps


def deepfm(transport: str, steps: int) -> Found:
    """Measure one minibatch after the other: dedup, pull, compute, push."""
    with tempfile.TemporaryDirectory() as folder:
        work = w.load(str(w.make(Path(folder) / "work.npz", WARM_UP + steps)))
    torch.set_num_threads(1)
    optimizer = Adagrad(lr=w.LR, initial_accumulator_value=w.ACCUMULATOR)
    spec = model_spec(ours.Model(work), optimizer, seed=0)
    with watching() as clocks, serving(spec, transport) as (client, line, pid):
        trainer = ps_trainer.PsTrainer(
            lambda: ours.Model(work),
            functional.binary_cross_entropy_with_logits,
            client,
            spec,
            device=torch.device("cpu"),
        )
        clocks.watch(trainer, "_forward", "forward")

        def step(number: int) -> None:
            features = {
                "ids": torch.from_numpy(work.ids[number]),
                "x": torch.from_numpy(work.x[number]),
            }
            unique = trainer.prepare(features)
            pull = trainer.begin(unique, None)
            labels = torch.from_numpy(work.y[number])
            gradients = trainer.gradients(features, labels, unique, pull, (0, 0, number))
            pushed = trainer.push(0, 1, number * w.BATCH, (number + 1) * w.BATCH, gradients)
            assert pushed.outcome is PushOutcome.APPLIED, pushed

        return measured(step, steps, clocks, line, pid)


def rows(transport: str, steps: int) -> Found:
    """Measure the cycle of benchmarks/parameters.py: 100,000 rows of 2 M pulled, then pushed."""
    spec = ModelSpec((), (TableSpec("t", parameters.DIM),), Adagrad())
    batches = parameters.row_batches(6)
    with watching() as clocks, serving(spec, transport) as (client, line, pid):
        client.init(spec, {}, timeout_s=DEADLINE_S)
        end = parameters.There(client, [pid], {})
        parameters.fill(end)

        def step(number: int) -> None:
            chosen, dense = batches[number % len(batches)]
            end.pull(chosen, dense)
            end.push(chosen, dense)

        return measured(step, steps, clocks, line, pid)


@contextlib.contextmanager
def watching() -> Iterator[Clocks]:
    """Watch a worker in this process by clocks."""
    clocks = Clocks()
    watch_worker(clocks)
    try:
        yield clocks
    finally:
        clocks.close()


# -- Tables

STEPS: dict[str, Callable[[str, int], Found]] = {
    "One step of the DeepFM (minibatch 2,048)": deepfm,
    "Pull + push of 100,000 rows": rows,
}


def breakdown(transports: Sequence[str] = ("shm", "tcp"), steps: int = 60) -> str:
    """Make tables in Markdown: wall and CPU time of each part of a step, by carrier."""
    sections = []
    for title, run in STEPS.items():
        found = {NAMES[t]: run(t, steps) for t in transports}
        whole = ", ".join(
            f"{name}: {f.step_s * 1e3:.2f} ms a step, CPU {f.worker_cpu_s * 1e3:.2f} ms at the "
            f"worker and {f.server_cpu_s * 1e3:.2f} ms at the server"
            for name, f in found.items()
        )
        sections += [
            f"**{title}.** {whole}.",
            _table("worker", {name: (f.worker, f.step_s) for name, f in found.items()}),
            _table("server", {name: (f.server, f.step_s) for name, f in found.items()}),
        ]
    return "\n\n".join(sections)


def _table(end: str, found: Mapping[str, tuple[Mapping[str, Part], float]]) -> str:
    """Make a table of microseconds of wall (and CPU) time by part, the longest first.

    The rest is nobody's.
    """
    heads = [f"at the {end}, us of wall (CPU)", *found]
    columns = []
    for parts, step_s in found.values():
        rest = Part(step_s - sum(p.wall_s for p in parts.values()))
        columns.append({**parts, "nobody's": rest} if end == "worker" else dict(parts))
    names = sorted({n for c in columns for n in c}, key=lambda n: -_most(columns, n))
    return page.table(heads, [[n, *(_cell(c.get(n)) for c in columns)] for n in names])


def _most(columns: Sequence[Mapping[str, Part]], name: str) -> float:
    return max(column[name].wall_s for column in columns if name in column)


def _cell(part: Part | None) -> str:
    return f"{part.wall_s * 1e6:,.0f} ({part.cpu_s * 1e6:,.0f})" if part else ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.breakdown", description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--transports", nargs="+", default=["shm", "tcp"], choices=NAMES)
    parser.add_argument("--print", action="store_true", help="leave docs/performance.md alone")
    given = parser.parse_args()
    keep_freed_memory()
    text = f"{measure.machine()}\n\n{breakdown(given.transports, given.steps)}"
    print(text)
    if not given.print:
        page.refresh("breakdown", text)


if __name__ == "__main__":
    main()

"""A server in a crowd: what 10 to 1,000 connections cost it, idle and busy, and who joins them.

    python -m benchmarks.crowd [--connections 10 100 1000] [--carriers auto tcp tls] [--rounds 7]

Each crowd has a server process of its own and two processes that hold its connections, each of them
that of one worker; all stay for the whole run, so that every round has each crowd once. The load is
the same for all of them: a pull and a push of 200 rows and 28 KB of dense values each, so many a
second, the next one by the connection that has waited longest. What is asked for at once is asked
for while the server is stopped. All connect at once, too, as when their server was replaced. A
newcomer is a worker that takes the place of one that was killed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from benchmarks import measure
from benchmarks.crowd_processes import (
    DENSE,
    DIM,
    KNOWN_ROWS,
    SPEC,
    WIDE_ROWS,
    Asking,
    Line,
    hold,
    join,
    serve,
)
from benchmarks.measure import cpu_s, spread
from benchmarks.parameters import DEADLINE_S, TOKEN
from benchmarks.processes import processes
from edl.common.identity import Identity
from edl.ps.books.ledger import Span
from edl.ps.worker_client import PsClient

CONNECTIONS = (10, 100, 1_000)
CARRIERS = ("auto", "unix", "tcp", "tls")
HOLDERS = 2
ROUNDS = 7
BUSY_S, RATE = 2.0, 150.0  # of one sample; cycles a second, all holders together
REST_S = 35.0  # until all are idle (ps/wire/plane.REST_S)
IDLE_S = 5.0
BUSY_OF_IDLE = 10


class Size(NamedTuple):
    """The threads, and KB a connection."""

    threads: int
    rss_kb: float
    private_kb: float


@dataclass
class Found:
    """The figures of one crowd, by round but for what its connections cost.

    Microseconds, of a pull and a push (p50, p99), of the server's CPU for a cycle, of a request of
    a burst; seconds of a newcomer.
    """

    sizes: dict[str, Size] = field(default_factory=dict)
    connected_s: float = 0.0
    tries: float = 0.0
    idle_cpu_ms_s: float = 0.0
    pulls: list[tuple[float, float]] = field(default_factory=list)
    pushes: list[tuple[float, float]] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)
    few: list[tuple[float, float]] = field(default_factory=list)
    steps: list[tuple[float, float]] = field(default_factory=list)
    pull_bursts: list[tuple[float, float]] = field(default_factory=list)
    push_bursts: list[tuple[float, float]] = field(default_factory=list)
    joined_s: list[float] = field(default_factory=list)
    replaced_s: list[float] = field(default_factory=list)


class Crowd:
    """A server and its connections."""

    def __init__(
        self,
        server: tuple[Line, int],
        holders: Sequence[Line],
        count: int,
        carrier: str,
        identity: Identity,
    ) -> None:
        self._server, self._holders = server[1], holders
        self._carrier, self._identity = carrier, identity
        self._stops = False  # not in the first step, for which connections are opened
        self.found = Found()
        self._address, told, of_steps = server[0].recv()
        address = self._address
        client = PsClient([address], token=TOKEN, identity=identity, spec=SPEC)
        client.init(SPEC, {"w": np.zeros(DENSE, np.float32)}, timeout_s=DEADLINE_S)
        ids = np.arange(KNOWN_ROWS)
        grads = np.zeros((KNOWN_ROWS, DIM), np.float32)
        zeros = {"w": np.zeros(DENSE, np.float32)}
        client.push(Span(0, 1, 0, 1), (0,), dense=zeros, tables={"t": (ids, grads)}, timeout_s=60)
        client.close()
        self._newcomer: tuple[Any, Line] | None = None
        self._warm()  # what the first connection of all costs is no connection's
        self._count, self._before = count, self._size()
        began = time.perf_counter()
        shares = [count // HOLDERS + (n < count % HOLDERS) for n in range(HOLDERS)]
        for number, (line, share) in enumerate(zip(holders, shares, strict=True)):
            line.send(("open", told, of_steps, carrier, share, 1 + number * count))
        self.found.tries = sum(line.recv() for line in holders) / count
        self.found.connected_s = time.perf_counter() - began
        self.note_size("asked once")

    def _warm(self) -> None:
        for _ in range(2):
            self.join()
        self.found.joined_s.clear()
        self.found.replaced_s.clear()

    def note_size(self, when: str) -> None:
        now, before, count = self._size(), self._before, self._count
        kb = ((more - less) / count for more, less in zip(now[1:], before[1:], strict=True))
        self.found.sizes[when] = Size(now[0] - before[0], *kb)

    def _size(self) -> Size:
        """Return the server's threads and its memory in KB."""
        sizes = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{self._server}/smaps_rollup").read_text().splitlines()[1:]
        )
        # not the PSS: each crowd that is begun later takes a share of what all have in common
        rss_kb, clean_kb, dirty_kb = (
            float(sizes[name].split()[0]) for name in ("Rss", "Private_Clean", "Private_Dirty")
        )
        return Size(psutil.Process(self._server).num_threads(), rss_kb, clean_kb + dirty_kb)

    def cpu_s(self) -> float:
        return cpu_s([self._server])

    def wide(self) -> None:
        self._ask("wide")
        self.note_size(f"pulled {WIDE_ROWS:,} rows")

    def all_busy(self) -> None:
        before = self.cpu_s()
        pulls, pushes = self._ask("busy", BUSY_S, RATE / HOLDERS, None)
        self.found.server_us.append(1e6 * (self.cpu_s() - before) / len(pulls))
        self.found.pulls.append(_quantiles(pulls))
        self.found.pushes.append(_quantiles(pushes))

    def few_busy(self) -> None:
        """Let few connections be busy; the others are idle."""
        pulls, _ = self._ask("busy", BUSY_S, RATE / HOLDERS, BUSY_OF_IDLE // HOLDERS)
        self.found.few.append(_quantiles(pulls))

    def pull_burst(self) -> None:
        self._burst(Asking.start_pull, self.found.pull_bursts)

    def push_burst(self) -> None:
        self._burst(Asking.start_push, self.found.push_bursts)

    def _burst(
        self,
        ask: Callable[[Asking], Any],
        found: list[tuple[float, float]],
        stops: bool = True,
    ) -> None:
        """Let all ask at once.

        The server is stopped until all have asked: so however fast they are, it finds all of it.
        """
        if stops:
            os.kill(self._server, signal.SIGSTOP)
        for line in self._holders:
            line.send(("burst", ask))
        count = sum(line.recv() for line in self._holders)
        began, before = time.perf_counter(), self.cpu_s()
        os.kill(self._server, signal.SIGCONT)
        for line in self._holders:
            line.recv()
        took_s, spent_s = time.perf_counter() - began, self.cpu_s() - before
        found.append((1e6 * took_s / count, 1e6 * spent_s / count))

    def step(self) -> None:
        """Do a step of a sync job: a version is made of a push of each, which brings its values."""
        self._burst(Asking.start_step, self.found.steps, self._stops)
        self._stops = True

    def join(self) -> None:
        """Kill a worker, and start another one."""
        began = time.perf_counter()
        if self._newcomer is not None:
            self._newcomer[0].kill()
        context = multiprocessing.get_context("forkserver")
        line, theirs = context.Pipe()
        worker = context.Process(
            target=join, args=(theirs, self._address, self._carrier, self._identity)
        )
        worker.daemon = True
        worker.start()
        self.found.joined_s.append(line.recv())
        self.found.replaced_s.append(time.perf_counter() - began)
        if self._newcomer is not None:
            self._newcomer[0].join()
        self._newcomer = worker, line

    def _ask(self, *what: Any) -> tuple[list[float], list[float]]:
        for line in self._holders:
            line.send(what)
        told = [line.recv() for line in self._holders]
        return list(itertools.chain(*(t[0] for t in told))), list(
            itertools.chain(*(t[1] for t in told))
        )


def crowd(counts: Sequence[int], carrier: str, rounds: int) -> str:
    """Make Markdown: a line for each crowd."""
    with contextlib.ExitStack() as stack:
        crowds = [stack.enter_context(_crowd(count, carrier)) for count in counts]
        _rest(crowds, "idle")
        before = [each.cpu_s() for each in crowds]
        time.sleep(IDLE_S)
        for each, used_s in zip(crowds, before, strict=True):
            each.found.idle_cpu_ms_s = 1e3 * (each.cpu_s() - used_s) / IDLE_S
        for each in crowds:
            each.wide()
        _rest(crowds, "idle after that")
        steps: list[Callable[[Crowd], None]] = [
            Crowd.all_busy,
            Crowd.few_busy,
            Crowd.pull_burst,
            Crowd.push_burst,
            Crowd.step,
            Crowd.join,
        ]
        for turn, step in itertools.product(range(-1, rounds), steps):
            first = turn % len(crowds)
            for each in crowds[first:] + crowds[:first]:
                step(each)
            if turn < 0:
                _forget(crowds)
            print(f"  {carrier} {turn} {step.__name__}", file=sys.stderr, flush=True)
        return "\n".join(_lines(counts, [each.found for each in crowds]))


def _rest(crowds: Sequence[Crowd], when: str) -> None:
    time.sleep(REST_S)
    for each in crowds:
        each.note_size(when)


def _forget(crowds: Sequence[Crowd]) -> None:
    """Forget the figures of a first round, which warms up."""
    for each in crowds:
        for values in vars(each.found).values():
            if isinstance(values, list):
                values.clear()


def _lines(counts: Sequence[int], found: Sequence[Found]) -> Iterator[str]:
    def of(name: str, cell: Callable[[Found], str]) -> str:
        return f"| {name} | " + " | ".join(map(cell, found)) + " |"

    def quantile(which: Callable[[Found], list[tuple[float, float]]], n: int) -> Any:
        return lambda one: spread([pair[n] for pair in which(one)])

    yield "| connections | " + " | ".join(f"{count:,}" for count in counts) + " |"
    yield "|---" * (len(counts) + 1) + "|"
    for when in found[0].sizes:
        yield of(f"{when}: threads", lambda one: str(one.sizes[when].threads))  # noqa: B023
        sizes = "RSS (private) a connection, KB"
        yield of(
            f"{when}: {sizes}",
            lambda one: f"{one.sizes[when].rss_kb:.0f} ({one.sizes[when].private_kb:.0f})",  # noqa: B023
        )
    yield of("all connect at once: all are served after, s", lambda one: f"{one.connected_s:.2f}")
    yield of("all connect at once: tries", lambda one: f"{one.tries:.2f}")
    yield of("idle: CPU, ms a second", lambda one: f"{one.idle_cpu_ms_s:.2f}")
    for n, name in enumerate(("p50", "p99")):
        yield of(f"all busy: {name} of a pull, us", quantile(lambda one: one.pulls, n))
    for n, name in enumerate(("p50", "p99")):
        yield of(f"all busy: {name} of a push, us", quantile(lambda one: one.pushes, n))
    yield of("all busy: server's CPU a cycle, us", lambda one: spread(one.server_us))
    for n, name in enumerate(("p50", "p99")):
        yield of(f"10 busy: {name} of a pull, us", quantile(lambda one: one.few, n))
    for n, name in enumerate(("", ", server's CPU")):
        yield of(f"a pull of all at once{name}, us", quantile(lambda one: one.pull_bursts, n))
    for n, name in enumerate(("", ", server's CPU")):
        yield of(f"a push of all at once{name}, us", quantile(lambda one: one.push_bursts, n))
    for n, name in enumerate(("", ", server's CPU")):
        yield of(
            f"a push and its share of a sync step{name}, us", quantile(lambda one: one.steps, n)
        )
    yield of(
        "a newcomer's first pull after, ms", lambda one: spread([1e3 * s for s in one.joined_s])
    )
    yield of("a replacement's, ms", lambda one: spread([1e3 * s for s in one.replaced_s]))


def _quantiles(seconds: Sequence[float]) -> tuple[float, float]:
    p50, p99 = np.quantile(np.asarray(seconds) * 1e6, [0.5, 0.99])
    return float(p50), float(p99)


@contextlib.contextmanager
def _crowd(count: int, carrier: str) -> Iterator[Crowd]:
    identity = Identity.create(TOKEN) if carrier == "tls" else Identity(TOKEN)
    with (
        processes(serve, [(identity, count)]) as (servers, pids),
        processes(hold, [(identity,)] * HOLDERS) as (holders, _),
    ):
        yield Crowd((servers[0], pids[0]), holders, count, carrier, identity)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crowd")
    parser.add_argument("--connections", type=int, nargs="+", default=CONNECTIONS)
    parser.add_argument("--carriers", nargs="+", choices=CARRIERS, default=CARRIERS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    print(f"{measure.machine()}\n- load before: {measure.load()}", flush=True)
    for carrier in given.carriers:
        print(f"\n{carrier}:\n\n{crowd(given.connections, carrier, given.rounds)}", flush=True)


if __name__ == "__main__":
    main()

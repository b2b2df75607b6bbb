"""Simulate a job of ten thousand workers by events, with the costs measured on one machine.

    python -m benchmarks.at_scale [--quick]     from the repository root

Workers compute minibatch after minibatch, while the push of the last one and the pull of the next
are on their way; they lease tasks, beat, and die. Servers, networks and masters are queues, first
come first served. A call of a worker goes to all servers, each in its turn, so that at each of them
calls arrive in the order in which they began: an event is a whole call, and what it does to 200
queues is one loop. What the parts cost is in `Costs`, each line with its source.

Writes docs/at-scale.svg and a block of docs/performance.md.
"""

from __future__ import annotations

import argparse
import heapq
import time
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np

from benchmarks import page
from benchmarks.model import FRAMING, ID_NBYTES, Cost, Work, step
from benchmarks.model import Costs as Calls
from benchmarks.model import Job as Model
from benchmarks.page import Panel, table

BEAT, STEP, LEASE, DEATH = range(4)
LEASE_S, MOST_TASKS = 2.0, 32  # worker/task_stream.py: at once, so long; at most so many
SILENT_S = 10.0  # --lease_s: a worker that was not heard of for so long has ended
WARM_UP_S = 20.0
RECORDS = 1e10
TLS = Calls(
    client_pull=Cost(37.0e-6, 4.7e-9, 0.378e-9, 0.365e-9, 5.5e-9, 0.056e-9),
    server_pull=Cost(18.7e-6, 20.9e-9, 0.400e-9, 0.370e-9, 3.1e-9, 0.004e-9),
    client_push=Cost(42.9e-6, 4.5e-9, 0.363e-9, 0.368e-9, 4.8e-9, 0.064e-9),
    server_push=Cost(53.0e-6, 42.4e-9, 0.374e-9, 0.435e-9, 6.9e-9, 0.007e-9),
)


@dataclass(frozen=True)
class Costs:
    """The costs of calls, in CPU seconds, but for what ends in `_s`.

    RESULTS.md, "The master"; docs/performance.md, "Cost against size", TLS.
    """

    lease: float = 0.3e-3  # a call of GetTask by itself
    task: float = 37e-6  # leased, reported and written down
    compact: float = 10e-6  # a task's share of the compaction of the journal: 0.2 s for 20,000
    beat: float = 0.6e-3
    beat_of_many: float = 20e-6  # one of those that an aggregator tells of together: assumed
    status: float = 0.05  # of the master's core, at most
    fence: float = 0.3e-3  # a call of the master to one server
    roster: float = 29e-6  # a worker's line of what a successor must know: as a dump, and as JSON
    commit_s: float = 3e-3  # waited for the disk
    crowd: float = 1.9  # a server's cost of a request where 16 ask, to that where one does
    calls: Calls = TLS


@dataclass(frozen=True)
class Kind:
    """A model: what a minibatch computes on one core, and moves."""

    minibatch: int
    compute_s: float
    rows: int  # distinct, of dim 16
    dense_nbytes: float


# The DeepFM of the peers (RESULTS.md). Of 64 records: as many rows as its data has in so many.
KINDS = {2_048: Kind(2_048, 21.2e-3, 24_139, 0.57e6), 64: Kind(64, 2.0e-3, 1_295, 0.57e6)}
SHARED = 0.844  # n minibatches have n**0.844 times the rows of one: between the two above


@dataclass(frozen=True)
class Job:
    """A job to be simulated.

    `life_s`: mean, of a worker; `spread`: sigma of the logarithm of a step's time and of a
    worker's.
    """

    kind: Kind
    workers: int
    servers: int
    server_cores: int = 4
    bits_s: float = 25e9
    life_s: float = 7_200.0
    start_s: float = 30.0
    spread: float = 0.1
    minibatches_a_task: int = 8
    masters: int = 1
    aggregate: int = 1  # workers that one aggregator beats for
    sublease: int = 1  # workers that one aggregator leases for, whole ranges of tasks
    whole_roster: bool = True  # journaled whenever anybody comes or goes; else the change alone
    spans: int = 1  # minibatches of one call: their rows are pulled and pushed together


@dataclass(frozen=True)
class Found:
    """The shares of the time that workers waited, and that the busiest of each kind worked.

    `silent_s`: the longest that a master did not hear of a worker that lived.
    """

    records_s: float
    waiting: float
    master: float
    cores: float
    net: float
    silent_s: float

    @property
    def first(self) -> str:
        """Return the name of whatever is busiest."""
        shares = {"master": self.master, "servers' cores": self.cores, "servers' network": self.net}
        shares["workers"] = 1 - self.waiting
        return max(shares, key=lambda name: shares[name])


def simulate(job: Job, costs: Costs, seconds: float = 20.0, seed: int = 0) -> Found:
    """Run the job for so many seconds after those of the warm-up."""
    kind = job.kind
    work = Work.of(job.servers, kind.rows * job.spans**SHARED, 16, kind.dense_nbytes)
    crowd = 1 + (costs.crowd - 1) * min(1.0, np.log2(job.workers) / 4)
    requests_s = costs.calls.server_pull.request_s + costs.calls.server_push.request_s
    server_s = costs.calls.server(work, work) / job.servers + (crowd - 1) * requests_s
    byte_s = 8 * FRAMING / job.bits_s / job.servers
    values = work.row_nbytes + work.dense_nbytes
    ids = 2 * work.rows * ID_NBYTES
    parts = [(ids + values) * byte_s, server_s / job.server_cores, values * byte_s]
    own_s = costs.calls.client(work, work)
    compute_s = kind.compute_s * job.spans
    task_s = (compute_s + own_s) / job.spans * job.minibatches_a_task
    tasks = max(1, min(MOST_TASKS, int(LEASE_S / task_s)))
    leased = 1 if job.sublease > 1 else tasks  # a range of tasks is one to the master
    roster = job.workers / job.masters if job.whole_roster else 1
    master_s = [
        costs.lease + leased * (costs.task + costs.compact),
        costs.beat + (job.aggregate > 1) * job.aggregate * costs.beat_of_many,
        job.servers * costs.fence + 2 * roster * costs.roster,
    ]
    done, waited, busy_s, silent_s = _run(
        *(job.workers, job.servers, job.masters, job.aggregate, job.sublease),
        *(compute_s, own_s, job.spread, np.array(parts)),
        tasks * job.minibatches_a_task / job.spans,
        max(1.0, min(SILENT_S / 3, job.workers / 300)),
        *(np.array(master_s) / (1 - costs.status), costs.commit_s),
        *(job.life_s, job.start_s, WARM_UP_S, WARM_UP_S + seconds, seed),
    )
    network_in, cores, network_out = (min(1.0, done * part / seconds) for part in parts)
    return Found(
        done * kind.minibatch * job.spans / seconds,
        min(1.0, max(0.0, waited / (job.workers * seconds))),
        min(1.0, busy_s / seconds + costs.status),
        cores,
        max(network_in, network_out),
        silent_s,
    )


@numba.njit
def _at(free, busy, queue, now, took_s):
    """Return when a queue will have done a call that comes now."""
    busy[queue] += took_s
    free[queue] = max(now, free[queue]) + took_s
    return free[queue]


@numba.njit
def _run(
    workers, servers, masters, aggregate, sublease,
    compute_s, own_s, spread,
    parts,  # seconds of network in, cores and network out, of one call at one server
    lease,  # calls that a lease lasts
    beat_s,
    master_s,  # seconds of a lease, a beat and an end
    commit_s, life_s, start_s, warm_s, end_s, seed,
):  # fmt: skip
    """Return calls done, seconds waited, the busiest master's seconds, and the longest silence."""
    np.random.seed(seed)
    free = np.zeros((3, servers))
    master_free, busy = np.zeros(masters), np.zeros(masters)
    speed = np.exp(spread * np.random.standard_normal(workers))
    left, leased_at, called = np.zeros(workers), np.zeros(workers), np.zeros(workers)
    heard = np.zeros(workers)
    groups = workers // sublease + 1
    pool, pool_at = np.zeros(groups), np.zeros(groups)  # calls that an aggregator holds, since when
    lives = np.zeros(workers, np.int64)
    done, waited, silent_s, warm = 0, 0.0, 0.0, False
    heap = [(0.0, BEAT, 0, 0)]
    heap.pop()  # numba had to see what it will hold
    for worker in range(workers):
        heapq.heappush(heap, (np.random.random() * 2.0, LEASE, worker, 0))
        heapq.heappush(heap, (np.random.exponential(life_s), DEATH, worker, 0))
        if worker % aggregate == 0:
            heapq.heappush(heap, (np.random.random() * beat_s, BEAT, worker, 0))
    while heap:
        now, what, worker, life = heapq.heappop(heap)
        if now >= end_s:
            break
        if not warm and now >= warm_s:
            done, waited, silent_s, warm = 0, 0.0, 0.0, True
            busy[:] = 0.0
        master = (worker // max(aggregate, sublease)) % masters
        if what == BEAT:
            answered = _at(master_free, busy, master, now, master_s[1])
            silent_s = max(silent_s, answered - heard[worker])
            heard[worker] = answered
            heapq.heappush(heap, (max(now, answered) + beat_s, BEAT, worker, 0))
        elif what == DEATH:
            _at(master_free, busy, master, now, master_s[2])
            lives[worker] += 1
            left[worker] = leased_at[worker] = called[worker] = 0.0
            waited += start_s
            again = now + start_s
            heapq.heappush(heap, (again, LEASE, worker, lives[worker]))
            heapq.heappush(heap, (again + np.random.exponential(life_s), DEATH, worker, 0))
        elif life == lives[worker]:
            ready = now
            if what == STEP:
                done += 1
                last = now
                for server in range(servers):
                    at = now + own_s * (server + 1) / servers
                    for stage in range(3):
                        at = max(at, free[stage, server]) + parts[stage]
                        free[stage, server] = at
                    last = max(last, at)
                ready = max(now + own_s, called[worker])
                waited += ready - now - own_s
                called[worker] = last
            if left[worker] < 1.0:
                if sublease == 1:
                    at = _at(master_free, busy, master, now, master_s[0]) + commit_s
                else:
                    group = worker // sublease
                    if pool[group] < lease:
                        pool_at[group] = _at(master_free, busy, master, now, master_s[0]) + commit_s
                        pool[group] += lease * sublease
                    pool[group] -= lease
                    at = max(now, pool_at[group]) + commit_s
                left[worker] += lease
                # A worker has two minibatches more in hand when it asks.
                leased_at[worker] = at if what == LEASE else at - 2 * compute_s
            if leased_at[worker] > ready:
                waited += leased_at[worker] - ready
                ready = leased_at[worker]
            left[worker] -= 1.0
            took = compute_s * speed[worker] * np.exp(spread * np.random.standard_normal())
            heapq.heappush(heap, (ready + took, STEP, worker, life))
    return done, waited, busy.max(), silent_s


# -- What is shown

HEADS = [
    *("minibatch", "workers", "servers", "M records/s", "hours for 10^10", "workers wait"),
    *("master", "servers' cores", "servers' network", "silence, s", "busiest"),
]
BIG = {"servers": 20, "server_cores": 40, "bits_s": 250e9}
ROSTER = {"whole_roster": False}
BEATS = ROSTER | {"aggregate": 100}
LEASES = BEATS | {"sublease": 100}
CALLS = LEASES | {"spans": 4}
DESIGNS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "4 masters": {"masters": 4},
    "one, that journals who comes and goes, not who is there": ROSTER,
    "and hears one heartbeat of 100 workers": BEATS,
    "and gives one lease to 100 workers": LEASES,
    "and 4 minibatches travel in a call": CALLS,
    "and 20 servers of 40 cores and 250 Gbit/s": CALLS | BIG,
    "as it is, but such servers": BIG,
}


def row(job: Job, found: Found) -> list[str]:
    return [
        f"{job.kind.minibatch:,}",
        f"{job.workers:,}",
        str(job.servers),
        f"{found.records_s / 1e6:.3g}",
        f"{RECORDS / found.records_s / 3600:.3g}",
        *(f"{share:.0%}" for share in (found.waiting, found.master, found.cores, found.net)),
        f"{found.silent_s:.1f}",
        found.first,
    ]


def grown(costs: Costs, most: int) -> tuple[str, list[Panel]]:
    lines, panels = [], []
    for kind in KINDS.values():
        drawn: dict[str, list[tuple[float, float]]] = {}
        for servers in (2, 20, 200):
            for workers in (10, 100, 1_000, 3_000, 10_000):
                if workers > most:
                    continue
                job = Job(kind, workers, servers)
                found = simulate(job, costs)
                lines.append(row(job, found))
                if servers == 200:
                    for name, share in (
                        ("workers compute", 1 - found.waiting),
                        ("master", found.master),
                        ("servers' cores", found.cores),
                        ("servers' network", found.net),
                    ):
                        drawn.setdefault(name, []).append((workers, 100 * share))
        panels.append(Panel(f"% busy, minibatch {kind.minibatch:,}", "workers, 200 servers", drawn))
    return table(HEADS, lines), panels


def designs(costs: Costs, workers: int) -> str:
    lines = []
    for kind in KINDS.values():
        job = Job(kind, workers, 200)
        for name, change in DESIGNS.items():
            changed = replace(job, **change)
            lines.append([name, *row(changed, simulate(changed, costs))])
    return table(["design", *HEADS], lines)


def checked(costs: Costs) -> str:
    """Compare with mean value analysis (benchmarks/model.py) at the same costs."""
    lines = []
    for compute_s, cores, gbit in (
        (21.2e-3, 4, 25),
        (2.1e-3, 1, 25),
        (2.1e-3, 4, 10),
        (2.1e-3, 4, 25),
    ):
        kind = replace(KINDS[2_048], compute_s=compute_s)
        job = Job(kind, 100, 20, cores, gbit * 1e9, life_s=1e9)
        calls = Work.of(20, kind.rows, 16, kind.dense_nbytes)
        there = Model(100, 20, cores, gbit * 1e9, compute_s, calls, calls)
        by_model = step(there, costs.calls).step_s
        by_events = 100 * kind.minibatch / simulate(job, replace(costs, crowd=1.0)).records_s
        lines.append(
            [
                f"{compute_s * 1e3:g}",
                *(str(cores), str(gbit), f"{by_model * 1e3:.1f}", f"{by_events * 1e3:.1f}"),
                f"{by_events / by_model:.2f}",
            ]
        )
    heads = ["compute, ms", "cores", "Gbit/s", "ms a step, by queues", "by events", "ratio"]
    return table(heads, lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.at_scale")
    parser.add_argument("--quick", action="store_true", help="at most 1,000 workers, and no page")
    quick = parser.parse_args().quick
    costs, began = Costs(), time.monotonic()
    sizes, panels = grown(costs, 1_000 if quick else 10_000)
    parts = [
        "**100 workers, 20 servers**, beside the model of this page:",
        checked(costs),
        "**As it is**, with 4 cores and 25 Gbit/s a server:",
        sizes,
        "**What the next designs buy**:",
        designs(costs, 1_000 if quick else 10_000),
    ]
    text = "\n\n".join(parts)
    print(f"{text}\n\ntook {time.monotonic() - began:.0f} s")
    if not quick:
        page.refresh("at-scale", text)
        (page.DOCS / "at-scale.svg").write_text(page.picture(panels))


if __name__ == "__main__":
    main()

"""A model of a job of many workers and servers, by costs measured on one machine. Pure.

A call costs each of its ends `Cost.of(Work)` of CPU time: so much a request, a row, a byte. A
worker's cycle (compute, pull, push) spends its time at *stations*: its own cores and network, and
those of the servers, where it queues behind the other workers. The time of a cycle is then that of
a closed queueing network, by mean value analysis (Reiser and Lavenberg 1980); a station of several
cores is one that is as much faster, and a delay for the rest (Seidmann et al. 1987). Servers have
equal shares of every call and work on it at the same time, so one of them stands for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

ID_NBYTES = 8
FRAMING = 1.05  # bytes on a network for one of payload: Ethernet, IP and TCP heads at MTU 1,500


@dataclass(frozen=True)
class Work:
    """The work of one pull or push, over all servers."""

    requests: float = 1.0
    rows: float = 0.0
    row_nbytes: float = 0.0  # of the rows' values
    dense_nbytes: float = 0.0
    cut_rows: float = 0.0  # of `rows`: cut by server, which takes several of them
    cut_nbytes: float = 0.0

    @classmethod
    def of(cls, servers: int, rows: float, dim: int, dense_nbytes: float = 0.0) -> Work:
        """Make the work of float32 rows."""
        nbytes = 4.0 * rows * dim
        several = servers > 1
        return cls(servers, rows, nbytes, dense_nbytes, rows * several, nbytes * several)


@dataclass(frozen=True)
class Cost:
    """The CPU seconds at one end, for one of each."""

    request_s: float = 0.0
    row_s: float = 0.0
    row_byte_s: float = 0.0
    dense_byte_s: float = 0.0
    cut_row_s: float = 0.0
    cut_byte_s: float = 0.0

    def of(self, work: Work) -> float:
        return sum(c * w for c, w in zip(astuple(self), astuple(work), strict=True))


@dataclass(frozen=True)
class Costs:
    """The costs at both ends of one carrier."""

    client_pull: Cost
    server_pull: Cost
    client_push: Cost
    server_push: Cost

    def client(self, pull: Work, push: Work) -> float:
        return self.client_pull.of(pull) + self.client_push.of(push)

    def server(self, pull: Work, push: Work) -> float:
        return self.server_pull.of(pull) + self.server_push.of(push)


def fit(points: Sequence[tuple[Work, float]]) -> Cost:
    """Return the costs, none below 0, that come nearest to the measured CPU seconds of calls.

    Least squares of the relative errors: a call of microseconds counts as much as one of
    milliseconds.
    """
    measured = np.array([seconds for _, seconds in points])
    shares = np.array([astuple(work) for work, _ in points]) / measured[:, np.newaxis]
    norms = np.linalg.norm(shares, axis=0)
    kept = [column for column in range(shares.shape[1]) if norms[column] > 0]
    found = np.zeros(shares.shape[1])
    while kept:
        solved, *_ = np.linalg.lstsq(shares[:, kept] / norms[kept], np.ones(len(points)))
        if (solved >= 0).all():
            found[kept] = solved / norms[kept]
            break
        del kept[int(np.argmin(solved))]
    return Cost(*found.tolist())


# -- Queues


@dataclass(frozen=True)
class Station:
    """A station where a cycle needs `demand_s`. `cores` 0: each customer has one of its own."""

    name: str
    demand_s: float
    cores: int = 1


def cycle_s(stations: Sequence[Station], customers: int) -> float:
    """Return the mean time of a cycle when so many customers go round without a pause."""
    delay_s = sum(s.demand_s * (s.cores - 1) / s.cores if s.cores else s.demand_s for s in stations)
    demands = [s.demand_s / s.cores for s in stations if s.cores]
    waiting = [0.0] * len(demands)
    total_s = delay_s
    for count in range(1, customers + 1):
        there = [demand * (1 + w) for demand, w in zip(demands, waiting, strict=True)]
        total_s = delay_s + sum(there)
        waiting = [count * seconds / total_s for seconds in there]
    return total_s


def use(station: Station, customers: int, cycle: float) -> float:
    """Return the share of the time that (one core of) the station is busy."""
    return station.demand_s / cycle * (customers / station.cores if station.cores else 1)


# -- A job


@dataclass(frozen=True)
class Job:
    """A job, whose steps are to be predicted.

    `compute_s`: of one minibatch, dedup included. `pull`, `push`: of one, over all servers.
    `ahead`: pull and push run while the worker computes.
    """

    workers: int
    servers: int
    server_cores: int
    network_bits_s: float  # of every machine, each way
    compute_s: float
    pull: Work
    push: Work
    ahead: bool = True
    round_trip_s: float = 50e-6  # a guess: one switch


@dataclass(frozen=True)
class Step:
    """The time of a step. `bottleneck`: what is busiest, and for which share of the time."""

    step_s: float
    bottleneck: str
    busy: float


def step(job: Job, costs: Costs) -> Step:
    """Predict one step of every worker, when all run."""
    compute = Station("the workers' compute", job.compute_s, 0)
    client = Station("the workers' pull and push", costs.client(job.pull, job.push), 0)
    stations = [client, *_on_the_way(job, costs)]
    if job.ahead:
        own_s = compute.demand_s + client.demand_s
        took_s = max(own_s, cycle_s(stations, job.workers))
        compute = Station(compute.name, own_s, 0)
        stations = stations[1:]
    else:
        took_s = cycle_s([compute, *stations], job.workers)
    busiest = max([compute, *stations], key=lambda s: use(s, job.workers, took_s))
    return Step(took_s, busiest.name, min(1.0, use(busiest, job.workers, took_s)))


def _on_the_way(job: Job, costs: Costs) -> list[Station]:
    bytes_s = job.network_bits_s / 8 / FRAMING
    ids_s = (job.pull.rows + job.push.rows) * ID_NBYTES / bytes_s
    up_s = ids_s + (job.push.row_nbytes + job.push.dense_nbytes) / bytes_s
    down_s = (job.pull.row_nbytes + job.pull.dense_nbytes) / bytes_s
    server_s = costs.server(job.pull, job.push) / job.servers
    return [
        Station("round trips", 2 * job.round_trip_s, 0),
        Station("the workers' network", up_s + down_s, 0),
        Station("the servers' cores", server_s, job.server_cores),
        Station("the servers' network, in", up_s / job.servers),
        Station("the servers' network, out", down_s / job.servers),
    ]

"""Tables and pictures of benchmarks/scaling.py, and a job that its costs predict."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import page
from benchmarks.model import Cost, Costs, Job, Station, Work, cycle_s, step
from benchmarks.page import Panel, short, table
from benchmarks.peers import work as deepfm
from benchmarks.scaling_points import BATCHES, DIM, SHARE_KINDS, Crowd, Took, cores


def predicted_s(crowd: Crowd, costs: Costs) -> float:
    """Predict one cycle by the model: all processes share this machine's cores."""
    work = Work.of(crowd.servers, crowd.batch, DIM)
    demand_s = costs.client(work, work) + costs.server(work, work)
    return cycle_s([Station("cores", demand_s, cores())], crowd.clients)


def size_table(sizes: Mapping[int, Mapping[str, Took]]) -> str:
    names = list(next(iter(sizes.values())))
    cells = [
        [short(rows), *(f"{t.cpu_s * 1e9:.0f} ({t.wall_s * 1e9:.0f})" for t in took.values())]
        for rows, took in sizes.items()
    ]
    return table(["rows", *names], cells)


def cost_table(costs: Mapping[str, Costs]) -> str:
    heads = ["", "us a request", "ns a row", "ns a byte of rows", "ns a dense byte"]
    heads += ["cut: ns a row", "cut: ns a byte"]
    rows = []
    for carrier, both in costs.items():
        for end in dataclasses.fields(Costs):
            cost: Cost = getattr(both, end.name)
            rows.append(
                [
                    f"{carrier}: {end.name.replace('_', ', ')}",
                    f"{cost.request_s * 1e6:.1f}",
                    f"{cost.row_s * 1e9:.1f}",
                    f"{cost.row_byte_s * 1e9:.3f}",
                    f"{cost.dense_byte_s * 1e9:.3f}",
                    f"{cost.cut_row_s * 1e9:.1f}",
                    f"{cost.cut_byte_s * 1e9:.3f}",
                ]
            )
    return table(heads, rows)


def crowd_table(crowds: Mapping[str, Sequence[Crowd]], costs: Mapping[str, Costs]) -> str:
    heads = ["clients", "servers", "rows a call"]
    for name in crowds:
        heads += [f"{name}: M rows/s", "CPU ns a row", "ms a cycle", "by the model"]
    rows = []
    for pair in zip(*crowds.values(), strict=True):
        cells = [str(pair[0].clients), str(pair[0].servers), f"{pair[0].batch:,}"]
        for name, crowd in zip(crowds, pair, strict=True):
            said_s = predicted_s(crowd, costs[name])
            cells += [
                f"{crowd.rows_s / 1e6:.2f}",
                f"{crowd.row_cpu_s * 1e9:.0f}",
                f"{crowd.took.wall_s * 1e3:.2f}",
                f"{said_s * 1e3:.2f} ({said_s / crowd.took.wall_s:.2f})",
            ]
        rows.append(cells)
    return table(heads, rows)


def share_table(shares: Mapping[tuple[str, int], Mapping[str, Took]]) -> str:
    heads = ["carrier", "clients"]
    for kind in SHARE_KINDS:
        heads += [f"a {kind}: us of wall", "client's CPU, us", "server's CPU, us"]
    rows = []
    for (name, clients), took in shares.items():
        cells = [name, str(clients)]
        for kind in SHARE_KINDS:
            one = took[kind]
            figures = (one.wall_s / clients, one.client_s, one.server_s)
            cells += [f"{seconds * 1e6:.0f}" for seconds in figures]
        rows.append(cells)
    return table(heads, rows)


def picture(sizes: Mapping[int, Mapping[str, Took]], crowds: Mapping[str, list[Crowd]]) -> str:
    names = list(next(iter(sizes.values())))
    by_rows = {n: [(r, took[n].cpu_s * 1e9) for r, took in sizes.items()] for n in names}
    of_clients, of_servers = {}, {}
    for name, found in crowds.items():
        few = [c for c in found if c.batch == BATCHES["clients"]]
        many = [c for c in found if c.batch == BATCHES["servers"]]
        of_clients[f"CPU, {name}"] = [(c.clients, c.row_cpu_s * 1e9) for c in few]
        of_servers[f"CPU, {name}"] = [(c.servers, c.row_cpu_s * 1e9) for c in many]
    for name, found in crowds.items():
        few = [c for c in found if c.batch == BATCHES["clients"]]
        many = [c for c in found if c.batch == BATCHES["servers"]]
        of_clients[f"wall, {name}"] = [(c.clients, 1e9 / c.rows_s) for c in few]
        of_servers[f"wall, {name}"] = [(c.servers, 1e9 / c.rows_s) for c in many]
    return page.picture(
        [
            Panel("CPU ns a row", "rows of the table", by_rows),
            Panel("ns a row (pull + push)", "clients of one server, 2,000 rows a call", of_clients),
            Panel(
                "ns a row (pull + push)", "servers of two clients, 20,000 rows a call", of_servers
            ),
        ]
    )


def job_section(costs: Costs) -> str:
    """Predict the DeepFM of the peers on 100 workers and 20 servers."""
    from benchmarks import breakdown

    with tempfile.TemporaryDirectory() as folder:
        first = deepfm.load(str(deepfm.make(Path(folder) / "work.npz", 1)))
    rows = len(np.unique(first.ids[0]))
    dense_nbytes = sum(values.nbytes for values in first.dense.values())
    one = breakdown.deepfm("shm", 20)
    compute_s = sum(
        part.cpu_s for name, part in one.worker.items() if not name.startswith(("pull", "push"))
    )
    work = Work.of(20, rows, deepfm.DIM, dense_nbytes)
    lines = []
    for title, seconds in (("1 core", compute_s), ("10 x as fast", compute_s / 10)):
        for server_cores in (1, 4):
            for gbit in (10, 25, 100):
                job = Job(100, 20, server_cores, gbit * 1e9, seconds, work, work)
                said = step(job, costs)
                after = step(dataclasses.replace(job, ahead=False), costs)
                lines.append(
                    [
                        f"{title}: {seconds * 1e3:.1f} ms",
                        str(server_cores),
                        str(gbit),
                        f"{said.step_s * 1e3:.1f}",
                        f"{100 * deepfm.BATCH / said.step_s / 1e6:.2f}",
                        f"{said.bottleneck} ({said.busy:.0%})",
                        f"{after.step_s * 1e3:.1f}",
                    ]
                )
    heads = [
        *("compute a step", "cores a server", "Gbit/s", "ms a step", "M samples/s", "busiest"),
        "ms a step without overlap",
    ]
    return (
        f"**100 workers and 20 servers**, the DeepFM of the peers: minibatch {deepfm.BATCH:,}, "
        f"{rows:,} distinct rows of dim {deepfm.DIM}, {dense_nbytes / 1e6:.2f} MB dense, async, "
        "TCP with TLS; by the model:\n\n" + table(heads, lines)
    )

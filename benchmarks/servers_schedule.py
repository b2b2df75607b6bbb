"""A job that begins with 1 worker and 1 server: how near the best the scheduler brings it, and how.

    python -m benchmarks.servers_schedule [--room 8] [--seconds 10]       from the repository root

Two real jobs of `edl train --queue --max_ps 4`, one after the other. The first begins with one
worker and one server, and is then the scheduler's (scheduler/local.py, objective `finish`), which
has ROOM places for workers and servers together. The second is brought to every pair that fits
there, by `edl scale`, and measured: the exhaustive search. What a pair is worth is measured alike
in both, by the samples of the job's own report.

As in benchmarks/servers_model.py, whose words on what two cores can and cannot show hold here too,
times that matter are pauses: a step's, and a service at each server's failpoint, one push at a
time. The hottest of P servers has HOT + (1 - HOT) / P of the work, which nobody tells the
scheduler. The numbers are such that the best pair lies within: neither the most workers nor the
most servers.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import measure, page
from benchmarks.servers_model import Stations, longer
from edl.common import faults, paths, report
from edl.common.settings import JobSettings
from edl.goodput import ServersParams
from edl.jobs import queue
from edl.jobs.local import LocalJob, kill
from edl.scheduler.local import LocalPlace, claim
from edl.scheduler.policy import make_policy
from edl.scheduler.service import Service

MOST_SERVERS, MINIBATCH = 4, 128
OWN_S = 0.4  # of a minibatch's compute
SERVE_S, HOT = 0.2, 0.2  # of a push to one server; the part that stays on one of many
EVERY_S = 2.0  # a round of the scheduler
QUIET_S = 90.0  # without a change: it has decided
DEADLINE_S = 240.0
Pair = tuple[int, int]  # workers and servers
# What the injected times alone would give: to see what the machine adds to them.
IDEAL = ServersParams(
    own_s=OWN_S,
    own_record_s=0.0,
    crowding=0.0,
    trip_s=0.0,
    trip_server_s=0.0,
    trip_record_s=0.0,
    serve_s=SERVE_S * HOT,
    serve_record_s=SERVE_S * (1 - HOT) / MINIBATCH,
    hot=0.0,
    hidden=0.0,
    queueing=0.5,
)


class Shares(Stations):
    """Stations of a job whose servers change: its settings say how many there are now."""

    def __init__(self, path: Path, settings: Path) -> None:
        super().__init__(path, [0.0] * MOST_SERVERS)
        self._settings = settings
        self._written = 0

    def serve(self, index: int) -> None:
        written = self._settings.stat().st_mtime_ns
        if written != self._written:
            self._written = written
            servers = JobSettings.of_job(self._settings.parent).num_ps
            rest = SERVE_S * (1 - HOT) / servers
            self.serve_s = [rest + SERVE_S * HOT, *[rest] * (MOST_SERVERS - 1)]
        super().serve(index)


@contextlib.contextmanager
def begun(name: str, train: Path, room: int) -> Iterator[LocalJob]:
    """Begin a queued job with one worker and one server."""
    settings = JobSettings(
        job_name=name,
        model_def=str(Path(__file__).with_name("phased_deepfm.py")),
        model_params={"own_s": OWN_S},
        training_data=str(train),
        num_workers=room - 1,
        num_ps=1,
        use_async=True,
        worker_threads=1,
        minibatch_size=MINIBATCH,
        num_minibatches_per_task=4,
        num_epochs=100,
        keep_last=False,
    )
    folder = paths.job_folder(name)
    with (
        tempfile.TemporaryDirectory(prefix="edl-") as text,
        Shares(Path(text) / "stations", folder / "settings.json") as serving,
    ):
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        os.environ[faults.VARIABLE] = serving.variable
        job = queue.put(settings, int(time.time()), MOST_SERVERS)
        process = queue.begin(job, 1, 1)
        try:
            yield job
        finally:
            kill(job, process)
            serving.shutdown()


def samples(job: LocalJob) -> dict[Pair, report.Sample]:
    """Return what the job's report has by workers and servers; nothing before it has one."""
    told = job.status().get("report")
    if told is None:
        return {}
    return {(each.workers, each.servers): each for each in report.read(told).samples}


def until(true: Callable[[], Any]) -> None:
    give_up = time.monotonic() + DEADLINE_S
    while not true():
        if time.monotonic() > give_up:
            raise TimeoutError(f"not in {DEADLINE_S:g} s")
        time.sleep(0.25)


def measured(job: LocalJob, pair: Pair, seconds: float) -> float:
    """Return the records a second of a pair, once it was measured for so long."""

    def there() -> bool:
        found = samples(job).get(pair)
        return found is not None and found.seconds >= seconds

    until(there)
    return samples(job)[pair].records_per_s


def searched(job: LocalJob, room: int, seconds: float) -> dict[Pair, float]:
    """Bring the job to every pair that fits, and measure it there."""
    found = {}
    for servers in range(1, MOST_SERVERS + 1):
        for workers in range(1, room - servers + 1):
            if (workers, servers) != (1, 1):
                job.scale(workers, servers)
            found[workers, servers] = measured(job, (workers, servers), seconds)
            print(f"  {workers}, {servers}: {found[workers, servers]:,.0f}", file=sys.stderr)
    return found


@dataclasses.dataclass(frozen=True)
class Change:
    """A change that the scheduler has made, so many seconds after the job was begun."""

    at_s: float
    told: str


def scheduled(job: LocalJob, room: int) -> tuple[list[Change], report.Report, Pair]:
    """Let the scheduler have the job until it leaves it alone; return what it has done."""
    began, changes = time.monotonic(), list[Change]()

    def tell(text: str) -> None:
        print(f"  {text}", file=sys.stderr)
        changes.append(Change(time.monotonic() - began, text))

    claim()
    service = Service(LocalPlace(room), make_policy("finish"), time.time, tell)
    until(lambda: samples(job))
    quiet = time.monotonic()
    while time.monotonic() - quiet < QUIET_S:
        count = len(changes)
        service.round()
        if len(changes) > count:
            quiet = time.monotonic()
        time.sleep(EVERY_S)
    status = job.status()
    is_there = [row for row in status["workers"] if row["state"] == "training"]
    last = report.read(status["report"])
    return changes, last, (len(is_there), len(status["servers"]))


def shown(found: dict[Pair, float], changes: list[Change], last: report.Report, pair: Pair) -> str:
    """Make the tables, and say what they come to."""
    best = max(found, key=lambda each: found[each])
    rows = []
    for workers in range(1, max(w for w, _ in found) + 1):
        cells = []
        for servers in range(1, MOST_SERVERS + 1):
            rate = found.get((workers, servers))
            ideal = IDEAL.throughput(workers, servers, MINIBATCH)
            mark = "**" if (workers, servers) == best else ""
            cells.append("" if rate is None else f"{mark}{rate:,.0f}{mark} ({ideal:,.0f})")
        rows.append([str(workers), *cells])
    heads = ["workers", *(f"{p} server{'s' * (p > 1)}" for p in range(1, MOST_SERVERS + 1))]
    text = "Records/s, exhaustively (in brackets: of the injected times alone):\n\n"
    text += page.table(heads, rows) + "\n\n"
    text += page.table(["seconds", "the scheduler"], [[f"{c.at_s:.0f}", c.told] for c in changes])
    share = found[pair] / found[best]
    changed = sum("->" in change.told for change in changes)
    costs = [last.resize.workers or 0.0, last.resize.servers or 0.0]
    return (
        f"{text}\n\nIt ends at {pair} with {changed} changes: {share:.1%} of the best, {best}. A "
        f"change of the workers has cost {costs[0]:.1f} s in the mean, of the servers "
        f"{costs[1]:.1f} s (its start is one of these)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.servers_schedule")
    parser.add_argument("--room", type=int, default=8, help="for workers and servers together")
    parser.add_argument("--seconds", type=float, default=10.0, help="that each pair is measured")
    parser.add_argument("--found", type=Path, help="keep the search here, or take it from there")
    given = parser.parse_args()
    before = measure.load()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDL_HOME"] = folder
        command = [sys.executable, "-m", "edl", "data", "prepare", "nycflights13-small"]
        subprocess.run([*command, "--out", folder], check=True, stdout=subprocess.DEVNULL)
        train = longer(Path(folder) / "nycflights13-small" / "train.npz")
        with begun("scheduled", train, given.room) as job:
            changes, last, pair = scheduled(job, given.room)
        if given.found and given.found.exists():
            found = {tuple(pair): rate for pair, rate in json.loads(given.found.read_text())}
        else:
            with begun("searched", train, given.room) as job:
                found = searched(job, given.room, given.seconds)
            if given.found:
                given.found.write_text(json.dumps([*found.items()]))
    print(f"{measure.machine()}\n- load before: {before}, after: {measure.load()}\n")
    print(shown(found, changes, last, pair))


if __name__ == "__main__":
    main()

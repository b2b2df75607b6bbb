"""Goodput under kills: `python -m benchmarks.soak --minutes 30`.

The counting model (chaos/counting.py), 3 servers, 1 to 4 workers, async and sync in turn. Each
round runs the same records three times, in an order that turns: without faults, with the workers
killed, and with workers, servers and master killed, each at random with its mean. A job's time is
from the first applied minibatch to the end of the last epoch. *Goodput* is the fault-free run's
time over this run's, of the same round. After each run every record and every server's counters are
checked.

The time that a run lost is told apart by its logs: *detection*, from the kill to the line that
tells of it (of the master: that the next one has begun); *start-up*, from there until the
replacement has registered, is back with its state, or serves; the rest is what was computed again,
and what waited for it. Minibatches "compute" by sleeping, as if on an accelerator.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks import measure
from benchmarks.watching import first, timed
from edl.chaos import cell, injector, schedule
from edl.common.settings import JobSettings
from edl.jobs import local as jobs
from edl.jobs.start import start

SERVERS, MINIBATCH, EPOCHS, DELAY_S = 3, 32, 4, 0.02
STEP_S = DELAY_S + 0.006  # a guess, for how many records fill a run
WORKERS = ["worker:every=10s"]
ALL = [*WORKERS, "ps:every=30s", "master:every=60s"]
KINDS = {"fault-free": [], "workers": WORKERS, "all": ALL}
_STEP = re.compile(r"INFO worker-\d+ step=")
_DEADLINE = 10.0  # times as long as the fault-free run should take


@dataclass
class Run:
    """A job: its time, whom it lost, and seconds lost by role."""

    kind: str
    mode: str
    workers: int
    time_s: float
    kills: dict[str, int] = field(default_factory=dict)
    detection_s: dict[str, list[float]] = field(default_factory=dict)
    startup_s: dict[str, list[float]] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--run_s", type=float, default=60.0, help="of a fault-free run")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    rounds: list[dict[str, Run]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDL_HOME"] = folder
        for number in range(1000):
            if time.monotonic() > until:
                break
            draw = random.Random(f"{given.seed} {number}")
            workers, mode = draw.randint(1, 4), ("async", "sync")[number % 2]
            kinds = list(KINDS)[number % 3 :] + list(KINDS)[: number % 3]
            found = {}
            for kind in kinds:
                found[kind] = run(Path(folder), kind, mode, workers, given.run_s, number)
                print(line(found[kind]), file=sys.stderr, flush=True)
            rounds.append({kind: found[kind] for kind in KINDS})
    print(f"- command: `python -m benchmarks.soak {' '.join(sys.argv[1:])}`\n{measure.machine()}")
    print("\n".join(report(rounds)))


def run(folder: Path, kind: str, mode: str, workers: int, run_s: float, seed: int) -> Run:
    """Run one job to its end; raise AssertionError where a record or an update is off."""
    records = max(MINIBATCH, int(run_s / STEP_S * workers / EPOCHS) * MINIBATCH)
    data = folder / f"records-{records}.npz"
    np.savez(data, record=np.arange(records, dtype=np.int64))
    name = f"soak-{seed}-{kind}"
    settings = JobSettings(
        job_name=name,
        model_def=cell.DEFINITION,
        model_params={"delay_s": DELAY_S},
        without_teachers="hard_labels",  # it has none
        training_data=str(data),
        minibatch_size=MINIBATCH,
        num_minibatches_per_task=16,
        num_epochs=EPOCHS,
        num_workers=workers,
        num_ps=SERVERS,
        use_async=mode == "async",
        checkpoint_dir=str(folder / f"{name}-checkpoints"),
        snapshot_s=2.0,
        lease_s=5.0,
        log_loss_steps=1,
        seed=seed,
    )
    job, process = start(settings)
    try:
        while job.address() is None and process.poll() is None:
            time.sleep(0.1)
        rules = [schedule.parse(rule) for rule in KINDS[kind]]
        lines: list[injector.Line] = []
        hitting = threading.Thread(
            target=lambda: lines.extend(
                injector.inject(
                    job, schedule.schedule(rules, seed), float("inf"), io.StringIO(), _quiet
                )
            )
        )
        if rules:
            hitting.start()
        code = process.wait(_DEADLINE * run_s)
        if rules:
            hitting.join(10.0)
    finally:
        jobs.kill(job, process)
    assert code == 0, f"{name} ended with {code}: {job.last_words()}"
    off = cell.counted(Path(settings.checkpoint_dir), records, EPOCHS, SERVERS)
    assert not any(off.values()), f"{name}: {off}"
    made = Run(kind, mode, workers, _time(job))
    _break_down(made, job, [line for line in lines if not line.missed])
    return made


def _quiet(text: str) -> None:
    """Drop the injector's lines: they are read from what it returns."""


def _time(job: jobs.LocalJob) -> float:
    steps = [
        at
        for path in job.log.parent.glob("worker-*.log")
        for at, text in timed(path)
        if _STEP.search(text)
    ]
    last = next(at for at, text in timed(job.log) if f"epoch {EPOCHS} is done" in text)
    return last - min(steps)


def _break_down(made: Run, job: jobs.LocalJob, kills: Sequence[injector.Line]) -> None:
    log = list(timed(job.log))
    for kill in kills:
        role = {"ps": "server"}.get(kill.role, kill.role)
        made.kills[role] = made.kills.get(role, 0) + 1
        name = f"{role} {kill.index}"
        ended, back = {
            "worker": (rf"{name} (was killed|ended)", rf"{name} registered"),
            "server": (rf"{name} (was killed|ended)", rf"{name} is back"),
            "master": (r"resuming", r"serving address="),
        }[role]
        noticed = first(log, ended, kill.t)
        there = first(log, back, noticed[0]) if noticed else None
        if noticed:
            made.detection_s.setdefault(role, []).append(max(0.0, noticed[0] - kill.t))
        if noticed and there:
            made.startup_s.setdefault(role, []).append(there[0] - noticed[0])


# -- the report


def line(made: Run) -> str:
    kills = ", ".join(f"{count} x {role}" for role, count in sorted(made.kills.items()))
    return f"{made.kind:<10} {made.mode:<5} {made.workers} workers {made.time_s:6.1f} s  {kills}"


def report(rounds: Sequence[dict[str, Run]]) -> list[str]:
    lines = [
        "",
        "| mode | workers | fault-free | workers killed | goodput | all killed | goodput |",
        "|---|---|---|---|---|---|---|",
    ]
    for found in rounds:
        free, some, every = (found[kind] for kind in KINDS)
        lines.append(
            f"| {free.mode} | {free.workers} | {free.time_s:.1f} s | {some.time_s:.1f} s, "
            f"{_kills([some])} | {free.time_s / some.time_s:.3f} | {every.time_s:.1f} s, "
            f"{_kills([every])} | {free.time_s / every.time_s:.3f} |"
        )
    for kind in ("workers", "all"):
        ratios = [found["fault-free"].time_s / found[kind].time_s for found in rounds]
        whole = sum(f["fault-free"].time_s for f in rounds) / sum(f[kind].time_s for f in rounds)
        lines.append(
            f"\nGoodput with {kind} killed: {whole:.3f} over all rounds; median of "
            f"{len(ratios)} rounds {statistics.median(ratios):.3f}, {min(ratios):.3f} to "
            f"{max(ratios):.3f}. Counts exact after every run."
        )
    lines += [
        "",
        "| killed | role | kills | detection | start-up | run lost, by kill |",
        "|---|---|---|---|---|---|",
    ]
    for kind in ("workers", "all"):
        runs = [found[kind] for found in rounds]
        lost_s = sum(f[kind].time_s - f["fault-free"].time_s for f in rounds)
        kills = sum(sum(r.kills.values()) for r in runs)
        for role in sorted({role for r in runs for role in r.kills}):
            lines.append(
                f"| {kind} | {role} | {sum(r.kills.get(role, 0) for r in runs)} "
                f"| {_mean(r.detection_s.get(role, []) for r in runs)} "
                f"| {_mean(r.startup_s.get(role, []) for r in runs)} | |"
            )
        lines.append(f"| {kind} | any | {kills} | | | {lost_s / max(1, kills):.2f} s |")
    return lines


def _kills(runs: Sequence[Run]) -> str:
    return f"{sum(sum(r.kills.values()) for r in runs)} kills"


def _mean(values: Iterator[list[float]]) -> str:
    every = [value for each in values for value in each]
    return f"{statistics.mean(every):.2f} s" if every else "-"


if __name__ == "__main__":
    main()

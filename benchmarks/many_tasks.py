"""A job of ten million records.

    python -m benchmarks.many_tasks [--records 10000000] [--rounds 2]

The counting model (chaos/counting.py), 2 workers, 2 servers, minibatches of 64, which compute
nothing: the harness itself is all that costs. The same records once in tasks as they are by default
and once in tasks ten times as long, in alternation; then once more with the master killed in the
midst of it. A job's time is from the first applied minibatch to the end of the epoch. After each
job every record's row and every server's counters are checked.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import measure
from benchmarks.watching import first, timed
from edl.chaos import cell
from edl.common.settings import JobSettings
from edl.jobs import local as jobs
from edl.jobs.start import start

SERVERS, WORKERS, MINIBATCH = 2, 2, 64
TASKS = {"by default": 0, "ten times as long": 80}
_STEP = r"INFO worker-\d+ step="
_LONGEST_S = 3000.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_tasks", description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    rates: dict[str, list[float]] = {kind: [] for kind in TASKS}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDL_HOME"] = folder
        data = Path(folder) / "records.npz"
        np.savez(data, record=np.arange(given.records, dtype=np.int64))
        for number in range(given.rounds):
            kinds = list(TASKS) if number % 2 == 0 else list(reversed(TASKS))
            for kind in kinds:
                time_s, _ = run(data, given.records, f"{number}-{TASKS[kind]}", TASKS[kind])
                rates[kind].append(given.records / time_s)
                print(f"{kind}: {rates[kind][-1]:,.0f} records/s", file=sys.stderr, flush=True)
        killed_s, away_s = run(data, given.records, "killed", 0, kill=True)
    ratios = [a / b for a, b in zip(*rates.values(), strict=True)]
    print(
        "- command: `python -m benchmarks.many_tasks "
        f"{' '.join(sys.argv[1:])}`\n{measure.machine()}"
    )
    print("\n| tasks | number | records/s |\n|---|---|---|")
    for kind, of_task in TASKS.items():
        tasks = given.records // (MINIBATCH * (of_task or 8))
        each = ", ".join(f"{rate:,.0f}" for rate in rates[kind])
        print(f"| {kind} | {tasks:,} | {each} |")
    print(f"\nBy default over ten times as long: {statistics.median(ratios):.3f} ({ratios}).")
    print(
        f"Master killed by SIGKILL: it answers again after {away_s:.2f} s; "
        f"{given.records / killed_s:,.0f} records/s. Counts exact after every job."
    )


def run(
    data: Path, records: int, name: str, of_task: int, kill: bool = False
) -> tuple[float, float]:
    """Run a job; return its seconds, and those for which its master was away.

    Raises AssertionError where a record or an update is off.
    """
    folder = data.parent
    settings = JobSettings(
        job_name=name,
        model_def=cell.DEFINITION,
        model_params={"delay_s": 0.0},
        without_teachers="hard_labels",  # it has none
        training_data=str(data),
        minibatch_size=MINIBATCH,
        num_minibatches_per_task=of_task,
        num_epochs=1,
        num_workers=WORKERS,
        num_ps=SERVERS,
        checkpoint_dir=str(folder / f"{name}-checkpoints"),
        log_loss_steps=100,
        worker_threads=1,
        seed=1,
    )
    job, process = start(settings)
    away_s = 0.0
    try:
        if kill:
            away_s = _kill_master(job, records)
        code = process.wait(_LONGEST_S)
    finally:
        jobs.kill(job, process)
    assert code == 0, f"{name} ended with {code}: {job.last_words()}"
    off = cell.counted(Path(settings.checkpoint_dir), records, 1, SERVERS)
    assert not any(off.values()), f"{name}: {off}"
    logs = list(timed(job.log))
    steps = [
        found[0]
        for path in job.log.parent.glob("worker-*.log")
        if (found := first(list(timed(path)), _STEP, 0.0)) is not None
    ]
    ended = first(logs, r"epoch 1 is done", 0.0)
    assert ended is not None
    return ended[0] - min(steps), away_s


def _kill_master(job: jobs.LocalJob, records: int) -> float:
    """Kill the master at a third of the records; return the seconds until another one answers."""
    while job.status().get("records_done", 0) < records / 3:
        time.sleep(0.5)
    found = job.address()
    assert found is not None
    os.kill(found[1], signal.SIGKILL)
    began = time.monotonic()
    while not job.status().get("restarts", {}).get("master"):
        time.sleep(0.01)
    return time.monotonic() - began


if __name__ == "__main__":
    main()

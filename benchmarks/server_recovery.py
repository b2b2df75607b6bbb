"""The time from `kill -9` of a server to its replacement's first push, by size of its state.

One job of 2 workers and 1 server, a table of ROWS rows of 16 floats with Adagrad, every minibatch
other rows. The server is killed when a snapshot has been written since the table was full. Times
are those of the logs, against the clock at the kill, beside the time of a plain read of the
snapshots' files (out of the page cache, as for the replacement).
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.measure import spread
from benchmarks.watching import first, follow, timed
from edl.common.settings import JobSettings
from edl.jobs import local as jobs
from edl.jobs.start import start

SIZES = (100_000, 1_000_000, 2_600_000)
ROUNDS = 3
DEADLINE_S = 180.0
_PARTS = ("noticed", "registered", "restored", "back", "pushed")


def server_recovery() -> str:
    lines = [
        "| rows | MB of snapshots | reading them (s) | "
        + " | ".join(f"{part} (s)" for part in _PARTS)
        + " | records again |",
        "|---|---|---|" + "---|" * len(_PARTS) + "---|",
    ]
    for size in SIZES:
        found = [_once(size, number) for number in range(ROUNDS)]
        megabytes, read = [f[0] for f in found], [f[1] for f in found]
        cells = [spread([f[2][part] for f in found]) for part in _PARTS]
        again = spread([float(f[3]) for f in found])
        lines.append(
            f"| {size:,} | {spread(megabytes)} | {spread(read)} | {' | '.join(cells)} | {again} |"
        )
    return "\n".join(lines)


def _once(rows: int, number: int) -> tuple[float, float, dict[str, float], int]:
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "records.npz", record=np.arange(rows, dtype=np.int64))
        settings = JobSettings(
            job_name=f"server-{rows}-{number}",
            model_def=str(Path(__file__).with_name("many_rows.py")),
            training_data=f"{folder}/records.npz",
            minibatch_size=2000,
            num_minibatches_per_task=16,
            num_epochs=1_000_000,
            num_workers=2,
            num_ps=1,
            worker_threads=1,
            use_async=True,
            snapshot_s=5.0,
            log_loss_steps=1,
        )
        job, process = start(settings)
        try:
            return _kill(job, rows)
        finally:
            jobs.kill(job, process)


def _kill(job: jobs.LocalJob, rows: int) -> tuple[float, float, dict[str, float], int]:
    snapshots = job.folder / "snapshots"

    def links() -> set[Path]:
        return set(snapshots.rglob("*.link"))

    follow(job, lambda status: status["records_done"] >= rows, DEADLINE_S)
    before = links()
    follow(job, lambda _status: len(links() - before) >= 2, DEADLINE_S)
    status = follow(job, lambda status: status["servers"][0]["pid"], DEADLINE_S)
    killed = time.time()
    os.kill(status["servers"][0]["pid"], signal.SIGKILL)
    files = list(snapshots.rglob("*.safetensors"))
    nbytes = sum(path.stat().st_size for path in files)
    log = job.log
    patterns = {
        "noticed": r"server 0 was killed",
        "registered": r"server 0 registered",
        "restored": r"server 0: restored",
        "back": r"server 0 is back; (\d+) records",
    }
    follow(job, lambda _: first(timed(log), patterns["back"], killed) is not None, DEADLINE_S)
    done = status["records_done"]
    follow(job, lambda status: status["records_done"] > done + 10_000, DEADLINE_S)
    times, again = {}, 0
    for part, pattern in patterns.items():
        found = first(timed(log), pattern, killed)
        assert found is not None, part
        times[part] = found[0] - killed
        if part == "back":
            again = int(found[1][1])
    steps = [
        first(timed(path), r" step=", killed + times["back"])
        for path in log.parent.glob("worker-*.log")
    ]
    times["pushed"] = min(step[0] for step in steps if step is not None) - killed
    began = time.perf_counter()
    for path in files:
        if path.exists():
            path.read_bytes()
    return nbytes / 1e6, time.perf_counter() - began, times, again


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["EDL_HOME"] = home
        print(server_recovery(), file=sys.stdout)

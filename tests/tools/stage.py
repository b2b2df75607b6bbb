"""The stage of tests/zoo/staged.py, the books and the command line, for tests of whole jobs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tools import jobs, servers


class Stage:
    """Gates that hold workers, and traces of what they computed."""

    def __init__(self, folder: Path, *held: int) -> None:
        self._gates, self._traces = folder / "gates", folder / "traces"
        for path in (self._gates, self._traces):
            path.mkdir(parents=True)
        for record in held:
            (self._gates / str(record)).touch()

    @property
    def envs(self) -> dict[str, str]:
        return {"GATES": str(self._gates), "TRACES": str(self._traces)}

    def reached(self, *records: int) -> bool:
        """Tell whether somebody waits, or waited, at each of these records."""
        return all((self._gates / f"{record}.reached").exists() for record in records)

    def open(self, *records: int) -> None:
        for record in records:
            (self._gates / str(record)).unlink()

    def computed(self) -> dict[int, list[dict[str, Any]]]:
        """Return minibatches by process, in order: their records, and the `total` that they saw."""
        return {
            int(path.name): [json.loads(line) for line in path.read_text().splitlines()]
            for path in self._traces.iterdir()
        }


def counts(job: jobs.Job) -> dict[int, int]:
    """Count how often each record was applied, by the counting model; `total` agrees."""
    ids, rows = servers.table(job.checkpoint(), "counts")
    counted = {int(i): float(row) for i, row in zip(ids, rows[:, 0], strict=True)}
    assert sum(counted.values()) == servers.dense(job.checkpoint(), "total"), counted
    assert all(count.is_integer() for count in counted.values()), counted
    return {record: int(count) for record, count in counted.items() if count}


def each(records: Any, times: int = 1) -> dict[int, int]:
    """Return what `counts` must be; `records` may be their number."""
    return dict.fromkeys(range(records) if isinstance(records, int) else records, times)


def edl(home: Path, *arguments: Any, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `edl ...` with its jobs under `home`; it must end with `code`."""
    ended = subprocess.run(
        [sys.executable, "-m", "edl", *map(str, arguments)],
        env={**os.environ, "EDL_HOME": str(home), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert code == ended.returncode, f"{ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended


def kill_jobs(home: Path) -> None:
    """End what still runs of the jobs under `home`, for a test that failed."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("EDL_JOB_DIR", "").startswith(f"{home}/"):
                process.kill()


def result(home: Path, name: str) -> dict[str, Any]:
    """Return the last status of a job under `home`."""
    found: dict[str, Any] = json.loads((home / "jobs" / name / "result.json").read_text())
    return found


def predictions(output: Path) -> np.ndarray:
    """Return what `edl predict` wrote, in record order."""
    parts = sorted((output / "predictions").glob("part-*.npy"))
    return np.concatenate([np.load(path) for path in parts])


def owner(status: dict[str, Any], task: int) -> dict[str, Any] | None:
    """Return the worker that holds the task."""
    return next((w for w in status["workers"] if w["task"] == task and w["pid"]), None)

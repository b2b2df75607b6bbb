"""The numbers that the master shows to Prometheus and TensorBoard, from the status alone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from prometheus_client import Gauge

from ..common import listen
from ..common.event_file import EventFile

_TENSORBOARD_S = 2.0  # between two points of a curve
_TASKS = Gauge("edl_tasks", "Tasks by state.", ["state"])
_RECORDS = Gauge("edl_records_applied", "Records applied.")
_PLANNED = Gauge("edl_records_planned", "Records of the plan; 0: a job without end.")
_RATE = Gauge("edl_records_per_second", "Records applied per second, all workers.")
_WORKERS = Gauge("edl_workers", "Workers that are registered.")
_WANTED = Gauge("edl_replicas_wanted", "Replicas that are wanted.", ["role"])
_VERSION = Gauge("edl_version", "Version of the parameters.")
_MINIBATCH = Gauge("edl_minibatch_records", "Records of a minibatch that follows the goodput.")
_GAIN = Gauge(
    "edl_minibatch_gain", "Steps of the initial minibatch that one of its steps is worth."
)
_RESTARTS = Gauge("edl_restarts", "Restarts of replicas by cause.", ["role", "cause"])
_MASTERS = Gauge("edl_master_restarts", "Masters of the job before this one.")
_QUARANTINED = Gauge("edl_quarantined_records", "Records that are skipped.")
_RECOMPUTED = Gauge("edl_records_recomputed", "Records that were computed more than once.")
_SECONDS = Gauge("edl_machine_seconds", "Time of the job's machines by what it was.", ["use"])
_ENDS = (  # role, cause, and the status' word for it
    ("worker", "failure", "worker"),
    ("worker", "preemption", "preemptions"),
    ("server", "failure", "server"),
    ("server", "preemption", "server_preemptions"),
    ("teacher", "failure", "teacher"),
    ("teacher", "preemption", "teacher_preemptions"),
)
_USES = ("useful", "idle", "start", "recompute")


class Scalars:
    """The numbers of a job. Call it with each status."""

    def __init__(self, tensorboard: Path | None) -> None:
        self._writer = EventFile(tensorboard) if tensorboard else None
        self._written = 0.0
        self._evaluations = 0

    @staticmethod
    def serve() -> str:
        """Serve /metrics; returns its address."""
        return listen.serve_metrics()[1]

    def __call__(self, status: dict[str, Any], last: bool = False) -> None:
        for state, count in status["tasks"].items():
            _TASKS.labels(state).set(count)
        workers = sum(worker["heartbeat_age_s"] is not None for worker in status["workers"])
        _RECORDS.set(status["records_done"])
        _PLANNED.set(status["records_total"] or 0)
        _RATE.set(status["records_per_s"])
        _WORKERS.set(workers)
        for role, wanted in status["wanted"].items():
            _WANTED.labels(role).set(wanted)
        _VERSION.set(status["version"])
        if status["minibatch"] is not None:
            _MINIBATCH.set(status["minibatch"])
            _GAIN.set(status["gain"])
        for role, cause, word in _ENDS:
            _RESTARTS.labels(role, cause).set(status["restarts"][word])
        _MASTERS.set(status["restarts"]["master"])
        _QUARANTINED.set(sum(len(q["records"]) for q in status["quarantined"]))
        _RECOMPUTED.set(status["records"]["recomputed"])
        machines = status["usage"]["machines"]
        for use in _USES:
            _SECONDS.labels(use).set(sum(machine[f"{use}_s"] for machine in machines))
        if self._writer is None:
            return
        for evaluation in status["evaluations"][self._evaluations :]:
            for name, value in evaluation["metrics"].items():
                if isinstance(value, int | float):
                    self._add(f"eval/{name}", value, evaluation["version"])
        self._evaluations = len(status["evaluations"])
        now = time.monotonic()
        if last or now - self._written >= _TENSORBOARD_S:
            self._written = now
            step = status["version"]
            if status["loss"] is not None:
                self._add("loss/train", status["loss"], step)
            self._add("throughput/records_per_second", status["records_per_s"], step)
            if status["minibatch"] is not None:
                self._add("batch/minibatch", status["minibatch"], step)
                self._add("batch/gain", status["gain"], step)
            self._add("cluster/workers", workers, step)
            for state in ("todo", "leased"):
                self._add(f"queue/{state}", status["tasks"][state], step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _add(self, tag: str, value: float, step: int) -> None:
        if self._writer is not None:
            self._writer.add(tag, float(value), step)

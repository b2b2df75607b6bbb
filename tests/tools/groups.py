"""All-reduce jobs on numbered records, and what they end with."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np

from tools.jobs import Job, send, write_records
from tools.servers import dense

RECORDS, MINIBATCH = 768, 16


def job_of(
    folder: Path,
    model_def: str = "curve",
    *,
    delay_s: float = 0.004,
    epochs: int = 2,
    **more: Any,
) -> Job:
    data = str(write_records(folder.parent / "records.npz", RECORDS))
    params: dict[str, float] = {"delay_s": delay_s}
    if model_def == "tally":
        params["records"] = RECORDS
    return Job(
        folder,
        **{
            "strategy": "allreduce",
            "model_def": model_def,
            "model_params": params,
            "training_data": data,
            "minibatch_size": MINIBATCH,
            "num_minibatches_per_task": 4,
            "num_epochs": epochs,
            "num_workers": 2,
            "lease_s": 3.0,
            "envs": {"MINIBATCH": str(MINIBATCH), **more.pop("envs", {})},
            **more,
        },
    )


def values(job: Job) -> np.ndarray:
    names = [f"layers.{layer}.{what}" for layer in (0, 2) for what in ("weight", "bias")]
    return np.concatenate([dense(job.checkpoint(), name) for name in names])


def counts(job: Job) -> list[float]:
    found: list[float] = np.round(dense(job.checkpoint(), "counts"), 3).tolist()
    return found


def scale(job: Job, workers: int) -> None:
    client = job.client()
    client.scale(workers)
    client.close()


def stopped_in_order(starting: Job) -> dict[str, Any]:
    """Stop a job of the counting model in its midst: what it leaves is what it has applied."""
    with starting as job:
        job.watch(lambda s: s["records_done"] >= 300)
        send(job.about()["pid"], signal.SIGTERM)
        assert job.wait() == 130, job.logs()
    stopped = job.result()
    assert stopped["resume"] == str(job.checkpoint())
    applied = dense(job.checkpoint(), "counts").sum()
    assert (stopped["records_done"], stopped["version"] * MINIBATCH) == (applied, applied)
    return stopped

"""Jobs of the pupil (tests/zoo/pupil.py), and what must be in their books."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.jobs import Job, write_records
from tools.servers import dense, table

RECORDS = 1024
MINIBATCH = 16


def taught_job(
    folder: Path, *, strategy: str = "ps", records: int = RECORDS, **settings: Any
) -> Job:
    """Make a job of tests/zoo/pupil.py."""
    told = folder / "teach"
    told.write_text("")
    envs = {"TEACH": str(told)}
    params: dict[str, Any] = {"delay_s": settings.pop("delay_s", 0.01)}
    if strategy == "allreduce":
        envs["MINIBATCH"] = str(MINIBATCH)
        params["records"] = records
    return Job(
        folder / settings.pop("name", "job"),
        **{
            "model_def": "pupil",
            "model_params": params,
            "strategy": strategy,
            "training_data": str(write_records(folder / "records.npz", records)),
            "minibatch_size": MINIBATCH,
            "num_minibatches_per_task": 4,
            "num_workers": 2,
            "num_teachers": 2,
            "use_async": strategy == "ps",
            "lease_s": 2.0,
            "envs": envs,
            **settings,
        },
    )


def books(job: Job, epochs: int = 1, records: int = RECORDS) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return counts and lessons by record, the latter as shares of what should be there."""
    if job.settings.strategy == "allreduce":
        counts, lessons = dense(job.checkpoint(), "counts"), dense(job.checkpoint(), "lessons")
    else:
        ids, counts = table(job.checkpoint(), "counts")
        assert np.array_equal(np.arange(records), ids)
        _, lessons = table(job.checkpoint(), "lessons")
    wanted = epochs * (np.arange(records) % 997 + 1)
    return counts.ravel(), lessons.ravel() / wanted


def must_be_taught(job: Job, epochs: int = 1, records: int = RECORDS) -> None:
    """Assert that each record was applied, and taught, so often."""
    counts, lessons = books(job, epochs, records)
    np.testing.assert_allclose(counts, epochs, rtol=1e-5)
    np.testing.assert_allclose(lessons, 1.0, rtol=1e-4)


def scale_teachers(job: Job, number: int) -> None:
    """Ask for so many teachers, and for as many of all else as there are."""
    client = job.client()
    client.scale(0, num_teachers=number)
    client.close()

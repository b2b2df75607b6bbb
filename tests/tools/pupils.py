"""Jobs of the pupil (tests/zoo/pupil.py), what must be in their books, and teachers of no job."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tools.jobs import WAIT_S, ZOO, Job, write_records
from tools.servers import dense, table
from tools.waiting import until

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


class Edl:
    """A command of `edl` that runs until it is told to end: `with Edl(folder, "registry"): ...`."""

    _numbers = itertools.count()

    def __init__(self, folder: Path, *arguments: str) -> None:
        """`folder`: for what it says."""
        self._out = folder / f"{arguments[0]}-{next(self._numbers)}.out"
        zoo = [f"--model_zoo={ZOO}"] if arguments[0] == "teach" else []
        with open(self._out, "wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "edl", *arguments, *zoo],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait(WAIT_S)

    def send(self, number: int) -> None:
        """Signal it, and wait for its end."""
        self._process.send_signal(number)
        self._process.wait(WAIT_S)

    def told(self, begin: str) -> str:
        """Return the rest of the line that begins so, once it has said it."""

        def found() -> list[str]:
            assert self._process.poll() is None or self._out.stat().st_size, "it has ended"
            lines = self._out.read_text().splitlines()
            return [line.removeprefix(begin) for line in lines if line.startswith(begin)]

        until(found)
        return found()[0]

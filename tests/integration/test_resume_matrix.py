"""What a job has left, gone on with in every way: exact by the counts, or refused in a sentence.

Rows: who wrote it. Columns: how it is gone on with, and what is given besides. The table of
docs/cli.md#going-on says what each must do. A commit tests some of the cells.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tools import jobs
from tools.groups import MINIBATCH, RECORDS
from tools.jobs import Job, write_records
from tools.servers import dense, table
from tools.stage import edl, kill_jobs, result
from tools.turns import some

EPOCHS = 2
STOPPED_AT = RECORDS * 5 // 4  # in the midst of the second epoch
# A definition for dense values alone, and one with a table; who may train each.
WRITERS = [("tally", "ps"), ("tally", "allreduce"), ("hybrid", "ps"), ("hybrid", "hybrid")]
OTHER = {
    ("tally", "ps"): "allreduce",
    ("tally", "allreduce"): "ps",
    ("hybrid", "ps"): "hybrid",
    ("hybrid", "hybrid"): "ps",
}


@dataclass(frozen=True)
class Way:
    """One column. `ends`: how often each record counts at the end, or what is said."""

    name: str
    given: str  # --resume or --checkpoint_dir_for_init; of a checkpoint, or of a job's folder
    ends: int | str
    flags: dict[str, Any] = field(default_factory=dict)
    data: str = "same"
    of_folder: bool = False


def resumed(name: str, ends: int | str = EPOCHS, data: str = "same", **flags: Any) -> Way:
    return Way(f"resume-{name}", "resume", ends, flags, data)


def initial(name: str, epochs: int, data: str = "same", **flags: Any) -> Way:
    return Way(f"init-{name}", "checkpoint_dir_for_init", epochs, flags, data)


def stands(name: str, ends: int | str = EPOCHS, data: str = "same", **flags: Any) -> Way:
    return Way(f"folder-{name}", "resume", ends, flags, data, of_folder=True)


WAYS = [
    resumed("as-it-was"),
    resumed("workers", num_workers=3),
    resumed("strategy", strategy="other"),
    resumed("more-epochs", 3, num_epochs=3),
    resumed("fewer-epochs", "--num_epochs", num_epochs=1),
    resumed("minibatch", "--minibatch_size is not that of", minibatch_size=8),
    resumed("order", "--seed is not that of", seed=7, shuffle="true"),
    resumed("changed", "records.npz", data="changed"),
    resumed("longer", f"had {RECORDS} records, and has {RECORDS + 1}", data="longer"),
    initial("as-it-was", 1, num_epochs=1),
    initial("strategy", 1, strategy="other", num_epochs=1),
    initial("plan", 3, num_epochs=3, num_minibatches_per_task=2, seed=7),
    initial("changed", 1, data="changed", num_epochs=1),
    stands("as-it-was"),
    stands("changed", "records.npz", data="changed"),
]
CELLS = [
    pytest.param(*writer, way, id=f"{'-'.join(writer)}-{way.name}")
    for writer in WRITERS
    for way in WAYS
]


@pytest.fixture
def home(tmp_path):
    yield tmp_path / "home"
    kill_jobs(tmp_path / "home")


def job_of(tmp_path, definition, strategy):
    return Job(
        tmp_path / "home" / "jobs" / "it",
        strategy=strategy,
        model_def=definition,
        model_params={"delay_s": 0.2, "records": RECORDS, "until": str(tmp_path / "hurry")},
        training_data=str(write_records(tmp_path / "records.npz", RECORDS)),
        minibatch_size=MINIBATCH,
        num_minibatches_per_task=4,
        num_epochs=EPOCHS,
        num_workers=2,
        num_ps=1 if strategy == "allreduce" else 2,
        lease_s=3.0,
        envs={"MINIBATCH": str(MINIBATCH)},
    )


def leave(job, killed):
    """Have a job stopped in order, or killed, in the midst of its second epoch."""
    job.identity.save(job.folder)
    with job:
        job.watch(lambda s: s["records_done"] >= STOPPED_AT)
        if not killed:
            jobs.send(job.about()["pid"], signal.SIGTERM)
            assert job.wait() == 130, job.logs()


def change(path, what):
    """Write other data of the same name: as many records, or one more."""
    records = np.arange(RECORDS + (what == "longer"), dtype=np.int64)
    np.savez(path, record=records[::-1] if what == "changed" else records)


def counted(checkpoint, definition):
    """Return how often each record was applied; the table says the same as the dense values."""
    counts = np.round(dense(checkpoint, "counts"), 3)
    if definition == "hybrid":
        ids, rows = table(checkpoint, "rows")
        there = np.zeros(RECORDS)
        there[ids] = np.round(rows.ravel(), 3)
        assert counts.tolist() == there.tolist()
    return counts


@pytest.mark.parametrize(("definition", "strategy", "way"), some(CELLS, 30))
def test_what_a_job_has_left(tmp_path, home, definition, strategy, way):
    job = job_of(tmp_path, definition, strategy)
    leave(job, killed=way.of_folder)
    (tmp_path / "hurry").touch()
    if way.data != "same":
        change(tmp_path / "records.npz", way.data)
    before = None if way.of_folder else counted(job.checkpoint(), definition)
    flags = {way.given: job.folder if way.of_folder else job.checkpoint(), **way.flags}
    if way.given == "checkpoint_dir_for_init":
        flags = {**told(job), **flags}
    if flags.get("strategy") == "other":
        flags["strategy"] = OTHER[definition, strategy]
    if not way.of_folder:
        flags |= {"job_name": "next", "checkpoint_dir": tmp_path / "next"}

    refused = isinstance(way.ends, str)
    ended = edl(home, "train", *(f"--{n}={v}" for n, v in flags.items()), code=2 if refused else 0)

    if refused:
        assert way.ends in ended.stderr, ended.stderr
        assert 1 == ended.stderr.strip().count("\n") + 1, ended.stderr
        assert not (home / "jobs" / "next" / "journal.db").exists()
        return
    folder = job.checkpoint() if way.of_folder else tmp_path / "next"
    counts = counted(jobs.storage.load(folder).directory, definition)
    begun = before if way.given == "checkpoint_dir_for_init" else np.zeros(RECORDS)
    assert (begun + way.ends).tolist() == counts.tolist()
    name = "it" if way.of_folder else "next"
    assert RECORDS * int(way.ends) == result(home, name)["records_done"]


def told(job):
    """Return the flags of a new run like a job."""
    settings = job.settings
    return {
        "model_zoo": settings.model_zoo,
        "model_def": settings.model_def,
        "model_params": ",".join(f"{n}={v}" for n, v in settings.model_params.items()),
        "training_data": settings.training_data,
        "strategy": settings.strategy,
        "minibatch_size": settings.minibatch_size,
        "num_minibatches_per_task": settings.num_minibatches_per_task,
        "num_ps": settings.num_ps,
        "num_workers": settings.num_workers,
        "lease_s": settings.lease_s,
        "envs": f"MINIBATCH={MINIBATCH}",
    }

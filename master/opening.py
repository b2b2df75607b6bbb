"""The opening of a job's books by its master: out of the journal, a checkpoint, or afresh."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..common import paths, storage
from ..common.contents import compared
from ..common.errors import CheckpointError, JobError, UsageError
from ..common.foreign import must_be, parse, read_plain
from ..common.settings import JobSettings
from ..data.schema import Schema
from ..durable.journal import Journal
from ..durable.schema import load
from ..jobs import history
from .books.plan import Piece, Plan, check_same_plan, plan_of, sources_of, split
from .books.saved import queue_of
from .books.task_queue import TaskQueue
from .core import MEMORY
from .judge import Judges, judges_of
from .memory import Memory
from .state import FORMAT, dump_queue, restore

log = logging.getLogger("edl.master")

_MOST_EPOCHS = 1_000_000  # where the plan has no end
# A journal may hold anything: what its reading may raise, beside what it says itself (ValueError).
UNREADABLE = (ValueError, KeyError, TypeError, IndexError, AttributeError)
_BOOKS = {
    "first_id": int,
    "epochs_opened": int,
    "tasks": [(int, int, int, int, [int])],
    "untouched": [(int, int)],
    "quarantined": list,
    "contents": [(str, str, str)],  # left out by earlier versions
}
_QUARANTINE = (int, str, [int], str, int, int)  # the last two, kind and epoch, may be left out


@dataclass(frozen=True)
class Books:
    """The books that a master begins with.

    `restore`: the checkpoint whose books the queue goes on with, or "". `validation`: the pieces of
    evaluations while training. `notes`: what the check of the definition says to the user.
    `schema`: the types of the data's columns, as JSON; {} where none were found.
    """

    journal: Journal
    queue: TaskQueue
    restore: str = ""
    validation: Sequence[Piece] = ()
    judges: Judges = field(default_factory=Judges)
    notes: Sequence[str] = ()
    schema: dict[str, Any] = field(default_factory=dict)

    def settings(self, given: JobSettings) -> JobSettings:
        """Return a job's settings with the columns that its start has found."""
        return dataclasses.replace(given, schema=self.schema) if self.schema else given


def resume(settings: JobSettings, job_dir: Path) -> Books | None:
    """Return what the master before has journaled; None where no job has begun, or it is over.

    Raises JobError, which says what is wrong, where this version cannot read it.
    """
    if not paths.can_go_on(job_dir):
        return None
    paths.put_aside_failure(job_dir)
    journal = Journal(job_dir / paths.JOURNAL, FORMAT)
    if journal.is_blank:  # its master was killed before it had begun
        journal.close()
        return None
    decisions = journal.length
    described, queue = _read(settings, job_dir, journal)
    log.info("resuming epoch=%d decisions=%d", journal.epoch, decisions)
    return _books(settings, described, journal, queue)


def check(job_dir: Path) -> None:
    """Raise JobError where the job that stands here cannot be gone on with.

    Its journal is read in a copy: a folder that is refused stays as it is, for the version that
    wrote it.
    """
    settings = JobSettings.of_job(job_dir)
    with tempfile.TemporaryDirectory(prefix="edl-journal-") as folder:
        for suffix in ("", "-wal"):
            there = job_dir / f"{paths.JOURNAL}{suffix}"
            if there.is_file():
                shutil.copyfile(there, Path(folder) / there.name)
        try:
            journal = Journal(Path(folder) / paths.JOURNAL, FORMAT)
            try:
                if not journal.is_blank:
                    _read(settings, job_dir, journal)
                    if (memory := journal.get(MEMORY)) is not None:
                        load(Memory, memory)
            finally:
                journal.close()
        except UNREADABLE as error:
            raise not_of_this_version(job_dir, error) from error
        except JobError as error:
            raise JobError(str(error).replace(folder, str(job_dir))) from error


def _read(
    settings: JobSettings, job_dir: Path, journal: Journal
) -> tuple[dict[str, Any], TaskQueue]:
    """Return what the check of the definition has found, and the queue that the journal says."""
    try:
        described = parse(read_plain(job_dir / "describe.json"))
        queue = TaskQueue(plan_of(settings, described), tolerance=_tolerance(settings))
        restore(queue, journal)
    except (OSError, *UNREADABLE) as error:
        raise not_of_this_version(job_dir, error) from error
    return described, queue


def not_of_this_version(job_dir: Path, error: Exception) -> JobError:
    """Return the error for the user of a journal that cannot be read, for this reason."""
    log.debug("the journal cannot be replayed", exc_info=error)
    why = error if isinstance(error, ValueError) else repr(error)
    return JobError(
        f"the job in {job_dir} cannot be gone on with: what its journal says is not what a master "
        f"of this version writes: {why}. Go on with it by the version that wrote it, or with its "
        "newest checkpoint where it has one, which is exact up to there: `edl train --resume "
        "CHECKPOINT`."
    )


def begin(settings: JobSettings, job_dir: Path, described: dict[str, Any]) -> Books:
    """Return new books, with a journal in the place of any older one."""
    queue, checkpoint = open_queue(settings, described)
    for suffix in ("", "-wal", "-shm"):  # all of an older one: its log would be replayed
        (job_dir / f"{paths.JOURNAL}{suffix}").unlink(missing_ok=True)
    for name in ("result.json", history.FILE):
        (job_dir / name).unlink(missing_ok=True)
    journal = Journal(job_dir / paths.JOURNAL, FORMAT)
    journal.compact({"queue": dump_queue(queue)})
    return _books(settings, described, journal, queue, checkpoint)


def _books(
    settings: JobSettings,
    described: dict[str, Any],
    journal: Journal,
    queue: TaskQueue,
    restore: str = "",
) -> Books:
    """Return the books with what the check of the definition has found (describe.py)."""
    judges = judges_of(settings, described.get("metrics", {}))
    if restore:  # what was counted before
        judges.remember(storage.read_manifest(restore, checksums=False).books.get("judged", {}))
    pieces = split(
        sources_of(described, "validation"),
        settings.minibatch_size * settings.minibatches_per_task,
    )
    notes, schema = described.get("notes", ()), {}
    if told := described.get("schema"):  # earlier versions have found none
        schema = Schema.from_json(told, "what the check has found of the data").to_json()
    return Books(journal, queue, restore, pieces, judges, notes, schema)


def open_queue(settings: JobSettings, described: dict[str, Any]) -> tuple[TaskQueue, str]:
    """Return the queue, and the checkpoint whose books it goes on with ("": it begins afresh).

    With --resume it goes on position by position, or UsageError says why it cannot. Of any other
    checkpoint a new run has the parameters, whatever the plan.
    """
    plan = plan_of(settings, described)
    tolerance = _tolerance(settings)
    if settings.command != "train" or not settings.resume:
        return TaskQueue(plan, tolerance=tolerance), ""
    manifest = storage.load(settings.resume)
    check_same_plan(manifest.books.get("plan", {}), plan.fingerprint())
    queue = _checked_queue(manifest, plan, tolerance)
    if not settings.allow_changed_data:
        described.setdefault("notes", []).extend(_compare(manifest, plan))
    log.info("going on with checkpoint=%s records=%d", manifest.place, queue.records_done)
    return queue, str(manifest.place)


def _compare(manifest: storage.Manifest, plan: Plan) -> list[str]:
    """Return what to tell of data that may have changed. Raises UsageError where it has."""
    return compared(
        manifest.books.get("contents", ()),
        plan.contents,
        f"{manifest.place} was written",
        "Give --resume the data as they were, start a new job from the checkpoint's parameters "
        "with --checkpoint_dir_for_init, or say --allow_changed_data if you mean it.",
    )


def _checked_queue(manifest: storage.Manifest, plan: Plan, tolerance: int) -> TaskQueue:
    """Return the queue that goes on where the checkpoint's books end. Raises CheckpointError."""
    try:
        must_be({"untouched": [], "contents": [], **manifest.books}, _BOOKS, "books")
        for number, row in enumerate(manifest.books["quarantined"]):
            short = isinstance(row, list) and len(row) == 4
            must_be(row, _QUARANTINE[:4] if short else _QUARANTINE, f"books.quarantined[{number}]")
        opened = manifest.books["epochs_opened"]
        if opened > _MOST_EPOCHS:
            raise ValueError(f"{opened} epochs are open")
        if plan.epochs is not None and opened > plan.epochs:
            raise UsageError(
                f"--num_epochs {plan.epochs}: the job that wrote {manifest.place} is in its epoch "
                f"{opened} already. Give {opened} or more, or start a new job from its parameters "
                "with --checkpoint_dir_for_init."
            )
        queue = queue_of(plan, manifest.books, tolerance=tolerance)
        for number, _, position, _, skips in manifest.books["tasks"]:
            size = queue.tasks[number].size
            if position > size or any(skip >= size for skip in skips):
                raise ValueError(f"task {number}, of {size} records, stands at {position}")
    except UNREADABLE as error:
        what = f"there is no task {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(
            f"the books in {manifest.place} are damaged: {what}. Go on with an older checkpoint, "
            f"or start a new job from its parameters: --checkpoint_dir_for_init {manifest.place}."
        ) from error
    return queue


def _tolerance(settings: JobSettings) -> int:
    return max(1, settings.task_fault_tolerance)

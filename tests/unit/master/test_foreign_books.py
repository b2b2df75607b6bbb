"""The books in a checkpoint, and a journal, may be a stranger's: they are looked at first."""

from __future__ import annotations

import dataclasses
import os

import pytest

from edl.common import storage
from edl.common.errors import CheckpointError, JobError, UsageError
from edl.common.settings import JobSettings
from edl.durable.journal import Journal
from edl.master.books.plan import plan_of
from edl.master.books.saved import books_of
from edl.master.books.task_queue import TaskQueue
from edl.master.opening import open_queue, resume

pytestmark = pytest.mark.fast

DESCRIBED = {"training": [["a", 8]], "validation": [], "prediction": []}


@pytest.fixture
def opened(tmp_path):
    """Return opened(change) -> the queue that goes on with books that `change` has changed."""

    def open_(change, described=DESCRIBED, **now):
        settings = JobSettings(
            minibatch_size=2,
            num_minibatches_per_task=2,
            num_epochs=2,
            resume=str(tmp_path),
        )
        queue = TaskQueue(plan_of(settings, DESCRIBED))
        queue.open_epoch()
        books = books_of(queue, {1: 2})
        change(books)
        folder = storage.version_directory(tmp_path, 1)
        folder.mkdir(exist_ok=True)
        storage.write_manifest(
            folder, version=1, num_shards=1, num_slots=1024, files=[], model={}, books=books
        )
        return open_queue(dataclasses.replace(settings, **now), {**described})

    return open_


def test_the_books_that_a_master_writes_are_gone_on_with(opened):
    queue, checkpoint = opened(lambda books: None)

    assert (2, 2) == (queue.tasks[1].position, queue.records_done)
    assert checkpoint


def test_a_new_run_has_the_parameters_alone_though_its_plan_is_the_checkpoints(opened, tmp_path):
    """Broken once: a warm start on the same data went on in the midst of the epoch."""
    queue, checkpoint = opened(
        lambda books: None, resume="", checkpoint_dir_for_init=str(tmp_path), num_epochs=1
    )

    assert (0, 0, "") == (queue.opened, queue.records_done, checkpoint)


def test_fewer_epochs_than_have_begun_are_refused_in_a_sentence(opened):
    def in_the_second(books):
        books.update(epochs_opened=2, tasks=[], untouched=[])

    with pytest.raises(UsageError, match="--num_epochs 1: .* is in its epoch 2 already. Give 2"):
        opened(in_the_second, num_epochs=1)
    queue, _ = opened(in_the_second, num_epochs=3)

    assert (2, 16) == (queue.opened, queue.records_done)


SAME, SAMPLED = ["a", "d1", ""], ["a", "d1", "monday"]


@pytest.mark.parametrize(
    ("then", "now"),
    [([SAME], [SAME]), ([], [SAME]), ([SAME], []), ([["a", "", ""]], [SAME]), ([SAMPLED],) * 2],
)
def test_data_that_hold_the_same_or_that_nobody_has_looked_at_are_gone_on_with(opened, then, now):
    described = {**DESCRIBED, "contents": now}
    notes: list[str] = []

    _, checkpoint = opened(lambda books: books.update(contents=then), {**described, "notes": notes})

    assert checkpoint
    assert [] == notes


def test_data_that_hold_something_else_are_refused_unless_somebody_means_it(opened):
    described = {**DESCRIBED, "contents": [["a", "d2", ""]]}

    def change(books):
        books.update(contents=[SAME])

    with pytest.raises(UsageError, match=r"a has changed since .* --allow_changed_data if you"):
        opened(change, described)
    assert opened(change, described, allow_changed_data=True)[1]


def test_data_that_were_written_anew_and_look_the_same_are_told_of(opened):
    notes: list[str] = []
    described = {**DESCRIBED, "contents": [["a", "d1", "tuesday"]], "notes": notes}

    opened(lambda books: books.update(contents=[SAMPLED]), described)

    (note,) = notes
    assert note.startswith("a: written anew since")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda b: b.update(tasks=[[1, 0, "2", 1, []]]), r"books\.tasks\[0\]\[2\] is '2'"),
        (lambda b: b.update(tasks=[[1, 0, -2, 1, []]]), r"books\.tasks\[0\]\[2\] is -2"),
        (lambda b: b.update(tasks=[[1, 0]]), r"books\.tasks\[0\] has 2 values instead of 5"),
        (lambda b: b.update(tasks=[[1, 0, 99, 1, []]]), "task 1, of 4 records, stands at 99"),
        (lambda b: b.update(tasks=[[1, 0, 2, 1, [7]]]), "task 1, of 4 records"),
        (lambda b: b.update(tasks=[[77, 0, 2, 1, []]]), "there is no task 77"),
        (lambda b: b.update(tasks=[[1, 0, 2, 1, []]] * 2), "task 1 stands there twice"),
        (lambda b: b.update(untouched=[[1]]), r"books\.untouched\[0\] has 1 values instead of 2"),
        (lambda b: b.update(untouched=[[1, 3]]), "tasks 1 to 2 are not open, or stand there twice"),
        (lambda b: b.update(untouched=[[2, 3]] * 2), "tasks 2 to 2 are not open, or stand there"),
        (lambda b: b.update(untouched=[[2, 4]]), "tasks 2 to 3 are not open, or stand there twice"),
        (lambda b: b.update(untouched=[[2, 2]]), "tasks 2 to 1 are not open, or stand there twice"),
        (lambda b: b.update(untouched=[[2, 77]]), "tasks 2 to 76 are not open"),
        (lambda b: b.update(epochs_opened=10**12), "1000000000000 epochs are open"),
        (lambda b: b.update(quarantined=[1]), r"books\.quarantined\[0\] is 1, not a list"),
        (lambda b: b.pop("tasks"), "books has no 'tasks'"),
        (lambda b: b.update(contents=[["a", 1, ""]]), r"books\.contents\[0\]\[1\] is 1"),
    ],
)
def test_books_that_no_master_writes_are_one_sentence(opened, change, why):
    with pytest.raises(CheckpointError, match=f"the books in .* are damaged: {why}"):
        opened(change)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("__init__", {}),
        ("_push", {}),
        ("nothing", {}),
        ("Lease", {"worker": "w"}),
        ("Lease", {"worker": "w", "request": "r", "planned": None, "x": 1}),
        ("Durable", {"tasks": 7}),
    ],
)
def test_a_journal_that_no_master_writes_is_one_sentence(tmp_path, kind, arguments):
    (tmp_path / "describe.json").write_text('{"training": [["a", 8]]}')
    settings = JobSettings(minibatch_size=2, num_minibatches_per_task=2)
    queue = TaskQueue(plan_of(settings, DESCRIBED))
    from edl.master.state import dump_queue

    journal = Journal(tmp_path / "journal.sqlite")
    journal.compact({"queue": dump_queue(queue)})
    journal.append(kind, arguments)
    journal.commit()
    journal.close()

    with pytest.raises(JobError, match="cannot be gone on with: what its journal says is not"):
        resume(settings, tmp_path)


def test_a_journal_that_is_a_pipe_is_no_journal(tmp_path):
    os.mkfifo(tmp_path / "journal.sqlite")

    with pytest.raises(JobError, match="is damaged: it is no plain file"):
        Journal(tmp_path / "journal.sqlite")

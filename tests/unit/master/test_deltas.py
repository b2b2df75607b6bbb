"""What a master leaves for serving: cuts, each as a delta where that can be, and bases."""

from __future__ import annotations

import shutil
import time

import pytest

from edl.common import deltas, storage
from edl.common.errors import CheckpointError
from edl.common.places import Place
from edl.common.settings import JobSettings
from edl.durable.journal import Journal
from edl.master import deltas as module
from edl.master.books.plan import plan_of
from edl.master.books.saved import books_of
from edl.master.books.task_queue import TaskQueue
from edl.master.deltas import records_at
from edl.proto import master_pb2 as pb

WAIT_S = 60.0


class Story:
    """A job whose only worker does a minibatch at a time."""

    def __init__(self, start, folder, **settings):
        self.folder = folder / "deltas"
        given = {"delta_dir": str(self.folder), "delta_s": 0.01, "keep_last": False}
        self.job = start([("a", 40)], **{**given, **settings})
        self.worker = self.job.worker()
        self.task, self.at = None, 0

    def step(self):
        """Do a minibatch of 2 records; return when the servers have told of it."""
        if self.task is None:
            self.task, self.at = self.worker.lease(), 0
        self.at += 2
        task = self.task
        task.position = self.at - 2
        self.worker.train(task, until=self.at)
        if self.at == task.end - task.start:
            self.worker.done(task)
            self.task = None
        server = self.job.runtime.wait_for("server", 0)
        about = pb.Replica(role=pb.SERVER, index=0, incarnation=server.incarnation)
        self.job.client(about).heartbeat(version=self.job.servers.pushes)

    def found(self):
        """Return what is whole, by number."""
        names = []
        for name in deltas.listed(Place(self.folder)):
            try:
                names.append((name, deltas.about(deltas.said(Place(self.folder) / str(name)))))
            except CheckpointError:
                continue
        return names

    def until(self, holds):
        deadline = time.monotonic() + WAIT_S
        while not holds(found := self.found()):
            assert time.monotonic() < deadline, found
            time.sleep(0.01)
        return found

    def cut(self):
        """Do a minibatch and wait for a cut that has it; return what that is."""
        self.step()
        records = self.job.servers.pushes // 2 * 2
        return self.until(lambda found: found and found[-1][1].records == records)[-1]


@pytest.fixture
def begin(start, tmp_path):
    return lambda **settings: Story(start, tmp_path, **settings)


def assert_chain(found):
    """Check that the first one is a base, and each further one a delta from the one before."""
    names, abouts = zip(*found, strict=True)
    assert names[0].since is None
    assert [name.number for name in names[:-1]] == [name.since for name in names[1:]]
    assert [about.cut for about in abouts[:-1]] == [about.since for about in abouts[1:]]
    assert 1 == len({about.job for about in abouts})


def test_the_first_cut_is_a_base_and_each_further_one_a_delta_from_the_last(begin, monkeypatch):
    monkeypatch.setattr(module, "_MOST_PART", 1e9)
    story = begin()
    for _ in range(3):
        story.cut()

    found = story.found()
    assert_chain(found)
    name, about = found[0]
    assert {"t": 1} == about.rows
    base = storage.read_manifest(Place(story.folder) / str(name))
    assert story.job.settings.delta_dir == base.books["settings"]["delta_dir"]


def test_nothing_is_written_before_the_first_step_or_where_nothing_is_new(begin):
    story = begin()
    time.sleep(0.1)
    assert [] == story.found()
    story.cut()
    time.sleep(0.1)
    count = len(story.found())
    time.sleep(0.1)

    assert count == len(story.found())


def test_a_base_comes_again_when_the_deltas_have_half_of_its_bytes_and_old_ones_go(
    begin, monkeypatch
):
    monkeypatch.setattr(module, "_MOST_PART", 0.03)  # deltas of 2 bytes, bases of 100
    story = begin()
    for _ in range(9):
        story.cut()

    def is_pruned(found):
        bases = [name.number for name, _ in found if name.since is None]
        return len(bases) == 2 and found[0][0].number == bases[0]

    found = story.until(is_pruned)
    bases = [name.number for name, _ in found if name.since is None]
    assert 2 <= bases[1] - bases[0]
    both = {name.number for name, _ in found if name.since is not None}
    assert bases[1] in both  # whoever follows need not read the base


def test_old_ones_of_its_own_alone_go_whatever_lies_beside(begin, monkeypatch, tmp_path):
    """Broken once: beside two bases of higher numbers, another's or junk, all of its own went."""
    monkeypatch.setattr(module, "_MOST_PART", 0.03)
    story = begin()
    story.cut()
    for number, job in ((900, "other"), (901, "other"), (902, None), (903, None)):
        place = tmp_path / "deltas" / str(deltas.Name(number))
        place.mkdir()
        if job:
            told = deltas.About(job, f"c-{number}", number).as_books()
            storage.write_manifest(
                place, version=9, num_shards=1, num_slots=1, files=[], model={}, books=told
            )

    def own(found):
        return [name for name, about in found if about.job != "other"]

    def is_pruned(found):
        bases = [name.number for name in own(found) if name.since is None]
        return len(bases) == 2 and own(found)[0].number == bases[0] > 1

    for _ in range(9):
        story.step()
        time.sleep(0.02)
    story.until(is_pruned)

    left = {path.name for path in (tmp_path / "deltas").iterdir()}
    assert {str(deltas.Name(number)) for number in range(900, 904)} <= left


def test_where_a_server_was_replaced_a_base_follows(begin, monkeypatch):
    monkeypatch.setattr(module, "_MOST_PART", 1e9)
    story = begin()
    story.cut()
    name, _ = story.cut()
    assert 1 == sum(name.since is None for name, _ in story.found())
    story.job.servers.known.clear()

    story.cut()

    assert [n for n, _ in story.found() if n.since is None and n.number > name.number]


def test_another_master_goes_on_with_a_delta(begin, monkeypatch):
    monkeypatch.setattr(module, "_MOST_PART", 1e9)
    story = begin()
    story.cut()
    story.job.restart()

    story.cut()

    assert_chain(story.found())
    assert {"cut-1", "cut-2"} <= {about.cut.rpartition("-")[0] for _, about in story.found()}


def test_in_a_folder_of_another_job_numbers_go_on_and_a_base_begins(begin, tmp_path):
    place = tmp_path / "deltas" / str(deltas.Name(7))
    place.mkdir(parents=True)
    other = deltas.About("other", "c", 7)
    storage.write_manifest(
        place, version=9, num_shards=1, num_slots=1, files=[], model={}, books=other.as_books()
    )

    story = begin()
    story.cut()

    (_, first), (name, about), *_ = story.found()
    assert "other" == first.job
    assert (8, None) == name
    assert "other" != about.job
    told = [event["text"] for event in story.job.until(lambda _: True)["events"]]
    assert [text for text in told if "the job other has left cuts there, which stay" in text]


def test_a_journal_of_before_keeps_the_name_that_its_deltas_have(begin, tmp_path):
    journal = Journal(tmp_path / "journal.sqlite")
    journal.put("deltas", {"job": "of-before"})
    journal.close()
    story = begin()

    assert "of-before" == story.cut()[1].job


def test_half_a_delta_of_a_master_that_was_killed_is_passed_over(begin, monkeypatch):
    monkeypatch.setattr(module, "_MOST_PART", 1e9)
    story = begin()
    name, _ = story.cut()
    (story.folder / str(deltas.Name(name.number + 50, name.number))).mkdir()
    story.job.restart()

    name, _ = story.cut()

    assert name.number > 50
    assert_chain(story.found())


def test_what_cannot_be_written_is_told_once_and_tried_again_from_the_last_whole_one(
    begin, monkeypatch
):
    monkeypatch.setattr(module, "_MOST_PART", 1e9)
    story = begin()
    story.cut()
    story.job.servers.full = True
    calls = len(story.job.servers.calls)
    story.step()
    deadline = time.monotonic() + WAIT_S
    while sum(c.startswith("values") for c in story.job.servers.calls[calls:]) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    story.job.servers.full = False

    story.cut()

    assert_chain(story.found())
    events = [e["text"] for e in story.job.until(lambda _: True)["events"]]
    told = [text for text in events if "no delta can be written" in text]
    assert 1 == len(told), events
    assert "No space left on device" in told[0]


def test_where_no_cut_can_have_a_higher_number_that_is_told_and_none_is_written(begin, tmp_path):
    junk = tmp_path / "deltas" / str(deltas.Name(deltas.MOST - 1))
    junk.mkdir(parents=True)
    story = begin()

    story.cut()
    story.step()

    def is_told(status):
        return any("no cut can have a higher one" in each["text"] for each in status["events"])

    assert story.job.until(is_told)
    assert [deltas.MOST] == [name.number for name, _ in story.found()]


def test_the_last_cut_has_all_records_of_the_job(begin):
    story = begin()
    story.cut()
    while story.task is not None:
        story.step()
    story.worker.work()
    story.job.end()

    assert 40 == story.found()[-1][1].records


@pytest.mark.parametrize("patience_s", [WAIT_S, 0.001])
def test_a_last_cut_that_cannot_be_written_is_tried_again_for_a_while(
    begin, monkeypatch, patience_s
):
    monkeypatch.setattr(module, "_LAST_PATIENCE_S", patience_s)
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    story = begin(delta_s=3600.0)
    story.cut()
    story.job.servers.full = True
    for _ in range(19):  # 40 records, 2 a step
        story.step()
    if patience_s == WAIT_S:
        story.job.until(lambda status: any("no delta can" in e["text"] for e in status["events"]))
        story.job.servers.full = False
    story.worker.work()
    events = [event["text"] for event in story.job.end()["events"]]

    is_written = story.found()[-1][1].records == 40
    assert is_written == (patience_s == WAIT_S)
    assert is_written != any("the job's last state is in no delta" in text for text in events)


def test_without_a_folder_no_cut_is_taken(start):
    job = start([("a", 8)], keep_last=False)
    job.worker().work()
    job.end()

    assert not {"cut", "values"} & {*job.servers.calls}


def test_records_are_counted_by_the_books_of_the_cut():
    described = {"training": [("a", 10)], "validation": [], "prediction": []}
    settings = JobSettings(
        minibatch_size=2, num_minibatches_per_task=2, num_epochs=2, shuffle=False
    )
    queue = TaskQueue(plan_of(settings, described))
    queue.open_epoch()
    first = queue.plan.first_id

    assert 0 == records_at(queue.plan, books_of(queue, {}))
    assert 6 == records_at(queue.plan, books_of(queue, {first: 4, first + 1: 2}))
    assert 10 == records_at(queue.plan, books_of(queue, {first: 4, first + 1: 4, first + 2: 2}))


def test_a_folder_that_was_wiped_gets_a_base(begin, monkeypatch):
    """The next master looks into it; this one would go on with deltas that nobody can use."""
    monkeypatch.setattr(module, "_MOST_PART", 1e9)
    story = begin()
    story.cut()
    shutil.rmtree(story.folder)
    story.job.restart()

    story.cut()

    assert_chain(story.found())

"""A journal is read by its schema: what is not of that is one sentence that names it."""

from __future__ import annotations

import json
import sqlite3

import pytest
from unit.master.test_foreign_books import DESCRIBED

from edl.common.errors import JobError
from edl.common.settings import JobSettings
from edl.durable.journal import Journal
from edl.jobs.local import LocalJob
from edl.jobs.start import go_on
from edl.master import opening
from edl.master.books import decisions
from edl.master.books.decisions import OpenEpoch
from edl.master.books.plan import plan_of
from edl.master.books.task import Failure
from edl.master.books.task_queue import TaskQueue
from edl.master.state import FORMAT, dump_queue

pytestmark = pytest.mark.fast

SETTINGS = JobSettings(minibatch_size=2, num_minibatches_per_task=2)
LOST = {"worker": "w"}


@pytest.fixture
def resumed(tmp_path):
    """Return resumed(change, *decisions) -> the queue of a journal with a state so changed."""

    def resume(change=lambda state: None, *made):
        (tmp_path / "describe.json").write_text(json.dumps(DESCRIBED))
        queue = TaskQueue(plan_of(SETTINGS, DESCRIBED))
        queue.decide(OpenEpoch())
        queue.lease("w", "r")
        state = json.loads(json.dumps(dump_queue(queue)))
        change(state)
        journal = Journal(tmp_path / "journal.sqlite", FORMAT)
        journal.compact({"queue": state})
        for name, fields in made:
            journal.append(name, fields)
        journal.commit()
        journal.close()
        return opening.resume(SETTINGS, tmp_path).queue

    return resume


def test_what_a_master_writes_is_read(resumed):
    queue = resumed(lambda state: None, ("Lost", LOST))

    assert ([1], []) == ([fence.task for fence in queue.fencing], queue.leases.held_by("w"))


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("HandedBack", LOST, "there is no decision 'HandedBack'"),
        ("lost", LOST, "there is no decision 'lost'"),
        ("Lost", {}, "Lost has no field 'worker'"),
        ("Lost", {"who": "w"}, "Lost has no field 'worker'"),
        ("Lost", {**LOST, "why": ""}, "Lost has a field 'why', which is not known"),
        ("Lost", {"worker": 7}, "Lost.worker: 7 is no str"),
        ("Durable", {"tasks": ["1"]}, "Durable.tasks: '1' is no int"),
        ("Prove", {"kind": 77}, "Prove.kind: 77 is not a valid Kind"),
        ("Add", {"kind": 1}, "Add has no field 'pieces'"),
    ],
)
def test_a_decision_that_no_master_of_this_format_writes_is_named(resumed, name, fields, why):
    with pytest.raises(JobError, match=f"cannot be gone on with: .*{why}.* Go on with it by the"):
        resumed(lambda state: None, (name, fields))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: s.pop("leased"), "QueueState has no field 'leased'"),
        (lambda s: s.update(_leases=s.pop("leased")), "QueueState has no field 'leased'"),
        (lambda s: s.update(more=1), "QueueState has a field 'more', which is not known"),
        (lambda s: s["tasks"][0].update(color=1), "QueueState.tasks: Task has a field 'color'"),
        (lambda s: s["tasks"][0].pop("id"), "QueueState.tasks: Task has no field 'id'"),
        (lambda s: s["tasks"][0].update(state="lent"), "Task.state: 'lent' is not a valid State"),
        (lambda s: s.update(todo=[[1, 2]]), "has 2 values instead of 3"),
        (lambda s: s.update(tasks={}), "QueueState.tasks: {} is no list"),
    ],
)
def test_a_state_that_no_master_of_this_format_writes_is_named(resumed, change, why):
    with pytest.raises(JobError, match=f"cannot be gone on with: .*{why}"):
        resumed(change)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update(by_chance=[]),
        lambda state: state.update(opened="one"),
        lambda state: state.clear(),
    ],
)
def test_a_job_that_this_version_cannot_read_stays_as_it_is(tmp_path, change, closed):
    """Broken once: an upgrade made the job of an earlier version one that nobody could read."""
    (tmp_path / "settings.json").write_text(SETTINGS.to_json())
    (tmp_path / "describe.json").write_text(json.dumps(DESCRIBED))
    queue = TaskQueue(plan_of(SETTINGS, DESCRIBED))
    state = json.loads(json.dumps(dump_queue(queue)))
    change(state)
    journal = Journal(tmp_path / "journal.sqlite", FORMAT)
    journal.compact({"queue": state})
    if closed:  # else its master was killed, and what it has written last is in the log
        journal.close()
    before = files_of(tmp_path)

    with pytest.raises(JobError, match=rf"the job in {tmp_path} .* `edl train --resume CHECKPOINT"):
        opening.check(tmp_path)
    assert before == files_of(tmp_path)
    with pytest.raises(JobError, match="CHECKPOINT"):
        go_on(LocalJob(tmp_path))
    assert before == {name: data for name, data in files_of(tmp_path).items() if name != "lock"}
    journal.close()


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name[-4:] != "-shm"}


def test_a_job_that_can_be_gone_on_with_is_looked_at_and_left_alone(tmp_path, resumed):
    resumed(lambda state: None, ("Lost", LOST))
    (tmp_path / "settings.json").write_text(SETTINGS.to_json())
    before = files_of(tmp_path)

    opening.check(tmp_path)

    assert before == files_of(tmp_path)


def test_a_journal_of_a_newer_format_is_refused_and_left_as_it_is(tmp_path):
    Journal(tmp_path / "j.sqlite", FORMAT + 1).close()

    with pytest.raises(JobError, match=f"is of format {FORMAT + 1}, and this version of edl knows"):
        Journal(tmp_path / "j.sqlite", FORMAT)

    found = sqlite3.connect(tmp_path / "j.sqlite").execute("SELECT epoch, format FROM meta")
    assert [(1, FORMAT + 1)] == found.fetchall()


def test_a_journal_without_a_format_is_of_format_0_until_it_is_compacted(tmp_path):
    with sqlite3.connect(tmp_path / "j.sqlite") as old:
        old.execute("CREATE TABLE meta (epoch INTEGER NOT NULL)")
        old.execute("INSERT INTO meta VALUES (6)")
    before = Journal(tmp_path / "j.sqlite", FORMAT)
    found = before.format, before.epoch
    before.close()

    again = Journal(tmp_path / "j.sqlite", FORMAT)
    again.compact({"queue": 1}, {"job": {"n": 1}})

    assert ((0, 7), (FORMAT, 8)) == (found, (again.format, again.epoch))
    assert ({"queue": 1}, {"n": 1}) == (again.replay()[0], again.get("job"))


@pytest.mark.parametrize("kind", decisions.DECISIONS.values())
def test_every_decision_is_read_as_it_was_written(kind):
    told = {"worker": "w", "request": "r", "group": "g", "task": 1, "attempt": 2, "position": 3}
    told |= {"applied": [1], "tasks": [4], "most": 5, "how": "died", "certain": True, "kind": 1}
    told |= {"start": 6, "end": 7, "pieces": [["a", 0, 1]]}
    told |= {"failure": {"start": 0, "end": 2, "error": "e"}, "lessee": "", "result": "/w=="}
    told |= {"doubtful": True, "planned": None, "epoch": 0, "cut": "", "payload": ""}
    if kind is decisions.Recovered:
        told["applied"] = [[1, 2]]
    names = kind.__dataclass_fields__
    decision = decisions.read(kind.__name__, {name: told[name] for name in names})

    name, fields = decisions.written(decision)

    assert decision == decisions.read(name, json.loads(json.dumps(fields)))
    assert {*names} == fields.keys()


def test_a_failures_fields_that_are_not_told_are_its_defaults():
    _, fields = decisions.written(decisions.Failed("w", 1, 2, Failure(0, 2, "e")))

    assert {"start": 0, "end": 2, "error": "e"} == fields["failure"]

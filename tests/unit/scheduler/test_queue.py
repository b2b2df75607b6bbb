"""A job may be queued: it waits in its folder until it is begun, or taken back."""

import json

import pytest

from edl.common import paths
from edl.common.errors import UsageError
from edl.common.settings import JobSettings
from edl.jobs import queue
from edl.jobs.local import LocalJob, all_jobs


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv(paths.HOME_VARIABLE, str(tmp_path))


@pytest.fixture
def begun(monkeypatch):
    """Begin jobs without a master, and return what each was begun with."""
    workers = []

    def go_on(job):
        workers.append(JobSettings.of_job(job.folder).num_workers)
        (job.folder / "master.json").write_text('{"address": "127.0.0.1:1", "pid": 1}')
        return job, None

    monkeypatch.setattr(queue, "go_on", go_on)
    return workers


def put(name="j", submitted=5, max_ps=0, **settings):
    wishes = queue.Wishes(max_ps=max_ps)
    return queue.put(JobSettings(job_name=name, **settings), submitted, wishes)


def test_a_queued_job_waits_with_what_it_asks():
    job = put(num_workers=4, min_workers=2)

    assert queue.ask_of(job) == queue.Ask(5, 2, 4, 1)
    assert job.status()["state"] == "queued"
    assert not paths.is_locked(job.folder)


def test_it_begins_once_with_the_workers_that_it_is_given(begun):
    job = put(num_workers=4)
    queue.begin(job, 3)

    assert begun == [3]
    with pytest.raises(UsageError, match="not in the queue"):
        queue.begin(job, 3)


def test_it_may_be_given_other_servers_where_it_says_so(begun):
    job = put(num_ps=2, max_ps=4)
    queue.begin(job, 1, 3)

    assert queue.ask_of(job) == queue.Ask(5, 1, 2, 2, queue.Wishes(max_ps=4))
    assert JobSettings.of_job(job.folder).num_ps == 3


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"num_ps": 5}, "--max_ps 4 is below --num_ps 5"),
        ({"strategy": "hybrid"}, "--max_ps is of jobs that train with --strategy ps"),
        ({"command": "evaluate"}, "--max_ps is of jobs that train"),
        ({"deterministic": True}, "not --deterministic"),
    ],
)
def test_most_servers_that_make_no_sense_are_refused(settings, why):
    with pytest.raises(UsageError, match=why):
        put(max_ps=4, **settings)


def test_wishes_are_kept_and_a_deadline_is_told_in_one_form():
    wishes = queue.Wishes.of(3, "2026-12-24T19:00:00+01:00", "anna", 0)
    job = queue.put(JobSettings(job_name="j"), 5, wishes)

    assert queue.ask_of(job).wishes == queue.Wishes(3, "2026-12-24T18:00:00Z", "anna")
    with pytest.raises(UsageError, match="--deadline soon is no time"):
        queue.Wishes.of(0, "soon", "", 0)


@pytest.mark.parametrize("end", [LocalJob.stop, LocalJob.cancel])
def test_it_is_taken_back_by_whoever_ends_it(end, begun):
    job = put()
    end(job, "by a test")

    assert job.status()["state"] == "stopped"
    with pytest.raises(UsageError, match="not in the queue"):
        queue.begin(job, 1)
    assert begun == []


def test_a_minimum_above_the_maximum_is_told():
    with pytest.raises(UsageError, match="--min_workers 3 is above --num_workers 2"):
        put(num_workers=2, min_workers=3)
    assert all_jobs() == []


@pytest.mark.parametrize("text", ["", "[]", '{"submitted": 1, "minimum": 1}', '{"maximum": "4"}'])
def test_an_ask_that_cannot_be_read_names_its_file(text):
    job = put()
    (job.folder / paths.QUEUED).write_text(text)

    with pytest.raises(UsageError, match=r"queue\.json is no ask"):
        queue.ask_of(job)


def test_jobs_that_were_not_queued_are_none_of_its(tmp_path):
    folder = tmp_path / "jobs" / "other"
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps({}))

    assert queue.ask_of(LocalJob(folder)) is None


@pytest.mark.parametrize("priority", [10**9 + 1, -(2**31), 10**30])
def test_a_priority_beyond_those_of_kubernetes_is_refused(priority):
    with pytest.raises(UsageError, match=f"--priority {priority}: give a number from -1000000000"):
        queue.Wishes.of(priority, None, "", 0)

    assert queue.Wishes.of(10**9, None, "", 0).priority == 10**9

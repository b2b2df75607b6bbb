"""The jobs of this machine are seen as their status says, and changed by what the plan says."""

import pytest
from tools.reports import make_report

from edl.common import report
from edl.common.errors import JobError, UsageError
from edl.jobs.queue import Ask
from edl.scheduler import local
from edl.scheduler.jobs import Given, Shape


class FakeJob:
    """A job that is nothing but its status."""

    def __init__(self, name, state, workers=0, told=None):
        self.name = name
        self.fails = False
        self._status = {"state": state, "workers": [{"state": "training"}] * workers}
        if told is not None:
            self._status["report"] = told
        self.asked = []

    def result(self):
        return None

    def status(self):
        return self._status

    def scale(self, workers):
        if self.fails:
            raise JobError("it is over")
        self.asked.append(workers)


class Begun:
    def poll(self):
        return None


@pytest.fixture
def jobs(monkeypatch):
    """Put jobs into the queue by adding them here; what is begun is noted at the job."""
    found = []

    def begin(job, workers):
        job.asked.append(-workers)
        return Begun()

    def ask_of(job):
        if job.name == "broken":
            raise UsageError("queue.json is no ask")
        return Ask(3, 1, 4)

    monkeypatch.setattr(local, "all_jobs", lambda: found)
    monkeypatch.setattr(local.queue, "ask_of", ask_of)
    monkeypatch.setattr(local.queue, "begin", begin)
    return found


def plan(**workers):
    return {name: Given(Shape(count, 0, 1), "so") for name, count in workers.items()}


def test_a_job_is_seen_as_its_status_says(jobs):
    told = report.write(make_report(samples=(), model=None, nearly_done=True))
    jobs += [FakeJob("waits", "queued"), FakeJob("runs", "running", 3, told)]
    jobs += [FakeJob("starts", "starting"), FakeJob("gone", "dead")]

    seen = local.LocalPlace(4).look()

    waits, runs, starts = seen.jobs
    assert [job.name for job in seen.jobs] == ["waits", "runs", "starts"]
    assert (waits.held.workers, waits.waits_since, waits.is_pinned) == (0, 3.0, False)
    assert (runs.held.workers, runs.waits_since, runs.is_pinned) == (3, None, False)
    assert (runs.minimum, runs.maximum, runs.is_nearly_done) == (1, 4, True)
    assert starts.is_pinned
    assert not any(job.may_be_suspended for job in seen.jobs)
    assert seen.nodes[0].free.cpu == 4


def test_what_is_left_counts_only_where_the_speed_is_known(jobs):
    jobs.append(FakeJob("a", "running", 1, report.write(make_report(samples=(), model=None))))
    jobs.append(FakeJob("b", "running", 1, report.write(make_report(model=None))))

    unknown, known = local.LocalPlace(4).look().jobs

    assert unknown.left is None
    assert known.left == make_report().records_left


def test_a_report_of_another_version_is_ignored_and_the_job_is_not(jobs):
    jobs.append(FakeJob("a", "running", 2, {"version": 99}))

    seen = local.LocalPlace(4).look()

    assert [job.held.workers for job in seen.jobs] == [2]
    assert "version" in seen.ignored["a"]


def test_a_job_whose_ask_cannot_be_read_stops_nobody(jobs):
    jobs += [FakeJob("broken", "queued"), FakeJob("a", "queued")]

    seen = local.LocalPlace(4).look()

    assert ["a"] == [job.name for job in seen.jobs]
    assert "is left alone: queue.json is no ask" == seen.ignored["broken"]


def test_jobs_shrink_before_others_begin_or_grow(jobs):
    shrinks, begins, stays = (
        FakeJob("z", "running", 4),
        FakeJob("a", "queued"),
        FakeJob("b", "running", 1),
    )
    jobs += [begins, stays, shrinks]
    place, told = local.LocalPlace(4), []

    place.act(plan(z=1, a=2, b=1), place.look(), told.append)

    assert (shrinks.asked, begins.asked, stays.asked) == ([1], [-2], [])
    assert [line.split(":")[0] for line in told] == ["z", "a"]


def test_a_job_keeps_what_it_was_told_also_while_its_workers_come(jobs):
    job = FakeJob("a", "running", 1)
    jobs.append(job)
    place = local.LocalPlace(4)
    place.act(plan(a=3), place.look(), lambda _: None)

    seen = place.look()

    assert [(each.held.workers, each.resizes) for each in seen.jobs] == [(3, 1)]
    place.act(plan(a=3), seen, lambda _: None)
    assert job.asked == [3]


def test_what_fails_is_told_and_tried_again(jobs):
    job = FakeJob("a", "running", 1)
    jobs.append(job)
    place, told = local.LocalPlace(4), []
    job.fails = True
    place.act(plan(a=3), place.look(), told.append)
    job.fails = False
    place.act(plan(a=3), place.look(), told.append)

    assert job.asked == [3]
    assert told == ["a: it is over", "a: 1 -> 3 workers: so"]


def test_nothing_is_done_to_jobs_that_are_pinned_or_given_nothing(jobs):
    jobs += [FakeJob("a", "starting"), FakeJob("b", "queued")]
    place = local.LocalPlace(4)

    place.act(plan(a=2, b=0), place.look(), lambda _: None)

    assert [job.asked for job in jobs] == [[], []]

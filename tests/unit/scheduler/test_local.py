"""The jobs of this machine are seen as their status says, and changed by what the plan says."""

from pathlib import Path

import pytest
from tools.reports import make_report

from edl.common import report
from edl.common.errors import JobError, UsageError
from edl.common.report import Phases, Sample
from edl.jobs.queue import Ask, Wishes
from edl.scheduler import local
from edl.scheduler.jobs import Given, Shape


class FakeJob:
    """A job that is nothing but its status."""

    def __init__(self, name, state, workers=0, told=None, servers=1):
        self.name = name
        self.folder = Path("/nowhere")
        self.fails = False
        self._status = {"state": state, "workers": [{"state": "training"}] * workers}
        self._status["servers"] = [{"state": "serving"}] * servers
        if told is not None:
            self._status["report"] = told
        self.asked = []

    def result(self):
        return None

    def status(self):
        return self._status

    def scale(self, workers, servers):
        if self.fails:
            raise JobError("it is over")
        self.asked.append((workers, servers) if servers else workers)


class Begun:
    def poll(self):
        return None


@pytest.fixture
def jobs(monkeypatch):
    """Put jobs into the queue by adding them here; what is begun is noted at the job."""
    found = []

    def begin(job, workers, servers, _now):
        job.asked.append((-workers, servers) if servers else -workers)
        return Begun()

    def ask_of(job):
        if job.name == "broken":
            raise UsageError("queue.json is no ask")
        return Ask(3, 1, 4, 2, Wishes(max_ps=4 if job.name.startswith("ps") else 0))

    monkeypatch.setattr(local, "all_jobs", lambda: found)
    monkeypatch.setattr(local.queue, "ask_of", ask_of)
    monkeypatch.setattr(local.queue, "begin", begin)
    return found


def phased(workers, servers, seconds=10.0):
    """A sample whose phases are mostly those of the servers."""
    phases = Phases(100, 0.0, 0.01, 0.02, 0.02, 1 / servers)
    return Sample(servers, workers, 1, 64, 64 * workers / 0.05, seconds, 9, phases)


def told(*samples, **values):
    return report.write(make_report(samples=samples, model=None, **values))


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


def test_a_job_may_have_other_servers_once_what_it_has_was_measured(jobs):
    """Broken once: it grows before, by what a second has told, again and again."""
    told_of_it = told(phased(1, 1), resize=report.Resize(1.0, 7.5))
    jobs += [FakeJob("ps-knows", "running", 1, told_of_it)]
    jobs += [FakeJob("ps-new", "running", 1, told(phased(1, 1, seconds=1.0)))]
    jobs += [FakeJob("ps-waits", "queued"), FakeJob("plain", "running", 1, told(phased(1, 1)))]

    knows, new, waits, plain = local.LocalPlace(4).look().jobs

    assert (knows.servers, knows.held, knows.maximum) == ((1, 2, 3, 4), Shape(1, 1, 1), 4)
    assert (knows.resize_s, knows.servers_resize_s) == (1.0, 7.5)
    assert (new.servers, new.maximum) == ((1,), 1)
    assert (waits.servers, waits.maximum) == ((2,), 4)
    assert (waits.server.cpu, plain.server.cpu) == (1.0, 0.0)
    assert (plain.servers, plain.held.servers) == ((0,), 0)
    assert not any(job.is_pinned for job in (knows, new, waits, plain))


def test_servers_are_changed_and_a_job_is_left_alone_until_they_are_there(jobs):
    job = FakeJob("ps", "running", 1, told(phased(1, 1)))
    jobs.append(job)
    place, said = local.LocalPlace(4), []

    place.act({"ps": Given(Shape(2, 2, 1), "so")}, place.look(), said.append)
    (begun,) = place.look().jobs
    job._status["servers"] = [{"state": "serving"}, {"state": "starting"}]
    (comes,) = place.look().jobs
    job._status["servers"] = [{"state": "serving"}] * 2
    (there,) = place.look().jobs

    assert job.asked == [(2, 2)]
    assert said == ["ps: 1 -> 2 workers, 1 -> 2 servers: so"]
    assert [each.is_pinned for each in (begun, comes, there)] == [True, True, False]
    assert (there.held, there.servers, there.maximum) == (Shape(2, 2, 1), (2,), 2)


def test_a_job_that_refuses_other_servers_is_not_asked_again(jobs):
    job = FakeJob("ps", "running", 1, told(phased(1, 1)))
    jobs.append(job)
    place = local.LocalPlace(4)
    job.fails = True

    place.act({"ps": Given(Shape(1, 2, 1), "so")}, place.look(), lambda _: None)

    (seen,) = place.look().jobs
    assert seen.servers == (1,)


def test_a_job_that_stays_on_its_servers_though_it_was_told_is_left_with_them(jobs):
    job = FakeJob("ps", "running", 1, told(phased(1, 1)))
    jobs.append(job)
    place = local.LocalPlace(4)
    place.act({"ps": Given(Shape(1, 2, 1), "so")}, place.look(), lambda _: None)

    looks = [place.look().jobs[0] for _ in range(local._MOST_LOOKS + 1)]

    assert [each.is_pinned for each in looks] == [True] * local._MOST_LOOKS + [False]
    assert (looks[-1].held, looks[-1].servers) == (Shape(1, 1, 1), (1,))


def test_a_model_that_no_job_can_have_is_ignored_and_the_job_is_not(jobs):
    values = told(phased(1, 1), servers_model=report.ServersModel(*[0.0] * 11))
    jobs.append(FakeJob("a", "running", 2, values))

    seen = local.LocalPlace(4).look()

    assert [job.held.workers for job in seen.jobs] == [2]
    assert "takes more than 0 s" in seen.ignored["a"]

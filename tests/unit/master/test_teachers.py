"""The master's teachers: by need within their bounds, or as many as somebody says; remembered."""

import dataclasses

import pytest
from unit.master.test_foreign_books import DESCRIBED

from edl.common.clock import FakeClock
from edl.common.settings import JobSettings
from edl.durable.journal import Journal
from edl.durable.schema import dump_all, load
from edl.master.books.plan import plan_of
from edl.master.books.task_queue import TaskQueue
from edl.master.core import Core
from edl.master.membership import TEACHER, WORKER, Member
from edl.master.reporting import Reporter
from edl.master.status import _DECISIONS_KEPT
from edl.master.teachers import Teachers, TeachersMemory

RATES = "without waiting they use {} records/s, and a teacher teaches 100"


class NoProcesses:
    """Where nothing runs; `stopped`: the teachers that were told to go."""

    def __init__(self):
        self.stopped = []

    def stop(self, role, index, grace_s):
        self.stopped.append(index)


class School:
    """A master's teachers, and what a test says that workers and teachers tell."""

    def __init__(self, folder, **settings):
        self.clock = FakeClock(1000.0)
        known = JobSettings(minibatch_size=2, num_epochs=1_000_000, **settings)
        self.journal = Journal(folder / "journal.sqlite")
        self.core = Core(
            settings=known,
            job_dir=folder,
            queue=TaskQueue(plan_of(known, DESCRIBED)),
            journal=self.journal,
            clock=self.clock,
            memory=dict,
        )
        self.core.status.state = "running"
        self.processes = NoProcesses()
        self.teachers = Teachers(self.core, self.processes)

    @property
    def wanted(self):
        return self.core.replicas.wanted_of(TEACHER)

    @property
    def decisions(self):
        return [(each["wanted"], each["why"]) for each in self.core.status.memory().decisions]

    @property
    def told(self):
        return [each["text"] for each in self.core.status.memory().events]

    def hear(self, role, index, state, **scalars):
        now = self.clock.now()
        self.core.members.register(Member(role, index, f"{role}-{index}", now))
        self.core.members.heard(f"{role}-{index}", now, state=state, scalars=scalars)

    def see(self, seconds, *, share=0.0, rate=100.0, busy=1.0, there=None):
        """Let all that are wanted tell of themselves, a second after the other."""
        for _ in range(seconds):
            self.core.replicas.starts(self.clock.now())
            for index in range(self.wanted if there is None else there):
                told = {"rows_per_s": 100 * busy, "busy_share": busy, "queued": 0.0}
                self.hear(TEACHER, index, "teaching", **told)
            for index in range(2):
                told = {"taught_per_s": rate / 2, "teacher_wait_share": share}
                self.hear(WORKER, index, "training", **told)
            for _ in range(4):  # which is oftener than it looks
                self.clock.advance(0.25)
                self.teachers.settle(self.clock.now())


@pytest.fixture
def school(tmp_path):
    """Return school(settings) -> School."""
    made = []

    def make(**settings):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(School(folder, **settings))
        return made[-1]

    yield make
    for each in made:
        each.core.loop.close()
        each.journal.close()


def test_the_need_adds_teachers_and_takes_them_away_and_says_why(school):
    here = school(num_teachers=1, max_teachers=4)

    here.see(15, share=0.5)
    assert 3 == here.wanted
    here.see(90, rate=60.0, busy=0.2)
    assert (1, [2, 1]) == (here.wanted, sorted(here.processes.stopped, reverse=True))
    assert [3, 1] == [wanted for wanted, _ in here.decisions]
    assert [
        f"teachers wanted: {wanted} (were {before}): {why}"
        for wanted, before, why in (
            (3, 1, f"the workers wait 50% of the time; {RATES.format(200)}"),
            (1, 3, f"fewer have done for 60 s; {RATES.format(60)}"),
        )
    ] == here.told


def test_a_fixed_number_is_none_of_the_need(school):
    here = school(num_teachers=1)

    here.see(60, share=0.5)

    assert (1, []) == (here.wanted, here.decisions)


def test_the_need_does_not_decide_before_the_job_runs_or_after(school):
    here = school(num_teachers=0, max_teachers=4)
    here.core.status.state = "stopping"

    here.see(60, share=1.0, rate=0.0)

    assert 0 == here.wanted


@pytest.mark.parametrize("number", [1, 2])
def test_who_says_a_number_has_it(school, number):
    here = school(num_teachers=1, max_teachers=4)

    here.teachers.scale(number)
    here.see(60, share=0.5)

    assert number == here.wanted
    assert "and the need decides no more" in here.told[-1]


@pytest.mark.parametrize("bounds", [(1, 4), (2, 0)])
def test_what_is_so_already_is_not_told_again(school, bounds):
    """A master in a cluster is told what is wanted at its start in any case."""
    least, most = bounds
    here = school(num_teachers=least, max_teachers=most)

    assert "" == here.teachers.scale(*bounds)

    assert ([], least) == (here.told, here.wanted)


def test_the_need_has_it_back_within_new_bounds(school):
    here = school(num_teachers=1, max_teachers=4)
    here.teachers.scale(4)

    assert "" == here.teachers.scale(2, 3)
    here.see(15, share=0.5)

    assert ["from 2 to 3 are allowed"] == [why for _, why in here.decisions[1:]]
    assert 3 == here.wanted


@pytest.mark.parametrize(
    ("settings", "bounds", "why"),
    [
        ({}, (2, 0), "this job has no teachers of its own"),
        (
            {"num_teachers": 1, "without_teachers": "fail"},
            (0, 3),
            "0:3 teachers: with --without_teachers fail none would be waited for",
        ),
    ],
)
def test_what_cannot_be_is_told(school, settings, bounds, why):
    here = school(**settings)

    assert why in here.teachers.scale(*bounds)
    assert settings.get("num_teachers", 0) == here.wanted


def test_a_master_that_is_started_again_knows_who_decides(school):
    before, after = school(num_teachers=1, max_teachers=4), school(num_teachers=1, max_teachers=4)
    before.see(15, share=0.5, there=1)
    before.see(20, there=1)
    before.see(1)
    before.teachers.scale(2)
    told = before.core.status.memory()

    kept = load(TeachersMemory, dump_all(before.teachers.memory()))
    after.teachers.remember(kept)
    after.core.status.remember(told, after.clock.now(), 2)
    after.see(60, share=0.5)

    assert (2, 2) == kept.bounds
    assert 20 < kept.start_s < 26  # from the decision until all taught
    assert (1, [3, 2]) == (after.wanted, [wanted for wanted, _ in after.decisions])


def test_what_a_master_without_such_a_memory_has_left_is_read(school):
    here = school(num_teachers=1, max_teachers=4)
    told = dump_all(here.core.status.memory())
    del told["decisions"]

    here.teachers.remember(load(TeachersMemory, {}))
    here.see(15, share=0.5)

    assert 3 == here.wanted
    assert [] == load(type(here.core.status.memory()), told).decisions


def test_the_last_decisions_are_kept(school):
    here = school(num_teachers=1)

    for number in range(2, 2 + 2 * _DECISIONS_KEPT):
        here.teachers.scale(number)

    assert _DECISIONS_KEPT == len(here.decisions)
    assert 1 + 2 * _DECISIONS_KEPT == here.decisions[-1][0]
    assert dataclasses.asdict(here.core.status.memory())["decisions"][-1]["before"] == (
        2 * _DECISIONS_KEPT
    )


def test_a_machine_of_teachers_alone_is_paid_for(school):
    here = school(num_teachers=1)
    now = here.clock.now()
    for role, machine in ((WORKER, ""), (TEACHER, "gpu-1")):
        here.core.members.register(Member(role, 0, role, now, host=machine))
        here.core.members.heard(role, now, state="training", scalars={})

    used = Reporter(here.core, None).usage(now + 5.0, 0)

    assert 5.0 == {each["name"]: each["useful_s"] for each in used["machines"]}["gpu-1"]


def test_the_first_teacher_that_a_worker_has_met_says_who_teaches(school):
    """Broken once: each worker knows for itself, and two are taught by two."""
    here = school(num_teachers=1)
    for address, fingerprint in (("h:1", "ab"), ("h:2", "ab"), ("h:3", "cd"), ("h:3", "cd")):
        here.teachers.meet(address, fingerprint)

    assert "ab" == here.teachers.reply().fingerprint
    (told,) = here.told
    assert told.startswith(
        "a teacher is not asked: the teacher at h:3 is another one (cd) than that at h:1 (ab)"
    )


def test_who_teaches_is_remembered(school):
    before, here = school(num_teachers=1), school(num_teachers=1)
    before.teachers.meet("h:1", "ab")
    here.teachers.remember(load(TeachersMemory, dump_all(before.teachers.memory())))
    here.teachers.meet("h:2", "cd")

    assert "ab" == here.teachers.reply().fingerprint
    assert "than that at h:1 (ab)" in here.told[0]
    here.teachers.remember(load(TeachersMemory, {}))  # of an earlier edl
    assert "" == here.teachers.reply().fingerprint


def test_a_fingerprint_of_nobody_who_is_there_is_the_jobs_own(school):
    """Of a cache, say."""
    here = school(num_teachers=1)
    here.teachers.meet("", "ab")
    here.teachers.meet("h:2", "cd")

    assert "h:2 is another one (cd) than the job's own (ab)" in here.told[0]

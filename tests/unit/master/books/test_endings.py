"""Endings of workers are counted: a storm blames no record, a record that kills is found."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.master.books.endings import beyond_chance
from edl.master.books.plan import Kind, Plan
from edl.master.books.task_queue import TaskQueue
from edl.master.state import dump_queue, load_queue

pytestmark = pytest.mark.fast

MINIBATCH, RECORDS, TOLERANCE = 2, 24, 3
AHEAD = 2  # minibatches that a worker reads before it has computed the ones before


def plan_of(kind: Kind = Kind.TRAIN) -> Plan:
    return Plan(kind, (("a", RECORDS),), MINIBATCH, 3, num_epochs=1, shuffle=False)


class Job:
    """Workers of one machine over one shard, whose processes end at the `killers`, or by chance."""

    def __init__(self, killers=(), *, certain=False, kind=Kind.TRAIN, storm=0.0, seed=0) -> None:
        self.plan = plan_of(kind)
        self.queue = TaskQueue(self.plan, tolerance=TOLERANCE)
        self.queue.open_epoch()
        self.killers, self.certain = set(killers), certain
        self.storm, self.chance = storm, random.Random(seed)
        self.applied: dict[int, int] = {}
        self.counts = [0] * RECORDS
        self.ends = self.lives = 0
        self.lessee = ""

    def end(self, worker: str, certain: bool) -> None:
        self.ends += 1
        how = "ended with exit code 0" if certain else "was killed by SIGKILL"
        self.queue.ended(worker, how, certain, self.lessee)
        self.queue.lost(self.lessee or worker)
        for fence in self.queue.fencing:
            self.queue.fenced(fence.task, fence.attempt, [self.applied.get(fence.task, 0)])
        self.again()

    def again(self) -> None:
        """Kill the master, too, now and then: the next one reads what this one wrote."""
        if self.ends % 16 != 3:
            return
        there = json.loads(json.dumps(dump_queue(self.queue)))
        self.queue = TaskQueue(self.plan, tolerance=TOLERANCE)
        load_queue(self.queue, there)

    def live(self) -> None:
        """Live one life of a worker, to its end or that of the work."""
        self.lives += 1
        worker, turn = f"w{self.lives}", 0
        while True:
            turn += 1
            task = self.queue.lease(self.lessee or worker, f"{worker}/{turn}")
            if task is None:
                return
            position, attempt, careful = task.position, task.attempt, task.careful
            skips = set(task.skips)
            while position < task.size:
                end = min(position + MINIBATCH, task.size)
                if careful:
                    self.queue.tries(worker, task.id, attempt, position, end, self.lessee)
                read = end if careful else min(end + AHEAD * MINIBATCH, task.size)
                touched = {task.start + p for p in range(position, read) if p not in skips}
                if touched & self.killers:
                    self.end(worker, self.certain)
                    return
                if self.chance.random() < self.storm:
                    self.end(worker, False)
                    return
                for p in set(range(position, end)) - skips:
                    self.counts[task.start + p] += 1
                position = end
                if task.kind == Kind.TRAIN:
                    self.applied[task.id] = end
                self.queue.progress(self.lessee or worker, task.id, attempt, position)
            assert self.queue.done(self.lessee or worker, task.id, attempt)

    def run(self, lives: int = 1000) -> None:
        while not self.queue.plan_done and self.queue.broken is None and self.lives < lives:
            self.live()

    @property
    def quarantined(self) -> set[int]:
        return {record for each in self.queue.quarantined for record in each.records}


@settings(max_examples=examples(200), deadline=None)
@given(st.floats(0.0, 0.8), st.integers(0, 2**32), st.sampled_from([Kind.TRAIN, Kind.PREDICT]))
def test_no_storm_of_kills_quarantines_a_record(storm, seed, kind):
    if kind == Kind.PREDICT:
        storm /= 4  # each task is done whole or not at all
    job = Job(kind=kind, storm=storm, seed=seed)

    job.run()

    assert (None, set()) == (job.queue.broken, job.quarantined)
    assert job.queue.plan_done
    if kind == Kind.TRAIN:
        assert [1] * RECORDS == job.counts


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sets(st.integers(MINIBATCH, RECORDS - 1), min_size=1, max_size=2),
    st.booleans(),
    st.floats(0.0, 0.2),
    st.integers(0, 2**32),
    st.sampled_from([Kind.TRAIN, Kind.PREDICT]),
    st.booleans(),
)
def test_a_record_that_ends_its_worker_is_found_in_any_storm_and_only_its_minibatch_is_skipped(
    killers, certain, storm, seed, kind, round_
):
    """Broken once: endings count at the first position that is not applied, careful or not."""
    if kind == Kind.PREDICT:
        storm /= 4
    job = Job(killers, certain=certain, kind=kind, storm=storm, seed=seed)
    job.lessee = "round-1" if round_ else ""

    job.run()

    spans = {r - r % MINIBATCH for r in killers}
    expected = {r for start in spans for r in range(start, start + MINIBATCH)}
    assert (None, expected) == (job.queue.broken, job.quarantined)
    assert job.queue.plan_done
    if kind == Kind.TRAIN:
        assert [int(r not in expected) for r in range(RECORDS)] == job.counts


def test_a_process_that_ends_itself_is_believed_after_as_many_tries_as_a_broken_record():
    job = Job({15}, certain=True)

    job.run()

    assert 1 + TOLERANCE == job.ends  # the first one had read ahead, and nobody knows where it was
    (found,) = job.queue.quarantined
    assert (3, "a", (14, 15)) == (found.task, found.source, found.records)
    assert (
        "position 2 of task 3 has ended its worker 3 times; the last time it ended with exit code 0"
        == found.error
    )


@pytest.mark.parametrize(("certain", "most"), [(True, 12), (False, 40)])
def test_where_nothing_ever_went_well_the_definition_is_broken_and_no_record(certain, most):
    job = Job(range(RECORDS), certain=certain)

    job.run()

    assert "has ended its worker" in job.queue.broken
    assert job.ends <= most


def test_twelve_preemptions_at_one_minibatch_while_all_else_goes_well_are_no_failure():
    queue = TaskQueue(Plan(Kind.TRAIN, (("a", 400),), 2, 2, num_epochs=1, shuffle=False))
    queue.open_epoch()
    for number in range(80):
        task = queue.lease("other", f"r{number}")
        queue.done("other", task.id, task.attempt)
    for number in range(12):
        task = queue.lease(f"w{number}", "r")
        queue.tries(f"w{number}", task.id, task.attempt, 0, 2)
        queue.ended(f"w{number}", "was killed by SIGKILL", False)
        (fence,) = queue.lost(f"w{number}")
        queue.fenced(fence.task, fence.attempt, [0])

    assert [] == queue.quarantined


def test_progress_forgets_the_endings_before_it():
    queue = TaskQueue(plan_of())
    queue.open_epoch()
    careful = []
    for number, applied in enumerate((0, 0, 2, 4, 4)):
        queue.lease(f"w{number}", "r")
        queue.ended(f"w{number}", "was killed by SIGKILL", False)
        (fence,) = queue.lost(f"w{number}")
        queue.fenced(fence.task, fence.attempt, [applied])
        careful.append(queue.tasks[fence.task].careful)

    assert [False, True, False, False, True] == careful


def test_an_end_of_a_task_that_ends_its_worker_breaks_the_job_and_blames_no_record():
    job = Job()
    for number in range(4):
        task = job.queue.lease(f"w{number}", "r")
        if task.careful:
            job.queue.tries(f"w{number}", task.id, task.attempt, task.size, task.size)
        job.end(f"w{number}", True)

    assert set() == job.quarantined
    assert "the end of task 1 has ended its worker 3 times" in job.queue.broken


@pytest.mark.parametrize(
    ("others", "survived", "needed"), [(0, 0, 30), (0, 1000, 19), (100, 60, 44), (1000, 10, 1897)]
)
def test_the_more_often_a_storm_strikes_elsewhere_the_more_endings_are_needed(
    others, survived, needed
):
    enough = [n for n in range(1, 3000) if beyond_chance(n, others, survived)]

    assert needed == enough[0]

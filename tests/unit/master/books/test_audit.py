"""The audit of the books: where each record is, and what was computed more than once."""

import pytest

from edl.master.books import audit
from edl.master.books.plan import Kind, Plan
from edl.master.books.task import Failure
from edl.master.books.task_queue import TaskQueue

pytestmark = pytest.mark.fast


def queue_of(records=16, epochs=1, **more):
    """Return a queue of tasks of four records, two to a minibatch."""
    plan = Plan(Kind.TRAIN, (("a", records),), 2, 2, num_epochs=epochs, shuffle=False, **more)
    queue = TaskQueue(plan, tolerance=1)
    queue.open_epoch()
    return queue


def counts(queue):
    found = audit.records(queue, queue.standing.recomputed)
    return {name: value for name, value in found.items() if value}


def runs(queue):
    return " ".join(f"{state}*{count}" for state, count in audit.tasks(queue)["runs"])


def test_each_record_is_in_one_state_from_the_first_lease_to_the_end():
    queue = queue_of(epochs=2)
    assert {"todo": 32, "total": 32} == counts(queue)

    first, second = queue.lease_some("w0", "r0", 2)
    queue.progress("w0", first.id, first.attempt, 2)

    assert {"applied": 2, "leased": 6, "todo": 24, "total": 32} == counts(queue)
    assert "leased*2 todo*2" == runs(queue)

    queue.done("w0", first.id, first.attempt)
    queue.durable([first.id])
    queue.lost("w0")

    assert {"applied": 4, "todo": 28, "total": 32} == counts(queue)
    assert "done*1 todo*3" == runs(queue)
    assert second.id in queue.tasks


def test_an_endless_plan_has_no_total():
    queue = queue_of(epochs=0)

    assert audit.records(queue, 0)["total"] is None


@pytest.mark.parametrize(
    ("heard", "applied", "again"),
    [(2, [2], 0), (2, [2, 0], 2), (0, [2, 2], 0), (2, [2, 4], 2), (0, [0, 0], 0)],
)
def test_what_some_shard_has_and_is_leased_again_is_computed_twice(heard, applied, again):
    queue = queue_of()
    task = queue.lease("w0", "r0")
    queue.progress("w0", task.id, task.attempt, heard)

    queue.lost("w0")
    queue.fenced(task.id, 2, applied)

    assert again == queue.standing.recomputed


def test_a_second_loss_counts_only_what_the_second_worker_had_computed():
    queue = queue_of()
    task = queue.lease("w0", "r0")
    queue.lost("w0")
    queue.fenced(task.id, 2, [4, 0])  # one shard has it whole
    queue.lease("w1", "r0")
    queue.progress("w1", task.id, 2, 2)
    queue.lost("w1")

    queue.fenced(task.id, 3, [4, 2])

    assert 4 == queue.standing.recomputed
    queue.lease("w2", "r0")
    queue.done("w2", task.id, 3)
    assert "recomputed*1 todo*3" == runs(queue)


@pytest.mark.parametrize("others", [[], [4]])
def test_what_a_restored_server_lacks_is_computed_twice(others):
    queue = queue_of()
    first, second = queue.lease_some("w0", "r0", 2)
    queue.progress("w0", second.id, 1, 2)
    queue.done("w0", first.id, 1)

    queue.recovered({first.id: 2, second.id: 0})  # of the first two, of the second two
    queue.fenced(first.id, 2, [*others, 2])

    assert 4 == queue.standing.recomputed
    assert 16 == sum(counts(queue)[name] for name in ("applied", "leased", "todo"))


def test_a_record_that_is_skipped_is_quarantined_and_not_applied():
    queue = queue_of()
    queue.proven.add(Kind.TRAIN)
    task = queue.lease("w0", "r0")

    queue.failed("w0", task.id, 1, Failure(0, 2, "bad", record=1))
    queue.fenced(task.id, 2, [0])

    assert {"todo": 15, "quarantined": 1, "total": 16} == counts(queue)
    for each in queue.lease_some("w0", "all", 10):
        queue.done("w0", each.id, each.attempt)
    assert {"applied": 15, "quarantined": 1, "total": 16} == counts(queue)
    assert "quarantined*1 done*3" == runs(queue)

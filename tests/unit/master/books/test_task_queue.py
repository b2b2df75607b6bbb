"""The queue's rules, one by one, and as transcripts."""

from __future__ import annotations

import textwrap

import pytest

from edl.master.books.plan import Kind, Plan
from edl.master.books.saved import books_of
from edl.master.books.saved import queue_of as queue_from
from edl.master.books.task import Failure, Fence, IllegalTransition
from edl.master.books.task_queue import TaskQueue
from edl.master.reporting import nearly_done

pytestmark = pytest.mark.fast


def queue_of(records: int = 8, *, epochs: int = 1, tolerance: int = 2, **more) -> TaskQueue:
    plan = Plan(Kind.TRAIN, (("a", records),), 2, 2, num_epochs=epochs, **more)
    queue = TaskQueue(plan, tolerance=tolerance)
    queue.open_epoch()
    return queue


def fail(queue: TaskQueue, worker: str, task: int, attempt: int, **failure) -> bool:
    told = {"start": 0, "end": 2, "error": "ValueError: bad", **failure}
    return queue.failed(worker, task, attempt, Failure(**told))


# -- transcripts: one command a line, what it does behind the arrow


def play(queue: TaskQueue, script: str) -> str:
    lines = []
    for line in textwrap.dedent(script).strip().splitlines():
        command = line.split("->")[0].strip()
        verb, *words = command.split()
        lines.append(f"{command} -> {perform(queue, verb, words)}")
    return "\n".join(lines)


def perform(queue: TaskQueue, verb: str, words: list[str]) -> str:
    match verb:
        case "lease":
            task = queue.lease(words[0], words[1])
            if task is None:
                return "nothing"
            more = f" stop at {list(task.boundaries)}" if task.boundaries else ""
            skips = f" skip {sorted(task.skips)}" if task.skips else ""
            return f"task {task.id}.{task.attempt} from {task.position}{more}{skips}"
        case "lost":
            return (
                " ".join(f"fence {f.task}.{f.attempt}" for f in queue.lost(words[0])) or "nothing"
            )
        case "fenced":
            task, attempt = map(int, words[0].split("."))
            queue.fenced(task, attempt, [int(word) for word in words[1:]])
            left = queue.tasks.get(task)
            return left.state.value if left else "retired"
        case "done" | "hand_back":
            task, attempt = map(int, words[1].split("."))
            return "yes" if getattr(queue, verb)(words[0], task, attempt) else "no"
        case "failed":
            task, attempt = map(int, words[1].split("."))
            return "yes" if fail(queue, words[0], task, attempt, record=int(words[2])) else "no"
        case "retire":
            queue.durable(queue.done_tasks)
            return f"low water {queue.low_water}"
        case "open":
            return f"epoch {queue.open_epoch()}"
    raise AssertionError(verb)


def check(queue: TaskQueue, script: str) -> None:
    assert textwrap.dedent(script).strip() == play(queue, script)


def test_a_task_of_a_lost_worker_is_leased_again_where_the_shards_stand():
    check(
        queue_of(),
        """
        lease w0 r1 -> task 1.1 from 0
        lease w1 r1 -> task 2.1 from 0
        lost w0 -> fence 1.2
        lease w1 r2 -> nothing
        fenced 1.2 2 0 4 -> todo
        lease w1 r3 -> task 1.2 from 0 stop at [2, 4]
        done w0 1.1 -> no
        done w1 1.2 -> yes
        done w1 1.2 -> yes
        lease w1 r4 -> nothing
        """,
    )


def test_a_task_that_every_shard_had_applied_is_done_by_its_fence():
    queue = queue_of(4)
    check(
        queue,
        """
        lease w0 r1 -> task 1.1 from 0
        lost w0 -> fence 1.2
        fenced 1.2 4 4 -> done
        fenced 1.2 4 4 -> done
        retire -> low water 2
        """,
    )
    assert (True, 4) == (queue.plan_done, queue.records_done)


def test_a_lost_reply_leases_nothing_twice():
    check(
        queue_of(),
        """
        lease w0 r1 -> task 1.1 from 0
        lease w0 r1 -> task 1.1 from 0
        lease w1 r1 -> task 2.1 from 0
        """,
    )


def test_reports_of_older_attempts_change_nothing_whenever_they_come():
    check(
        queue_of(4),
        """
        lease w0 r1 -> task 1.1 from 0
        hand_back w0 1.1 -> yes
        hand_back w0 1.1 -> yes
        done w0 1.1 -> yes
        fenced 1.2 2 2 -> todo
        lease w0 r2 -> task 1.2 from 2
        fenced 1.2 0 0 -> leased
        hand_back w0 1.1 -> yes
        done w1 1.2 -> no
        done w0 1.2 -> yes
        failed w0 1.2 0 -> yes
        """,
    )


def test_a_late_answer_to_an_older_fence_does_not_end_the_newer_one():
    check(
        queue_of(4),
        """
        lease w0 r1 -> task 1.1 from 0
        lost w0 -> fence 1.2
        fenced 1.2 0 0 -> todo
        lease w1 r1 -> task 1.2 from 0
        lost w1 -> fence 1.3
        fenced 1.2 0 0 -> fencing
        fenced 1.3 2 2 -> todo
        """,
    )


def test_a_task_that_came_back_goes_first():
    check(
        queue_of(12),
        """
        lease w0 r1 -> task 1.1 from 0
        lease w0 r2 -> task 2.1 from 0
        hand_back w0 2.1 -> yes
        fenced 2.2 0 0 -> todo
        lease w0 r3 -> task 2.2 from 0
        lease w0 r4 -> task 3.1 from 0
        """,
    )


def test_a_broken_record_is_skipped_after_its_tries():
    queue = queue_of(4)
    check(
        queue,
        """
        lease w0 r1 -> task 1.1 from 0
        failed w0 1.1 1 -> yes
        failed w0 1.1 1 -> yes
        fenced 1.2 0 0 -> todo
        lease w1 r1 -> task 1.2 from 0
        failed w1 1.2 1 -> yes
        fenced 1.3 0 0 -> todo
        lease w1 r2 -> task 1.3 from 0 skip [1]
        """,
    )
    assert [(1, "a", (1,), "ValueError: bad")] == [
        (q.task, q.source, q.records, q.error) for q in queue.quarantined
    ]


def test_low_water_stands_at_the_first_task_that_is_not_retired():
    check(
        queue_of(12),
        """
        lease w0 r1 -> task 1.1 from 0
        lease w0 r2 -> task 2.1 from 0
        done w0 2.1 -> yes
        retire -> low water 1
        done w0 1.1 -> yes
        retire -> low water 3
        """,
    )


def test_the_next_epoch_begins_when_this_one_is_done():
    check(
        queue_of(4, epochs=2),
        """
        lease w0 r1 -> task 1.1 from 0
        lease w1 r1 -> nothing
        done w0 1.1 -> yes
        open -> epoch 1
        lease w1 r2 -> task 2.1 from 0
        """,
    )


# -- rules


def test_an_epoch_opened_too_early_raises():
    with pytest.raises(IllegalTransition, match="epoch 1 opened while"):
        queue_of(epochs=2).open_epoch()


def test_preemption_is_never_a_try():
    queue = queue_of(4, tolerance=1)
    for round_ in range(30):
        task = queue.lease(f"w{round_}", "r")
        assert task is not None
        queue.lost(f"w{round_}")
        queue.fenced(task.id, task.attempt, [0])

    assert ([], None, 31) == (queue.quarantined, queue.broken, queue.tasks[1].attempt)


def test_a_failure_without_a_record_blames_the_span():
    queue = queue_of(4, tolerance=1)
    queue.lease("w", "r")

    fail(queue, "w", 1, 1, start=2, end=4)
    queue.fenced(1, 2, [2, 2])

    assert {2, 3} == queue.tasks[1].skips


def test_shuffled_positions_are_blamed_by_record():
    queue = queue_of(4, tolerance=1, shuffle=True, seed=3)
    queue.lease("w", "r")

    fail(queue, "w", 1, 1, start=0, end=4, record=2)
    queue.fenced(1, 2, [0])

    from edl.common.order import order

    (skipped,) = queue.tasks[1].skips
    assert 2 == order(3, 0, 1, 4, True)[skipped]
    assert (2,) == queue.quarantined[0].records


def test_what_else_is_broken_in_a_span_has_tries_of_its_own():
    queue = queue_of(4, tolerance=2)
    for attempt, record in ((1, 0), (2, 0), (3, 1)):
        queue.lease("w", f"r{attempt}")
        fail(queue, "w", 1, attempt, record=record)
        queue.fenced(1, attempt + 1, [0])

    assert {0} == queue.tasks[1].skips


def test_a_task_that_failed_goes_behind_those_that_may_prove_the_definition():
    check(
        queue_of(12),
        """
        lease w0 r1 -> task 1.1 from 0
        failed w0 1.1 1 -> yes
        fenced 1.2 0 0 -> todo
        lease w0 r2 -> task 2.1 from 0
        lease w0 r3 -> task 3.1 from 0
        lease w0 r4 -> task 1.2 from 0
        """,
    )


def test_a_task_that_failed_goes_first_where_its_shards_are_uneven():
    check(
        queue_of(12),
        """
        lease w0 r1 -> task 1.1 from 0
        failed w0 1.1 3 -> yes
        fenced 1.2 0 2 -> todo
        lease w0 r2 -> task 1.2 from 0 stop at [2]
        """,
    )


def fail_again(queue, times):
    """Fail at the start of whatever is leased, as a broken definition does."""
    for _ in range(times):
        task = queue.lease("w", f"r{len(queue.leases.requests.get('w', ()))}")
        fail(queue, "w", task.id, task.attempt)
        queue.fenced(task.id, task.attempt, [task.position])


def test_a_definition_that_never_worked_is_broken_after_two_failures_more_than_the_tolerance():
    queue = queue_of(40, tolerance=3)

    fail_again(queue, 4)
    assert queue.broken is None

    fail_again(queue, 1)
    assert "ValueError: bad (a, train task 5)" == queue.broken
    assert [] == queue.quarantined


def test_a_job_that_goes_on_all_the_same_has_all_its_tries_again():
    queue = queue_of(40, tolerance=3)
    fail_again(queue, 5)
    assert queue.broken is not None

    queue.forgive()

    assert queue.broken is None
    fail_again(queue, 4)
    assert queue.broken is None
    fail_again(queue, 1)
    assert queue.broken is not None
    assert [] == queue.quarantined


def test_a_definition_that_has_worked_once_is_not_broken_by_many_failures():
    queue = queue_of(40, tolerance=3)
    queue.lease("w", "r")
    queue.done("w", 1, 1)

    fail_again(queue, 27)

    assert queue.broken is None
    assert queue.quarantined != []


def test_a_span_that_was_skipped_proves_nothing():
    queue = queue_of(4, tolerance=1)
    fail_again(queue, 1)  # positions 0 and 1 are skipped from now on
    queue.lease("w", "r")
    fail(queue, "w", 1, 2, start=2, end=4)
    queue.fenced(1, 3, [2])

    assert "ValueError: bad (a, train task 1)" == queue.broken


def test_nothing_left_to_prove_the_definition_means_that_it_is_broken():
    queue = queue_of(2, tolerance=1)

    fail_again(queue, 1)

    assert "ValueError: bad (a, train task 1)" == queue.broken
    assert [] == queue.quarantined


def test_failures_of_no_record_break_the_job_for_there_is_nothing_to_skip():
    queue = queue_of(12, tolerance=2)
    for number in (1, 2):  # a callback at the end of two tasks
        queue.lease("w", f"r{number}")
        assert queue.broken is None
        fail(queue, "w", number, 1, start=4, end=4)
        queue.fenced(number, 2, [4])

    assert "ValueError: bad (a, train task 2)" == queue.broken
    assert ([], 8) == (queue.quarantined, queue.records_done)


def test_evaluations_go_before_training():
    queue = queue_of()
    (number,) = queue.add(Kind.EVALUATE, [("v", 0, 4)], group="g")

    task = queue.lease("w", "r")

    assert task is not None
    assert (number, Kind.EVALUATE) == (task.id, task.kind)


def test_an_evaluation_comes_back_at_once_from_its_beginning():
    queue = queue_of()
    (number,) = queue.add(Kind.EVALUATE, [("v", 0, 4)], group="g")
    queue.lease("w0", "r")
    queue.progress("w0", number, 1, 2)

    assert [] == queue.lost("w0")

    task = queue.lease("w1", "r")
    assert task is not None
    assert (number, 2, 0) == (task.id, task.attempt, task.position)
    assert not queue.done("w0", number, 1, b"old")
    assert queue.done("w1", number, 2, b"new")
    assert (b"new", True) == (queue.tasks[number].result, queue.group_done("g"))


def test_the_fences_to_send_are_told_until_they_are_answered():
    queue = queue_of()
    queue.lease("w", "r")

    assert [Fence(1, 2)] == queue.lost("w") == queue.fencing

    queue.fenced(1, 2, [0])
    assert [] == queue.fencing


def test_progress_is_what_is_done_and_what_workers_say_of_the_rest():
    queue = queue_of()
    queue.lease("w", "r1")
    queue.done("w", 1, 1)
    queue.lease("w", "r2")

    queue.progress("w", 2, 1, 2)
    queue.progress("w", 2, 7, 4)  # of no lease

    assert 6 == queue.records_done


def test_counts_tell_every_state():
    queue = queue_of(16)
    for request in "abc":
        queue.lease("w", request)
    queue.done("w", 1, 1)
    queue.durable([1])
    queue.hand_back("w", 2, 1)

    expected = {"todo": 1, "leased": 1, "fencing": 1, "done": 1, "total": 4}
    assert expected == queue.counts()


@pytest.mark.parametrize("applied", [[5, 4], [1, 0], []])
def test_positions_that_cannot_be_raise_with_the_tasks_story(applied):
    queue = queue_of(4)
    queue.lease("w0", "r")
    queue.lost("w0")
    queue.fenced(1, 2, [2])
    queue.lease("w1", "r")
    queue.lost("w1")

    with pytest.raises(IllegalTransition, match="attempt 1 leased by w0 at 0; attempt 1 lost"):
        queue.fenced(1, 3, applied)


def test_only_what_is_done_can_be_durable():
    queue = queue_of()
    queue.lease("w", "r")

    with pytest.raises(IllegalTransition, match="task 1 is leased"):
        queue.durable([1])


# -- books


def test_books_of_a_cut_tell_the_cuts_positions_not_the_queues():
    queue = queue_of(12)
    for request in "ab":
        queue.lease("w", request)
    queue.done("w", 1, 1)  # after the cut, at which it stood at 2

    books = books_of(queue, {1: 2, 2: 4})

    assert ([[1, 0, 2, 1, []]], [(3, 4)]) == (books["tasks"], books["untouched"])


def test_a_task_done_after_the_cut_and_unknown_to_it_is_open_in_the_books():
    queue = queue_of(4)
    queue.lease("w", "r")
    queue.done("w", 1, 1)  # its first push was held back until the cut was taken

    assert [[1, 0, 0, 1, []]] == books_of(queue, {})["tasks"]


def test_a_late_repeat_of_an_older_request_leases_nothing():
    queue = queue_of(12)
    queue.lease("w", "first")
    queue.done("w", 1, 1)
    queue.lease("w", "second")

    assert queue.lease("w", "first") is None
    assert ["done", "leased", "todo"] == [queue.find(number).state.value for number in (1, 2, 3)]


def test_a_queue_goes_on_from_its_books():
    queue = queue_of(12, epochs=2, tolerance=1)
    for request in "ab":
        queue.lease("w", request)
    queue.done("w", 1, 1)
    fail(queue, "w", 2, 1, record=5)
    queue.fenced(2, 2, [2, 2])

    restored = queue_from(queue.plan, books_of(queue))

    assert [Fence(2, 3)] == restored.fencing
    assert 6 == restored.records_done == queue.records_done
    restored.fenced(2, 3, [2, 2])
    task = restored.lease("w", "r")
    assert task is not None
    assert (2, 3, 2, {1}) == (task.id, task.attempt, task.position, task.skips)
    assert queue.quarantined == restored.quarantined


def test_a_ledger_that_lost_what_the_books_say_is_refused():
    queue = queue_of(4)
    queue.lease("w", "r")
    restored = queue_from(queue.plan, books_of(queue, {1: 2}))

    with pytest.raises(IllegalTransition, match="restored at 2"):
        restored.fenced(1, 2, [0, 0])


def test_books_of_another_plan_are_refused():
    with pytest.raises(IllegalTransition, match="another plan"):
        queue_from(queue_of(12).plan, books_of(queue_of(8)))


def test_a_repeat_gets_all_that_was_leased_at_once_however_many_it_asks_for():
    """Broken once: the master's share had shrunk, and the rest was held by nobody who knew."""
    queue = queue_of(40)
    leased = [t.id for t in queue.lease_some("w", "r", 4)]
    again = [t.id for t in queue.lease_some("w", "r", 1)]
    queue.done("w", leased[1], 1)

    assert (4, leased) == (len(leased), again)
    assert [leased[0], *leased[2:]] == [t.id for t in queue.lease_some("w", "r", 9)]
    assert leased[-1] + 1 == queue.lease_some("w", "next", 1)[0].id


def test_a_task_to_be_done_with_care_is_the_last_of_what_is_leased_at_once():
    queue = queue_of(40)
    for _ in range(2):
        (task,) = queue.lease_some("w", f"r{_}", 1)
        queue.ended("w", "was killed", False)
        queue.lost("w")
        queue.fenced(task.id, task.attempt, [0])

    found = queue.lease_some("other", "r", 4)

    assert [True] == [t.careful for t in found]
    assert [False] * 4 == [t.careful for t in queue.lease_some("other", "s", 4)]


def test_the_end_of_a_worker_counts_for_the_task_that_it_was_at_and_for_none_held_for_later():
    queue = queue_of(40)
    first, *rest = queue.lease_some("w", "r", 4)
    queue.ended("w", "ended with exit code 1", True)
    queue.lost("w")
    queue.fenced(first.id, first.attempt, [first.size])  # it was done, and not yet reported
    for task in rest:
        queue.fenced(task.id, task.attempt, [0])

    assert [2] == [task.id for task in queue.tasks.values() if task.careful]


def left_of(queue: TaskQueue) -> int | None:
    planned = queue.records_planned
    return None if planned is None else planned - queue.records_done


@pytest.mark.parametrize(("epochs", "before"), [(0, None), (3, 30)])
def test_of_a_plan_that_is_closed_what_was_begun_is_left(epochs, before):
    queue = queue_of(10, epochs=epochs, overlap_epochs=True)
    queue.open_epoch()
    queue.lease("w", "1")
    task = queue.lease("w", "2")
    queue.done("w", task.id, task.attempt)
    found = [(left_of(queue), nearly_done(queue))]

    queue.close()
    found.append((left_of(queue), nearly_done(queue)))
    queue.lost("w")
    found.append((left_of(queue), nearly_done(queue)))

    left = None if before is None else before - 4
    assert [(left, False), (4, True), (4, True)] == found
    queue.fenced(1, 2, [2])
    assert (2, False) == (left_of(queue), nearly_done(queue))  # it came back
    again = queue.lease("w", "3")
    queue.done("w", again.id, again.attempt)
    assert (0, True) == (left_of(queue), nearly_done(queue))

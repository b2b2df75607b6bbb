"""A lost worker's task is trained by another, once, and is fenced where the lost one comes late."""

from __future__ import annotations

import contextlib
import threading

import pytest
from tools.jobs import NO_RESTARTS

from edl.common.errors import Unreachable
from edl.proto import master_pb2 as pb
from edl.ps.books.ledger import Span, Verdict

# -- preemption


def test_a2_a_task_whose_owner_is_preempted_twelve_times_is_trained_and_none_of_it_is_a_failure(
    start,
):
    job = start([("a", 14)], num_minibatches_per_task=7)
    last = ""
    for round_ in range(12):
        process = job.runtime.wait_for("worker", 0, after=last)
        worker = job.worker(0, process.incarnation)
        task = worker.lease()
        worker.train(task, until=round_ + 1)
        last = process.incarnation
        job.runtime.end(process, -9)
    job.runtime.wait_for("worker", 0, after=last)

    job.worker().work()

    status = job.end()
    assert 0 == job.code
    assert {**NO_RESTARTS, "preemptions": 12} == status["restarts"]
    assert [] == status["quarantined"]
    assert job.is_whole()
    assert 14 * 2 == job.servers.pushes + 2  # one span of 2 at the end, on 2 shards


@pytest.mark.parametrize(
    ("says_so", "failures"), [(True, 0), (False, 1)], ids=["in order", "by exit(0) of its own"]
)
def test_who_leaves_in_order_while_a_lease_is_on_its_way_has_not_failed(start, says_so, failures):
    """A preempted worker ends with 0 before it reads. Broken once: its minibatch was blamed."""
    job = start([("a", 8)])
    worker = job.worker(0)
    worker.lease()
    if says_so:
        worker.client.heartbeat(state="draining")
        worker.client.heartbeat(state="training")  # sent before, and overtaken
    job.runtime.end(job.runtime.wait_for("worker", 0), 0)

    job.worker(0, job.runtime.wait_for("worker", 0, worker.replica.incarnation).incarnation).work()

    assert {**NO_RESTARTS, "worker": failures, "preemptions": 1 - failures} == job.end()["restarts"]


@pytest.mark.parametrize(("code", "blames"), [(1, True), (71, False)])
def test_a_worker_without_threads_is_replaced_with_the_reason_told_and_blames_no_record(
    start, code, blames
):
    job = start([("a", 8)])
    worker = job.worker(0)
    worker.lease()
    job.runtime.end(job.runtime.wait_for("worker", 0), code)

    after = job.runtime.wait_for("worker", 0, worker.replica.incarnation).incarnation
    assert blames == job.worker(0, after).lease().careful
    told = [event["text"] for event in job.cli.status()[1]["events"]]
    how = "" if blames else " (the system gives no more threads or memory"
    assert any(text.startswith(f"worker 0 ended with exit code {code}{how}") for text in told)


def test_a_lost_workers_task_goes_on_where_the_slowest_shard_stands(start):
    job = start([("a", 8)], num_minibatches_per_task=4)
    worker = job.worker()
    task = worker.lease()
    worker.train(task, until=2)
    job.servers.push(Span(task.id, 1, 2, 4), shard=1)
    first = job.runtime.wait_for("worker", 0)

    job.runtime.end(first, -9)

    job.runtime.wait_for("worker", 0, after=first.incarnation)
    again = job.worker().lease()
    assert (task.id, 2, 2, [4]) == (
        again.id,
        again.attempt,
        again.position,
        list(again.boundaries),
    )


def test_a4_a_waiting_worker_gets_the_last_task_of_one_that_dies(start):
    job = start([("a", 4)], num_workers=2)
    busy, waiting = job.worker(0), job.worker(1)
    task = busy.lease()
    taken: list[pb.Task] = []
    poll = threading.Thread(target=lambda: taken.append(waiting.lease()))
    poll.start()

    job.runtime.end(job.runtime.wait_for("worker", 0), -9)

    poll.join(300)
    assert [(task.id, 2)] == [(t.id, t.attempt) for t in taken]


def test_a_fence_is_sent_until_every_shard_answers(start):
    job = start([("a", 4)])
    worker = job.worker()
    task = worker.lease()
    job.servers.down.set()
    worker.client.hand_back(task.id, task.attempt, 0, records=0)
    assert 1 == job.until(lambda s: s["tasks"]["fencing"])["tasks"]["fencing"]

    job.servers.down.clear()

    again = worker.lease()
    assert (task.id, 2) == (again.id, again.attempt)
    assert job.servers.calls.count("fence") >= 2


# -- silence


def test_a8_a_worker_that_slept_past_its_lease_is_fenced_everywhere(start):
    job = start([("a", 8)], num_workers=2, lease_s=1.0)
    sleeper = job.worker(0)
    task = sleeper.lease()
    sleeper.train(task, until=2)
    keeper = job.worker(1)
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.1):
            keeper.client.heartbeat()

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    try:
        again = keeper.lease()
        while again.id != task.id:
            again = keeper.lease()

        assert (2, 2) == (again.attempt, again.position)
        late = job.servers.push(Span(task.id, task.attempt, 2, 4))
        assert [Verdict.FENCED] * 2 == late
        assert not sleeper.done(task)
        assert sleeper.client.heartbeat().fenced
        assert pb.GetTaskReply.FENCED == sleeper.client.get_task(0.0).outcome
        assert sleeper.client.register().fenced
        reborn = job.worker(0, "another-incarnation")
        assert not reborn.registered.fenced
        assert ("worker", 0) in job.runtime.running  # its process was left alone
        assert 0 == job.cli.status()[1]["restarts"]["preemptions"]
    finally:
        stop.set()
        beating.join(60.0)  # before its channel is closed


def test_a_worker_that_stays_silent_is_killed_and_replaced(start):
    job = start([("a", 8)], lease_s=0.2)
    job.worker(0)
    first = job.runtime.wait_for("worker", 0).incarnation

    second = job.runtime.wait_for("worker", 0, after=first)

    assert first != second.incarnation
    assert {**NO_RESTARTS, "preemptions": 1} == job.cli.status()[1]["restarts"]


def test_a_request_that_waits_is_no_sign_of_life(start):
    job = start([("a", 4)], num_workers=2, lease_s=2.0)
    busy, waiting = job.worker(0), job.worker(1)
    busy.lease()

    def wait():
        with contextlib.suppress(Unreachable):  # the job may end first
            waiting.client.get_task(20.0)

    threading.Thread(target=wait, daemon=True).start()

    events = job.until(lambda s: any("worker 1 was silent" in e["text"] for e in s["events"]))

    assert events["started_s_ago"] < 10.0


def test_a_master_that_was_away_itself_declares_nobody_lost(start):
    job = start([("a", 8)], lease_s=5.0)
    worker = job.worker()
    task = worker.lease()
    clock = job.master.core.clock

    class Later:
        def now(self):
            return clock.now() + 100.0

    def come_back():
        job.master.core.clock = Later()

    job.master.loop.post(come_back)
    job.until(lambda s: s["started_s_ago"] > 90)

    worker.train(task)
    assert worker.done(task)

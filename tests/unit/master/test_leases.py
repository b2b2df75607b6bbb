"""Tasks are leased in their order, and each request and report counts once, however often sent."""

from __future__ import annotations

import threading
import time

import pytest

from edl.common import rpc
from edl.common.errors import EdlError
from edl.master.books.plan import Kind, Plan
from edl.master.books.saved import books_of
from edl.master.books.task_queue import TaskQueue
from edl.proto import master_pb2 as pb
from edl.proto import master_pb2_grpc
from edl.ps.books.ledger import Span


def state_of(queue: TaskQueue) -> dict:
    return {k: v for k, v in vars(queue).items() if k != "_low"}


# -- which task is next


def test_a_worker_is_told_finished_only_when_everything_is_done(start):
    job = start([("a", 4)], num_workers=2)
    busy, waiting = job.worker(0), job.worker(1)
    task = busy.lease()

    assert pb.GetTaskReply.WAIT == waiting.client.get_task(0.0).outcome

    busy.train(task)
    busy.done(task)
    assert waiting.work() == 1
    busy.leave()
    job.end()
    assert 0 == job.code


def test_epochs_do_not_overlap(start):
    job = start([("a", 4)], num_epochs=2, num_workers=2)
    first, second = job.worker(0), job.worker(1)
    task = first.lease()

    assert pb.GetTaskReply.WAIT == second.client.get_task(0.0).outcome

    first.train(task)
    first.done(task)
    assert 1 == second.lease().epoch


def test_epochs_overlap_if_asked(start):
    job = start([("a", 4)], num_epochs=2, num_workers=2, overlap_epochs=True)
    first, second = job.worker(0), job.worker(1)

    assert [0, 1] == [first.lease().epoch, second.lease().epoch]


def test_max_steps_cuts_the_work_exactly(start):
    job = start([("a", 8)], num_epochs=9, max_steps=5)

    job.worker().work()

    job.end()
    assert 5 * 2 == job.servers.pushes  # on two shards


def test_what_a_round_held_is_leased_again_before_anything_new_however_long_servers_fence_it(start):
    job = start([("a", 12)], strategy="hybrid")
    worker = job.worker()

    def join(**about):
        request = pb.JoinRequest(wait_s=20.0, **about)
        return worker.client.join(request).round

    def get_task(round_, wait_s):
        return worker.client.get_task_of_round(round_, 1, wait_s)

    old = join(version=-1)
    first = get_task(old, 20.0).task
    job.servers.down.set()
    new = join(version=0, round=old, broken=True)

    assert pb.GetTaskReply.WAIT == get_task(new, 0.2).outcome
    job.servers.down.clear()
    again = get_task(new, 20.0).task
    assert (first.id, first.attempt + 1) == (again.id, again.attempt)


def test_what_a_checkpoint_left_in_the_midst_goes_before_what_nobody_has_begun(start):
    """Broken once: a worker that was there before the fences were answered got task 2 first."""
    queue = TaskQueue(Plan(Kind.TRAIN, (("a", 8),), 2, 2))
    queue.open_epoch()
    queue.lease("w", "r")
    books = books_of(queue, {1: 2})
    job = start([("a", 8)], books=books)
    worker = job.worker()

    assert pb.GetTaskReply.WAIT == worker.client.get_task(0.2).outcome
    job.servers.push(Span(1, 1, 0, 2))  # as the checkpoint has it
    job.servers.down.clear()
    first, second = worker.lease(), worker.lease()
    assert [1, 2] == [first.id, second.id]


def test_near_the_end_nobody_is_given_more_than_a_share(start):
    job = start([("a", 80)], num_workers=2)  # 20 tasks
    first, second = job.worker(0), job.worker(1)

    given = []
    for worker in (first, second, first, second, first):
        reply = worker.client.get_task(20.0, 32)
        given.append(1 + len(reply.more))

    assert [5, 3, 3, 2, 1] == given


# -- requests and reports


def test_a7_every_request_may_be_repeated_and_changes_nothing(start):
    job = start([("a", 8)])
    worker = job.worker()
    stub = master_pb2_grpc.MasterStub(rpc.Channel(job.address, "secret"))
    replica = worker.replica
    register = pb.RegisterRequest(replica=replica)
    get = pb.GetTaskRequest(replica=replica, request_id="r1", wait_s=10)
    done = pb.ReportTaskRequest(replica=replica, task=1, attempt=1, done=True, slot_map_version=1)
    back = pb.ReportTaskRequest(replica=replica, task=2, attempt=1, handed_back=0)
    beat = pb.HeartbeatRequest(replica=replica, progress=[pb.Progress(task=1, attempt=1)])

    answers = []
    for method, request in (
        (stub.Register, register),
        (stub.GetTask, get),
        (stub.Heartbeat, beat),
        (stub.ReportTask, done),
        (stub.GetTask, pb.GetTaskRequest(replica=replica, request_id="r2", wait_s=10)),
        (stub.ReportTask, back),
    ):
        answers.append((method(request, timeout=300), method(request, timeout=300)))

    for first, second in answers:
        assert first == second
    assert [1, 2] == [answers[1][0].task.id, answers[4][0].task.id]
    assert answers[3][0].accepted
    assert 1 == job.until(lambda s: not s["tasks"]["fencing"])["tasks"]["done"]


def test_a_repeat_of_a_parked_request_gets_the_same_lease(start):
    job = start([("a", 4)], num_workers=2)
    owner, other = job.worker(0), job.worker(1)
    task = owner.lease()
    stub = master_pb2_grpc.MasterStub(rpc.Channel(job.address, "secret"))
    request = pb.GetTaskRequest(replica=other.replica, request_id="r", wait_s=8)
    parked = [stub.GetTask.future(request, timeout=300) for _ in range(2)]

    owner.client.hand_back(task.id, 1, 0, records=0)

    assert [(1, 2), (1, 2)] == [(f.result().task.id, f.result().task.attempt) for f in parked]


def test_tasks_are_leased_several_at_once_and_reported_with_the_next_request(start):
    job = start([("a", 80)], num_workers=1)  # 20 tasks
    worker = job.worker()
    replies = [worker.client.get_task(20.0, 4)]
    tasks = [replies[0].task, *replies[0].more]
    for task in tasks:
        worker.train(task)
        worker.client.report_later(
            pb.ReportTaskRequest(task=task.id, attempt=1, done=True, slot_map_version=1)
        )
    stale = pb.ReportTaskRequest(task=9, attempt=1, done=True)  # nobody has leased it
    told = []
    worker.client.report_later(stale, told.append)
    again = worker.client.get_task(20.0, 2)

    assert ([1, 2, 3, 4], [5, 6]) == (
        [task.id for task in tasks],
        [again.task.id, *(task.id for task in again.more)],
    )
    assert ([True] * 4 + [False], [False]) == (list(again.accepted), told)
    assert 4 == job.cli.status()[1]["tasks"]["done"]


def test_reports_of_a_parked_request_count_at_once_and_once(start):
    job = start([("a", 4)], num_workers=2)
    worker, other = job.worker(0), job.worker(1)
    task = worker.lease()
    worker.train(task, until=2)
    worker.client.report_later(
        pb.ReportTaskRequest(task=task.id, attempt=1, failed=pb.Failure(start=2, end=4, error="x"))
    )
    waiting = threading.Thread(target=lambda: worker.client.get_task(5.0, 4), daemon=True)
    gate = job.servers.down
    gate.set()  # so that the task does not come back yet
    waiting.start()
    job.until(lambda s: any("failed at positions 2-4" in e["text"] for e in s["events"]))
    gate.clear()
    assert pb.GetTaskReply.WAIT == other.client.get_task(0.0).outcome
    waiting.join(300)

    assert {2: 1} == job.queue.tasks[task.id].tries


def test_more_reports_than_are_remembered_are_refused(start):
    job = start()
    worker = job.worker()
    reports = [pb.ReportTaskRequest(task=1, attempt=1, done=True)] * 65

    with pytest.raises(EdlError, match="65 reports in one call: at most 64"):
        worker.client.heartbeat_with(pb.HeartbeatRequest(reports=reports))
    with pytest.raises(EdlError, match="must say done, failed or handed_back"):
        worker.client.heartbeat_with(pb.HeartbeatRequest(reports=[pb.ReportTaskRequest(task=1)]))


# -- the journal


def test_the_journal_gives_back_the_same_queue(start, replayed):
    job = start([("a", 9), ("b", 5)], [("v", 6)], num_epochs=2, task_fault_tolerance=1)
    worker = job.worker()
    task = worker.lease()
    worker.train(task, until=2)
    worker.client.hand_back(task.id, task.attempt, 2, records=2)
    worker.fail(worker.lease(), 2, 4, record=2)
    while (task := worker.lease()).kind != pb.EVALUATE_END:
        if task.kind == pb.TRAIN:
            worker.train(task)
        worker.done(task, b"state")
    job.until(lambda s: not s["tasks"]["fencing"])

    assert state_of(job.queue) == state_of(replayed(job))


def test_decisions_of_one_batch_are_one_transaction_and_answered_after_it(start, monkeypatch):
    """Broken once: an answer left before its decision was on disk."""
    job = start([("a", 80)])
    worker = job.worker()
    answered, written, gate = [], [], threading.Event()
    commit = job.journal.commit

    def write() -> None:
        if job.journal.waiting:
            time.sleep(0.5)  # an answer that had left would be there
            written.append((job.journal.waiting, len(answered)))
        commit()

    def ask() -> None:
        answered.append(worker.client.get_task(20.0).task.id)

    monkeypatch.setattr(job.journal, "commit", write)
    job.master.loop.post(lambda: gate.wait(300) and None)
    asking = [threading.Thread(target=ask) for _ in range(8)]
    for thread in asking:
        thread.start()
    while job.master.loop._inbox.qsize() < 8:
        time.sleep(0.01)
    gate.set()
    for thread in asking:
        thread.join(300)

    assert ([(8, 0)], list(range(1, 9))) == (written, sorted(answered))

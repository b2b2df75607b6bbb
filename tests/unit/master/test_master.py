"""The whole master over real gRPC, with servers that are ledgers and processes that a test ends."""

from __future__ import annotations

import json
import threading
import time

import grpc
import pytest
from tools.jobs import NO_RESTARTS

from edl.common import rpc, storage
from edl.common.errors import EdlError, Unauthenticated, Unreachable
from edl.master.books.plan import Kind, Plan
from edl.master.books.saved import books_of
from edl.master.books.saved import queue_of as queue_from
from edl.master.books.task_queue import TaskQueue
from edl.master.client import MasterClient
from edl.master.membership import Member
from edl.proto import master_pb2 as pb
from edl.proto import master_pb2_grpc
from edl.ps.books.ledger import Entry, Span, Verdict
from edl.runtime.base import Note
from edl.worker.tasks import unpack_results


def whole(job) -> bool:
    """Tell whether every task of the plan is applied to its end on every shard."""
    plan = job.queue.plan
    sizes = {}
    for epoch in range(plan.epochs):
        first = plan.first_id_of(epoch)
        for number in range(first, first + plan.tasks_of(epoch)):
            _, (_, start, end) = plan.task(number)
            sizes[number] = end - start
    return all({n: led.applied(n) for n in sizes} == sizes for led in job.servers.ledgers)


def state_of(queue: TaskQueue) -> dict:
    return {k: v for k, v in vars(queue).items() if k != "_low"}


# -- a job


def test_a_job_trains_each_task_once_and_ends_with_0(start):
    job = start([("a", 9), ("b", 3)], num_epochs=2)

    tasks = job.worker().work()

    status = job.end()
    assert (0, "done") == (job.code, status["state"])
    assert 2 * 3 + 1 == tasks  # of 4, 5 and 3 records; and train-end
    assert (24, 24) == (status["records_done"], status["records_total"])
    assert whole(job)


def test_a_task_carries_its_lease_and_its_source(start):
    job = start([("a", 9)], lease_s=7.0)

    task = job.worker().lease()

    expected = (1, 1, pb.TRAIN, "a", 0, 4, 0, 0, 7.0)
    assert expected == (
        task.id,
        task.attempt,
        task.kind,
        task.source,
        task.start,
        task.end,
        task.epoch,
        task.position,
        task.lease_s,
    )


def test_a_worker_learns_the_settings_and_the_servers(start):
    job = start()

    worker = job.worker()

    assert job.settings.to_json() == worker.registered.settings_json
    servers = worker.client.get_servers()
    assert ["127.0.0.1:7000", "127.0.0.1:7001"] == list(servers.addresses)
    assert (1, 1024) == (servers.slot_map_version, servers.num_slots)


def test_a_call_without_the_token_is_refused(start):
    job = start()
    client = MasterClient(job.address, token="wrong", patience_s=1.0)
    job.clients.append(client)

    with pytest.raises(Unauthenticated):
        client.status()


def test_the_token_is_in_no_status(start):
    job = start()
    job.worker()

    assert "secret" not in json.dumps(job.cli.status()[1])


@pytest.mark.parametrize(
    "request_",
    [
        ("GetTask", pb.GetTaskRequest(request_id="r")),
        ("GetTask", pb.GetTaskRequest(replica=pb.Replica(role=1, incarnation="x"))),
        ("ReportTask", pb.ReportTaskRequest(replica=pb.Replica(role=1, incarnation="x"))),
        ("Heartbeat", pb.HeartbeatRequest(replica=pb.Replica(role=7, incarnation="x"))),
        ("Scale", pb.ScaleRequest(num_workers=0)),
    ],
)
def test_a_request_that_lacks_something_is_refused_and_harms_nothing(start, request_):
    job = start()
    method, request = request_
    stub = master_pb2_grpc.MasterStub(rpc.Channel(job.address, "secret"))

    with pytest.raises(grpc.RpcError) as refusal:
        getattr(stub, method)(request, timeout=300)

    assert grpc.StatusCode.INVALID_ARGUMENT == refusal.value.code()
    job.worker().work()
    job.end()
    assert 0 == job.code


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
    assert whole(job)
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


def test_a3_no_task_of_worker_i_moves_when_server_i_dies(start):
    job = start(num_workers=2, drain_grace_s=0.1)
    workers = [job.worker(0), job.worker(1)]
    tasks = [worker.lease() for worker in workers]

    job.kill_server(1)

    job.until(lambda s: any("server 1 is back" in e["text"] for e in s["events"]))
    assert [1, 1] == [job.queue.tasks[task.id].attempt for task in tasks]
    for worker, task in zip(workers, tasks, strict=True):
        worker.train(task)
        assert worker.done(task)
    workers[1].leave()
    workers[0].work()
    job.end()
    assert whole(job)


# -- a server dies (rule 5)


def test_what_a_new_server_lacks_is_trained_again_and_no_other_shard_applies_it_twice(start):
    job = start([("a", 12)])
    worker = job.worker()
    first, second = worker.lease(), None
    worker.train(first)
    assert worker.done(first)
    second = worker.lease()
    worker.train(second, until=2)
    pushes = job.servers.pushes

    job.kill_server(1, [Entry(first.id, 1, 2)])

    job.until(lambda s: any("server 1 is back; 2 records" in e["text"] for e in s["events"]))
    assert 2 == job.master.group.version
    for shard in (0, 1):  # as a worker rewinds
        for start_ in (0, 2):
            job.servers.push(Span(second.id, 1, start_, start_ + 2), shard)
    assert worker.done(second)
    again = worker.lease()
    assert (first.id, 2, 2, [4]) == (
        again.id,
        again.attempt,
        again.position,
        list(again.boundaries),
    )
    worker.train(again)
    assert worker.done(again)
    worker.work()
    job.end()
    assert 0 == job.code
    assert whole(job)
    # second's rest on both, all of it again on shard 1, first's half again, and the third task
    assert pushes + 2 + 1 + 1 + 4 == job.servers.pushes


def test_a_task_that_old_servers_have_acknowledged_is_checked_not_believed(start):
    job = start([("a", 4)])
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    job.kill_server(0)
    job.until(lambda s: any("server 0 is back" in e["text"] for e in s["events"]))

    assert worker.client.report_done(task.id, task.attempt, records=4, slot_map_version=1)

    again = worker.lease()
    assert (task.id, 2, 0) == (again.id, again.attempt, again.position)
    worker.train(again)
    assert worker.done(again)
    worker.work()
    job.end()
    assert whole(job)


def test_a_new_server_is_told_the_attempts_before_anybody_is_told_where_it_is(start):
    job = start([("a", 8)])
    worker = job.worker()
    task = worker.lease()
    worker.train(task, until=2)
    worker.leave(-9)
    worker = job.worker(
        0, job.runtime.wait_for("worker", 0, worker.replica.incarnation).incarnation
    )
    assert 2 == worker.lease().attempt

    job.kill_server(1)

    servers = worker.client.get_servers(1, 20.0)
    assert ["127.0.0.1:7000", "127.0.0.1:8001"] == list(servers.addresses)
    assert ["fence 1 at 127.0.0.1:8001", "replace 2"] == job.servers.calls[-2:]
    assert [Verdict.FENCED] == job.servers.push(Span(task.id, 1, 0, 2), 1)


def test_a_server_that_dies_again_before_it_is_ready_is_replaced_again(start):
    job = start([("a", 8)])  # not over with its first task
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    assert worker.done(task)
    job.servers.down.set()

    lost = job.kill_server(0)
    job.until(lambda s: "fence 0 at 127.0.0.1:8000" in job.servers.calls)
    job.runtime.end(job.runtime.wait_for("server", 0), -9)
    assert lost.replica is not None
    job.register_server(0, lost.replica.incarnation, port=9000)
    job.servers.down.clear()

    job.until(lambda s: any("server 0 is back" in e["text"] for e in s["events"]))
    assert ["127.0.0.1:9000", "127.0.0.1:7001"] == list(worker.client.get_servers().addresses)
    worker.work()
    job.end()
    assert whole(job)


def test_a_server_is_told_what_to_recover_from(start):
    job = start([("a", 8)], num_ps=1)
    first = job.runtime.wait_for("server", 0)
    assert () == job.runtime.arguments["server", 0]
    about = pb.Replica(role=pb.SERVER, index=0, incarnation=first.incarnation)
    job.client(about).heartbeat_with(pb.HeartbeatRequest(coverage=pb.Coverage(snapshot=7)))

    job.runtime.end(first, -9)
    job.runtime.wait_for("server", 0, first.incarnation)

    assert ("--recover", f"{first.incarnation}:7") == job.runtime.arguments["server", 0]


def test_a_new_server_may_retire_what_becomes_durable_while_it_is_made_ready(start):
    job = start([("a", 8)], num_ps=1)
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    worker.done(task)
    asked, go_on, fence = threading.Event(), threading.Event(), job.servers.fence_one

    def slow(*arguments):
        asked.set()
        assert go_on.wait(300)
        return fence(*arguments)

    job.servers.fence_one = slow
    server = job.kill_server(0, [Entry(task.id, 1, 4)])
    assert asked.wait(300)
    covered = pb.Coverage(snapshot=1, tasks=[pb.Coverage.Task(task=task.id, position=4)])
    server.heartbeat_with(pb.HeartbeatRequest(coverage=covered))
    job.until(lambda s: task.id not in job.queue.tasks)
    job.servers.ledgers[0].retire(server.heartbeat().low_water)

    go_on.set()

    job.until(lambda s: any("server 0 is back; 0 records" in e["text"] for e in s["events"]))
    worker.work()
    job.end()
    assert 0 == job.code


def test_only_what_every_server_covers_is_retired(start):
    job = start([("a", 8)])
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    worker.done(task)
    clients = []
    for index in range(2):
        server = job.runtime.wait_for("server", index)
        clients.append(
            job.client(pb.Replica(role=pb.SERVER, index=index, incarnation=server.incarnation))
        )
    covered = pb.Coverage(snapshot=1, tasks=[pb.Coverage.Task(task=task.id, position=4)])
    half = pb.Coverage(snapshot=1, tasks=[pb.Coverage.Task(task=task.id, position=2)])

    assert 1 == clients[0].heartbeat_with(pb.HeartbeatRequest(coverage=covered)).low_water
    assert 1 == clients[1].heartbeat_with(pb.HeartbeatRequest(coverage=half)).low_water
    job.until(lambda s: True)
    assert task.id in job.queue.tasks
    covered.snapshot = 2
    clients[1].heartbeat_with(pb.HeartbeatRequest(coverage=covered, notes=["the disk is full"]))

    status = job.until(lambda s: task.id not in job.queue.tasks)
    assert 2 == clients[0].heartbeat().low_water
    assert any("server 1: the disk is full" in e["text"] for e in status["events"])
    worker.work()


def test_an_evaluation_whose_cut_went_with_a_server_is_made_anew(start):
    job = start([("a", 4)], [("v", 4)])
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    worker.done(task)
    old = worker.lease()
    assert pb.EVALUATE == old.kind

    job.kill_server(1, [Entry(task.id, 1, 4)])

    job.until(lambda s: any("server 1 is back" in e["text"] for e in s["events"]))
    new = worker.lease()
    assert pb.EVALUATE == new.kind
    assert old.cut != new.cut
    assert not worker.done(old, b"1")
    assert worker.done(new, b"2")
    end = worker.lease()
    assert (pb.EVALUATE_END, [b"2"]) == (end.kind, unpack_results(end.payload))
    assert worker.done(end, b"{}")
    worker.work()
    assert 1 == len(job.end()["evaluations"])


def test_a_cut_that_was_taken_of_a_server_which_is_gone_by_then_is_taken_again(start):
    job = start([("a", 4)], [("v", 4)])
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    go_on, names, cut = threading.Event(), [], job.servers.take_cut

    def slow(name, hold_s):
        taken = cut(name, hold_s)
        names.append(name)
        assert len(names) > 1 or go_on.wait(300)
        return taken

    job.servers.take_cut = slow
    worker.done(task)
    job.until(lambda s: len(names) == 1)
    job.kill_server(1, [Entry(task.id, 1, 4)])
    job.until(lambda s: any("server 1 is back" in e["text"] for e in s["events"]))

    go_on.set()

    given = worker.lease()
    assert (pb.EVALUATE, names[1]) == (given.kind, given.cut)
    assert worker.done(given, b"1")
    worker.work()
    job.end()
    assert 0 == job.code


def test_the_end_of_training_is_made_again_where_a_server_was_replaced_meanwhile(start):
    job = start([("a", 4)])
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    worker.done(task)
    end = worker.lease()
    assert pb.TRAIN_END == end.kind

    job.kill_server(0)
    job.until(lambda s: any("server 0 is back" in e["text"] for e in s["events"]))
    worker.done(end)

    again = worker.lease()
    assert (task.id, 2) == (again.id, again.attempt)
    worker.train(again)
    worker.done(again)
    assert pb.TRAIN_END == worker.lease().kind
    job.close()


def test_a_server_that_fails_too_often_fails_the_job(start):
    job = start([("a", 4)], num_ps=1, relaunch_on_worker_failure=0)

    job.runtime.end(job.runtime.wait_for("server", 0), 1)

    assert job.end()["message"].startswith("parameter server 0 ended with exit code 1")
    assert 1 == job.code


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


def test_a_groups_snapshot_is_not_written_again_for_spans_that_only_servers_count(start):
    """A span whose records are all skipped is a push to the servers, and no step of the group."""
    job = start([("a", 12)], strategy="hybrid", snapshot_s=0.05)
    worker = job.worker()
    about = worker.client.join(pb.JoinRequest(wait_s=20.0, version=-1))
    watch = pb.WatchRoundRequest(round=about.round, wait_s=2.0)
    replica = job.runtime.wait_for("server", 0)
    server = job.client(pb.Replica(role=pb.SERVER, index=0, incarnation=replica.incarnation))

    server.heartbeat(version=1)

    assert [] == list(worker.client.watch_round(watch).orders)
    worker.client.heartbeat(version=1, round_=about.round)
    assert [pb.Order.TAKE] == [o.kind for o in worker.client.watch_round(watch).orders]


# -- repeats and zombies


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
    request = pb.GetTaskRequest(replica=other.replica, request_id="r", wait_s=20)
    parked = [stub.GetTask.future(request, timeout=300) for _ in range(2)]

    owner.client.hand_back(task.id, 1, 0, records=0)

    assert [(1, 2), (1, 2)] == [(f.result().task.id, f.result().task.attempt) for f in parked]


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

    threading.Thread(target=beat, daemon=True).start()
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


def test_a_worker_that_stays_silent_is_killed_and_replaced(start):
    job = start([("a", 8)], lease_s=0.2)
    job.worker(0)
    first = job.runtime.wait_for("worker", 0).incarnation

    second = job.runtime.wait_for("worker", 0, after=first)

    assert first != second.incarnation
    assert {**NO_RESTARTS, "preemptions": 1} == job.cli.status()[1]["restarts"]


# -- failures


def test_a_broken_record_is_quarantined_after_its_tries_and_the_job_ends_with_3(start):
    job = start([("a", 8)], task_fault_tolerance=2)
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    worker.done(task)
    for _ in range(2):
        task = worker.lease()
        assert [] == list(task.skips)
        assert worker.fail(task, 0, 2, record=5)
    task = worker.lease()
    assert [1] == list(task.skips)

    worker.train(task)
    worker.done(task)
    worker.work()

    status = job.end()
    assert 3 == job.code
    named = {"source": "a", "records": [5], "error": "ValueError: bad record", "task": 2}
    named["where"] = [{"kind": "training", "epoch": 0}]
    assert [named] == status["quarantined"]
    assert whole(job)


def test_quarantined_records_within_the_budget_are_a_success(start):
    job = start([("a", 8)], task_fault_tolerance=1, skip_records=1)
    worker = job.worker()
    task = worker.lease()
    worker.train(task, until=2)
    worker.fail(task, 2, 4, record=3)

    worker.work()

    assert "done" == job.end()["state"]
    assert 0 == job.code


def test_a_definition_that_fails_before_anything_is_applied_fails_the_job(start):
    job = start(task_fault_tolerance=2)
    worker = job.worker()
    for _ in range(4):
        task = worker.lease()
        worker.fail(task, 0, 2)

    status = job.end()
    assert (1, "failed") == (job.code, status["state"])
    assert "ValueError: bad record" in status["message"]


def test_workers_that_all_crash_for_good_fail_the_job_with_their_last_words(start):
    job = start(relaunch_on_worker_failure=0)
    (job.folder / "logs").mkdir()
    (job.folder / "logs" / "worker-0.log").write_text("...\nedl: error: no such column 'age'\n")
    job.worker()

    job.worker().leave(code=1)

    status = job.end()
    assert 1 == job.code
    assert "worker 0, which ended with exit code 1" in status["message"]
    assert "no such column 'age'" in status["message"]


# -- evaluation


def train_and_evaluate(job, worker) -> list[pb.Task]:
    """Do everything; return the tasks in their order."""
    seen = []
    while (reply := worker.client.get_task(20.0)).outcome == pb.GetTaskReply.TASK:
        task = reply.task
        seen.append(task)
        if task.kind == pb.TRAIN:
            worker.train(task)
        result = {
            pb.EVALUATE: f"state {task.start}".encode(),
            pb.EVALUATE_END: b'{"auc": 0.75}',
        }
        assert worker.done(task, result.get(task.kind, b""))
    worker.leave()
    return seen


def test_each_epoch_is_evaluated_on_one_cut_and_the_states_are_merged_once(start):
    job = start([("a", 4)], [("v", 6)], num_epochs=2)

    seen = train_and_evaluate(job, job.worker())

    status = job.end()
    ends = [task for task in seen if task.kind == pb.EVALUATE_END]
    payload = b"\2\0\0\0" + b"".join(
        len(s).to_bytes(8, "little") + s for s in (b"state 0", b"state 4")
    )
    assert [payload, payload] == [task.payload for task in ends]
    assert {"auc": 0.75} == status["metrics"]
    assert [0, 1] == [e["epoch"] for e in status["evaluations"]]
    cuts = {task.cut for task in seen if task.kind == pb.EVALUATE}
    assert 2 == len(cuts)
    assert "" not in cuts
    assert set() == job.servers.pinned


def test_an_evaluation_result_of_an_older_attempt_is_refused(start):
    job = start([("a", 4)], [("v", 4)], num_workers=2)
    slow, fast = job.worker(0), job.worker(1)
    task = slow.lease()
    slow.train(task)
    slow.done(task)
    evaluation = slow.lease()
    assert pb.EVALUATE == evaluation.kind
    job.runtime.end(job.runtime.wait_for("worker", 0), -9)
    again = fast.lease()
    assert (evaluation.id, 2) == (again.id, again.attempt)

    assert not slow.done(evaluation, b"stale")

    fast.done(again, b"fresh")
    assert b"fresh" == fast.lease().payload[12:]


def test_the_end_of_training_comes_after_the_last_evaluation(start):
    job = start([("a", 4)], [("v", 4)])

    seen = train_and_evaluate(job, job.worker())

    assert [pb.TRAIN, pb.EVALUATE, pb.EVALUATE_END, pb.TRAIN_END] == [t.kind for t in seen]


def test_edl_evaluate_reads_the_present_parameters_and_does_not_train(start):
    job = start([], [("v", 6)], command="evaluate")

    seen = train_and_evaluate(job, job.worker())

    status = job.end()
    assert [pb.EVALUATE, pb.EVALUATE, pb.EVALUATE_END] == [task.kind for task in seen]
    assert {""} == {task.cut for task in seen}
    assert (0, {"auc": 0.75}, 6) == (job.code, status["metrics"], status["records_done"])


def test_edl_predict_hands_out_the_prediction_data(start):
    job = start([], prediction=[("p", 6)], command="predict")

    seen = train_and_evaluate(job, job.worker())

    assert [(pb.PREDICT, 0, 4), (pb.PREDICT, 4, 6)] == [(t.kind, t.start, t.end) for t in seen]
    assert (0, 6) == (job.end()["records_done"] - 6, 6)
    assert 0 == job.code


# -- epochs, steps, checkpoints


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


def test_sync_mode_flushes_at_the_end_of_each_epoch(start):
    job = start([("a", 4)], num_epochs=2, grads_to_wait=4)

    job.worker().work()

    job.end()
    assert 2 == job.servers.calls.count("flush")


def test_a_checkpoint_is_written_at_the_end_with_the_books(start, tmp_path):
    job = start([("a", 8)], checkpoint_dir=str(tmp_path / "c"))

    job.worker().work()

    status = job.end()
    manifest = storage.latest(tmp_path / "c")
    assert manifest is not None
    assert str(manifest.directory) == status["checkpoint"]
    books = manifest.books
    assert ([], 1) == (books["tasks"], books["epochs_opened"])
    assert queue_from(job.queue.plan, books).plan_done


def test_checkpoints_come_every_so_many_versions_and_old_ones_go(start, tmp_path):
    job = start(
        [("a", 8)], checkpoint_dir=str(tmp_path / "c"), checkpoint_steps=2, keep_checkpoint_max=1
    )
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    server = job.runtime.wait_for("server", 0)
    about = pb.Replica(role=pb.SERVER, index=0, incarnation=server.incarnation)
    client = job.client(about)

    client.heartbeat(version=2)

    first = job.until(lambda s: s["checkpoint"])["checkpoint"]
    books = storage.read_manifest(first).books
    assert ([], [[2, 3]]) == (
        books["tasks"],
        books["untouched"],
    )  # the first is applied, done or not
    worker.done(task)
    worker.work()
    last = job.end()["checkpoint"]
    assert first != last
    assert [last] == [str(path) for path in storage.find_checkpoints(tmp_path / "c")]


def test_stop_hands_back_writes_a_checkpoint_and_says_how_to_go_on(start, tmp_path):
    job = start([("a", 8)], checkpoint_dir=str(tmp_path / "c"))
    worker = job.worker()
    task = worker.lease()
    worker.train(task, until=2)
    server = job.runtime.wait_for("server", 0)
    about = pb.Replica(role=pb.SERVER, index=0, incarnation=server.incarnation)
    job.client(about).heartbeat(version=1)

    job.cli.stop("enough")

    status = job.end()
    assert (130, "failed") == (job.code, status["state"])
    manifest = storage.latest(tmp_path / "c")
    assert manifest is not None
    books = manifest.books
    assert ([[1, 0, 2, 2, []]], [[2, 3]]) == (books["tasks"], books["untouched"])
    assert f"edl train --resume {manifest.directory}" in status["message"]


def test_max_steps_cuts_the_work_exactly(start):
    job = start([("a", 8)], num_epochs=9, max_steps=5)

    job.worker().work()

    job.end()
    assert 5 * 2 == job.servers.pushes  # on two shards


# -- scaling


def test_scaling_up_starts_workers_and_scaling_down_drains_the_highest(start):
    job = start([("a", 8)])
    assert 1 == job.cli.scale(3)
    third = job.runtime.wait_for("worker", 2)
    assert 3 == job.cli.scale(1)

    job.until(lambda s: [w["state"] for w in s["workers"]][1:] == ["left", "left"])

    assert third.incarnation not in {r.incarnation for r in job.runtime.running.values()}
    job.worker().work()
    assert NO_RESTARTS == job.end()["restarts"]


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


def test_the_more_workers_there_are_the_longer_is_the_pause_between_their_heartbeats(start):
    job = start(lease_s=9.0)
    worker = job.worker()
    few = worker.client.heartbeat().interval_s
    for index in range(600):
        job.master.members.register(Member("worker", 10 + index, f"more {index}", time.monotonic()))
    more = worker.client.heartbeat().interval_s
    for index in range(2000):
        job.master.members.register(
            Member("worker", 1000 + index, f"many {index}", time.monotonic())
        )

    assert (1.0, 601 / 300, 3.0) == (few, more, worker.client.heartbeat().interval_s)


def test_a_full_disk_ends_the_job_with_one_clear_error(start, monkeypatch):
    import sqlite3

    job = start()
    worker = job.worker()

    class Full:
        def execute(self, query: str, *values: object) -> sqlite3.Cursor:
            if query.startswith("INSERT"):
                raise sqlite3.OperationalError("database or disk is full")
            return whole_connection.execute(query, *values)

        executemany = execute

        def __enter__(self) -> None:
            whole_connection.__enter__()

        def __exit__(self, *exception: object) -> None:
            whole_connection.__exit__(*exception)

        def close(self) -> None:
            """Do nothing."""

    whole_connection, job.journal._connection = job.journal._connection, Full()

    with pytest.raises(EdlError):
        worker.client.get_task(5.0)

    status = job.end()
    whole_connection.close()
    assert "database or disk is full" in status["message"]
    assert "Make room" in status["message"]


# -- nothing hangs, and nothing is cut in two


def test_a_cut_that_is_tried_again_has_another_name(start, tmp_path):
    """A shard may have pinned the name that the first try gave it: that state is too old now."""
    job = start([("a", 8)], checkpoint_dir=str(tmp_path / "c"))
    names, cut = [], job.servers.take_cut

    def once_lost(name, hold_s):
        names.append(name)
        if len(names) == 1:
            raise Unreachable("the reply is lost")
        return cut(name, hold_s)

    job.servers.take_cut = once_lost

    job.worker().work()

    job.end()
    assert 2 == len(set(names))


def test_no_flush_falls_into_a_cut(start, tmp_path):
    job = start([("a", 4)], checkpoint_dir=str(tmp_path / "c"), checkpoint_steps=1)
    order, cut, flush, go_on = [], job.servers.take_cut, job.servers.flush, threading.Event()

    def slow(name, hold_s):
        order.append("cut")
        assert go_on.wait(300)
        order.append("cut is done")
        return cut(name, hold_s)

    job.servers.take_cut = slow
    job.servers.flush = lambda: order.append("flush") or flush()
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    server = job.runtime.wait_for("server", 0)
    about = pb.Replica(role=pb.SERVER, index=0, incarnation=server.incarnation)
    job.client(about).heartbeat(version=1)
    job.until(lambda s: order == ["cut"])
    worker.done(task)
    job.until(lambda s: s["tasks"]["done"] == 1)
    for _ in range(2):
        job.until(lambda s: True)

    go_on.set()

    worker.work()
    job.end()
    assert ["cut", "cut is done", "flush", "cut", "cut is done"] == order


def test_a_replica_that_cannot_be_started_ends_the_job(start):
    job = start([("a", 8)])

    def refuse(*arguments):
        raise EdlError("worker 1 cannot be started: no more processes")

    job.runtime.start = refuse

    job.cli.scale(3)

    status = job.end()
    assert (1, "worker 1 cannot be started: no more processes") == (job.code, status["message"])


def test_a_stopping_job_is_not_scaled(start):
    job = start([("a", 8)])
    worker = job.worker()
    worker.lease()
    job.servers.down.set()  # keeps the job from being stopped too soon
    job.cli.stop("enough")

    job.cli.scale(2)

    job.servers.down.clear()
    job.end()
    assert 130 == job.code
    assert ["worker"] == [r.role for r in job.runtime.started if r.role == "worker"]


def test_a_server_that_falls_silent_is_killed_and_replaced(start):
    job = start([("a", 4)], num_ps=1, server_timeout_s=0.5)
    server = job.runtime.wait_for("server", 0)
    about = pb.Replica(role=pb.SERVER, index=0, incarnation=server.incarnation)

    job.client(about).heartbeat(state="serving")

    job.register_server(0, server.incarnation)
    job.until(lambda s: any("server 0 is back" in e["text"] for e in s["events"]))
    job.worker().work()
    job.end()
    assert 0 == job.code


def test_a_request_that_waits_is_no_sign_of_life(start):
    job = start([("a", 4)], num_workers=2, lease_s=2.0)
    busy, waiting = job.worker(0), job.worker(1)
    busy.lease()
    threading.Thread(target=lambda: waiting.client.get_task(20.0), daemon=True).start()

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


def test_a_checkpoint_of_the_same_state_is_not_written_over(start, tmp_path):
    """While it is written again it is none: a crash then would leave no checkpoint at all."""
    job = start([("a", 4)], checkpoint_dir=str(tmp_path / "c"), checkpoint_steps=1)
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    server = job.runtime.wait_for("server", 0)
    about = pb.Replica(role=pb.SERVER, index=0, incarnation=server.incarnation)
    job.client(about).heartbeat(version=4)
    saved = job.until(lambda s: s["checkpoint"])["checkpoint"]
    worker.done(task)

    worker.work()

    assert saved == job.end()["checkpoint"]
    assert 1 == job.servers.calls.count("snapshot")


def test_why_a_process_does_not_come_is_the_status_s_message_until_it_runs(start):
    """Broken once: only the list of events tells, which ends with the next hundred."""
    job = start(num_workers=1)
    process = job.runtime.wait_for("worker", 0)

    job.runtime._report(Note(process, "waits: a quota leaves no room: exceeded quota"))
    waits = job.until(lambda s: s["message"])
    job.worker(0)
    job.until(lambda s: not s["message"])

    assert waits["message"] == "worker 0 waits: a quota leaves no room: exceeded quota"

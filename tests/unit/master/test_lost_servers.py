"""A server dies and another takes its place: what it lacks is trained again, and nothing else."""

from __future__ import annotations

import threading

from edl.proto import master_pb2 as pb
from edl.ps.books.ledger import Entry, Span, Verdict
from edl.worker.tasks import unpack_results

# -- training goes on (rule 5)


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
    assert job.is_whole()


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
    assert job.is_whole()
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
    assert job.is_whole()


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
    assert job.is_whole()


def test_a_server_is_told_what_to_recover_from(start):
    job = start([("a", 8)], num_ps=1)
    first = job.runtime.wait_for("server", 0)
    assert () == job.runtime.arguments["server", 0]
    about = pb.Replica(role=pb.SERVER, index=0, incarnation=first.incarnation)
    job.client(about).heartbeat_with(pb.HeartbeatRequest(coverage=pb.Coverage(snapshot=7)))

    job.runtime.end(first, -9)
    job.runtime.wait_for("server", 0, first.incarnation)

    assert ("--recover", f"{first.incarnation}:7") == job.runtime.arguments["server", 0]


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


def test_a_server_that_fails_too_often_fails_the_job(start):
    job = start([("a", 4)], num_ps=1, relaunch_on_worker_failure=0)

    job.runtime.end(job.runtime.wait_for("server", 0), 1)

    assert job.end()["message"].startswith("parameter server 0 ended with exit code 1")
    assert 1 == job.code


# -- what is durable


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


# -- evaluation, and the end of training


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

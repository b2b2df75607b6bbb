"""A master that goes on from the journal of another, over real gRPC; servers are ledgers."""

from __future__ import annotations

import json
import threading

from edl.common.errors import Unreachable
from edl.proto import master_pb2 as pb
from edl.ps.books.ledger import Entry


def texts(job):
    return [event["text"] for event in job.cli.status()[1]["events"]]


def test_a_job_goes_on_with_the_same_processes_and_leases(start):
    job = start([("a", 16)])
    worker = job.worker()
    first = worker.lease()
    worker.train(first)
    assert worker.done(first)
    held = worker.lease()
    worker.train(held, until=2)
    before = dict(job.runtime.running)

    job.restart()

    worker.train(pb.Task.FromString(held.SerializeToString()), until=4)
    assert worker.done(held)
    worker.work()
    status = job.end()
    assert (0, 16) == (job.code, status["records_done"])
    assert [] == job.runtime.started  # not one process
    assert 3 == len(before)
    assert "the master was killed by SIGKILL; started again (epoch 2)" in [
        event["text"] for event in status["events"]
    ]
    assert {4} == {ledger.applied(held.id) for ledger in job.servers.ledgers}


def test_a_request_that_is_repeated_after_the_restart_gets_the_same_lease(start):
    job = start([("a", 16)])
    worker = job.worker()
    request = pb.GetTaskRequest(replica=worker.replica, request_id="r", wait_s=5.0)
    first = worker.client._call("GetTask", request, 5.0).task

    job.restart()

    assert first == worker.client._call("GetTask", request, 5.0).task


def test_a_process_that_ended_while_there_was_no_master_is_replaced(start):
    job = start([("a", 8)])
    worker = job.worker()
    held = worker.lease()
    process = job.runtime.running.pop(("worker", 0))

    job.restart()

    after = job.runtime.wait_for("worker", 0, after=process.incarnation)
    assert not worker.done(held)
    job.worker(0, after.incarnation).work()
    status = job.end()
    assert 0 == job.code
    assert any("ended, nobody knows how" in event["text"] for event in status["events"])


def test_evaluations_that_ran_are_begun_anew_and_those_that_ended_are_not(start):
    job = start([("a", 4)], [("v", 4)], num_epochs=2)
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    worker.done(task)
    evaluate = worker.lease()
    while evaluate.kind == pb.TRAIN:  # of the second epoch
        evaluate = worker.lease()
    assert pb.EVALUATE == evaluate.kind

    job.restart()

    assert not worker.done(evaluate, b"state")
    worker.work(b'{"auc": 0.5}')
    status = job.end()
    assert [0, 1] == sorted(each["epoch"] for each in status["evaluations"])
    assert 0 == job.code


def test_the_next_epoch_waits_for_what_a_server_lost_meanwhile_of_the_one_before(
    start, monkeypatch
):
    job = start([("a", 4)], [("v", 4)], num_epochs=2)
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    monkeypatch.setattr(job.servers, "take_cut", lambda name, hold_s: None)  # so far, no further
    worker.done(task)
    job.until(lambda s: any("epoch 1 is done" in event["text"] for event in s["events"]))
    server = job.runtime.running.pop(("server", 1))
    job.servers.lose(1)
    whole, asked = threading.Event(), threading.Event()

    def version():
        if not whole.is_set():
            raise Unreachable("server 1 is not there")
        asked.set()
        return job.servers.pushes

    monkeypatch.setattr(job.servers, "version", version)

    job.restart()

    job.register_server(1, after=server.incarnation, port=8000)
    job.until(lambda s: any("server 1 is back" in event["text"] for event in s["events"]))
    whole.set()
    assert asked.wait(300)
    monkeypatch.undo()
    again = worker.lease()
    assert (task.id, 2) == (again.id, again.attempt)
    worker.train(again)
    assert worker.done(again)
    worker.work()
    assert "done" == job.end()["state"]


def test_a_job_that_has_failed_goes_on_from_its_journal_and_is_forgiven(start):
    """Broken once: the replicas of before, which had failed for good, are remembered."""
    job = start([("a", 12)], num_epochs=2, relaunch_on_worker_failure=0)
    worker = job.worker()
    done = worker.lease()
    worker.train(done)
    assert worker.done(done)
    held = worker.lease()
    worker.train(held, until=2)
    assert worker.fail(held, 2, 4, record=3)
    old = job.runtime.wait_for("worker", 0)
    job.runtime.end(old, 1)
    status = job.end()
    assert (1, str(job.folder)) == (job.code, status["resume"])
    assert f"edl train --resume {job.folder}" in status["message"]
    for shard in (0, 1):
        job.servers.lose(shard, [Entry(done.id, 1, 2)])

    job.restart(failed=status["message"])

    for index in range(2):
        job.register_server(index, port=8000)
    job.until(lambda s: any("server 1 is back" in event["text"] for event in s["events"]))
    assert pb.GetTaskReply.FENCED == worker.client.get_task(0.0).outcome
    job.worker().work()
    status = job.end()
    assert (0, "done", None) == (job.code, status["state"], status["resume"])
    assert ([], 24) == (status["quarantined"], status["records_done"])
    assert 1 == status["restarts"]["worker"]  # as had happened before
    assert {4} == {ledger.applied(t.id) for ledger in job.servers.ledgers for t in (done, held)}


def test_a_stop_is_carried_on(start):
    job = start([("a", 400)], drain_grace_s=60.0)
    worker = job.worker()
    worker.lease()
    job.runtime.stop = lambda replica, grace_s: None  # nobody obeys the first master
    job.cli.stop("test")

    job.restart()

    status = job.end()
    assert (130, "stopped") == (job.code, status["state"])
    assert "stopped (test)" in status["message"]


def test_scaling_and_checkpoints_and_what_was_told_are_remembered(start):
    job = start([("a", 400)])
    job.worker().lease()
    job.cli.scale(3)
    job.runtime.wait_for("worker", 2)
    before = texts(job)

    job.restart()

    assert before == texts(job)[: len(before)]
    assert 3 == len(job.cli.status()[1]["workers"])


def test_revisions_go_on_so_that_nobody_who_watches_waits_in_vain(start):
    job = start([("a", 400)])
    known = job.cli.status()[0]

    job.restart()

    assert known < job.cli.status(known, 5.0)[0]


def test_an_older_master_answers_nobody(start):
    job = start([("a", 400)])
    old = job.master

    job.restart()

    for ask in (old.front.register, old.front.heartbeat, old.front.report_task):
        error = ask(pb.RegisterRequest()).exception(5.0)
        assert "the job is over" in str(error)
    assert old.status.exit_code is None


def test_memory_is_json(start):
    job = start([("a", 8)])

    assert json.loads(json.dumps(job.master._memory())) is not None

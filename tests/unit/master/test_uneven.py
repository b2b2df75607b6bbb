"""A cut that cannot be taken has its reason named, levelled, or ends the job: no endless wait."""

from __future__ import annotations

import re

import pytest

from edl.common import storage
from edl.proto import master_pb2 as pb
from edl.ps.books.ledger import Span

RECORDS = [("a", 12)]  # tasks 1, 2 and 3, of four records each


def told(status: dict) -> str:
    return "\n".join(event["text"] for event in status["events"])


def applied(job) -> list[list[int]]:
    return [[led.applied(task) for led in job.servers.ledgers] for task in (1, 2, 3)]


def test_a_span_of_a_task_that_nobody_has_leased_is_levelled_by_who_leases_it(start, tmp_path):
    job = start(RECORDS, checkpoint_dir=str(tmp_path / "c"), checkpoint_steps=1)
    worker = job.worker()
    first = worker.lease()
    job.servers.push(Span(3, 1, 0, 2), shard=0)
    worker.train(first)
    server = job.runtime.wait_for("server", 0)
    about = pb.Replica(role=pb.SERVER, index=0, incarnation=server.incarnation)
    job.client(about).heartbeat(version=1)  # a checkpoint is due, and waits
    job.until(lambda _: job.queue.find(3).boundaries == (2,))
    assert worker.done(first)

    worker.work()
    status = job.end()

    assert 0 == job.code, status["message"]
    assert [[4, 4]] * 3 == applied(job)
    assert "task 3 stands at 2 on server 0, 0 on server 1" in told(status)
    assert [] == storage.load(tmp_path / "c").books["tasks"]


def test_a_job_that_is_stopped_says_which_task_keeps_its_checkpoint_and_how_to_go_on(start):
    job = start(RECORDS)
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    assert worker.done(task)
    job.servers.push(Span(3, 1, 0, 2), shard=1)

    job.cli.stop("edl stop")
    status = job.end()

    assert "failed" == status["state"]
    assert "no worker is left to level task 3, at [0, 2]" in status["message"]
    assert f"go on with: edl train --resume {job.folder}" in status["message"]


def test_what_was_reported_done_and_is_not_on_all_servers_is_leased_again(start, tmp_path):
    job = start(RECORDS, checkpoint_dir=str(tmp_path / "c"))
    worker = job.worker()
    half, nothing = worker.lease(), worker.lease()
    job.servers.push(Span(half.id, 1, 0, 4), shard=0)
    assert worker.done(half)
    assert worker.done(nothing)

    worker.work()
    status = job.end()

    assert 0 == job.code, status["message"]
    assert [[4, 4]] * 3 == applied(job)
    assert [] == storage.load(tmp_path / "c").books["tasks"]
    assert "task 1 stands at 4 on server 0, 0 on server 1" in told(status)
    assert "task 2 was reported as done, and the servers have 0 of its 4 records" in told(status)


def test_a_task_that_comes_back_from_the_last_cut_is_done_before_training_ends(start, tmp_path):
    job = start([("a", 4)], checkpoint_dir=str(tmp_path / "c"))
    worker = job.worker()
    assert worker.done(worker.lease())

    job.until(lambda status: status["checkpoint"])  # of a state that lacks it yet
    again = worker.lease()
    worker.train(again)
    assert worker.done(again)
    worker.work()
    job.end()

    assert pb.TRAIN == again.kind
    assert 0 == job.code
    assert [] == storage.load(tmp_path / "c").books["tasks"]


@pytest.mark.parametrize(
    ("span", "why"),
    [
        (Span(999_999, 1, 0, 4), "task 999999 stands at 4 on server 0, 0 on server 1: .* not made"),
        (Span(3, 1, 0, 64), "task 3 stands at 64 on server 0, 4 on server 1.*: .* of 4 records"),
    ],
    ids=["of no task", "beyond its end"],
)
def test_a_span_that_no_task_has_ends_the_job_with_its_name(start, tmp_path, span, why):
    job = start(RECORDS, checkpoint_dir=str(tmp_path / "c"))
    worker = job.worker()
    job.servers.push(span, shard=0)

    for _ in range(3):
        task = worker.lease()
        worker.train(task)
        assert worker.done(task)
    status = job.end()

    assert 1 == job.code
    assert re.search(why, status["message"]), status["message"]

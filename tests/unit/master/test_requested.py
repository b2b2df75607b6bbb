"""Checkpoints that somebody asks for: of now, once for a question, in nobody else's way."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tools.stores import world

from edl.common import storage
from edl.common.errors import JobError
from edl.master.requested import MOST
from edl.proto import master_pb2 as pb


def question(job, request_id: str, wait_s: float = 30.0) -> pb.CheckpointReply:
    request = pb.CheckpointRequest(request_id=request_id, wait_s=wait_s)
    return job.cli._call("Checkpoint", request, wait_s)


def at_work(start, folder, records: int = 8, **more):
    """Return a job whose worker has trained half a task and goes on, and that worker's task."""
    job = start([("a", records)], checkpoint_dir=str(folder / "c"), **more)
    worker = job.worker()
    task = worker.lease()
    worker.train(task, until=2)
    job.until(lambda s: s["state"] == "running")
    return job, worker, task


def test_a_checkpoint_of_now_is_written_and_training_goes_on(start, tmp_path):
    job, worker, task = at_work(start, tmp_path)

    where = job.cli.checkpoint()

    manifest = storage.read_manifest(where)
    assert [[1, 0, 2, 1, []]] == manifest.books["tasks"]
    status = job.until(lambda s: s["checkpoint"] == where)
    assert "running" == status["state"]
    assert ("checkpoint", f"checkpoint {manifest.directory.name} is written") in [
        (event.get("kind"), event["text"]) for event in status["events"]
    ]
    worker.train(task)
    worker.done(task)
    worker.work()
    assert ("done", True) == (job.end()["state"], job.is_whole())


def test_a_question_that_is_repeated_asks_for_no_other_checkpoint(start, tmp_path):
    job, worker, task = at_work(start, tmp_path)
    first = question(job, "q")
    worker.train(task)

    assert (first, False) == (question(job, "q"), first.pending)

    assert first.checkpoint != question(job, "another").checkpoint
    assert 2 == job.servers.calls.count("snapshot")


def test_questions_while_one_is_written_share_the_next_which_is_newer(start, tmp_path):
    job, worker, task = at_work(start, tmp_path, checkpoint_steps=1)
    under_way, go_on = threading.Event(), threading.Event()
    snapshot = job.servers.snapshot

    def slow(cut, directory):
        under_way.set()
        assert go_on.wait(60)
        return snapshot(cut, directory)

    job.servers.snapshot = slow
    server = job.runtime.wait_for("server", 0)
    about = pb.Replica(role=pb.SERVER, index=0, incarnation=server.incarnation)
    job.client(about).heartbeat(version=1)  # the periodic one
    assert under_way.wait(60)
    worker.train(task)

    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(question, job, name) for name in ("one", "two", "two")]
        assert question(job, "three", 0.0).pending
        go_on.set()
        answers = {each.result(60).checkpoint for each in asked}

    assert answers == {question(job, "three").checkpoint}
    (where,) = answers
    assert storage.read_manifest(where).books["untouched"] == [[2, 3]]
    assert 2 == job.servers.calls.count("snapshot")


def test_the_next_master_knows_how_a_question_ended_and_writes_what_was_not_begun(start, tmp_path):
    job, worker, task = at_work(start, tmp_path)
    answered = question(job, "q")
    worker.train(task)

    job.restart()

    assert answered == question(job, "q")
    assert answered.checkpoint != question(job, "of before, repeated here").checkpoint
    known = job.until(lambda s: True)["requested"]
    assert ["q", "of before, repeated here"] == [each["id"] for each in known]


def test_a_store_that_fails_is_told_to_whoever_asked(start):
    there = world("asked", new=True)
    job = start([("a", 8)], checkpoint_dir="flaky://asked/c")
    job.worker()
    job.until(lambda s: s["state"] == "running")
    there.down, there.error = True, PermissionError(13, "Access Denied")

    with pytest.raises(JobError, match=r"^checkpoint flaky://asked/c cannot be written: .*Denied"):
        job.cli.checkpoint()

    there.down = False
    assert job.cli.checkpoint().startswith("flaky://asked/c/version-")


def test_jobs_that_have_no_checkpoint_say_so(start):
    job = start(prediction=[("a", 8)], command="predict", output="out")

    with pytest.raises(JobError, match="only a job that trains has checkpoints: this one is to"):
        job.cli.checkpoint()


def test_a_job_that_is_over_names_its_last_checkpoint(start, tmp_path):
    job, _worker, _task = at_work(start, tmp_path)
    where = job.cli.checkpoint()
    requested = job.master.course.requested

    job.master.loop.post(lambda: job.master.core.fail("broken"))

    job.end()
    requested.ask("late")
    told = f"the job has ended: failed; its last checkpoint is {where}"
    assert told == requested.answer("late").refused
    assert told == requested.answer("never asked").refused


def test_who_does_not_wait_is_told_that_it_is_not_there_yet(start, tmp_path):
    job, _worker, _task = at_work(start, tmp_path)
    job.servers.down.set()

    assert "" == job.cli.checkpoint(timeout_s=0.05)

    job.servers.down.clear()


def test_a_question_without_an_id_is_refused(start):
    job = start([("a", 8)])

    with pytest.raises(Exception, match="request_id is empty"):
        question(job, "")


def test_only_the_last_questions_are_kept(start, tmp_path):
    job, _worker, _task = at_work(start, tmp_path)

    for number in range(MOST + 3):
        question(job, f"q{number}")

    kept = job.until(lambda s: True)["requested"]
    assert [f"q{number}" for number in range(3, MOST + 3)] == [each["id"] for each in kept]
    assert 1 == job.servers.calls.count("snapshot")  # of the same state


@pytest.mark.parametrize("strategy", ["allreduce", "hybrid"])
def test_a_group_is_given_the_order_for_a_cut(strategy, start, tmp_path):
    servers = {} if strategy == "hybrid" else {"num_ps": 0}
    job = start([("a", 12)], strategy=strategy, checkpoint_dir=str(tmp_path / "c"), **servers)
    worker = job.worker()
    about = worker.client.join(pb.JoinRequest(wait_s=20.0, version=-1))
    job.until(lambda s: s["state"] == "running")
    assert question(job, "q", 0.0).pending

    watch = pb.WatchRoundRequest(round=about.round, wait_s=20.0)

    wanted = pb.Order.TAKE_ALL if strategy == "hybrid" else pb.Order.TAKE
    assert [wanted] == [order.kind for order in worker.client.watch_round(watch).orders]

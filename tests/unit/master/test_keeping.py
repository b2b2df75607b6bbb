"""The leavings of a job: its last state, the best by a metric, nothing that another has left."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path

import pytest

from edl.common import storage
from edl.master.books.plan import Kind, Plan
from edl.master.books.saved import books_of
from edl.master.books.saved import queue_of as queue_from
from edl.master.books.task_queue import TaskQueue
from edl.proto import master_pb2 as pb


def work(job, worker, values, then=lambda seen: None) -> int:
    """Train and evaluate to the end, with these values; return how many tasks were trained."""
    trained, seen = 0, 0
    while True:
        reply = worker.client.get_task(20.0)
        if reply.outcome != pb.GetTaskReply.TASK:
            worker.leave()
            return trained
        result = b"{}"
        if reply.task.kind == pb.TRAIN:
            worker.train(reply.task)
            trained += 1
        elif reply.task.kind == pb.EVALUATE_END:
            result = json.dumps({"auc": values[reply.task.epoch]}).encode()
        assert worker.done(reply.task, result)
        if reply.task.kind == pb.EVALUATE_END:
            seen += 1
            then(seen)


def work_until_it_fails(job, worker, values) -> dict:
    """Do as `work` in a job that ends before it: no one answers then. Return the last status."""

    def run() -> None:
        with contextlib.suppress(Exception):
            work(job, worker, values)

    threading.Thread(target=run, daemon=True).start()
    return job.end()


def test_a_job_without_a_folder_for_checkpoints_keeps_its_last_state_in_its_own(start):
    job = start([("a", 8)])

    job.worker().work()

    status = job.end()
    found = storage.latest(job.folder / "checkpoints")
    assert found is not None
    assert (str(found.directory), None) == (status["checkpoint"], status["began_from"])


def test_a_job_that_is_to_keep_none_says_so_at_the_start_and_keeps_none(start):
    job = start([("a", 8)], keep_last=False)
    told = [event["text"] for event in job.until(lambda s: s["events"])["events"]]
    assert "no state is kept at the end: --no_keep_last" in told

    job.worker().work()

    assert (None, False) == (job.end()["checkpoint"], (job.folder / "checkpoints").exists())


@pytest.mark.parametrize(
    ("volume", "told"), [("", True), ("claim_name=c", False)], ids=["pod's disk", "job_volume"]
)
def test_a_job_of_pods_says_that_its_folder_ends_with_them(start, volume, told):
    job = start([("a", 8)], runtime="kubernetes", job_volume=volume)

    job.worker().work()

    status = job.end()
    texts = [event["text"] for event in status["events"]]
    assert told == any("nothing that this job learns is kept" in text for text in texts)
    assert told == (status["checkpoint"] is None)


def test_a_job_that_goes_on_with_a_checkpoint_names_its_own(start, tmp_path):
    job = start([("a", 8)], restore="/old/version-000000000001")
    assert None is job.until(lambda s: s["state"] == "running")["checkpoint"]

    job.worker().work()

    status = job.end()
    assert "/old/version-000000000001" == status["began_from"]
    assert job.folder / "checkpoints" == Path(status["checkpoint"]).parent


@pytest.mark.parametrize("killed_after", [None, 1, 2, 3, 4], ids=str)
def test_training_ends_when_the_metric_is_no_better_and_the_best_is_kept_through_kills(
    start, killed_after
):
    job = start(
        [("a", 8)], [("v", 4)], num_epochs=9, num_ps=1, use_async=True, early_stopping="auc:2"
    )
    worker = job.worker()
    values = [0.5, 0.7, 0.6, 0.7, 0.9]

    trained = work(job, worker, values, lambda n: n == killed_after and job.restart())

    status = job.end()
    assert (0, "done", 8, 32) == (job.code, status["state"], trained, status["records_done"])
    best = status["best"]
    assert ("auc", 0.7, 8, 1) == tuple(best[n] for n in ("metric", "value", "version", "epoch"))
    assert (
        "stopped early: auc was best at version 8 (0.7), and no better in 2 evaluations since"
        == status["message"]
    )
    folder = job.folder / "checkpoints"
    assert [Path(best["checkpoint"])] == storage.find_checkpoints(folder / "best")
    kept = storage.read_manifest(best["checkpoint"])
    again = queue_from(job.queue.plan, kept.books)
    assert (8, 16, 2) == (kept.version, again.records_done, again.opened)
    # The last one twice, where the master was killed at the very end.
    assert {16} == {storage.read_manifest(p).version for p in storage.find_checkpoints(folder)}


def test_what_the_judges_have_seen_goes_on_with_the_checkpoint_and_so_does_the_best(start):
    job = start([("a", 8)], [("v", 4)], num_epochs=2, num_ps=1, use_async=True, keep_best="auc")
    work(job, job.worker(), [0.9, 0.8])
    last = job.end()["checkpoint"]

    judged = storage.read_manifest(last).books["judged"]

    assert (0.9, 4, 8) == tuple(judged["best"][name] for name in ("value", "version", "counted"))


def test_a_best_checkpoint_that_cannot_be_written_is_no_success(start, monkeypatch):
    job = start([("a", 8)], [("v", 4)], num_ps=1, use_async=True, keep_best="auc")
    (job.folder / "checkpoints").mkdir()
    (job.folder / "checkpoints" / "best").write_text("a file is in the way")

    status = work_until_it_fails(job, job.worker(), [0.9])

    assert (1, "failed", None) == (job.code, status["state"], status["best"])
    assert "the best checkpoint (auc 0.9, version 4) could not be written" in status["message"]
    assert status["checkpoint"]


def test_a_metric_that_is_not_there_fails_the_job_by_name(start):
    job = start([("a", 8)], [("v", 4)], use_async=True, keep_best="auc/part")
    status = work_until_it_fails(job, job.worker(), [0.9])

    assert "'auc/part'" in status["message"]


def test_a_queue_that_is_closed_finishes_what_has_begun_and_its_books_have_the_rest():
    plan = Plan(Kind.TRAIN, (("a", 16),), 2, 2, num_epochs=2)
    queue = TaskQueue(plan)
    queue.open_epoch()
    for number in range(2):
        queue.lease("w", str(number))
    queue.done("w", 1, 1)

    queue.close()

    assert None is queue.lease("w", "r")
    assert not queue.plan_done
    queue.done("w", 2, 1)
    assert (True, 8) == (queue.plan_done, queue.records_done)
    assert (0, 2, 4) == tuple(queue.counts()[name] for name in ("todo", "done", "total"))
    again = queue_from(plan, books_of(queue))
    assert ([], 8) == (again.fencing, again.records_done)
    assert [3, 4] == [again.lease("w", f"r{number}").id for number in range(2)]


def test_one_broken_record_of_two_epochs_costs_one_of_the_budget(start):
    job = start([("a", 8)], num_epochs=2, task_fault_tolerance=1, skip_records=1)
    worker = job.worker()
    while True:
        reply = worker.client.get_task(20.0)
        if reply.outcome != pb.GetTaskReply.TASK:
            break
        task = reply.task
        if task.kind == pb.TRAIN and task.start == 4 and not task.skips:
            worker.fail(task, 0, 2, record=5)
            continue
        if task.kind == pb.TRAIN:
            worker.train(task)
        assert worker.done(task)
    worker.leave()

    status = job.end()
    assert (0, "done") == (job.code, status["state"])
    (row,) = status["quarantined"]
    assert [5] == row["records"]
    assert [("training", 0), ("training", 1)] == [(w["kind"], w["epoch"]) for w in row["where"]]


def test_the_mean_rate_of_a_job_that_goes_on_after_its_failure_is_that_of_this_run(start):
    job = start([("a", 12)], num_epochs=1, relaunch_on_worker_failure=0)
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    assert worker.done(task)
    worker.leave(1)
    failed = job.end()
    assert (0, 4) == (failed["records_before"], failed["records_done"])

    job.restart(failed["message"])

    status = job.until(lambda s: s["state"] != "failed")
    assert 4 == status["records_before"]
    assert status["run_s"] <= status["started_s_ago"]

"""`edl data analyze` as a job: each shard a task, without servers; the last task merges them."""

from __future__ import annotations

from edl.proto import master_pb2 as pb


def analysis(start, **settings):
    data = [("a", 9), ("b", 3)]
    return start(data, command="analyze", num_ps=0, **settings)


def about(task):
    return pb.TaskKind.Name(task.kind), task.id, task.source, task.start, task.end


SHARDS = [("ANALYZE", 1, "a", 0, 4), ("ANALYZE", 2, "a", 4, 9), ("ANALYZE", 3, "b", 0, 3)]


def test_each_shard_is_a_task_and_the_last_one_comes_when_they_are_done(start):
    """Broken to see it fail: the course does not wait for the plan."""
    job = analysis(start)
    worker = job.worker()
    tasks = [worker.lease(), worker.lease(), worker.lease()]
    nothing = worker.client.get_task(0.05).outcome
    for task in tasks:
        assert worker.done(task)
    last = worker.lease()
    worker.done(last)
    worker.leave()

    status = job.end()
    assert SHARDS == [about(task) for task in tasks]
    assert pb.GetTaskReply.WAIT == nothing
    assert "ANALYZE_END" == pb.TaskKind.Name(last.kind)
    assert ("done", 0, 12) == (status["state"], status["exit_code"], status["records_done"])
    assert [] == status["servers"]
    assert ("--analyze",) == job.runtime.arguments["worker", 0]


def test_task_of_a_killed_worker_waits_for_no_server(start):
    job = analysis(start, num_workers=2)
    slow, fast = job.worker(0), job.worker(1)
    held = slow.lease()
    job.runtime.end(job.runtime.wait_for("worker", 0), -9)
    again = fast.lease()

    assert (held.id, 2, 0) == (again.id, again.attempt, again.position)
    assert not slow.done(held)


def test_another_master_goes_on_with_what_is_done(start):
    job = analysis(start)
    worker = job.worker()
    worker.done(worker.lease())
    held = worker.lease()
    job.restart()

    assert worker.done(held)
    assert SHARDS[2] == about(worker.lease())
    assert 9 == job.until(lambda status: status["state"] == "running")["records_done"]


def test_another_master_merges_again(start):
    job = analysis(start)
    worker = job.worker()
    for _ in SHARDS:
        worker.done(worker.lease())
    before = worker.lease()
    job.restart()
    after = worker.lease()

    assert not worker.done(before)
    assert "ANALYZE_END" == pb.TaskKind.Name(after.kind)
    assert worker.done(after)
    worker.leave()
    assert "done" == job.end()["state"]


def test_servers_are_not_to_be_had(start):
    job = analysis(start)
    worker = job.worker()
    worker.lease()

    reply = job.cli._call("Scale", pb.ScaleRequest(num_servers=2))

    assert "only a job that trains" in reply.refused

"""Evaluation and prediction: each on one cut, their results merged once."""

from __future__ import annotations

from edl.proto import master_pb2 as pb


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

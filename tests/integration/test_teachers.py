"""Jobs with teachers: each record once, and taught what its teacher says of it.

A test's docstring says what was broken once to see it fail.
"""

import contextlib

import numpy as np
import pytest
from tools.jobs import NO_RESTARTS
from tools.kserve import Spec, StandIn
from tools.pupils import MINIBATCH, books, must_be_taught, scale_teachers, taught_job
from tools.turns import in_turn


def taught(at_least):
    return lambda status: status["teaching"]["records"] >= at_least


@pytest.mark.parametrize("strategy", ["ps", "allreduce"])
def test_a_student_is_taught_each_record_and_teachers_are_replicas(tmp_path, strategy):
    """Broken once: (1) Lesson gives the answer of the question before; (2) TaskReader does not
    ask."""
    job = taught_job(tmp_path, strategy=strategy, num_epochs=2)
    with job:
        status = job.watch(taught(200))
        assert 0 == job.wait(), job.logs()

    assert ["teaching", "teaching"] == [each["state"] for each in status["teachers"]]
    result = job.result()
    assert NO_RESTARTS == result["restarts"]
    assert 0 == result["teaching"]["untaught"]
    must_be_taught(job, 2)


def _there(status):
    return [each["pid"] for each in status["teachers"] if each["state"] == "teaching"]


def test_all_teachers_away_and_back(tmp_path):
    """0 -> 2 -> 0 -> 1, and the student waits."""
    job = taught_job(tmp_path, num_teachers=1, num_epochs=6, delay_s=0.02)
    with job:
        job.watch(taught(100))
        client = job.client()
        for number in (0, 2, 0, 1):
            client.scale(0, num_teachers=number)
            job.watch(lambda s, n=number: len(_there(s)) == n)
        client.close()
        assert 0 == job.wait(), job.logs()

    assert 0 == job.result()["teaching"]["untaught"]
    must_be_taught(job, 6)


def test_hard_labels_where_no_teacher_is_there(tmp_path):
    job = taught_job(
        tmp_path, num_teachers=1, without_teachers="hard_labels", num_epochs=2, delay_s=0.02
    )
    with job:
        job.watch(taught(100))
        scale_teachers(job, 0)
        assert 0 == job.wait(), job.logs()

    counts, lessons = books(job, 2)
    np.testing.assert_array_equal(counts, 2)
    assert 0 < lessons.mean() < 1  # some were taught, and some went on without
    assert job.result()["teaching"]["untaught"] > 0


def test_fail_where_no_teacher_is_there(tmp_path):
    job = taught_job(tmp_path, num_teachers=1, without_teachers="fail", num_epochs=50)
    with job:
        job.watch(taught(100))
        scale_teachers(job, 0)
        assert 1 == job.wait(), job.logs()

    assert "no teacher is there" in job.result()["message"]
    assert [] == job.result()["quarantined"]


def test_a_teacher_that_lies_is_no_fault_of_the_records(tmp_path):
    job = taught_job(tmp_path, teacher_wait_s=3.0, num_epochs=50)
    with job:
        job.watch(taught(100))
        (tmp_path / "teach").write_text("nan")
        assert 1 == job.wait(), job.logs()

    result = job.result()
    assert "2 answered wrongly" in result["message"]
    assert [] == result["quarantined"]


def foreign_pupil():
    """Return a server that says of a record what the pupil's teacher does."""

    def answer(them):
        return {"lesson": (them["record"] % 997 + 1).astype(np.float32)[:, None]}

    inputs, outputs = [Spec("record", "INT64", [-1])], [Spec("lesson", "FP32", [-1, 1])]
    return StandIn(inputs, outputs, answer, max_batch_size=12)


@pytest.mark.parametrize("carrier", [pytest.param("http", marks=pytest.mark.slow), "grpc"])
def test_foreign_servers_teach_by_kserves_protocol(tmp_path, carrier):
    """One of two goes away in between. Broken once: in_spans asks about its first rows twice."""
    stays, goes = foreign_pupil(), foreign_pupil()
    with stays, contextlib.ExitStack() as leaving:
        leaving.enter_context(goes)
        teachers = f"{stays.url(carrier)},{goes.url(carrier)}"
        job = taught_job(tmp_path, num_teachers=0, teachers=teachers, num_epochs=2)
        with job:
            job.watch(taught(300))
            leaving.close()
            assert 0 == job.wait(), job.logs()

    assert sum(goes.rows) > 0
    result = job.result()
    assert NO_RESTARTS == result["restarts"]
    assert 0 == result["teaching"]["untaught"]
    must_be_taught(job, 2)


def test_a_foreign_server_whose_model_takes_something_else(tmp_path):
    server = foreign_pupil()
    server.inputs, server.max_batch_size = [Spec("record", "FP32", [-1, 3])], 0
    with server:
        job = taught_job(tmp_path, num_teachers=0, teachers=server.url("http"), teacher_wait_s=3.0)
        with job:
            assert 1 == job.wait(), job.logs()

    result = job.result()
    assert (
        "'/record' is INT64 [16], and the model takes 'record' (FP32 [-1, 3])" in result["message"]
    )
    assert [] == result["quarantined"]


@in_turn(1)
def test_teachers_come_by_need_and_leave_by_word(tmp_path):
    """None at first: who waits brings one; then somebody says how many, and the need is silent.

    Broken once: the workers' scalars do not count waits that are not over.
    """
    job = taught_job(tmp_path, num_teachers=0, max_teachers=4, num_workers=1, num_epochs=2)
    with job:
        job.watch(taught(100))
        scale_teachers(job, 1)
        assert 0 == job.wait(), job.logs()

    result = job.result()
    (decision,) = result["teaching"]["decisions"]
    assert (0, 1) == (decision["before"], decision["wanted"])
    assert "a worker waits, and no teacher is there" == decision["why"]
    told = [each["text"] for each in result["events"]]
    assert "teachers wanted: 1, and the need decides no more" in told
    must_be_taught(job, 2)


@pytest.mark.slow
def test_slow_teachers_become_as_many_as_are_needed(tmp_path):
    """A device of 0.1 s a minibatch each: from 1 to as many as students of 0.04 s a step need."""
    job = taught_job(
        tmp_path,
        num_teachers=1,
        max_teachers=6,
        teacher_batch_size=MINIBATCH,
        delay_s=0.04,
        num_workers=1,
        num_epochs=30,
    )
    (tmp_path / "teach").write_text("sleep 0.1")
    with job:
        status = job.watch(lambda s: s["records_done"] > 20_000)
        (tmp_path / "teach").write_text("")
        assert 0 == job.wait(), job.logs()

    decisions = status["teaching"]["decisions"]
    assert 1 <= len(decisions) <= 3, decisions
    assert 2 <= decisions[-1]["wanted"] <= 4, decisions
    assert status["teaching"]["wait_share"] <= 0.02
    must_be_taught(job, 30)

"""What was taught is counted over all workers that there have been, each once."""

from edl.master.lessons import Lessons
from edl.proto import master_pb2 as pb


def test_workers_that_come_and_go_are_added_up():
    it = Lessons()
    assert not it.heard("a", {"taught": 10.0, "loss": 1.0})
    assert it.heard("a", {"taught": 12.0, "untaught": 4.0})
    assert not it.heard("b", {"taught": 5.0})
    assert not it.heard("a", {"taught": 11.0, "untaught": 4.0})  # a beat that was overtaken
    assert not it.heard("c", {})

    assert it.totals == {"records": 17, "cached": 0, "untaught": 4}


def test_a_successor_goes_on_counting():
    it, successor = Lessons(), Lessons()
    it.heard("a", {"taught": 10.0, "untaught": 3.0})
    successor.remember(it.of)
    successor.heard("a", {"taught": 10.0, "untaught": 5.0})

    assert successor.totals == {"records": 10, "cached": 0, "untaught": 5}


def test_each_workers_last_records_are_told_by_its_second_beat_since_the_end():
    it = Lessons()
    it.heard("a", {"taught": 10.0})
    assert not it.is_closing
    it.close()
    assert it.is_closing

    it.heard("a", {"taught": 10.0})  # was on its way as the last records were trained
    it.heard("b", {})
    assert [False, False, True] == [it.is_whole(each) for each in (["a"], ["a", "c"], [])]
    it.heard("a", {"taught": 12.0})
    assert [True, False] == [it.is_whole(each) for each in (["a"], ["a", "b"])]
    assert 12 == it.totals["records"]


def test_a_job_is_done_once_its_last_records_are_counted(start):
    job = start([("a", 8)], teachers="127.0.0.1:9", lease_s=60.0)
    worker = job.worker()
    for _ in range(3):  # two tasks, and train-end
        task = worker.lease()
        if task.kind == pb.TRAIN:
            worker.train(task)
        assert worker.done(task)

    first = worker.client.heartbeat(scalars={"taught": 4.0}, state="training")
    (_, before) = job.cli.status()
    worker.client.heartbeat(scalars={"taught": 5.0, "untaught": 3.0}, state="waiting")
    done = job.until(lambda status: status["state"] == "done")

    assert ("running", 8, 4) == (
        before["state"],
        before["records_done"],
        before["teaching"]["records"],
    )
    assert (5, 3) == (done["teaching"]["records"], done["teaching"]["untaught"])
    assert first.interval_s < 0.1
    worker.leave()

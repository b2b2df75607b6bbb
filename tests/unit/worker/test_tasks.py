"""The view of a task by a definition's functions when the same worker is given it again."""

from types import SimpleNamespace

import numpy as np
import pytest

from edl.nn.metrics import Mean, merge
from edl.proto import master_pb2 as pb
from edl.worker.task_reader import Lease
from edl.worker.tasks import DefinitionTasks

pytestmark = pytest.mark.fast


def tasks(output=""):
    definition = SimpleNamespace(
        metrics=lambda: {"mean": Mean(lambda outputs, labels: outputs.mean())},
        process_predictions=None,
        callbacks=None,
        file="",
    )
    return DefinitionTasks(definition, output=str(output), worker=0)


def lease(kind, attempt):
    return Lease(pb.Task(id=7, attempt=attempt, kind=kind, end=4))


def test_a_second_attempt_of_an_evaluation_counts_no_record_twice():
    made = tasks()
    made.evaluate(lease(pb.EVALUATE, 1), np.array([8.0, 8.0]), [0, 0])  # then it fails
    again = lease(pb.EVALUATE, 2)

    for outputs in ([1.0, 1.0], [4.0, 4.0]):
        made.evaluate(again, np.array(outputs), [0, 0])

    assert {"mean": 2.5} == merge([made.evaluated(again)], made._new_metrics())


def test_a_second_attempt_of_a_prediction_writes_each_record_once(tmp_path):
    made = tasks(tmp_path)
    made.predict(lease(pb.PREDICT, 1), np.array([0.0, 1.0]), 2)  # then it fails
    again = lease(pb.PREDICT, 2)

    for outputs in ([0.0, 1.0], [2.0, 3.0]):
        made.predict(again, np.array(outputs), 2)
    made.predicted(again)

    written = np.load(tmp_path / "predictions" / "part-00000007.npy")
    assert [0, 1, 2, 3] == written.tolist()


def test_predictions_name_their_records_less_those_that_are_quarantined(tmp_path):
    made = tasks(tmp_path)
    task = pb.Task(id=7, attempt=1, kind=pb.PREDICT, source="a.csv", start=10, end=14, skips=[1])
    given = Lease(task)

    made.predict(given, np.array([0.0, 2.0]), 2)
    made.predict(given, np.array([3.0]), 1)
    made.predicted(given)

    who = np.load(tmp_path / "predictions" / "records-00000007.npy")
    assert [("a.csv", 10), ("a.csv", 12), ("a.csv", 13)] == who.tolist()


def test_columns_of_a_tasks_records_are_written_beside_their_outputs(tmp_path):
    made = tasks(tmp_path)
    made.predict(lease(pb.PREDICT, 1), np.array([0.0]), 1, {"user": np.array(["x"])})  # it fails
    again = lease(pb.PREDICT, 2)

    for users in (["a", "bb"], ["c", "d"]):
        made.predict(again, np.array([1.0, 2.0]), 2, {"user": np.array(users)})
    made.predicted(again)

    written = np.load(tmp_path / "predictions" / "ids-00000007.user.npy")
    assert ["a", "bb", "c", "d"] == written.tolist()


class Told:
    """Callbacks that note what is told."""

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *arguments: self.told.append((name, *arguments))


def test_callbacks_are_told_of_epochs_around_the_steps_of_each():
    made = tasks()
    told = made._definition.callbacks = Told()
    for epoch, logs in ((0, None), (0, {"loss": 0.5}), (2, None)):
        made.step_begin(epoch, 7)
        made.step_end(8, 0.5, logs)
    made.epochs_end()
    made.epochs_end()

    step = [("on_step_begin", 7), ("on_step_end", 8, 0.5)]
    assert told.told == [
        ("on_epoch_begin", 0),
        *step,
        *step,
        ("on_log", {"loss": 0.5}),
        ("on_epoch_end", 0),
        ("on_epoch_begin", 2),
        *step,
        ("on_epoch_end", 2),
    ]
    assert made.follows_steps
    assert not tasks().follows_steps


def test_an_evaluation_is_told_by_both_names():
    made = tasks()
    told = made._definition.callbacks = Told()

    made.merge(b"\0\0\0\0")

    assert ["on_evaluate", "on_evaluate_end"] == [name for name, _ in told.told]

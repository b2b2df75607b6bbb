"""The words of the check of a definition on the metrics that a job is judged by."""

import json

import pytest

from edl.common.errors import UsageError
from edl.common.settings import JobSettings
from edl.worker.describe import describe

DEFINITION = """
from torch import nn
from edl.nn import AUC, Accuracy, LogLoss, Mean, MeanSquaredError, SGD


def model():
    return nn.Linear(1, 1)


def loss(outputs, labels):
    return ((outputs - labels) ** 2).mean()


def optimizer():
    return SGD(lr=0.1)


def feed(records, mode):
    return records["x"], records["x"]


class Own(MeanSquaredError):
    best = "max"


def metrics():
    own = {"mean": Mean(lambda a, b: 1.0), "gain": Mean(lambda a, b: 1.0, best="max"), "own": Own()}
    known = {"auc": AUC(), "accuracy": Accuracy(), "log_loss": LogLoss(), "loss": Mean(loss)}
    return {**known, **own, "mse": MeanSquaredError()}
"""
BEST = {
    "auc": "max",
    "accuracy": "max",
    "log_loss": "min",
    "loss": "min",
    "mean": "",
    "gain": "max",
}
BEST |= {"own": "max", "mse": "min"}


@pytest.fixture
def described(tmp_path):
    (tmp_path / "own.py").write_text(DEFINITION)
    (tmp_path / "data.csv").write_text("x\n1\n")

    def run(**judged):
        data = str(tmp_path / "data.csv")
        settings = JobSettings(model_def=str(tmp_path / "own.py"), training_data=data, **judged)
        describe(settings, tmp_path)
        return json.loads((tmp_path / "describe.json").read_text())["metrics"]

    return run


def test_metrics_know_which_value_is_best(described):
    assert BEST == described(keep_best="auc")
    assert BEST == described(keep_best="mean:min", early_stopping="loss:2")
    assert BEST == described(keep_best="auc/part")


@pytest.mark.parametrize(
    ("judged", "told"),
    [
        ({"keep_best": "f1"}, "--keep_best f1: .* has no such metric; metrics.. has auc, accuracy"),
        ({"early_stopping": "mean:4"}, "write mean:min or mean:max"),
    ],
)
def test_a_metric_that_is_not_there_or_does_not_know_is_refused_before_the_start(
    described, judged, told
):
    with pytest.raises(UsageError, match=told):
        described(**judged)

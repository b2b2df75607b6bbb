"""Metrics that merge exactly."""

import io
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn import metrics as exact

from edl.common.errors import DefinitionError, EdlError
from edl.nn import AUC, Accuracy, LogLoss, Mean, MeanSquaredError
from edl.nn.metrics import merge, pack, unpack, values
from edl.nn.torch_metric import TorchMetric, as_metric

SCORED = st.integers(2, 60).flatmap(
    lambda n: st.tuples(
        arrays.arrays(np.float64, n, elements=st.floats(0, 1)),
        arrays.arrays(np.int64, n, elements=st.integers(0, 1)),
    )
)


def counted(metric, *batches):
    for outputs, labels in batches:
        metric.update(outputs, labels)
    return metric


@given(SCORED)
def test_auc_is_within_its_bound_of_the_exact_one(scored):
    scores, labels = scored
    auc = counted(AUC(), scored)
    if labels.min() == labels.max():
        assert math.isnan(auc.value())
    else:
        difference = abs(auc.value() - exact.roc_auc_score(labels, scores))

        assert difference <= auc.error_bound() + 1e-12


def test_auc_of_logits_is_that_of_their_sigmoid():
    logits, labels = torch.randn(500, 1), torch.randint(0, 2, (500,))
    from_logits = counted(AUC(logits=True), (logits, labels)).value()

    # torch's sigmoid is of float32: a score at the edge of a bin may fall into the one beside it.
    of_scores = counted(AUC(), (torch.sigmoid(logits), labels)).value()
    assert from_logits == pytest.approx(of_scores, abs=1e-4)


@pytest.mark.parametrize("score", [3.0, -0.1])
@pytest.mark.parametrize("kind", [AUC, LogLoss])
def test_scores_that_are_no_probabilities_are_refused(kind, score):
    with pytest.raises(ValueError, match=rf"use {kind.__name__}\(logits=True\)"):
        kind().update([0.5, score], [0, 1])


def test_binary_metrics_equal_scikit_learns():
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=300), rng.integers(0, 2, 300)
    scores = 1 / (1 + np.exp(-logits))
    loss = exact.log_loss(labels, scores)
    accuracy = exact.accuracy_score(labels, scores >= 0.3)

    assert counted(LogLoss(), (scores, labels)).value() == pytest.approx(loss)
    assert counted(LogLoss(logits=True), (logits, labels)).value() == pytest.approx(loss)
    assert counted(Accuracy(threshold=0.3), (scores, labels)).value() == accuracy
    assert counted(Accuracy(threshold=0.3, logits=True), (logits, labels)).value() == accuracy


def test_log_loss_of_a_great_logit_is_finite_and_exact():
    assert counted(LogLoss(logits=True), ([1000.0], [0])).value() == 1000.0


def test_accuracy_of_classes_takes_the_greatest():
    outputs = torch.tensor([[0.1, 0.9, 0.0], [2.0, 1.0, 0.0]], requires_grad=True)

    assert counted(Accuracy(), (outputs, torch.tensor([1, 2]))).value() == 0.5


def test_mean_squared_error_is_over_all_elements():
    batches = [(torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 1.0])), ([2.0], [0.0])]

    assert counted(MeanSquaredError(), *batches).value() == pytest.approx(8 / 3)


def test_mean_weighs_batches_by_their_records():
    metric = Mean(lambda outputs, labels: torch.tensor(outputs).mean())

    assert counted(metric, ([1.0], [0]), ([4.0, 4.0, 4.0], [0, 0, 0])).value() == 13 / 4


def test_half_precision_outputs_are_taken():
    outputs = torch.tensor([0.25, 0.75], dtype=torch.bfloat16)

    assert counted(Accuracy(), (outputs, [0, 1])).value() == 1.0


@pytest.mark.parametrize("metric", [AUC(), Accuracy(), LogLoss()])
@pytest.mark.parametrize(
    ("outputs", "labels", "message"),
    [([0.1, 0.2], [1], "2 outputs for 1 labels"), ([np.nan], [1], "NaN")],
)
def test_wrong_batches_are_told(metric, outputs, labels, message):
    with pytest.raises(ValueError, match=f"{type(metric).__name__} got .*{message}|got {message}"):
        metric.update(outputs, labels)


def test_nothing_counted_is_nan():
    fresh = [AUC(), Accuracy(), LogLoss(), MeanSquaredError(), Mean(len)]

    assert all(math.isnan(metric.value()) for metric in fresh)


def _all():
    return {
        "auc": AUC(),
        "accuracy": Accuracy(),
        "log_loss": LogLoss(),
        "mse": MeanSquaredError(),
        "loss": Mean(lambda outputs, labels: np.mean(outputs)),
    }


@given(st.lists(SCORED, min_size=1, max_size=4))
def test_merging_workers_equals_one_worker_that_sees_everything(batches):
    parts = [
        pack({name: counted(metric, batch) for name, metric in _all().items()}) for batch in batches
    ]
    alone = values({name: counted(metric, *batches) for name, metric in _all().items()})

    assert merge(parts, _all()) == pytest.approx(alone, rel=1e-12, nan_ok=True)


def test_merge_of_no_parts_is_nothing_counted():
    assert math.isnan(merge([], {"auc": AUC()})["auc"])


def test_state_of_one_worker_is_small_on_the_wire():
    rng = np.random.default_rng(0)
    scores = rng.random(10_000, np.float32)  # as a model's outputs are
    packed = pack({"auc": counted(AUC(), (scores, rng.integers(0, 2, 10_000)))})

    assert len(packed) < 40_000


def test_pickles_are_never_loaded():
    buffer = io.BytesIO()
    np.savez(buffer, **{"auc/positives": np.array([{}], object)})

    with pytest.raises(EdlError, match="cannot be read"):
        unpack(buffer.getvalue())


@pytest.mark.parametrize("data", [b"", b"PK\3\4 torn", pack({"auc": AUC()})[:-20]])
def test_torn_bytes_are_told(data):
    with pytest.raises(EdlError, match="cannot be read"):
        unpack(data)


def test_metrics_of_another_definition_are_told():
    with pytest.raises(EdlError, match=r"\['accuracy'\]; this definition has \['auc'\]"):
        merge([pack({"accuracy": Accuracy()})], {"auc": AUC()})


class Parts:
    """A metric of the user's own, with two values."""

    def __init__(self):
        self.sums = {"a": np.zeros(2)}

    def update(self, outputs, labels):
        self.sums["a"] += [sum(outputs), len(labels)]

    def state(self):
        return self.sums

    def load(self, state):
        self.sums = dict(state)

    def value(self):
        return {"sum": self.sums["a"][0], "count": self.sums["a"][1]}


def test_own_metric_with_several_values_is_told_by_parts():
    parts = [pack({"own": counted(Parts(), ([1.5], [0]))})] * 2

    merged = merge(parts, {"own": as_metric(Parts())})

    assert json.loads(json.dumps(merged)) == {"own/sum": 3.0, "own/count": 2.0}


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (Accuracy, "is a class, not an object"),
        (SimpleNamespace(update=1), "lacks state, load, value"),
    ],
)
def test_what_is_no_metric_is_told(metric, message):
    with pytest.raises(DefinitionError, match=message):
        as_metric(metric)


def test_torchmetrics_merge_like_our_own():
    torchmetrics = pytest.importorskip("torchmetrics")

    def fresh():
        return {"accuracy": as_metric(torchmetrics.Accuracy(task="binary"))}

    batches = [(torch.rand(50), torch.randint(0, 2, (50,))) for _ in range(3)]
    parts = [
        pack({name: counted(metric, batch) for name, metric in fresh().items()})
        for batch in batches
    ]
    expected = counted(Accuracy(), *batches).value()

    assert merge(parts, fresh())["accuracy"] == pytest.approx(expected)


def test_torchmetrics_with_states_that_do_not_add_are_refused():
    def cat():
        pass

    metric = SimpleNamespace(_reductions={"preds": cat}, _defaults={"preds": []}, compute=len)

    with pytest.raises(DefinitionError, match="states preds .* are no sums"):
        TorchMetric(metric)

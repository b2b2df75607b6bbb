"""Groups of records, and parts of outputs, by their names: what they may be, what is refused."""

import math

import numpy as np
import pytest
import torch

from edl.common.errors import DefinitionError, EdlError
from edl.nn import AUC, GAUC, Accuracy, ByGroup, MeanSquaredError, Metric
from edl.nn.groups import ids_of
from edl.nn.metrics import count_batch, merge, pack, values
from edl.nn.torch_metric import TorchMetric
from edl.nn.weights import Weighted

SCORES, LABELS = torch.tensor([0.1, 0.9, 0.3, 0.2]), torch.tensor([0, 1, 0, 1])
WEIGHTED = Weighted(LABELS, np.ones(4))


def counted(metric, outputs=SCORES, labels=LABELS, features=None):
    count_batch({"m": metric}, outputs, labels, features)
    return values({"m": metric})


def test_gauc_orders_within_users_and_leaves_out_who_has_one_label():
    users = torch.tensor([7, 7, 8, 8])

    assert {"m": 0.5} == counted(GAUC("user"), features={"user": users}, labels=LABELS)
    lone = counted(GAUC("user"), features={"user": torch.tensor([1, 2, 3, 4])})
    assert math.isnan(lone["m"])


def test_the_groups_may_stand_in_the_labels():
    labels = {"click": LABELS, "user": np.array(["a", "a", "b", "b"])}

    found = counted(GAUC("user", label="click"), labels=labels, features={"x": SCORES})

    assert {"m": 0.5} == found


@pytest.mark.parametrize(
    "column",
    [[3, 3, 4, 4], np.array([3.0, 3, 4, 4], np.float32), torch.tensor([[3], [3], [4], [4]])],
)
def test_a_whole_number_is_one_group_whatever_its_type(column):
    assert ids_of("user", [3, 3, 4, 4]).tolist() == ids_of("user", column).tolist()
    found = counted(ByGroup(Accuracy(), by="day"), features={"day": column})
    assert {"m/3": 1.0, "m/4": 0.5} == found


def test_groups_of_texts_and_of_numbers_have_their_own_names():
    texts = {"day": np.array(["2026-01-02", "b/c", "b/c", "é"])}
    numbers = {"day": np.array([10.0, 2.5, -1.0, 2.5])}

    assert ["m/2026-01-02", "m/b/c", "m/é"] == list(
        counted(ByGroup(Accuracy(), "day"), features=texts)
    )
    assert ["m/-1", "m/2.5", "m/10"] == list(counted(ByGroup(Accuracy(), "day"), features=numbers))


def test_groups_of_groups():
    features = {"day": [1, 1, 2, 2], "user": [7, 7, 7, 7]}
    metric = ByGroup(GAUC("user"), by="day")

    assert ("day", "user") == metric.columns
    assert {"m/1": 1.0, "m/2": 0.0} == counted(metric, features=features)


def test_workers_that_have_seen_other_groups_are_merged():
    parts = []
    for places in ([0], [1, 2], [], [3]):
        metric = ByGroup(MeanSquaredError(), by="day")
        if places:
            days = {"day": np.array([5, 6, 5, 7])[places]}
            counted(metric, SCORES[places], LABELS[places], days)
        parts.append(pack({"m": metric}))

    found = merge(parts, {"m": ByGroup(MeanSquaredError(), by="day")})

    errors = (SCORES - LABELS).double().square().tolist()
    assert {"m/5": (errors[0] + errors[2]) / 2, "m/6": errors[1], "m/7": errors[3]} == (
        pytest.approx(found)
    )


def test_best_is_that_of_the_metric():
    assert ("max", "min") == (ByGroup(AUC(), "d").best, ByGroup(MeanSquaredError(), "d").best)
    assert isinstance(ByGroup(AUC(), "d"), Metric)


class Own:
    """A metric of somebody's, which knows of no weights."""

    columns = ()

    def update(self, outputs, labels):
        """Count nothing."""


OUTPUTS = {"click": SCORES, "buy": SCORES}


@pytest.mark.parametrize(
    ("metric", "more", "sentence"),
    [
        (GAUC("usr"), {"features": {"user": LABELS}}, "'m' is by 'usr'.*features 'user'"),
        (GAUC("usr"), {}, "by 'usr', and feed gives no such entry.*neither is a dict"),
        (
            AUC(of="clik"),
            {"outputs": OUTPUTS},
            "AUC.of='clik'., and the outputs are 'click', 'buy'",
        ),
        (
            AUC(of="output_2"),
            {"outputs": (SCORES, SCORES)},
            "the outputs are 'output_0', 'output_1'",
        ),
        (AUC(of="x"), {}, "AUC.of='x'., and the outputs are 'output'"),
        (AUC(label="y"), {"labels": {"z": LABELS}}, "AUC.label='y'., and the labels are 'z'"),
        (Own(), {"labels": WEIGHTED}, "'m' takes no weights, and feed gives some"),
        (
            ByGroup(Own(), "d"),
            {"labels": WEIGHTED, "features": {"d": LABELS}},
            "ByGroup's Own takes no weights",
        ),
    ],
)
def test_names_that_are_not_there_are_told(metric, more, sentence):
    with pytest.raises(DefinitionError, match=sentence):
        counted(metric, **more)


def test_a_metric_of_torchmetrics_takes_no_weights():
    torchmetrics = pytest.importorskip("torchmetrics")
    metric = TorchMetric(torchmetrics.classification.BinaryAccuracy())

    with pytest.raises(DefinitionError, match="'m' takes no weights"):
        counted(metric, labels=WEIGHTED)


def test_several_outputs_without_a_name_are_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"AUC got a dict \(click, buy\).*AUC\(of=\.\.\.\)"):
        counted(AUC(), OUTPUTS)


@pytest.mark.parametrize("column", [[1.0, math.nan, 2.0, 3.0], [1, 2], np.ones((4, 2))])
@pytest.mark.parametrize("metric", [GAUC("d"), ByGroup(AUC(), "d")], ids=["gauc", "by"])
def test_columns_that_are_no_groups_are_refused(metric, column):
    with pytest.raises(
        ValueError, match=r"is NaN for a record|groups' values for 4|values of|shape"
    ):
        counted(metric, features={"d": np.array(column)})


def test_there_are_not_more_groups_than_a_status_can_hold(monkeypatch):
    monkeypatch.setattr(ByGroup, "MOST", 3)

    with pytest.raises(DefinitionError, match=r"more than 3 groups.*GAUC\(by='d'\)"):
        counted(ByGroup(AUC(), "d"), features={"d": [1, 2, 3, 4]})


def test_states_of_another_kind_are_refused():
    with pytest.raises(EdlError, match="GAUC cannot load a state"):
        GAUC("d").load(AUC().state())
    with pytest.raises(EdlError, match="ByGroup cannot load a state"):
        ByGroup(AUC(), "d").load(AUC().state())


def test_many_scores_of_many_users_are_binned_and_the_error_is_told(monkeypatch):
    monkeypatch.setattr(GAUC, "BINS", 64)
    rng = np.random.default_rng(0)
    scores, labels, users = rng.random(2000), rng.integers(0, 2, 2000), rng.integers(0, 9, 2000)
    binned = GAUC("user")
    exact = GAUC("user")
    exact._bins._most = 1 << 20
    for metric in (binned, exact):
        counted(metric, scores, labels, {"user": users})

    assert len(binned.state()["keys"]) <= 64
    assert 1e-3 < binned.error_bound() < 0.5
    assert abs(binned.value() - exact.value()) <= binned.error_bound()
    assert 0.0 == exact.error_bound()


def test_more_users_than_bins_are_kept_all_the_same(monkeypatch):
    monkeypatch.setattr(GAUC, "BINS", 4)
    users = np.arange(20) // 2
    found = counted(GAUC("u"), np.tile([0.1, 0.9], 10), np.tile([0, 1], 10), {"u": users})

    assert {"m": 0.5, "m/error_bound": 0.5} == found

"""Metrics with weights, by group, of one of several outputs: scikit-learn's, merged over kills."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as exact
from tools.turns import examples

from edl.nn import AUC, GAUC, Accuracy, ByGroup, LogLoss, Mean, MeanSquaredError, RecallAtK
from edl.nn.metrics import merge
from edl.nn.weights import Weighted
from edl.proto import master_pb2 as pb
from edl.worker.task_reader import Lease
from edl.worker.tasks import DefinitionTasks

KINDS = ("none", "ones", "counts", "uniform", "wide", "zeros")
CASES = st.tuples(st.sampled_from(KINDS), st.integers(1, 200), st.integers(0, 2**32 - 1))
NEAR = {"rel": 1e-9, "abs": 1e-9, "nan_ok": True}


def drawn(kind, size, seed):
    """Return a generator of numbers, and the weights of so many records (None: 1 each)."""
    rng = np.random.default_rng(seed)
    weight = {
        "none": lambda: None,
        "ones": lambda: np.ones(size, np.float32),
        "counts": lambda: rng.integers(0, 4, size),
        "uniform": lambda: torch.from_numpy(rng.random((size, 1))),
        "wide": lambda: 10.0 ** rng.uniform(-6, 6, size),
        "zeros": lambda: np.zeros(size),
    }[kind]()
    return rng, weight


def flat(weight, size):
    return np.ones(size) if weight is None else np.asarray(weight, np.float64).reshape(-1)


def some(values, places):
    if isinstance(values, dict):
        return {name: some(each, places) for name, each in values.items()}
    return values[places]


def over_kills(data, make, outputs, labels, weight=None, features=None):
    """Count records in tasks, of which some are begun by workers that die; return the values.

    Tasks are done in batches and end in any order.
    """
    size = len(next(iter(labels.values())) if isinstance(labels, dict) else labels)
    definition = SimpleNamespace(metrics=make, process_predictions=None, callbacks=None, file="")
    worker = DefinitionTasks(definition, output="", worker=0)
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=4)))
    states = []
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, size], strict=True)):
        dies = data.draw(st.booleans())
        for attempt in (1, 2) if dies else (1,):
            task = pb.Task(id=number, attempt=attempt, kind=pb.EVALUATE, start=start, end=end)
            batches = np.array_split(np.arange(start, end), data.draw(st.integers(1, 3)))
            for places in batches[:1] if attempt == 1 and dies else batches:
                truth = some(labels, places)
                if weight is not None:
                    truth = Weighted(truth, flat(weight, size)[places])
                given = None if features is None else some(features, places)
                worker.evaluate(Lease(task), some(outputs, places), truth, given)
        states.append(worker.evaluated(Lease(task)))
    return merge(data.draw(st.permutations(states)), make())


def auc(labels, scores, weight):
    """Return scikit-learn's value; NaN where a kind of labels weighs nothing."""
    if not all(weight[labels == is_so].sum() for is_so in (0, 1)):
        return math.nan
    return exact.roc_auc_score(labels, scores, sample_weight=weight)


@settings(max_examples=examples(500, 10), deadline=None)
@given(CASES, st.data())
def test_auc_is_scikit_learns(case, data):
    rng, weight = drawn(*case)
    size = case[1]
    scores, labels = rng.integers(0, 30, size) / 30, rng.integers(0, 2, size)

    found = over_kills(data, lambda: {"auc": AUC()}, scores, labels, weight)

    assert found["auc"] == pytest.approx(auc(labels, scores, flat(weight, size)), **NEAR)


def gauc(users, labels, scores, weight):
    """Return the mean of the users' AUCs by what their records weigh, as DIN has it."""
    each = {user: users == user for user in np.unique(users)}
    areas = {user: auc(labels[one], scores[one], weight[one]) for user, one in each.items()}
    known = [user for user, area in areas.items() if not math.isnan(area)]
    total = sum(weight[each[user]].sum() for user in known)
    return sum(areas[u] * weight[each[u]].sum() for u in known) / total if known else math.nan


def test_a_light_group_beside_heavy_ones_keeps_its_digits():
    """Broken once: a group's sums were differences of sums over all groups."""
    scores, labels = np.array([0.1, 0.4, 0.2, 0.3] * 2), np.array([0, 1, 0, 1] * 2)
    weight = np.array([1e12, 1e12, 1e12, 1e12, 1e-9, 3e-9, 2e-9, 1e-9])
    labels[7] = 0
    users = np.array([0] * 4 + [1] * 4)
    metric = GAUC("user")

    metric.update(scores, labels, weight, columns={"user": users})

    areas, _, _ = metric._bins.areas()
    one = users == 1
    light = auc(labels[one], scores[one], weight[one])
    assert sorted(areas) == pytest.approx(sorted([1.0, light]), rel=1e-12)


@settings(max_examples=examples(500, 10), deadline=None)
@given(CASES, st.integers(1, 20), st.data())
def test_gauc_is_the_mean_of_scikit_learns_by_user(case, users, data):
    rng, weight = drawn(*case)
    size = case[1]
    scores, labels = rng.normal(0, 3, size).round(1), rng.integers(0, 2, size)
    of_users = {"user": rng.integers(0, users, size) - 1}

    found = over_kills(
        data, lambda: {"gauc": GAUC("user", logits=True)}, scores, labels, weight, of_users
    )

    expected = gauc(of_users["user"], labels, scores, flat(weight, size))
    assert found["gauc"] == pytest.approx(expected, **NEAR)


@settings(max_examples=examples(250, 10), deadline=None)
@given(CASES, st.data())
def test_a_metric_by_group_is_the_metric_of_each(case, data):
    rng, weight = drawn(*case)
    size = case[1]
    scores, labels = rng.integers(0, 9, size) / 9, rng.integers(0, 2, size)
    days = {"day": rng.integers(0, 3, size)}
    make = lambda: {"auc": ByGroup(AUC(), by="day"), "loss": ByGroup(LogLoss(), by="day")}

    found = over_kills(data, make, scores, labels, weight, days)

    there = np.unique(days["day"]).tolist()
    assert {f"{name}/{day}" for name in ("auc", "loss") for day in there} == set(found)
    for day in there:
        one = days["day"] == day
        mine = labels[one], scores[one], flat(weight, size)[one]
        assert found[f"auc/{day}"] == pytest.approx(auc(*mine), **NEAR)
        assert found[f"loss/{day}"] == pytest.approx(log_loss(*mine), **NEAR)


def log_loss(labels, scores, weight):
    if not weight.sum():
        return math.nan
    p = np.clip(scores, 1e-7, 1 - 1e-7)
    return exact.log_loss(labels, p, sample_weight=weight, labels=[0, 1])


@settings(max_examples=examples(500, 10), deadline=None)
@given(CASES, st.data())
def test_means_are_scikit_learns(case, data):
    """Of one output of several, whose labels have its name."""
    rng, weight = drawn(*case)
    size = case[1]
    outputs = {
        "p": rng.integers(0, 9, size) / 9,
        "class": rng.random((size, 4)),
        "number": rng.normal(0, 5, (size, 3)),
    }
    labels = {
        "p": rng.integers(0, 2, size),
        "class": rng.integers(0, 4, size),
        "number": rng.normal(0, 5, (size, 3)),
    }

    def squares(outputs, labels):
        return ((outputs["number"] - labels["number"]) ** 2).mean(axis=1)

    def make():
        of_class, mse = Accuracy(of="class"), MeanSquaredError(of="number")
        made = {"loss": LogLoss(of="p"), "accuracy": of_class, "mse": mse, "mean": Mean(squares)}
        return {**made, "score": Accuracy(of="p"), "recall": RecallAtK(2, of="class")}

    found = over_kills(data, make, outputs, labels, weight)

    weights = flat(weight, size)
    if not weights.sum():
        assert all(map(math.isnan, found.values()))
        return
    given = {"sample_weight": weights}
    mse = exact.mean_squared_error(labels["number"], outputs["number"], **given)
    expected = {
        "loss": log_loss(labels["p"], outputs["p"], weights),
        "accuracy": exact.accuracy_score(labels["class"], outputs["class"].argmax(axis=1), **given),
        "score": exact.accuracy_score(labels["p"], outputs["p"] >= 0.5, **given),
        "recall": exact.top_k_accuracy_score(
            labels["class"], outputs["class"], k=2, labels=range(4), **given
        ),
        "mse": mse,
        "mean": mse,
    }
    assert found == pytest.approx(expected, **NEAR)


@settings(max_examples=examples(250, 10), deadline=None)
@given(st.integers(1, 100), st.integers(0, 2**32 - 1), st.data())
def test_a_record_of_weight_two_counts_as_two_records_of_one(size, seed, data):
    rng, weight = drawn("counts", size, seed)
    scores, labels = rng.random(size), rng.integers(0, 2, size)
    users = {"user": rng.integers(0, 4, size)}
    make = lambda: {"gauc": GAUC("user"), "auc": AUC(), "loss": LogLoss(), "hit": Accuracy()}
    twice = np.repeat(np.arange(size), weight)

    found = over_kills(data, make, scores, labels, weight, users)

    if not len(twice):
        assert all(map(math.isnan, found.values()))
        return
    again = over_kills(data, make, scores[twice], labels[twice], None, some(users, twice))
    assert found == pytest.approx(again, **NEAR)

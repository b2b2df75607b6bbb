"""Weights of records in the loss: the weighted mean, as torch has it, and what is refused."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from edl.common.errors import DefinitionError
from edl.nn.device import to_device
from edl.nn.weights import Labelled, Weighted, checked, mean, plain, weight_of, weighted

WEIGHT = np.array([0.0, 2.0, 0.5, 1.0])


def each(outputs, labels):
    return functional.cross_entropy(outputs, labels, reduction="none")


def test_the_loss_is_torchs_weighted_mean_and_so_is_its_gradient():
    classes = torch.tensor([0.0, 2.0, 0.5, 1.0])  # of torch's own weights, which are by class
    ours, theirs = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    theirs.data = ours.data.clone()
    labels = torch.arange(4)

    found = weighted(each)(ours, Weighted(labels, WEIGHT))
    expected = functional.cross_entropy(theirs, labels, weight=classes)
    found.backward()
    expected.backward()

    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_without_weights_the_loss_is_what_it_was():
    loss = weighted(lambda outputs, labels: ("as it is", labels))

    assert ("as it is", [1]) == loss(None, [1])


def test_what_a_teacher_answers_is_handed_on():
    loss = weighted(lambda outputs, labels, teacher: outputs * labels * teacher)

    found = loss(torch.ones(2), Weighted(torch.tensor([1.0, 3.0]), np.array([3.0, 1.0])), 2.0)

    assert 3.0 == found


def test_a_minibatch_that_weighs_nothing_has_a_loss_and_a_gradient_of_zero():
    losses = torch.tensor([1.0, 2.0], requires_grad=True)

    found = mean(losses, np.zeros(2))
    found.backward()

    assert (0.0, [0.0, 0.0]) == (float(found.detach()), losses.grad.tolist())


def test_very_large_and_small_weights_neither_overflow_nor_vanish():
    assert 1.5 == mean(torch.tensor([1.0, 2.0]), np.array([1e-300, 1e-300]))
    assert 1.0 == mean(torch.tensor([1.0, 2.0]), np.array([1e300, 0.0]))


@pytest.mark.parametrize(
    "losses", [torch.tensor(1.0), torch.ones(1), torch.ones(3), torch.ones(4, 2), 1.0, None]
)
def test_a_loss_that_is_not_of_each_record_is_refused(losses):
    with pytest.raises(DefinitionError, match=r'return one loss for each record.*reduction="none"'):
        mean(losses, WEIGHT)


@pytest.mark.parametrize("given", [[1, 2], [[1], [2]], np.array([1, 2]), torch.tensor([1.0, 2.0])])
def test_weights_are_numbers_of_any_kind(given):
    found = checked("feed", given, 2)

    assert ([1.0, 2.0], np.float64) == (found.tolist(), found.dtype)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([1.0, -0.5], "feed got the weight -0.5: weights are finite and not below 0"),
        ([1.0, math.nan], "the weight nan"),
        ([math.inf, 1.0], "the weight inf"),
        ([1.0], "1 weights for 2 records"),
        ([[1.0, 2.0]], r"the shape \[1, 2\]"),
        (["1", "2"], "numbers, one for each record"),
        (1.0, r"the shape \[\]"),
    ],
)
def test_other_weights_are_refused_in_a_sentence(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        checked("feed", given, 2)


def test_weights_go_with_the_labels_to_a_device_and_out_of_what_wraps_them():
    class Lesson(Labelled):
        def __init__(self, labels):
            self.labels = labels

    labels = {"a": torch.ones(4)}
    moved = to_device(Weighted(labels, WEIGHT), torch.device("cpu"))
    lesson = Lesson(moved)

    assert moved.labels is labels
    assert weight_of(lesson) is WEIGHT
    assert plain(lesson) is labels
    assert (None, labels) == (weight_of(Lesson(labels)), plain(labels))

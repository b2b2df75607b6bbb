"""An nn.EmbeddingBag whose rows are on the servers answers and learns as torch's does."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from edl.common.errors import DefinitionError
from edl.nn import LocalRows, attach, replace_big_embeddings
from edl.nn.moved import MovedBag

ROWS, DIM = 60, 4
IDS = torch.tensor([1, 3, 3, 7, 1, 59])
SHAPES = {
    "two axes": (IDS.reshape(2, 3), None, False),
    "offsets, an empty bag": (IDS, torch.tensor([0, 2, 2, 5]), False),
    "the last offset too": (IDS, torch.tensor([0, 2, 2, 6]), True),
    "int32": (IDS.int(), torch.tensor([0, 4]).int(), False),
    "empty bags alone": (IDS[:0], torch.tensor([0, 0]), False),
    "no bag": (IDS.reshape(2, 3)[:0], None, False),
}


def pair(**arguments):
    """Return torch's layer, and one of the same rows that was moved."""
    torch.manual_seed(1)
    plain = nn.EmbeddingBag(ROWS, DIM, **arguments)
    holder = nn.ModuleList([copy.deepcopy(plain)])
    assert ["0"] == replace_big_embeddings(holder, 1)
    attach(holder, LocalRows())
    return plain, holder[0]


def learn(outputs):
    (outputs * torch.arange(1.0, outputs.numel() + 1).reshape(outputs.shape)).sum().backward()


def gradients(moved):
    found = torch.zeros(ROWS, DIM)
    for i, row in moved.source.table("0").items():
        found[i] = row.grad
    return found


@pytest.mark.parametrize("padding_idx", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_outputs_and_gradients_are_torchs(shape, mode, padding_idx):
    ids, offsets, last = shape
    plain, moved = pair(mode=mode, padding_idx=padding_idx, include_last_offset=last)

    expected, found = plain(ids, offsets), moved(ids, offsets)
    torch.testing.assert_close(expected, found)
    for outputs in (expected, found):
        if outputs.requires_grad:
            learn(outputs)

    torch.testing.assert_close(
        torch.zeros(ROWS, DIM) if plain.weight.grad is None else plain.weight.grad,
        gradients(moved),
    )


@pytest.mark.parametrize("padding_idx", [None, 3])
def test_weights_of_samples_are_used_and_learn(padding_idx):
    plain, moved = pair(mode="sum", padding_idx=padding_idx)
    given = torch.linspace(0.5, 2.0, 6)
    weights = [given.clone().requires_grad_() for _ in range(2)]
    offsets = torch.tensor([0, 2])

    expected = plain(IDS, offsets, weights[0])
    found = moved(IDS, offsets, per_sample_weights=weights[1])
    torch.testing.assert_close(expected, found)
    learn(expected)
    learn(found)

    torch.testing.assert_close(weights[0].grad, weights[1].grad)
    torch.testing.assert_close(plain.weight.grad, gradients(moved))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((IDS, None), ValueError),  # one axis, no offsets
        ((IDS.reshape(2, 3), torch.tensor([0])), ValueError),
        ((IDS + 55, torch.tensor([0])), IndexError),
        ((-IDS, torch.tensor([0])), IndexError),
        ((torch.nested.nested_tensor([IDS], layout=torch.jagged),), DefinitionError),
    ],
    ids=["no offsets", "offsets of two axes", "too large", "negative", "nested"],
)
def test_what_torch_refuses_is_refused(arguments, error):
    with pytest.raises(error):
        pair()[1](*arguments)


def test_the_bags_of_dlrm_move_with_their_values():
    """As facebookresearch/dlrm makes them: drawn by numpy, and put in past the layer."""
    bags = nn.ModuleList()
    rng = np.random.default_rng(0)
    for rows in (50, 5000, 7000):
        bag = nn.EmbeddingBag(rows, 8, mode="sum", sparse=True)
        drawn = rng.uniform(-((1 / rows) ** 0.5), (1 / rows) ** 0.5, (rows, 8)).astype(np.float32)
        bag.weight.data = torch.tensor(drawn, requires_grad=True)
        bags.append(bag)
    model = nn.ModuleDict({"emb_l": bags})
    ids, offsets = torch.tensor([4999, 17, 17]), torch.tensor([0, 1])
    with torch.no_grad():
        expected = model["emb_l"][1](ids, offsets)

    assert ["emb_l.1", "emb_l.2"] == replace_big_embeddings(model, 50 * 8 * 4)

    attach(model, LocalRows())
    assert isinstance(model["emb_l"][1], MovedBag)
    torch.testing.assert_close(expected, model["emb_l"][1](ids, offsets).detach())

"""Big nn.Embedding modules move to the servers."""

import re

import pytest
import torch
from torch import nn

from edl.common.errors import DefinitionError
from edl.nn import Embedding, LocalRows, attach, replace_big_embeddings

BIG = 4 * 5000 * 8  # bytes of the table of `model`


class Model(nn.Module):
    def __init__(self, **arguments):
        super().__init__()
        self.big = nn.Embedding(5000, 8, **arguments)
        self.small = nn.Embedding(10, 8, sparse=True)

    def forward(self, ids):
        return self.big(ids)


def moved(**arguments):
    model = Model(**arguments)
    assert replace_big_embeddings(model, BIG - 1) == ["big"]
    attach(model, LocalRows())
    return model


def test_only_modules_above_the_threshold_move():
    model = moved()

    assert isinstance(model.big, Embedding)
    assert isinstance(model.small, nn.Embedding)
    assert model.big.spec.initializer == "normal"
    assert model.big.spec.scale == 1.0
    assert replace_big_embeddings(Model(), BIG) == []
    assert replace_big_embeddings(Model(), 0) == []


def test_moved_rows_start_from_the_standard_normal():
    rows = moved()(torch.arange(5000))

    assert rows.mean().item() == pytest.approx(0, abs=0.02)
    assert rows.std().item() == pytest.approx(1, abs=0.02)


def test_padding_idx_gives_zeros_without_gradient():
    model = moved(padding_idx=3)

    rows = model(torch.tensor([3, 4]))
    rows.sum().backward()

    assert rows[0].tolist() == [0.0] * 8
    assert list(model.big.source.table("big")) == [4]


@pytest.mark.parametrize("padding_idx", [None, 0])
@pytest.mark.parametrize("bad", [-1, 5000])
def test_ids_out_of_range_are_refused_as_before(bad, padding_idx):
    with pytest.raises(IndexError, match="5000 rows"):
        moved(padding_idx=padding_idx)(torch.tensor([1, bad]))


def test_int32_ids_still_work():
    assert moved()(torch.tensor([1], dtype=torch.int32)).shape == (1, 8)


def test_a_module_at_two_paths_stays_one_table():
    model = Model()
    model.again = nn.Sequential(model.big)

    assert replace_big_embeddings(model, 1000) == ["big"]
    assert model.again[0] is model.big


def _tied():
    model = Model()
    model.out = nn.Linear(8, 5000)
    model.out.weight = model.big.weight
    return model


def _scaled():
    model = Model()
    nn.init.normal_(model.big.weight, std=0.02)
    return model


def _frozen():
    model = Model()
    model.big.weight.requires_grad = False
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Model(max_norm=1.0), "max_norm"),
        (lambda: Model(scale_grad_by_freq=True), "scale_grad_by_freq"),
        (_tied, "tied"),
        (_scaled, r"not N\(0, 1\)"),
        (_frozen, "frozen"),
    ],
)
def test_what_would_mean_something_else_stays_and_is_told(make, reason, caplog):
    model = make()

    assert replace_big_embeddings(model, 1000) == []
    assert isinstance(model.big, nn.Embedding)
    assert caplog.records[0].message.startswith("embedding=big stays in the workers")
    assert re.search(reason, caplog.text)


def test_a_weight_that_a_checkpoint_holds_whole_stays():
    assert [] == replace_big_embeddings(Model(), BIG - 1, {"big.weight"})


def test_direct_use_of_a_moved_weight_is_told():
    with pytest.raises(DefinitionError, match="ps_embedding_threshold 0"):
        moved().big.weight  # noqa: B018

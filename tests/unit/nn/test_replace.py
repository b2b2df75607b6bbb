"""Big nn.Embedding modules move to the servers."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

from edl.common.errors import DefinitionError
from edl.nn import Embedding, LocalRows, attach, replace_big_embeddings
from edl.nn.drawn import remembering
from edl.nn.moved import take_first_rows

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


def _pretrained(**arguments):
    model, rows = Model(), torch.randn(5000, 8, generator=torch.Generator().manual_seed(1))
    model.big = nn.Embedding.from_pretrained(rows, freeze=False, **arguments)
    return model


def _touched(touch):
    model = Model()
    with torch.no_grad():
        touch(model.big.weight)
    return model


def _past_the_version_counter(weight):
    weight.data[4999, 7] = torch.nextafter(weight.data[4999, 7], torch.tensor(9.0))


OWN_VALUES = {
    "pretrained": _pretrained,
    "100 rows by hand": lambda: _touched(lambda weight: weight[:100].fill_(0.5)),
    "uniform": lambda: _touched(lambda weight: weight.uniform_(-1.7, 1.7)),
    "narrow": lambda: _touched(lambda weight: nn.init.normal_(weight, std=0.02)),
    "the last bit": lambda: _touched(_past_the_version_counter),
}


@pytest.mark.parametrize("make", OWN_VALUES.values(), ids=OWN_VALUES)
def test_first_values_of_the_definitions_own_are_those_of_the_table(make):
    with remembering():
        model = make()
    ids = torch.arange(5000)
    with torch.no_grad():
        expected = model(ids)

    assert ["big"] == replace_big_embeddings(model, 1000)

    attach(model, LocalRows())
    assert torch.equal(expected, model(ids))
    assert torch.equal(expected, torch.from_numpy(take_first_rows(model)["big"]))
    assert {} == take_first_rows(model)


@pytest.mark.parametrize("padding_idx", [None, 3])
def test_what_torch_drew_itself_is_made_where_it_is_asked_for(padding_idx):
    with remembering(), remembering():
        model = copy.deepcopy(Model(padding_idx=padding_idx))
        model.big.reset_parameters()

    assert ["big"] == replace_big_embeddings(model, 1000)
    assert {} == take_first_rows(model)


def test_torchs_layers_are_its_own_again_once_the_model_is_made():
    before = nn.Embedding.reset_parameters, nn.EmbeddingBag.reset_parameters

    with pytest.raises(ZeroDivisionError), remembering():
        1 / 0  # noqa: B018

    assert before == (nn.Embedding.reset_parameters, nn.EmbeddingBag.reset_parameters)


def _frozen():
    model = Model()
    model.big.weight.requires_grad = False
    return model


def _with(change):
    """Return a function that makes the model whose big layer was changed so."""

    def make():
        model = Model()
        change(model.big)
        return model

    return make


def _pruned(layer):
    prune.random_unstructured(layer, "weight", amount=0.5)


def _twice_as_much(layer):
    layer.forward = lambda ids: 2 * functional.embedding(ids, layer.weight)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_with(_pruned), "made of other values"),
        (_with(lambda layer: layer.register_forward_hook(lambda *_: None)), "has hooks"),
        (_with(lambda layer: layer.register_forward_pre_hook(lambda *_: None)), "has hooks"),
        (_with(lambda layer: layer.register_full_backward_hook(lambda *_: None)), "has hooks"),
        (_with(_twice_as_much), "forward of its own"),
        (_with(lambda layer: layer.weight.register_hook(lambda grad: 0 * grad)), "its gradient"),
        (lambda: Model(max_norm=1.0), "max_norm"),
        (lambda: Model(scale_grad_by_freq=True), "scale_grad_by_freq"),
        (_tied, "tied"),
        (_frozen, "frozen"),
        (lambda: Model().double(), "float64"),
        (lambda: _pretrained(padding_idx=3), "padding_idx"),
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

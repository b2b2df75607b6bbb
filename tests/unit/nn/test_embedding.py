"""The server-side table as a module."""

import copy
import threading

import pytest
import torch
from torch import nn

from edl.common.errors import DefinitionError
from edl.nn import PADDING, Embedding, attach, tables


class OneRow:
    """A source whose every row is [id, id, ...]; it remembers what it was asked for."""

    def __init__(self):
        self.asked = []

    def rows(self, table, ids):
        self.asked.append(ids)
        return ids.unsqueeze(-1).expand(*ids.shape, table.dim).to(torch.float32)


def made(**arguments):
    table = Embedding("t", 2, **arguments)
    table.source = OneRow()
    return table


def test_rows_have_the_shape_of_the_ids_and_the_dim():
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])

    assert made()(ids).shape == (2, 3, 2)
    assert made()(torch.tensor(7)).tolist() == [7.0, 7.0]


def test_it_has_no_parameters_and_nothing_to_save():
    table = made()

    assert list(table.parameters()) == []
    assert dict(table.state_dict()) == {}


def test_without_a_source_the_error_says_what_to_do():
    with pytest.raises(DefinitionError, match=r"table 't' live on the parameter servers.*attach"):
        Embedding("t", 2)(torch.tensor([1]))


def test_padding_gives_zeros_and_is_never_asked_for():
    table = made()

    rows = table(torch.tensor([[5, PADDING], [PADDING, 6]]))

    assert rows[..., 0].tolist() == [[5.0, 0.0], [0.0, 6.0]]
    assert [ids.tolist() for ids in table.source.asked] == [[5, 6]]


def test_lookup_ids_is_what_the_source_is_asked_for():
    table = made()
    for ids in (torch.tensor([[5, PADDING]]), torch.tensor([[1, 2]])):
        table(ids)

        assert torch.equal(table.lookup_ids(ids), table.source.asked[-1])


@pytest.mark.parametrize(
    ("combiner", "expected"),
    [("sum", [5.0, 4.0, 0.0]), ("mean", [2.5, 4.0, 0.0]), ("sqrtn", [5 / 2**0.5, 4.0, 0.0])],
)
def test_combiner_counts_no_padding(combiner, expected):
    ids = torch.tensor([[2, 3], [4, PADDING], [PADDING, PADDING]])

    assert made(combiner=combiner)(ids)[:, 0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "table name"),
        ({"dim": 0}, "dim must be at least 1"),
        ({"initializer": "gauss"}, "zeros, uniform, normal"),
        ({"combiner": "max"}, "sum, mean, sqrtn"),
        ({"dtype": "int8"}, "float32, bfloat16, float16"),
        ({"rounding": "up"}, "nearest, stochastic"),
    ],
)
def test_wrong_arguments_are_told(arguments, message):
    with pytest.raises(DefinitionError, match=message):
        Embedding(**{"name": "t", "dim": 2, **arguments})


@pytest.mark.parametrize("ids", [torch.tensor([1.0]), torch.tensor([1], dtype=torch.int32), [1]])
def test_ids_of_another_type_are_told(ids):
    with pytest.raises(DefinitionError, match=r"'t' got ids of .*torch\.int64"):
        made()(ids)


def test_modules_of_one_name_share_a_table_only_with_the_same_arguments():
    same = nn.ModuleList([Embedding("t", 2), Embedding("t", 2, feature="other")])
    assert list(tables(same)) == ["t"]

    with pytest.raises(DefinitionError, match="share the table 't' but differ"):
        tables(nn.ModuleList([Embedding("t", 2), Embedding("t", 3)]))


def test_attach_reaches_every_table():
    model = nn.Sequential(nn.Sequential(Embedding("a", 2)), Embedding("b", 2))
    source = OneRow()

    assert [table.name for table in attach(model, source)] == ["a", "b"]
    assert model[1].source is source


def test_a_copy_of_a_model_has_no_source():
    """A source may hold what cannot be copied: a stream of a GPU, say."""
    table = Embedding("t", 2)
    attach(table, threading.Lock())

    assert copy.deepcopy(table).source is None
    assert table.source is not None

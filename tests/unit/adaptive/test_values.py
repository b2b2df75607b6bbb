"""Values come out of the bytes as they went in, of their type; others are refused by name."""

from collections import Counter, OrderedDict, deque, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.adaptive.values import decode, encode
from edl.common.errors import UsageError

pytestmark = pytest.mark.fast

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.binary()
)
KEYS = st.integers() | st.text() | st.none() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner)
        | st.frozensets(KEYS)
        | st.lists(inner).map(deque)
    ),
    max_leaves=8,
)


def typed(value):
    """Return what is equal for the same values of the same types; NaN is NaN, -0.0 is not 0.0."""
    if isinstance(value, dict):
        return type(value), [(typed(k), typed(v)) for k, v in value.items()]
    if isinstance(value, list | tuple | deque):
        return type(value), [typed(member) for member in value]
    if isinstance(value, set | frozenset):
        return type(value), value
    return type(value), repr(value)


@given(VALUES)
@settings(max_examples=examples(200), deadline=None)
def test_plain_values_come_back(value):
    assert typed(value) == typed(decode(encode(value)))


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        OrderedDict(b=1, a=2),
        Counter("hello"),
        bytearray(b"x"),
        {1: {"1": [float("inf"), -0.0]}, (1, "a"): ()},
        "\ud800",
        np.float32(0.1),
        np.datetime64("2020-01-01"),
        np.str_("é"),
    ],
)
def test_special_ones_come_back(value):
    again = decode(encode(value))

    assert (type(value), value) == (type(again), again)


def test_an_integer_may_be_longer_than_what_python_reads_as_decimals():
    assert -(10**6000) == decode(encode(-(10**6000)))


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 3), np.int8),
        np.array(2.5),
        np.arange(6, dtype=">i4").reshape(2, 3).T,
        np.array(["a", "bcd"]),
        np.array([(1, 2.5)], dtype=[("a", "<i2"), ("b", "<f8")]),
        np.array([True, False]),
        np.array([1 + 2j], np.complex64),
    ],
)
def test_arrays_come_back(array):
    again = decode(encode(array))

    assert (array.dtype, array.shape) == (again.dtype, again.shape)
    assert np.array_equal(array, again)
    again[...] = again  # it can be written to


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3),
        torch.zeros(2, 0),
        torch.randn(3, 4).t(),
        torch.tensor([1.5, float("nan")], dtype=torch.bfloat16),
        torch.tensor([True]),
        torch.tensor([1 + 2j]).conj(),
        torch.ones(2, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)),
    ],
)
def test_tensors_come_back(tensor):
    again = decode(encode([tensor]))[0]

    assert torch.Tensor is type(again)
    assert tensor.dtype == again.dtype
    assert torch.allclose(tensor.detach().resolve_conj(), again, equal_nan=True)


CYCLE: list = []
CYCLE.append(CYCLE)
Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (object(), "object"),
        (Pair(1, 2), "Pair"),
        (CYCLE, "holds itself"),
        ([{"a": lambda: 0}], "function"),
        (np.array([object()]), "object"),
        (np.ma.masked_array([1], [True]), "MaskedArray"),
        (torch.eye(2).to_sparse(), "dense"),
        (torch.zeros(2, device="meta"), "dense"),
        (torch.Size([1]), "Size"),
        (deque([1], maxlen=3), "maxlen"),
    ],
)
def test_what_would_be_less_than_it_was_is_refused(value, name):
    with pytest.raises(UsageError, match=name):
        encode(value)


def test_nothing_is_unpickled(monkeypatch):
    import pickle

    monkeypatch.setattr(pickle, "loads", None)
    monkeypatch.setattr(pickle, "load", None)
    monkeypatch.setattr(pickle, "Unpickler", None)

    assert [1, "a"] == decode(encode([1, "a"]))
    assert 3 == decode(encode(np.arange(3))).sum()
    assert 3 == decode(encode(torch.arange(3))).sum()

"""Layers on columns of lists: element by element, whatever form the lists have."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edl.nn import Embedding, LocalRows, attach, hash64
from edl.nn import preprocess as pre

pytestmark = pytest.mark.fast

texts = st.lists(st.lists(st.text("ab|é", max_size=2), max_size=4), min_size=1, max_size=6)
numbers = st.lists(st.lists(st.integers(-5, 40), max_size=4), min_size=1, max_size=6)
OF_TEXTS = [
    pre.Hashing(7, "genre"),
    pre.Hashing(field="genre"),
    pre.IndexLookup(["a", "b", "é"], num_oov_tokens=3),
]
OF_NUMBERS = [
    pre.Hashing(7),
    pre.IndexLookup([1, 2, 3]),
    pre.Normalizer(1.0, 2.0),
    pre.Discretization([0.0, 10.0]),
    pre.LogRound(4),
    pre.RoundIdentity(5, default_value=1),
    pre.ToNumber("float32", -1),
]


def objects(rows):
    column = np.empty(len(rows), object)
    for place, row in enumerate(rows):
        column[place] = row
    return column


def forms(rows, dtype):
    """Return the same lists in each form in which a column of lists comes."""
    arrays = [np.array(row, dtype) for row in rows]
    return [pre.Ragged.rows_of(arrays, dtype), objects(arrays), objects(rows)]


@pytest.mark.parametrize("layer", OF_TEXTS, ids=repr)
@given(texts)
def test_layers_of_texts_take_each_element(layer, rows):
    expected = [[layer.numpy([text])[0].item() for text in row] for row in rows]

    for column in forms(rows, object):
        made = layer(column)
        assert (type(made), made.tolist()) == (pre.Ragged, expected)


@pytest.mark.parametrize("layer", OF_NUMBERS, ids=repr)
@given(numbers)
def test_layers_of_numbers_take_each_element(layer, rows):
    expected = [[layer.numpy(np.array([each]))[0].item() for each in row] for row in rows]

    for column in forms(rows, np.int64):
        assert layer(column).tolist() == expected


@given(numbers)
def test_to_ragged_leaves_lists_as_they_are_but_for_what_is_ignored(rows):
    for column in forms(rows, np.int64):
        assert pre.ToRagged()(column).tolist() == [[n for n in row if n != -1] for row in rows]


@given(texts)
def test_elements_of_lists_are_values_and_are_not_split(rows):
    for column in forms(rows, object):
        assert pre.ToRagged("|")(column).tolist() == [[t for t in row if t] for row in rows]


@given(numbers)
def test_to_sparse_has_each_element_at_its_place(rows):
    width = max(map(len, rows))
    expected = [row + [-1] * (width - len(row)) for row in rows]

    for column in forms(rows, np.int64):
        sparse = pre.ToSparse()(column)
        dense = np.full(sparse.shape, -1)
        dense[tuple(sparse.indices.T)] = sparse.values
        assert dense.tolist() == expected


@given(texts, st.data())
def test_crossing_takes_lists_of_equal_length_and_single_values(rows, data):
    other = [[data.draw(st.integers(0, 3)) for _ in row] for row in rows]
    single = [data.draw(st.text("xy", max_size=1)) for _ in rows]
    crossing = pre.Crossing(1000, "pair")

    both = crossing([forms(rows, object)[1], forms(other, np.int64)[0]])
    each = crossing([np.array(single), forms(rows, object)[0]])

    assert both.tolist() == [
        [crossing([[a], [b]])[0].item() for a, b in zip(row, more, strict=True)]
        for row, more in zip(rows, other, strict=True)
    ]
    assert each.tolist() == [
        [crossing([[value], [text]])[0].item() for text in row]
        for value, row in zip(single, rows, strict=True)
    ]


def test_crossing_of_lists_that_do_not_fit_is_one_sentence():
    lists = pre.Ragged.rows_of([["a"], ["b", "c"]])

    with pytest.raises(ValueError, match="those of record 1 have 2 and 1 values"):
        pre.Crossing()([lists, pre.Ragged.rows_of([["a"], ["b"]])])
    with pytest.raises(ValueError, match=r"got \[2, 2\] beside \[2\]"):
        pre.Crossing()([np.zeros((2, 2)), lists])
    with pytest.raises(ValueError, match="got a Sparse"):
        pre.Crossing()([lists, pre.ToSparse()(np.array([1, 2]))])


def test_one_genre_has_one_id_as_a_text_and_in_a_list():
    """S4: ["Drama"] is Drama."""
    column = objects([np.array(["Drama"]), np.array(["War", "Drama"])])

    assert hash64("g", column)[0].tolist() == hash64("g", ["Drama"]).tolist()
    assert pre.Hashing(50, "g")(column)[1][1] == pre.Hashing(50, "g")(np.array(["Drama"]))[0]


def test_vocabulary_of_lists_is_that_of_their_elements():
    column = objects([["b", "a"], [], ["b", ""]])

    assert pre.IndexLookup.learnt(column).vocabulary == ("b", "a")


def test_embedding_with_a_combiner_takes_lists_straight_from_the_records():
    records = {"genres": pre.Ragged.rows_of([np.array([3, 4], np.int32), np.array([], np.int32)])}
    table = Embedding("genre", 4, combiner="mean")
    attach(table, LocalRows(seed=0))

    rows = table(records["genres"].padded())

    assert torch.equal(rows[0], table(torch.tensor([[3, 4]]))[0])
    assert rows[1].tolist() == [0.0] * 4

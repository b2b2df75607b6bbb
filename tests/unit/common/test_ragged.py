"""Rows of differing length, against lists of lists."""

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edl.common.arrays import array_of, joined
from edl.common.ragged import Ragged, Sparse, as_column, concatenated

pytestmark = pytest.mark.fast

values = st.one_of(
    st.just((st.integers(-(2**63), 2**63 - 1), np.int64)),
    st.just((st.integers(0, 255), np.uint8)),
    st.just((st.floats(allow_nan=False), np.float64)),
    st.just((st.text("aé日\0", max_size=3), object)),
)


@st.composite
def lists(draw, min_size=0, max_size=6):
    """Draw lists of values of one type, and a Ragged of them."""
    elements, dtype = draw(values)
    rows = draw(st.lists(st.lists(elements, max_size=4), min_size=min_size, max_size=max_size))
    return rows, Ragged.rows_of([objects(row).astype(dtype) for row in rows], dtype)


def objects(row):
    array = np.empty(len(row), object)
    array[:] = row
    return array


@given(lists())
def test_rows_are_those_of_the_lists(drawn):
    rows, ragged = drawn

    assert rows == ragged.tolist() == [row.tolist() for row in ragged]
    assert len(ragged) == len(rows) == ragged.shape[0]
    assert ragged.lengths.tolist() == [len(row) for row in rows]
    assert ragged.rows.tolist() == [n for n, row in enumerate(rows) for _ in row]
    assert ragged.places.tolist() == [n for row in rows for n in range(len(row))]
    assert [row.tolist() for row in np.asarray(ragged)] == rows


@given(lists(min_size=1), st.data())
def test_rows_are_taken_as_lists_are(drawn, data):
    rows, ragged = drawn
    count = len(rows)
    ends = st.one_of(st.none(), st.integers(-count - 1, count + 1))
    some = slice(data.draw(ends), data.draw(ends), data.draw(st.sampled_from([None, 1, 2, -1])))
    places = data.draw(st.lists(st.integers(-count, count - 1), max_size=8))
    mask = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))

    assert ragged[some].tolist() == rows[some]
    assert ragged[np.array(places, np.int64)].tolist() == [rows[n] for n in places]
    assert ragged[places].tolist() == [rows[n] for n in places]
    assert ragged[np.array(mask)].tolist() == [
        r for r, kept in zip(rows, mask, strict=True) if kept
    ]
    assert ragged[count - 1].tolist() == ragged[-1].tolist() == rows[-1]
    assert ragged[some][0:1].tolist() == rows[some][0:1]  # a part of a part


@given(lists(), st.integers(0, 6), st.integers(0, 6))
def test_parts_come_together_again(drawn, one, other):
    _, ragged = drawn
    first, second = sorted((one, other))
    parts = [ragged[:first], ragged[first:second], ragged[second:]]

    again = concatenated(parts)

    assert again.equals(ragged)
    assert again.values.dtype == ragged.values.dtype
    assert pickle.loads(pickle.dumps(parts[1])).equals(parts[1])


def test_equal_rows_are_equal_and_others_are_not():
    ragged = Ragged.rows_of([[1.0, np.nan], []])

    assert ragged.equals(Ragged.rows_of([[1.0, np.nan], []]))
    assert not ragged.equals(Ragged.rows_of([[1.0], [np.nan]]))
    assert not ragged.equals(Ragged.rows_of([[1.0, 2.0], []]))
    assert not Ragged.rows_of([[1]]).equals(Ragged.rows_of([[1.0]]))
    assert not ragged.equals([[1.0, np.nan], []])


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=6), st.integers(1, 4))
def test_padded_rows_end_with_the_padding(rows, length):
    ragged = Ragged.rows_of([np.array(row, np.uint8) for row in rows], np.uint8)
    width = max([1, *map(len, rows)])

    assert ragged.padded().dtype == torch.int64
    assert ragged.padded().tolist() == [row + [-1] * (width - len(row)) for row in rows]
    assert ragged.padded(7, length).tolist() == [
        (row + [7] * (length - len(row)))[:length] for row in rows
    ]


def test_bag_is_what_an_embedding_bag_takes_whatever_the_width_and_whoever_owns_the_values():
    numbers = np.array([1, 0, 2], np.int32)
    numbers.flags.writeable = False  # as of a file that is mapped
    bag = torch.nn.EmbeddingBag(3, 1, mode="sum", _weight=torch.tensor([[1.0], [10.0], [100.0]]))

    ids, offsets = Ragged.of(numbers, np.array([1, 0, 2])).bag()

    assert bag(ids, offsets).ravel().tolist() == [10, 0, 101]


def test_what_is_no_tensor_is_told():
    with pytest.raises(ValueError, match="make numbers or ids of them first"):
        Ragged.rows_of([["a"]]).padded()
    with pytest.raises(ValueError, match="9223372036854775808 is no int64"):
        Ragged.rows_of([[2**63]]).bag()
    with pytest.raises(ValueError, match="rows of 3 values in all, and there are 2"):
        Ragged.of(np.arange(2), np.array([1, 2]))
    with pytest.raises(IndexError, match="a mask of 1 for 2 rows"):
        Ragged.rows_of([[1], [2]])[np.array([True])]


@given(st.lists(st.lists(st.one_of(st.integers(-(2**64), 2**64), st.floats(), st.text("a1")))))
def test_lists_become_a_ragged_that_says_what_they_say(rows):
    made = Ragged.rows_of(rows)

    said = [[(type(v) is str, v) for v in row] for row in made.tolist()]
    for mine, row in zip(said, rows, strict=True):
        for (text, value), given_ in zip(mine, row, strict=True):
            assert text is isinstance(given_, str)
            assert value == given_ or math.isnan(value)


def test_arrays_of_several_types_are_joined_exactly():
    large = np.array([2**63], np.uint64)

    assert joined([large, np.array([-1])]).tolist() == [2**63, -1]
    assert joined([np.array([2**53 + 1]), np.array([0.5])]).tolist() == [2**53 + 1, 0.5]
    assert joined([np.array([1]), np.array(["a"])]).tolist() == [1, "a"]
    assert joined([np.array([1], np.int8), np.array([300])]).dtype == np.int64
    assert joined([np.array([]), np.array([3])]).dtype == np.int64
    with pytest.raises(ValueError, match="times beside other values"):
        joined([np.array([1]), np.array(["2020"], "M8[us]")])


def test_lists_of_python_keep_what_numpy_would_round_or_print():
    assert array_of([2**53 + 1, 0.5]).tolist() == [2**53 + 1, 0.5]
    assert array_of([2**63, -1]).tolist() == [2**63, -1]
    assert array_of([1, "a\0"]).tolist() == [1, "a\0"]
    assert array_of([1, 2.5]).dtype == np.float64
    assert array_of([[1, 2], [3, 4]]).shape == (2, 2)
    with pytest.raises(ValueError, match=r"differing length: give Ragged.rows_of"):
        array_of([[1, 2], [3]])


def test_an_object_for_each_record_that_is_a_list_makes_a_ragged():
    column = objects([np.array([1, 2]), [3], ()])
    sparse = Sparse(np.array([[0]]), np.array([1]), (2,))

    assert as_column(column).tolist() == [[1, 2], [3], []]
    assert as_column(torch.tensor([1, 2])).tolist() == [1, 2]
    assert as_column(sparse) is sparse
    with pytest.raises(ValueError, match="record 1 of a column of lists is None, no list"):
        as_column(objects([[1], None]))
    with pytest.raises(ValueError, match="lists of lists"):
        as_column(objects([[[1], [2]], [[3], [4]]]))

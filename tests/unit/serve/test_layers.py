"""Layers of rows: what a lookup answers is the newest of each row, whatever lies below."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.common.errors import CheckpointError
from edl.common.pieces import Rows
from edl.nn.initializers import initial_rows
from edl.nn.model_spec import TableSpec
from edl.serve import layers as module
from edl.serve.layers import Layer, Layers
from edl.serve.rows import narrowed

SPEC = TableSpec("t", 2, "normal", 0.1)
ALL = np.arange(30)


def block(values, spec=SPEC):
    """Return a file's rows: id -> value of all its elements."""
    ids = np.array([*values], np.int64)
    weight = np.array([[v] * spec.dim for v in values.values()], np.float32).reshape(-1, spec.dim)
    if spec.dtype != "float32":
        weight = narrowed(weight, spec.dtype)
    return Rows(spec.name, ids, weight, np.ones(len(ids), np.int64), {})


def layer(*files, gone=(), spec=SPEC):
    return Layer.of(spec, [block(values, spec) for values in files], gone)


def rows_of(table):
    """Return what all ways of reading a table agree on: id -> first value."""
    found = {}
    for ids, rows in table.blocks():
        assert not set(ids.tolist()) & found.keys()
        found |= dict(zip(ids.tolist(), rows[:, 0].tolist(), strict=True))
    known = table.known(ALL)
    assert [id in found for id in ALL.tolist()] == known.tolist()
    looked_up = table.rows(ALL)
    first = initial_rows(7, SPEC, ALL)
    for id in ALL.tolist():
        expected = np.full(SPEC.dim, found[id]) if id in found else first[id]
        np.testing.assert_array_equal(np.float32(expected), looked_up[id])
    assert len(found) == len(table)
    return found


FILES = st.dictionaries(st.integers(0, 29), st.integers(0, 99), max_size=8)


@given(
    base=FILES,
    laid=st.lists(st.tuples(FILES, st.lists(st.integers(0, 29), max_size=4)), max_size=14),
)
def test_a_table_has_the_newest_of_each_row_and_the_older_ones_stay_as_they_are(base, laid):
    table, expected, before = Layers.of(SPEC, 7, layer(base)), dict(base), []
    for values, gone in laid:
        before.append((table, dict(expected)))
        table = table.under(layer(values, gone=gone))
        expected = {id: v for id, v in expected.items() if id not in gone} | values

    assert expected == rows_of(table)
    assert len(table.layers) <= 1 + module._MOST_LAYERS
    for older, then in before:
        assert then == rows_of(older)


def test_rows_may_lie_in_several_files_in_any_order():
    table = Layers.of(SPEC, 7, layer({9: 1, 2: 2}, {}, {4: 3, 1: 4}))

    assert {9: 1, 2: 2, 4: 3, 1: 4} == rows_of(table)


def test_rows_of_16_bits_are_read_as_they_were_rounded():
    spec = TableSpec("t", 2, "normal", 0.1, dtype="bfloat16")
    table = Layers.of(spec, 7, layer({1: 1.0 + 2**-12}, spec=spec)).under(
        layer({2: 3.5}, spec=spec)
    )

    assert [[1.0, 1.0], [3.5, 3.5]] == table.rows(np.array([1, 2])).tolist()


def test_a_row_that_is_there_twice_in_one_cut_is_refused():
    with pytest.raises(CheckpointError, match="row 3 of the table 't' is there twice"):
        layer({3: 1}, {3: 2})


def test_rows_of_another_width_are_refused():
    with pytest.raises(CheckpointError, match="a file has rows of 3 float32, and the table 't'"):
        Layer.of(SPEC, [block({1: 1}, TableSpec("t", 3))])

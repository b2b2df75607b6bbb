"""Objects, rows of several types and wide texts are brought exactly, or refused by their row."""

import numpy as np
import pytest

from edl.common.ragged import Ragged
from edl.data import exact
from edl.data.exact import Unfit, bring
from edl.data.schema import Field, Type


def objects(*values):
    found = np.empty(len(values), object)
    for place, each in enumerate(values):
        found[place] = each
    return found


def column(said):
    return Field("x", Type.parse(said))


@pytest.mark.parametrize("value", [2**53 + 1, -(2**63) - 1, 2**64 + 1, 10**400])
def test_a_whole_number_among_floats_is_exact_or_refused(value):
    """Broken once: objects become float64 before they are compared."""
    assert [0.5, 2.0**70, -1.0] == bring(column("float64"), objects(0.5, 2**70, -1)).tolist()
    with pytest.raises(Unfit, match="would change in it") as refused:
        bring(column("float64"), objects(0.5, value))

    assert 1 == refused.value.row


def test_rows_of_two_types_are_not_rounded_to_the_common_one():
    """Broken once: rows of int64 and uint64 are joined as float64."""
    rows = objects(np.array([2**53 + 1]), np.array([2**63 + 1], np.uint64), np.array([]))

    found = bring(column("list of uint64"), rows)

    assert [[2**53 + 1], [2**63 + 1], []] == found.tolist()
    with pytest.raises(Unfit) as refused:
        bring(column("list of int64"), rows)
    assert 1 == refused.value.row


@pytest.mark.parametrize("said", ["list of text", "list of bytes", "list of timestamp"])
def test_lists_that_are_all_empty_have_the_type(said):
    found = bring(column(said), objects([], np.array([])))

    assert isinstance(found, Ragged)
    assert ([[], []], column(said).type.dtype.kind) == (found.tolist(), found.values.dtype.kind)


def test_texts_that_are_too_wide_stay_objects(monkeypatch):
    texts = objects("a" * 100, "b")
    assert "U" == bring(column("text"), texts).dtype.kind

    monkeypatch.setattr(exact, "WIDE_NBYTES", 100)

    found = bring(column("text"), texts)
    assert (np.dtype(object), texts.tolist()) == (found.dtype, found.tolist())


def test_what_is_wrong_and_what_to_do_are_told_apart():
    with pytest.raises(Unfit) as refused:
        bring(column("int64"), objects(1, "7"))

    error = refused.value
    assert (1, "column 'x' is int64, and '7' is a text") == (error.row, error.what)
    assert error.why == f"{error.what}: {error.remedy}"
    assert "--schema" in error.remedy

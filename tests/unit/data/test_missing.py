"""The values that stand for missing ones, and those that float64 can hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.common.errors import DataError, UsageError
from edl.data.missing import Missing, first_inexact, named, ways_out

pytestmark = pytest.mark.fast

INT, UINT, FLOAT, BOOL = (np.dtype(each) for each in ("int64", "uint64", "float64", "bool"))
TEXT, BYTES, TIME = np.dtype("U"), np.dtype("S"), np.dtype("M8[us]")


def test_nothing_stands_for_a_whole_number_until_it_is_chosen() -> None:
    missing = Missing.parse(None)

    assert [None] * 3 == [missing.fill("a", each) for each in (INT, UINT, BOOL)]
    assert ["", b""] == [missing.fill("a", each).value for each in (TEXT, BYTES)]  # type: ignore[union-attr]
    assert all(np.isnat(missing.fill("a", TIME).value) for _ in "x")  # type: ignore[union-attr]
    assert np.isnan(missing.fill("a", FLOAT).value)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("dtype", "text", "kind", "value"),
    [
        (INT, "-1", INT, -1),
        (INT, "9223372036854775807", INT, 2**63 - 1),
        (UINT, "18446744073709551615", UINT, 2**64 - 1),
        (FLOAT, "-1", FLOAT, -1.0),
        (FLOAT, "inf", FLOAT, float("inf")),
        (BOOL, "false", BOOL, False),
        (TEXT, "nan", TEXT, "nan"),
        (TEXT, "", TEXT, ""),
        (BYTES, "ö", BYTES, "ö".encode()),
        (TIME, "1970-01-02", TIME, np.datetime64("1970-01-02")),
    ],
)
def test_chosen_value_has_the_columns_type(
    dtype: np.dtype, text: str, kind: np.dtype, value: object
) -> None:
    assert (kind, value) == Missing.parse({"a:b": text}).fill("a:b", dtype)


@pytest.mark.parametrize("dtype", [INT, UINT, BOOL])
def test_nan_makes_whole_numbers_float64(dtype: np.dtype) -> None:
    fill = Missing.parse("a:nan").fill("a", dtype)

    assert fill is not None
    assert fill.dtype == np.float64
    assert np.isnan(fill.value)


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (INT, "0.5"), (INT, "1_0"), (INT, "9223372036854775808"), (INT, ""), (UINT, "-1"),
        (INT, "１"), (FLOAT, "x"), (FLOAT, "1_0"), (BOOL, "2"), (TIME, "x"),
    ],
)  # fmt: skip
def test_value_that_cannot_stand_in_its_column_is_refused(dtype: np.dtype, text: str) -> None:
    with pytest.raises(UsageError, match="cannot stand in column 'a'"):
        Missing.parse(f"a:{text}").fill("a", dtype)


def test_star_is_for_the_others_and_goes_by_the_default_where_it_does_not_fit() -> None:
    minus = Missing.parse("*:-1|a:7")
    nan = Missing.parse("*:nan")

    assert [7, -1, "-1", None, None] == [
        fill and fill.value
        for fill in (
            minus.fill("a", INT), minus.fill("b", INT), minus.fill("c", TEXT),
            minus.fill("d", UINT), minus.fill("e", BOOL),
        )
    ]  # fmt: skip
    assert np.isnat(minus.fill("t", TIME).value)  # type: ignore[union-attr]
    assert (FLOAT, "") == (nan.fill("b", INT).dtype, nan.fill("c", TEXT).value)  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["a", "a:1|b", ":1"])
def test_what_is_no_pair_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="COLUMN:VALUE"):
        Missing.parse(text)


def test_null_in_yaml_is_refused_and_numbers_are_taken() -> None:
    with pytest.raises(UsageError, match="'a' no value"):
        Missing.parse({"a": None})

    assert (INT, -1) == Missing.parse({"a": -1}).fill("a", INT)


def test_choice_for_a_column_that_is_not_there_is_an_error() -> None:
    Missing.parse("a:1|*:2").check("f.csv", ["a"])

    with pytest.raises(DataError, match=r"'b', which f\.csv has not"):
        Missing.parse("b:1").check("f.csv", ["a"])


def test_the_way_out_can_be_pasted_and_read() -> None:
    for columns in (["a", "b c"], ["a|b"], [f"c{i}" for i in range(30)]):
        for part in ways_out(columns).split("'")[1::2]:
            value = part.removeprefix("--data_reader_params ").removeprefix("missing=")
            missing = Missing.parse(value)

            assert all(missing.fill(column, INT) is not None for column in columns)
    assert "'c19' and 10 more" in named([f"c{i}" for i in range(30)])


near = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.builds(
        lambda sign, power, add: max(-(2**63), min(2**64 - 1, sign * 2**power + add)),
        st.sampled_from([1, -1]), st.integers(50, 64), st.integers(-3, 3),
    ),
)  # fmt: skip


@settings(max_examples=examples(150), deadline=None)
@given(numbers=st.lists(near, max_size=8))
def test_first_inexact_is_the_first_that_float_changes(numbers: list[int]) -> None:
    for dtype in (np.int64, np.uint64):
        limits = np.iinfo(dtype)
        fitting = [n for n in numbers if limits.min <= n <= limits.max]
        changed = [i for i, n in enumerate(fitting) if int(float(n)) != n]

        found = first_inexact(np.array(fitting, dtype))

        assert (changed[0] if changed else None) == found

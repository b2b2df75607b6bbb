"""ToNumber, against Python's own numbers: exact, or refused by a sentence."""

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.common.errors import UsageError
from edl.nn import preprocess as pre

pytestmark = pytest.mark.fast

WHOLE = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
spelled = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.integers(-(2**54), 2**54).map(lambda n: f" {n}.0 "),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["", "NA", "nan", "-NaN", " ", "+7", "007", "1e3", ".5", "5."]),
)
values = st.one_of(spelled, st.integers(-(2**65), 2**65), st.floats(), st.booleans())


def expected(value, out_type, default):
    """Return what a value becomes by Python's numbers; None where it is refused."""
    if isinstance(value, str):
        value = value.strip()
        if value in ("", "NA") or value.lower().lstrip("+-") == "nan":
            return default
        value = Decimal(value)
        value = int(value) if "." not in str(value) and value == int(value) else value
    if isinstance(value, float) and math.isnan(value):
        return default
    if out_type in WHOLE:
        limits = np.iinfo(out_type)
        if value in (np.inf, -np.inf) or not limits.min <= int(value) <= limits.max:
            return None
        return int(value)
    made = float(value)
    return None if isinstance(value, int) and int(made) != value else made


@given(st.lists(values, min_size=1, max_size=6), st.sampled_from([*WHOLE, "float64"]))
def test_numbers_are_exact_or_refused(column, out_type):
    layer = pre.ToNumber(out_type, 7)
    wanted = [expected(each, out_type, 7) for each in column]
    array = np.empty(len(column), object)
    array[:] = column

    for form in (array, array[:, None]):
        if None in wanted:
            with pytest.raises(ValueError, match="ToNumber got"):
                layer.numpy(form)
        else:
            made = layer.numpy(form)
            assert made.dtype == out_type
            assert made.ravel().tolist() == wanted


@given(st.lists(spelled, min_size=1, max_size=6), st.sampled_from([*WHOLE, "float64"]))
def test_texts_of_a_batch_are_as_each_alone(column, out_type):
    layer = pre.ToNumber(out_type, 7)
    wanted = [expected(each, out_type, 7) for each in column]

    for form in (np.array(column), np.array([each.encode() for each in column])):
        if None in wanted:
            with pytest.raises(ValueError, match="ToNumber got"):
                layer.numpy(form)
        else:
            assert layer.numpy(form).tolist() == wanted


@pytest.mark.parametrize("beside", ["1.0", "1e3", "", "nan", "2.5"])
def test_a_large_id_is_exact_whatever_stands_beside_it(beside):
    """S7."""
    large = 2**53 + 1

    made = pre.ToNumber("int64", -1)(np.array([str(large), beside]))

    assert made[0].item() == large
    assert pre.ToNumber("int64", -1)([large, float("nan")]).tolist() == [large, -1]
    assert pre.ToNumber("int64", -1)([large, 0.5]).tolist() == [large, 0]


@pytest.mark.parametrize(
    "text",
    ["1_0", "0x10", "\uff11\uff12", "1 0", "1,5", "--1", "1e", "e5", "\u00a01", "1\0", "yes"],
)
@pytest.mark.parametrize("out_type", ["int64", "float64"])
def test_what_a_csv_takes_for_no_number_is_none(text, out_type):
    with pytest.raises(ValueError, match="which is no number"):
        pre.ToNumber(out_type, 0)([text])
    with pytest.raises(ValueError, match="which is no number"):
        pre.ToNumber(out_type, 0)(["", text, "3"])


@pytest.mark.parametrize(
    ("out_type", "values", "said"),
    [
        ("float32", ["1e39"], "1E.39, beyond float32"),
        ("float32", [1e39], "1e.39, beyond float32"),
        ("float32", [10**39], "beyond float32"),
        ("float16", [70000], "70000, beyond float16"),
        ("float64", ["1e400"], "beyond float64"),
        ("float64", ["9" * 500], "beyond float64"),
        ("float64", [2**53 + 1], "no float64 is this number"),
        ("float64", [str(2**53 + 1)], "no float64 is this number"),
        ("float64", np.array([2**64 - 1], np.uint64), "no float64 is this number"),
        ("int64", ["inf"], "inf, beyond int64"),
        ("int64", [str(2**63)], "9223372036854775808, beyond int64"),
        ("int64", [2.0**63], "beyond int64"),
        ("int64", ["1e999999999"], "beyond int64"),
        ("int64", ["1e99999999999999999999"], "beyond int64"),
        ("uint64", [-1], "-1, beyond uint64"),
        ("int64", [None], "None, which is no number"),
    ],
)
def test_what_does_not_fit_is_named(out_type, values, said):
    with pytest.raises(ValueError, match=said):
        pre.ToNumber(out_type, 0)(values)


def test_extremes_and_infinities_stay():
    both = [-(2**63), 2**63 - 1]

    assert pre.ToNumber("int64", 0)(list(map(str, both))).tolist() == both
    assert pre.ToNumber("uint64", 0).numpy([str(2**64 - 1), ""]).tolist() == [2**64 - 1, 0]
    assert pre.ToNumber("float32", 0)(["inf", "-Infinity"]).tolist() == [np.inf, -np.inf]
    assert pre.ToNumber("float32", 0)([np.inf]).tolist() == [np.inf]
    assert pre.ToNumber("int64", 2**53 + 1)([""]).tolist() == [2**53 + 1]
    assert np.isnan(pre.ToNumber("float32", float("nan"))(["", "1"]).numpy()).tolist() == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("out_type", "default", "said"),
    [
        ("uint8", 300, "300, beyond uint8"),
        ("int64", 2**63, "beyond int64"),
        ("float32", 1e39, "beyond float32"),
        ("int64", float("nan"), "must be whole"),
        ("int64", "0", "needs a number"),
    ],
)
def test_a_default_that_does_not_fit_is_told_when_the_layer_is_made(out_type, default, said):
    with pytest.raises(UsageError, match=said):
        pre.ToNumber(out_type, default)

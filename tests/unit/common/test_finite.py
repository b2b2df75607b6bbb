"""JSON for others: it has no number that JSON lacks, and each is read back as it was."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.strict_json import strict
from tools.turns import examples

from edl.common import finite

pytestmark = pytest.mark.fast

NAMES = st.text("a/~01é", max_size=3)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)
DOCUMENTS = OBJECTS | st.lists(OBJECTS, max_size=3)


@settings(max_examples=examples(200))
@given(DOCUMENTS)
def test_any_document_is_strict_and_read_back_as_it_was(values):
    text = finite.dumps(values)

    strict(text)
    assert repr(values) == repr(finite.loads(text))  # repr: NaN is alike, -0.0 is not 0.0


@settings(max_examples=examples(100))
@given(OBJECTS)
def test_another_library_finds_a_null_at_each_pointer(values):
    resolve = pytest.importorskip("jsonpointer").resolve_pointer

    told = strict(finite.dumps(values))

    for pointer, word in told.get("not_finite", {}).items():
        assert resolve(told, pointer) is None
        assert word in ("nan", "inf", "-inf")


def test_what_is_said_stands_in_the_outermost_object_and_of_a_list_in_each():
    values = {"metrics": {"auc/error_bound": math.nan, "loss": 0.5}, "best": [1, -math.inf]}

    told = {"/metrics/auc~1error_bound": "nan", "/best/1": "-inf"}
    nulls = {"metrics": {"auc/error_bound": None, "loss": 0.5}, "best": [1, None]}
    assert {**nulls, "not_finite": told} == strict(finite.dumps(values))
    assert [{"a": 1}, {"a": None, "not_finite": {"/a": "inf"}}] == strict(
        finite.dumps([{"a": 1}, {"a": math.inf}])
    )


def test_what_all_can_read_is_written_as_ever():
    values = {"a": [1.5, None, "NaN"], "b": {"c": True}}

    assert json.dumps(values, indent=1) == finite.dumps(values, indent=1)
    assert values == finite.loads(json.dumps(values))


def test_what_is_read_and_written_again_keeps_what_was_said():
    told = strict(finite.dumps({"a": math.nan, "b": 1.0}))  # by somebody who does not know of it

    again = finite.loads(finite.dumps({**told, "b": math.inf}))

    assert (True, math.inf) == (math.isnan(again["a"]), again["b"])


def test_tokens_of_older_versions_are_still_read():
    found = finite.loads('{"a": NaN, "b": [Infinity, -Infinity]}')

    assert (True, [math.inf, -math.inf]) == (math.isnan(found["a"]), found["b"])


@pytest.mark.parametrize(
    "said",
    [{"/a": "nan"}, {"/b/7": "nan"}, {"/b/x": "inf"}, {"c": "nan"}, {"/n": "1e400"}, {"/n": None}],
)
def test_what_is_said_of_no_null_or_is_no_such_number_is_refused(said):
    text = json.dumps({"a": 1.0, "b": [None], "n": None, "not_finite": said})

    with pytest.raises(ValueError, match=r"where there is no null|is none of nan, inf, -inf"):
        finite.loads(text)


@settings(max_examples=examples(100))
@given(st.lists(st.floats(), max_size=8))
def test_the_values_of_a_tensor_are_read_back_as_they_were(numbers):
    made, said = finite.in_list(numbers)

    strict(json.dumps(made))
    assert repr(numbers) == repr(finite.from_list(made, said) if said else made)


@pytest.mark.parametrize("said", ["", "1:nan", "2:nan", "-1:nan", "0:0", "0", 7, "0:nan,0:inf"])
def test_a_tensor_of_which_something_else_is_said_is_refused(said):
    with pytest.raises(ValueError, match="there is no null|is none of"):
        finite.from_list([None, 1.0], said)

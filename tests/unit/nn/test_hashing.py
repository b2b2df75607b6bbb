"""Ids out of columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.nn import hash64

pytestmark = pytest.mark.fast

texts = st.text(alphabet=st.characters(blacklist_characters="\0", codec="utf-8"), max_size=12)


def reference(field: str, value: str) -> int:
    """Hash one value by Python's integers."""

    def fnv(text):
        state = 0xCBF29CE484222325
        for character in text:
            state = ((state ^ ord(character)) * 0x100000001B3) % 2**64
        return state

    z = ((fnv(value) ^ fnv(field)) + 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return (z ^ (z >> 31)) >> 1


@given(texts, texts)
def test_ids_never_change(field, value):
    """Ids are in checkpoints: another value would orphan every row."""
    assert hash64(field, [value]).tolist() == [reference(field, value)]


@given(st.lists(texts, min_size=1, max_size=20))
def test_id_of_a_string_depends_on_its_column_neighbours_never(words):
    together = hash64("word", words).tolist()

    assert together == [hash64("word", [word])[0] for word in words]


@given(st.sets(texts, max_size=50))
def test_distinct_strings_get_distinct_ids(words):
    assert len(set(hash64("word", sorted(words)).tolist())) == len(words)


def test_ids_are_never_the_padding_id():
    ids = hash64("n", np.arange(-50_000, 50_000))

    assert ids.min() >= 0
    assert len(np.unique(ids)) == 100_000


def test_equal_values_of_two_fields_differ():
    assert hash64("origin", ["JFK"])[0] != hash64("dest", ["JFK"])[0]


def test_whole_numbers_hash_alike_in_every_type():
    ids = {int(hash64("n", np.array([7], dtype))[0]) for dtype in ("i1", "i4", "i8", "f4", "f8")}

    assert len(ids) == 1


def test_objects_and_fixed_width_strings_hash_alike():
    words = ["a", "longer", ""]

    assert hash64("w", np.array(words, object)).tolist() == hash64("w", np.array(words)).tolist()


def test_shape_is_kept():
    assert hash64("n", np.zeros((3, 4))).shape == (3, 4)
    assert hash64("n", np.zeros((0,), "U5")).shape == (0,)


any_text = st.text(alphabet=st.sampled_from("ab\0é日\U0001f600"), max_size=5)


@given(st.lists(any_text, min_size=1, max_size=12))
def test_nul_is_a_letter_and_utf8_is_its_text(words):
    expected = [reference("w", word) for word in words]
    as_bytes = [word.encode() for word in words]

    for values in (words, as_bytes, np.array(words, object), np.array(as_bytes, object)):
        assert expected == hash64("w", values).tolist()
    fixed = [reference("w", word.rstrip("\0")) for word in words]  # numpy keeps no NUL at the end
    assert fixed == hash64("w", np.array(words)).tolist()
    assert fixed == hash64("w", np.array(as_bytes)).tolist()


@given(st.sets(st.binary(max_size=3), max_size=60))
def test_distinct_bytes_get_distinct_ids(values):
    assert len(set(hash64("b", sorted(values)).tolist())) == len(values)


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from([1, 2**10, 2**30]))
def test_one_id_is_hashed_alike_in_every_type_that_holds_it(number, step):
    number = number // step * step  # some of the large ones are floats, too
    expected = hash64("u", np.array([number]))[0]

    assert (
        expected == hash64("u", [number, None][:1])[0] == hash64("u", np.array([number], object))[0]
    )
    assert expected == hash64("u", np.array([number, "x", 0.5], object))[0]
    if int(float(number)) == number and float(number) < 2.0**63:
        assert expected == hash64("u", [float(number)])[0]


def test_all_nans_are_one_value_and_none_is_refused():
    assert 1 == len(set(hash64("f", np.array([np.nan, -np.nan, np.float32("nan")])).tolist()))
    with pytest.raises(ValueError, match="'user' meets a None"):
        hash64("user", [1, None])

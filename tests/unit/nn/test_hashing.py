"""Ids out of columns."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edl.nn import hash64

texts = st.text(alphabet=st.characters(blacklist_characters="\0", codec="utf-8"), max_size=12)


def reference(field: str, value: str) -> int:
    """The same by Python's integers, one value at a time."""

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
    """They are in checkpoints: another value would orphan every row."""
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

"""Ids out of columns."""

import datetime
import decimal
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.nn import hash64
from edl.nn import preprocess as pre

pytestmark = pytest.mark.fast

WHOLE = [
    7117884435191800216,
    711783968544762343,
    7439743631163537249,
    5648614590155292731,
    8013051119889309073,
    592076643181909440,
]
LARGE = [592076643181909440, 7439743631163537249]
FLOATS = [
    2821041366985977759,
    7117884435191800216,
    2039078796203057192,
    7747437741328425028,
    1741238194382149190,
]
BOOLS = [7117884435191800216, 711783968544762343]
TEXTS = [
    5446952228372370981,
    3341668441960637621,
    7366311886159892809,
    5827922299787781200,
    2950007252418274111,
    8237940859492123543,
    331499465631089716,
]
BYTES = [5446952228372370981, 3341668441960637621, 363656479719739802]
TIMES = [3569543932600718288, 592076643181909440]
OBJECTS = [
    711783968544762343,
    1254628586057844161,
    3690559797460462388,
    711783968544762343,
    1254628586057844161,
]

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


def test_ids_of_each_type_are_those_of_before_lists_and_times():
    """Written down from the version before: tables of trained models are kept by them."""
    assert hash64("f", np.array([0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)])).tolist() == WHOLE
    assert hash64("f", np.array([2**63, 2**64 - 1], np.uint64)).tolist() == LARGE
    assert hash64("f", np.array([0.5, -0.0, np.nan, np.inf, 1e300])).tolist() == FLOATS
    assert hash64("f", np.array([False, True])).tolist() == BOOLS
    assert hash64("f", ["", "a", "Drama", "München", "日本", "a\0", "\ud800"]).tolist() == TEXTS
    assert hash64("f", [b"", b"a", b"\xff"]).tolist() == BYTES
    assert hash64("f", np.array(["2020-01-01", "NaT"], "M8[us]")).tolist() == TIMES
    assert hash64("f", np.array([1, "1", 1.5, True, b"1"], object)).tolist() == OBJECTS


def test_equal_instants_have_one_id_whatever_their_unit():
    instant = np.datetime64("2024-02-29T12:34:56.789", "ms")
    ids = {int(hash64("t", np.array([instant], f"M8[{unit}]"))[0]) for unit in ("ms", "us", "ns")}
    spans = {int(hash64("t", np.array([90], "m8[s]").astype(f"m8[{u}]"))[0]) for u in ("s", "ns")}
    day, midnight = (np.array(["2024-02-29"], f"M8[{unit}]") for unit in ("D", "ns"))
    nats = {int(hash64("t", np.array(["NaT"], f"M8[{unit}]"))[0]) for unit in ("D", "us", "ns")}

    assert [len(each) for each in (ids, spans, nats)] == [1, 1, 1]
    assert hash64("t", day).tolist() == hash64("t", midnight).tolist()
    with pytest.raises(ValueError, match="no whole number of microseconds"):
        hash64("t", np.array([1], "M8[ns]"))
    with pytest.raises(ValueError, match="no whole number of microseconds"):
        hash64("t", np.array([2**62], "M8[s]"))


texts_or_numbers = st.one_of(any_text, st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans())


@given(st.lists(st.lists(texts_or_numbers, max_size=4), max_size=6))
def test_lists_hash_element_by_element(rows):
    """S4: a list is never hashed by its printed form."""
    expected = [[int(hash64("g", np.array([e], object))[0]) for e in row] for row in rows]
    column = np.empty(len(rows), object)
    for place, row in enumerate(rows):
        column[place] = row

    assert hash64("g", pre.Ragged.rows_of(rows)).tolist() == expected
    if rows:
        assert hash64("g", column).tolist() == expected


def test_the_last_of_many_elements_counts():
    long = np.arange(2000)
    other = long.copy()
    other[1000] = -1
    column = np.empty(2, object)
    column[:] = [long, other]

    ids = hash64("g", column)

    assert (ids[0] == ids[1]).tolist() == (long == other).tolist()
    assert ids[0].tolist() == hash64("g", long).tolist()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([{"a": 1}], "a dict"),
        ({"a"}, "a set"),
        ([decimal.Decimal(1)], "a Decimal"),
        ([datetime.date(2020, 1, 1)], "a date"),
        ([2**64], "beyond 64 bits"),
        ([1j], "no complex128"),
        (np.array([1], np.longdouble), "no "),
        (np.zeros(1, [("a", int)]), "no "),
        (np.array([np.array(1), None], object), "meets a None|no list"),
        ([[1, 2], [3]], "differing length"),
        (pre.Ragged(np.array([[1], None], object), np.array([0, 2])), "meets"),
    ],
)
def test_what_is_no_value_is_refused_and_never_printed(values, said):
    with pytest.raises(ValueError, match=said):
        hash64("g", values)


@given(st.lists(st.integers(0, 200), min_size=1, max_size=60), st.integers(0, 3))
def test_long_and_short_texts_hash_as_alone(lengths, seed):
    letters = "aé日\U0001f600"
    words = ["".join(letters[(seed + n + k) % 4] for k in range(n)) for n in lengths]

    assert hash64("w", words).tolist() == [reference("w", word) for word in words]
    assert hash64("w", np.array(words)).tolist() == hash64("w", words).tolist()


def test_one_long_text_costs_no_memory_for_the_others():
    words = ["a"] * 2000 + ["b" * 50_000]  # 400 MB, were all as wide
    tracemalloc.start()
    try:
        ids = hash64("w", words)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert ids[[0, -2, -1]].tolist() == [reference("w", word) for word in ("a", "a", words[-1])]
    assert most < 5e6

"""Keys out of a terminal's bytes: in any pieces, and nothing that is pasted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.dashboard.terminal.keys import Keys


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"jk?", ["j", "k", "?"]),
        (b"\r\n\x7f", ["enter", "enter", "backspace"]),
        (b"\x1b[A\x1bOB\x1b[5~", ["up", "down", "pageup"]),
        (b"\x1b\x1b[A", ["esc", "up"]),
        (b"\x1b[1;5xq", ["q"]),  # a sequence that is not known is no x
        (b"\x1bxq", ["q"]),  # nor is Alt-x
        (b"\x1b[200~xy\r\x1b[Ax\x1b[201~q", ["q"]),  # what is pasted stops no job
        ("é".encode(), ["é"]),
        (b"\x00\x01\xff\xfeq", ["\ufffd", "\ufffd", "q"]),
    ],
)
def test_bytes_are_keys(data, keys):
    assert keys == Keys().feed(data)


def test_a_lone_escape_is_a_key_once_nothing_follows():
    keys = Keys()

    assert ([], True, ["esc"], False) == (keys.feed(b"\x1b"), keys.waits, keys.flush(), keys.waits)
    assert ["q"] == keys.feed(b"q")


def test_half_a_sequence_that_never_ends_is_no_key():
    keys = Keys()

    assert ([], []) == (keys.feed(b"\x1b[1;"), keys.flush())
    assert ["q"] == keys.feed(b"q")
    assert ["q"] == [*Keys().feed(b"\x1b[" + b"1" * 100), *Keys().feed(b"q")]


@given(
    st.lists(
        st.sampled_from(
            [b"\x1b", b"[", b"A", b"x", b"200~", b"201~", b"O", b"\xc3", b"\xa9", b"1"]
        ),
        max_size=20,
    ),
    st.integers(0, 40),
)
def test_keys_are_the_same_in_any_pieces(pieces, cut):
    data = b"".join(pieces)
    at_once, parted = Keys(), Keys()

    assert at_once.feed(data) == parted.feed(data[:cut]) + parted.feed(data[cut:])
    assert at_once.flush() == parted.flush()

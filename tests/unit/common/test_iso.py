"""Times as texts and back, to the microsecond or not at all."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl.common.iso import NoTime, parse, text_of

MICROS = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(("kind", "dtype"), [("timestamp", "M8[us]"), ("duration", "m8[us]")])
@given(number=MICROS)
def test_a_time_is_its_text_again(kind, dtype, number):
    """Broken once: durations below 0 lose their sign."""
    (time,) = np.array([number], np.int64).view(dtype)

    assert [number] == parse([text_of(time)], kind).view(np.int64).tolist()


@example(-719_529)  # of the year -1, which numpy writes with three digits
@given(st.integers(-100_000_000, 2**31 - 1))
def test_a_day_is_its_text_again(number):
    (day,) = np.array([number], np.int64).view("M8[D]")

    assert [number] == parse([text_of(day)], "date").view(np.int64).tolist()


@pytest.mark.parametrize(
    ("text", "kind", "zone", "micros"),
    [
        ("1970-01-01", "timestamp", False, 0),
        ("1970-01-01T01", "timestamp", False, 3600 * 10**6),
        ("1970-01-01 00:00:01,5", "timestamp", False, 1_500_000),
        ("1970-01-01T02:00:00.000001+02:00", "timestamp", True, 1),
        ("1969-12-31T22:30-01:30", "timestamp", True, 0),
        ("1970-01-01T00:00Z", "timestamp", None, 0),
        ("1970-01-01T00:00:00.100000000", "timestamp", None, 100_000),
        ("P1W2DT3H4M5.6S", "duration", False, (((9 * 24 + 3) * 60 + 4) * 60 + 5) * 10**6 + 600_000),
        ("-PT0.000001S", "duration", False, -1),
        ("-01:02:03.5", "duration", False, -3_723_500_000),
    ],
)
def test_what_iso_8601_has_is_read(text, kind, zone, micros):
    assert [micros] == parse([text], kind, zone).view(np.int64).tolist()


@pytest.mark.parametrize(
    ("text", "kind", "zone", "why"),
    [
        ("1970-02-30", "timestamp", False, "no day"),
        ("1970-01-01T24:00", "timestamp", False, "no time of a day"),
        ("1970-01-01T00:00:00.0000001", "timestamp", False, "finer"),
        ("300000-01-01", "timestamp", False, "beyond"),
        ("1970-01-01T00:00Z", "timestamp", False, "leave it out"),
        ("1970-01-01T00:00", "timestamp", True, "write Z"),
        ("1970-1-1", "date", False, "no date"),
        ("1970-01-01T00", "date", False, "no date"),
        ("P", "duration", False, "no duration"),
        ("PT", "duration", False, "no duration"),
        ("P1DT", "duration", False, "no duration"),
        ("5", "duration", False, "no duration"),
        ("01:60:00", "duration", False, "no time of a day"),
        ("PT9223372036854.775808S", "duration", False, "beyond"),
        ("\u0661970-01-01", "date", False, "no date"),
    ],
)
def test_what_is_no_such_time_is_refused_at_its_place(text, kind, zone, why):
    with pytest.raises(NoTime, match=why) as refused:
        parse(["", text], kind, zone)

    assert 1 == refused.value.place

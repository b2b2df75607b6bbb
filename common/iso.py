"""Times as texts and back, by ISO 8601, exact to the microsecond or not at all. Pure.

    timestamp   2026-11-29T17:54:52.25, with Z or +02:00 where it is a moment
    date        2026-11-29
    duration    PT1H2M3.5S, P2DT1S, -PT0.5S, or as on a clock 01:02:03.5

Years have four digits or more, and may have a sign. A text that is empty, or NaT, is no time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DAY = r"(-\d{3,9}|\+?\d{4,9})-(\d\d)-(\d\d)"  # numpy writes the year -1 as -001
_CLOCK = r"(\d\d)(?::(\d\d)(?::(\d\d)(?:[.,](\d+))?)?)?"
_DATE = re.compile(_DAY, re.ASCII)
_TIMESTAMP = re.compile(rf"{_DAY}(?:[T ]{_CLOCK})?(Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII)
_DURATION = re.compile(
    r"([+-])?P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,](\d+))?S)?)?", re.ASCII
)
_OF_DAY = re.compile(r"([+-])?(\d\d):(\d\d):(\d\d)(?:[.,](\d+))?", re.ASCII)
_LARGEST = 2**63 - 1  # microseconds; the least number of all is numpy's NaT
_NONE = ("", "NaT")
_DTYPES = {"timestamp": "M8[us]", "date": "M8[D]", "duration": "m8[us]"}


class NoTime(ValueError):
    """A text is not of the kind that is wanted. `place`: of the first such."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place, self.why = place, why


def parse(texts: Sequence[str], kind: str, zone: bool | None = False) -> NDArray[Any]:
    """Return times of texts: kind is timestamp, date or duration.

    `zone`: timestamps are moments, and say where (Z, +02:00); False: they say nothing; None: as
    they like. Raises NoTime.
    """
    read: Callable[[str], int] = {
        "timestamp": lambda text: _timestamp(text, zone),
        "date": _date,
        "duration": _duration,
    }[kind]
    dtype = np.dtype(_DTYPES[kind])
    found = np.empty(len(texts), np.int64)
    for place, text in enumerate(texts):
        if text in _NONE:
            found[place] = np.iinfo(np.int64).min
            continue
        try:
            number = read(text)
        except ValueError as error:
            raise NoTime(place, str(error)) from error
        if abs(number) > _LARGEST:
            raise NoTime(place, "beyond what 64 bits of microseconds hold")
        found[place] = number
    return found.view(dtype)


def text_of(time: Any, zone: bool = False) -> str:
    """Return the text of a numpy datetime64 or timedelta64, which `parse` reads as the same."""
    if np.isnat(time):
        return "NaT"
    if time.dtype.kind == "M":
        text = str(time)
        return f"{text}Z" if zone and "T" in text else text
    number = int(time.astype("m8[us]").astype(np.int64))
    seconds, rest = divmod(abs(number), 10**6)
    fraction = f".{rest:06d}".rstrip("0") if rest else ""
    return f"{'-' if number < 0 else ''}PT{seconds}{fraction}S"


def _date(text: str) -> int:
    found = _DATE.fullmatch(text)
    if not found:
        raise ValueError("no date as 2026-11-29")
    return _days(found[1], found[2], found[3])


def _days(year: str, month: str, day: str) -> int:
    try:
        return int(np.datetime64(f"{year}-{month}-{day}", "D").astype(np.int64))
    except ValueError:
        raise ValueError("no day of the calendar") from None


def _timestamp(text: str, zone: bool | None) -> int:
    found = _TIMESTAMP.fullmatch(text)
    if not found:
        raise ValueError("no time as 2026-11-29T17:54:52.25")
    year, month, day, hour, minute, second, fraction, offset = found.groups()
    if zone and not offset:
        raise ValueError("without a time zone: write Z or +02:00 behind it")
    if zone is False and offset:
        raise ValueError("with a time zone, which the column has not: leave it out")
    hours, minutes, seconds = (int(each or 0) for each in (hour, minute, second))
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError("no time of a day")
    days = _days(year, month, day)
    away = 0
    if offset and offset != "Z":
        digits = offset[1:].replace(":", "").ljust(4, "0")
        if int(digits[:2]) > 23 or int(digits[2:]) > 59:
            raise ValueError("no time zone")
        away = (int(digits[:2]) * 60 + int(digits[2:])) * (-1 if offset[0] == "-" else 1)
    whole = ((days * 24 + hours) * 60 + minutes - away) * 60 + seconds
    return whole * 10**6 + _micros(fraction)


def _duration(text: str) -> int:
    if found := _OF_DAY.fullmatch(text):
        sign, hours, minutes, seconds, fraction = found.groups()
        if int(minutes) > 59 or int(seconds) > 59:
            raise ValueError("no time of a day")
        parts = ["0", "0", hours, minutes, seconds]
    else:
        found = _DURATION.fullmatch(text)
        if not found or text[-1] in "PT":
            raise ValueError("no duration as PT1H2M3.5S or 01:02:03.5")
        sign, *parts, fraction = found.groups()
    weeks, days, hours_, minutes_, seconds_ = (int(each or 0) for each in parts)
    whole = (((weeks * 7 + days) * 24 + hours_) * 60 + minutes_) * 60 + seconds_
    number = whole * 10**6 + _micros(fraction)
    return -number if sign == "-" else number


def _micros(fraction: str | None) -> int:
    """Return a second's fraction in microseconds. Raises ValueError where it is finer."""
    digits = (fraction or "").rstrip("0")
    if len(digits) > 6:
        raise ValueError("finer than a microsecond")
    return int(digits.ljust(6, "0"))

"""One value of a declared type from the text of a CSV field: exactly, or not at all.

    bool                    true, True, TRUE, false, False, FALSE
    date                    2024-01-31
    timestamp               2024-01-31T12:30:00.5, with T or a blank; seconds may be left out
    timestamp in UTC        the same with a zone, Z or +02:00: it is converted
    duration                ISO 8601, days and shorter: P1DT2H3M4.5S, -PT0.25S
    decimal                 a number whose digits come back from its float64

Pure. The types whose columns are read by kernels are in `csv_types.py` and `csv_columns.py`.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import numpy as np

from .schema import FLOATS, WHOLE

EXACT = 2.0**53  # whole numbers beyond it may be none of float64's
_WHOLE_FLOAT = re.compile(r"([+-]?[0-9]+)(?:\.0*)?")
_WORD = re.compile(r"[+-]?inf(?:inity)?", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,400}")
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:\.([0-9]+))?"
    r"(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
_SPAN = re.compile(
    r"([+-]?)P(?=.)(?:([0-9]+)D)?(?:T(?=.)(?:([0-9]+)H)?(?:([0-9]+)M)?"
    r"(?:([0-9]+)(?:\.([0-9]+))?S)?)?"
)


def is_exact(text: str) -> bool:
    """Tell whether a float64 is the number written.

    That is one rounded after the point at most, and not endless.
    """
    number = float(text)
    if np.isinf(number):
        return _WORD.fullmatch(text.strip()) is not None
    whole = _WHOLE_FLOAT.fullmatch(text.strip())
    return abs(number) < EXACT or whole is None or int(whole[1]) == int(number)


def value_of(kind: str, text: str) -> Any:
    """Return the value that a text without blanks around it is. Raises ValueError."""
    if kind in WHOLE:
        return _whole(kind, text)
    if kind == "float64" or kind in FLOATS:
        return _float(kind, text)
    return _OTHERS[kind](text)


def _whole(kind: str, text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError("no whole number")
    number, limits = int(text), np.iinfo(kind)
    if not limits.min <= number <= limits.max:
        raise ValueError("beyond it")
    return number


def _float(kind: str, text: str) -> np.floating[Any]:
    """Return the nearest of its type: not that of the nearest float64, which may be another."""
    made = np.dtype(kind).type
    if _WORD.fullmatch(text):
        return made(text)  # type: ignore[no-any-return]
    if not _NUMBER.fullmatch(text):
        raise ValueError("no number")
    wide = float(text)
    with np.errstate(over="ignore", under="ignore"):
        near = made(wide)
        if np.isinf(near):
            raise ValueError("too large")
        if (rest := wide - float(near)) and kind != "float64":
            other = np.nextafter(near, made(np.copysign(np.inf, rest)))
            if abs(rest) == abs(float(other) - wide):  # halfway: the digits decide
                exact, half = Decimal(text), Decimal(wide)
                if exact != half:
                    near = max(near, other) if exact > half else min(near, other)
    whole = _WHOLE_FLOAT.fullmatch(text)
    if whole is not None and int(whole[1]) != int(near):
        raise ValueError("a whole number that it cannot hold")
    return near  # type: ignore[no-any-return]


def _bool(text: str) -> bool:
    if text not in _BOOLS:
        raise ValueError("neither true nor false")
    return _BOOLS[text]


def _date(text: str) -> np.datetime64:
    if not _DATE.fullmatch(text):
        raise ValueError("no date")
    return np.datetime64(text, "D")


def _local(text: str) -> np.datetime64:
    moment, zone = _moment(text)
    if zone is not None:
        raise ValueError("it has a zone")
    return moment


def _utc(text: str) -> np.datetime64:
    moment, zone = _moment(text)
    if zone is None:
        raise ValueError("it has no zone")
    if zone == "Z":
        return moment
    digits = zone[1:].replace(":", "").ljust(4, "0")
    if int(digits[:2]) > 23 or int(digits[2:]) > 59:
        raise ValueError("no zone")
    ahead = np.timedelta64(int(digits[:2]) * 60 + int(digits[2:]), "m")
    return moment + ahead if zone[0] == "-" else moment - ahead


def _moment(text: str) -> tuple[np.datetime64, str | None]:
    found = _TIME.fullmatch(text)
    if found is None or (found[3] and found[2].count(":") < 2):
        raise ValueError("no timestamp")
    return np.datetime64(f"{found[1]}T{found[2]}", "us") + _micros(found[3]), found[4]


def _micros(digits: str | None) -> np.timedelta64:
    digits = digits or ""
    if digits[6:].strip("0"):
        raise ValueError("finer than microseconds")
    return np.timedelta64(int(digits[:6].ljust(6, "0")), "us")


def _duration(text: str) -> np.timedelta64:
    found = _SPAN.fullmatch(text)
    if found is None:
        raise ValueError("no duration")
    days, hours, minutes, seconds = (int(each or 0) for each in found.group(2, 3, 4, 5))
    total = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 10**6
    total += int(_micros(found[6]).astype(np.int64))
    if total >= 2**63:
        raise ValueError("too long")
    return np.timedelta64(-total if found[1] == "-" else total, "us")


def _decimal(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError("no number")
    number = float(text)
    if np.isinf(number) or Decimal(repr(number)) != Decimal(text):
        raise ValueError("its digits would not come back")
    return number


_OTHERS = {
    "bool": _bool, "date": _date, "timestamp": _local, "timestamp in UTC": _utc,
    "duration": _duration, "decimal": _decimal,
}  # fmt: skip

"""One value of a declared type from the text of a CSV field: exactly, or not at all.

    bool                    true, True, TRUE, false, False, FALSE
    date, timestamp, timestamp in UTC, duration     ISO 8601, as common/iso.py has it
    decimal                 a number whose digits come back from its float64

Pure. The types whose columns are read by kernels are in `csv_types.py` and `csv_columns.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np

from ..common import iso, spelled
from .schema import FLOATS, WHOLE

EXACT = 2.0**53  # whole numbers beyond it may be none of float64's
_WHOLE = re.compile(r"[+-]?[0-9]{1,400}")
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def is_exact(text: str) -> bool:
    """Tell whether a float64 is the number written.

    That is one rounded after the point at most, and not endless.
    """
    number = float(text)
    if np.isinf(number):
        return spelled.INFINITE.fullmatch(text.strip()) is not None
    whole = spelled.WHOLE.fullmatch(text.strip())
    return abs(number) < EXACT or whole is None or int(whole[1]) == int(number)


def value_of(kind: str, text: str) -> Any:
    """Return the value that a text without blanks around it is. Raises ValueError."""
    if kind in WHOLE:
        return _whole(kind, text)
    if kind in FLOATS:
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
    if spelled.INFINITE.fullmatch(text):
        return made(text)  # type: ignore[no-any-return]
    if not spelled.NUMBER.fullmatch(text):
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
    whole = spelled.WHOLE.fullmatch(text)
    if whole is not None and int(whole[1]) != int(near):
        raise ValueError("a whole number that it cannot hold")
    return near  # type: ignore[no-any-return]


def _bool(text: str) -> bool:
    if text not in _BOOLS:
        raise ValueError("neither true nor false")
    return _BOOLS[text]


def _time(kind: str, text: str, zone: bool = False) -> Any:
    return iso.parse([text], kind, zone)[0]


def _decimal(text: str) -> float:
    if not spelled.NUMBER.fullmatch(text):
        raise ValueError("no number")
    number = float(text)
    if np.isinf(number) or Decimal(repr(number)) != Decimal(text):
        raise ValueError("its digits would not come back")
    return number


_OTHERS: dict[str, Callable[[str], Any]] = {
    "bool": _bool,
    "date": partial(_time, "date"),
    "timestamp": partial(_time, "timestamp"),
    "timestamp in UTC": partial(_time, "timestamp", zone=True),
    "duration": partial(_time, "duration"),
    "decimal": _decimal,
}

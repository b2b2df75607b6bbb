r"""The types of CSV columns: int64, float64 or text, told by the first file's head.

A column is of numbers where nine of ten of its values are; the others are then broken records. It
is int64 where these have no fraction, whether or not values are missing, else float64. Only ASCII
digits make a number: 1_000 is none. A word is one (inf) only beside digits, so that names such as
"Inf" and "Nan" stay text; more digits than an int64 has are an id, and text. A missing value ("",
NA, N/A, n/a, #N/A, null, NULL, None, nan, \N) says nothing of the type; in a text only "" is one.

Nothing is rounded: a whole number that float64 cannot hold is broken in a float64 column, and so is
a number too large for it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .csv_signs import Signs
from .missing import Fill, ways_out

TYPES = ("int64", "float64", "str")
_BROKEN_SHARE = 0.1  # a guess: of a numeric column's values, so many may be broken
_MISSING = frozenset(("", "NA", "N/A", "n/a", "#N/A", "null", "NULL", "None", "\\N", "?"))
_WHOLE = re.compile(r"[+-]?[0-9]+")
_WHOLE_FLOAT = re.compile(r"([+-]?[0-9]+)(?:\.0*)?")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[+-]?inf(?:inity)?", re.IGNORECASE)
_EXACT = 2.0**53  # whole numbers beyond it may be none of float64's
_DIGITS = 19  # what an int64 has at most
_NO_SIGNS = Signs()
TEXT_NBYTES = 1 << 26  # a batch of texts that would take more in fixed width is of objects


def is_missing(value: str) -> bool:
    """Tell whether a field of a number column has no value."""
    value = value.strip()
    return value in _MISSING or value.lstrip("+-").lower() == "nan"


def any_missing(values: Sequence[str]) -> bool:
    """Tell whether one of these fields of a whole-number column has no value."""
    try:
        np.fromiter(map(int, values), np.int64, len(values))
    except (ValueError, OverflowError):
        return any(map(is_missing, values))
    return False


def infer(values: Sequence[str]) -> str:
    """Return the type that nearly all values have.

    The others are then broken records, not silent text.
    """
    if is_plain("".join(values)):  # nearly always, and fast
        try:
            np.fromiter(map(int, values), np.int64, len(values))
        except (ValueError, OverflowError):
            pass
        else:
            return "int64" if values else "str"
        try:
            if np.abs(np.fromiter(map(float, values), np.float64, len(values))).max() < _EXACT:
                return "float64"
        except ValueError:
            pass
    kinds: Counter[str] = Counter()
    for value, times in Counter(values).items():  # words often come again
        kinds[_kind(value)] += times
    allowed = _BROKEN_SHARE * (len(values) - kinds["missing"])
    whole, floats = kinds["whole"] + kinds["long"], kinds["fraction"]
    words = kinds["word"] if whole or floats else 0
    neither = kinds["text"] + kinds["id"] + kinds["word"] - words
    if (floats or words) and neither + kinds["long"] <= allowed:
        return "float64"
    return "int64" if whole and neither + words + floats + kinds["large"] <= allowed else "str"


def _kind(value: str) -> str:
    """Return the kind of a number.

    `long` is exact in int64 only, `large` in float64 only, `id` in neither.
    """
    if is_missing(value):
        return "missing"
    value = value.strip()
    if _WHOLE.fullmatch(value):
        exact = _exact(value)
        if len(value.lstrip("+-0")) <= _DIGITS and -(2**63) <= int(value) < 2**63:
            return "whole" if exact else "long"
        return "large" if exact else "id"
    if _FLOAT.fullmatch(value):
        return "fraction" if _exact(value) else "id"
    return "word" if _WORD.fullmatch(value) else "text"


def _exact(text: str) -> bool:
    """Tell whether a float64 is the number written.

    That is one rounded after the point at most, and not endless.
    """
    number = float(text)
    if np.isinf(number):
        return _WORD.fullmatch(text.strip()) is not None
    whole = _WHOLE_FLOAT.fullmatch(text.strip())
    return abs(number) < _EXACT or whole is None or int(whole[1]) == int(number)


def is_plain(letters: str) -> bool:
    """Tell whether Python's int and float read these letters as everybody else does."""
    return letters.isascii() and "_" not in letters and "\0" not in letters


@dataclass(frozen=True)
class Column:
    """A column of all files: its name, type, and what stands for a missing value.

    Where that is None, a missing value is refused. `signs`: other fields that are missing values.
    """

    name: str
    kind: str
    fill: Fill | None
    signs: Signs = _NO_SIGNS

    def convert(self, values: Sequence[str], plain: bool = False) -> NDArray[Any]:
        """Return fields as numbers or text; `plain`: the caller knows `is_plain` of them all.

        Raises ValueError or OverflowError.
        """
        if self.kind == "str":
            return self._texts(values, plain)
        values = self.signs.blanked(values)
        if not plain and not is_plain("".join(values)):
            raise ValueError("no plain number")
        return self._integers(values) if self.kind == "int64" else self._floats(values)

    def _integers(self, values: Sequence[str]) -> NDArray[np.int64]:
        try:
            return np.fromiter(map(int, values), np.int64, len(values))
        except ValueError:
            if self.fill is None:
                raise
        fill = self.fill.value
        numbers = (fill if is_missing(value) else int(value) for value in values)
        return np.fromiter(numbers, np.int64, len(values))

    def _floats(self, values: Sequence[str]) -> NDArray[np.float64]:
        fill = np.nan if self.fill is None else self.fill.value
        try:
            column = np.fromiter(map(float, values), np.float64, len(values))
        except ValueError:
            numbers = (np.nan if is_missing(value) else float(value) for value in values)
            column = np.fromiter(numbers, np.float64, len(values))
        large = np.abs(column) >= _EXACT
        if large.any() and not all(
            _exact(values[place]) for place in np.flatnonzero(large).tolist()
        ):
            raise ValueError("no float64 is this number")
        return column if np.isnan(fill) else np.where(np.isnan(column), fill, column)

    def _texts(self, values: Sequence[str], plain: bool) -> NDArray[Any]:
        values = self.signs.blanked_texts(values)
        if self.fill is not None and self.fill.value:
            values = [value or self.fill.value for value in values]
        if not plain and any(value.endswith("\0") for value in values):
            raise ValueError("numpy would lose its end")
        if 4 * len(values) * max(map(len, values), default=0) > TEXT_NBYTES:
            return np.array(values, dtype=object)
        return np.array(values, dtype=np.str_)

    def fault(self, value: str) -> str:
        """Return why this field is broken, and what to do."""
        name, number = self.name, value.strip()
        shown = value if len(value) <= 60 else f"{value[:60]}..."
        if self.kind == "str":
            return f"column {name!r}: a text that ends in NUL would lose it: leave the NUL out"
        if is_missing(value) or self.signs.has(value):
            return f"column {name!r} has no value, and is of whole numbers: {ways_out([name])}"
        said = f"column {name!r}: {shown!r} is no {self.kind}"
        kind = _kind(number)
        if self.kind == "int64" and kind in ("fraction", "large", "word"):
            return f"{said}: say dtypes={name}:float64 if the column has such numbers"
        if kind == "long":
            return f"{said}, which would round it: say dtypes={name}:int64, or {name}:str for an id"
        if kind == "id":
            return f"{said}, which cannot hold it: say dtypes={name}:str if it is an id"
        return f"{said}: mend it, or say dtypes={name}:str if the column is of text"


def is_broken(column: Column, value: str) -> bool:
    """Tell whether this field alone cannot be converted."""
    try:
        column.convert([value])
    except (ValueError, OverflowError):
        return True
    return False


def column_of(name: str, kind: str, fill: Fill | None, signs: Signs = _NO_SIGNS) -> Column:
    """Return a column of `kind`, or of float64 where that was chosen for missing values."""
    if kind == "int64" and fill is not None and fill.dtype.kind == "f":
        kind = "float64"
    return Column(name, kind, fill, signs)

r"""The sorts of CSV fields, the type that a column has by all of its fields, and how it is read.

A column is int64 where every value is written as whole numbers are (no leading zero, plus sign or
exponent) and within int64, uint64 where none is negative and all are within that; else float64
where all are numbers, none has a leading zero, and each whole number is exactly a float64; else
text. Only ASCII digits make a number: 1_000 is none. A word is one (inf) only beside digits, so
that names such as "Inf" and "Nan" stay text. A missing value ("", NA, N/A, n/a, #N/A, null, NULL,
None, nan, \N, ?) says nothing of the type; in a text only "" is one.

Nothing is rounded: a whole number that float64 cannot hold is broken in a float64 column, and so is
a number too large for it. Where a type is not declared, but found in other data, a number with a
leading zero is broken, too: there it would have been a text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common import spelled
from ..common.ragged import Ragged
from .csv_signs import BLANKS, Signs
from .csv_values import EXACT, is_exact, value_of
from .missing import Fill, ways_out
from .schema import DECLARED, Type

_WHOLE = re.compile(r"([+-]?)([0-9]+)")
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]")
_DIGITS = 20  # what a uint64 has at most
_NO_SIGNS = Signs()
TEXT_NBYTES = 1 << 26  # a batch of texts that would take more in fixed width is of objects

# What a field is, as far as it says something of its column's type.
NUMBER = 1  # of digits
FRACTION = 2  # no whole number in its plain form: 0.5, 1e5, +1, -0
NEGATIVE = 4
UNSIGNED = 8  # a whole number beyond int64, within uint64
BEYOND = 16  # a whole number within neither
INEXACT = 32  # a whole number that float64 cannot hold, or any that is too large
ZEROED = 64  # a number with a leading zero
WORD = 128  # inf
TEXT = 256
MISSING = 512
FLAGS = (NUMBER, FRACTION, NEGATIVE, UNSIGNED, BEYOND, INEXACT, ZEROED, WORD, TEXT, MISSING)


def is_missing(value: str) -> bool:
    """Tell whether a field of a number column has no value."""
    return spelled.is_missing_word(value.strip(BLANKS))


def flags_of(value: str, signs: Signs = _NO_SIGNS) -> int:
    """Return what a field is."""
    value = value.strip(BLANKS)
    if is_missing(value) or signs.has(value):
        return MISSING
    if whole := _WHOLE.fullmatch(value):
        sign, digits = whole.groups()
        exact = 0 if is_exact(value) else INEXACT
        if len(digits) > 1 and digits[0] == "0":
            return NUMBER | ZEROED
        if sign == "+" or value == "-0":
            return NUMBER | FRACTION | exact
        if len(digits) > _DIGITS or not -(2**63) <= (number := int(value)) < 2**64:
            return NUMBER | BEYOND | exact | (NEGATIVE if sign else 0)
        wide = UNSIGNED if number >= 2**63 else 0
        return NUMBER | exact | wide | (NEGATIVE if sign else 0)
    if spelled.NUMBER.fullmatch(value):
        if _LEADING_ZERO.match(value):
            return NUMBER | ZEROED
        return NUMBER | FRACTION | (0 if is_exact(value) else INEXACT)
    return WORD if spelled.INFINITE.fullmatch(value) else TEXT


def kind_of(flags: int) -> str:
    """Return the type of a column whose fields are all this."""
    if flags & (TEXT | ZEROED) or not flags & NUMBER:
        return "text"
    if not flags & (FRACTION | WORD | BEYOND):
        if not flags & UNSIGNED:
            return "int64"
        if not flags & NEGATIVE:
            return "uint64"
    return "text" if flags & INEXACT else "float64"


@dataclass(frozen=True)
class Column:
    """A column of all files: its name, type, and what stands for a missing value.

    Where that is None, a missing value is refused. `signs`: other fields that are missing values.
    `split`: the sign between the elements of a list. `found`: how its type was found.
    """

    name: str
    type: Type
    fill: Fill | None
    signs: Signs = _NO_SIGNS
    split: str = ""
    found: str = DECLARED

    @cached_property
    def kind(self) -> str:
        """The type of one value."""
        return self.type.kind if not self.type.zone else str(self.type.single)

    @property
    def is_strict(self) -> bool:
        """Tell whether a number with a leading zero is broken."""
        return self.found != DECLARED

    def convert(self, values: Sequence[str], plain: bool = False) -> NDArray[Any] | Ragged:
        """Return fields as the type has them; `plain`: the caller knows `is_plain` of them all.

        Raises ValueError or OverflowError.
        """
        if not self.split:
            return self.singles(values, plain)
        rows = [value.split(self.split) if value else [] for value in values]
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = self.singles([each for row in rows for each in row], plain)
        return self.rows(flat, lengths)

    def rows(self, flat: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any] | Ragged:
        """Return the elements of all lists as the type has them. Raises ValueError."""
        if self.type.lists:
            return Ragged.of(flat, lengths)
        if not (lengths == self.type.shape[0]).all():
            raise ValueError("a list of another length")
        return flat.reshape(len(lengths), *self.type.shape)

    def singles(self, values: Sequence[str], plain: bool = False) -> NDArray[Any]:
        """Return fields, or elements of lists. Raises ValueError or OverflowError."""
        if self.kind in ("text", "bytes"):
            return self._texts(values, plain)
        values = self.signs.blanked(values)
        if self.kind not in ("int64", "float64"):
            return self._others(values)
        if not plain and not spelled.is_plain("".join(values)):
            raise ValueError("no plain number")
        if self.is_strict and any(map(_LEADING_ZERO.match, (v.lstrip(BLANKS) for v in values))):
            raise ValueError("a leading zero")
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
        large = np.abs(column) >= EXACT
        if large.any() and not all(
            is_exact(values[place]) for place in np.flatnonzero(large).tolist()
        ):
            raise ValueError("no float64 is this number")
        return column if np.isnan(fill) else np.where(np.isnan(column), fill, column)

    def _others(self, values: Sequence[str]) -> NDArray[Any]:
        found = np.empty(len(values), self.type.dtype)
        for place, value in enumerate(values):
            if not is_missing(value):
                if self.is_strict and _LEADING_ZERO.match(value.strip(BLANKS)) and self._is_number:
                    raise ValueError("a leading zero")
                found[place] = value_of(self.kind, value.strip(BLANKS))
            elif self.fill is None:
                raise ValueError("no value")
            else:
                found[place] = self.fill.value
        return found

    @property
    def _is_number(self) -> bool:
        return self.type.is_whole or self.type.is_float

    def _texts(self, values: Sequence[str], plain: bool) -> NDArray[Any]:
        values = self.signs.blanked_texts(values)
        if self.kind == "bytes":
            blank = b"" if self.fill is None else self.fill.value
            found = np.empty(len(values), object)
            found[:] = [value.encode() or blank for value in values]
            return found
        if self.fill is not None and self.fill.value:
            values = [value or self.fill.value for value in values]
        if not plain and any(value.endswith("\0") for value in values):
            raise ValueError("numpy would lose its end")
        if 4 * len(values) * max(map(len, values), default=0) > TEXT_NBYTES:
            return np.array(values, dtype=object)
        return np.array(values, dtype=np.str_)

    def fault(self, value: str) -> str:
        """Return why this field is broken, and what to do."""
        name, kind = self.name, self.kind
        if self.split:
            elements = value.split(self.split) if value else []
            if strange := [each for each in elements if self._is_broken_element(each)]:
                value = strange[0]
            else:
                return f"column {name!r} is {self.type}, and here is a list of {len(elements)}"
        shown = value if len(value) <= 60 else f"{value[:60]}..."
        if kind == "text":
            return f"column {name!r}: a text that ends in NUL would lose it: leave the NUL out"
        if is_missing(value) or self.signs.has(value):
            what = "whole numbers" if self.type.is_whole else "bools"
            return f"column {name!r} has no value, and is of {what}: {ways_out([name])}"
        flags = flags_of(value)
        whose = "declared" if self.found == DECLARED else "in the training data"
        said = (
            f"column {name!r}: {shown!r} is no {kind}, as the column is {whose}, but {_told(flags)}"
        )
        if flags & ZEROED and self.is_strict:
            return (
                f"{said}: say dtypes={name}:text for an id, or dtypes={name}:{kind} for a number, "
                "in the training too"
            )
        if self.type.is_whole and flags & (FRACTION | WORD) and not flags & INEXACT:
            return f"{said}: say dtypes={name}:float64 if the column has such numbers"
        if kind == "float64" and flags & INEXACT and kind_of(flags) in ("int64", "uint64"):
            exact = kind_of(flags)
            return (
                f"{said}, which it would round: say dtypes={name}:{exact}, or {name}:text for an id"
            )
        if flags & NUMBER and self._is_number:
            return f"{said}, which it cannot hold: say dtypes={name}:text if it is an id"
        return f"{said}: mend it, or say dtypes={name}:text if the column is of text"

    def _is_broken_element(self, value: str) -> bool:
        try:
            self.singles([value])
        except (ValueError, OverflowError):
            return True
        return False


def _told(flags: int) -> str:
    """Tell what a field is for a sentence: the type of a column of such fields."""
    if flags & ZEROED:
        return "a number with a leading zero"
    if flags & NUMBER and flags & INEXACT and not flags & FRACTION:
        return "uint64" if flags & UNSIGNED else "int64" if not flags & BEYOND else "beyond 64 bits"
    if flags & NUMBER and flags & INEXACT:
        return "beyond float64"
    return "float64" if flags & WORD else kind_of(flags)


def is_broken(column: Column, value: str) -> bool:
    """Tell whether this field alone cannot be converted."""
    try:
        column.convert([value])
    except (ValueError, OverflowError):
        return True
    return False

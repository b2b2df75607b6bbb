"""The value that stands for a missing one in a table, in every reader: `missing=user:-1|age:nan`.

A whole-number column stays int64 (uint64 where the file says so) whether or not values are missing,
and whichever file is read: it never becomes float64 by itself, since float64 merges ids beyond
2^53. So a missing whole number (or bool) is refused until the user has chosen what stands for it:

    missing=user:-1     a whole number of his own; the column stays int64
    missing=age:nan     NaN; the column is float64, in every file and with no value missing, too

A missing float is NaN, a missing text "" and a missing time NaT unless another value is chosen. `*`
is for all columns that are not named; where its value is none of a column's type (-1 for a uint64
or a time, nan for a text), that column goes by its default. Whatever becomes float64 is exact or
refused: a whole number that float64 cannot hold is a broken record (`first_inexact`), never
rounded.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError, UsageError

_ALL = "*"
_WHOLE = re.compile(r"[+-]?[0-9]+")
_BOOLS = {"true": True, "false": False}
_EXACT = 1 << 53  # each whole number up to here is a float64
_NAMED = 20  # columns that a sentence names; more are counted


class Fill(NamedTuple):
    """The dtype that a column has throughout, and what stands for a missing value in it."""

    dtype: np.dtype[Any]
    value: Any


class Missing:
    """The user's choices: {column, or `*`: value}."""

    def __init__(self, chosen: Mapping[str, str]) -> None:
        self._chosen = dict(chosen)

    @classmethod
    def parse(cls, value: str | Mapping[str, Any] | None) -> Missing:
        """Parse "user:-1|age:nan" or a mapping. Raises UsageError."""
        if value is None:
            return cls({})
        if not isinstance(value, str):
            if bad := [name for name, each in value.items() if each is None]:
                raise UsageError(f"The parameter missing gives {bad[0]!r} no value: write nan.")
            return cls({str(name): str(each) for name, each in value.items()})
        pairs = [pair.rpartition(":") for pair in value.split("|") if pair]
        if bad := [name + each for name, colon, each in pairs if not colon or not name]:
            raise UsageError(
                f"The parameter missing must read COLUMN:VALUE with | between several, as in "
                f"user:-1|age:nan; {bad[0]!r} does not."
            )
        return cls({name: each for name, _, each in pairs})

    def check(self, source: str, there: Sequence[str]) -> None:
        """Check the choices. Raises DataError where one is for a column that `source` has not."""
        known = {_ALL, *there}
        if strange := [name for name in self._chosen if name not in known]:
            raise DataError(f"missing names the column {strange[0]!r}, which {source} has not.")

    def chosen(self, column: str) -> str | None:
        """Return the value chosen for just this column."""
        return self._chosen.get(column)

    def said(self, column: str, dtype: np.dtype[Any]) -> str | None:
        """Return the value chosen for a column of this dtype, by its name or by `*`; else None."""
        if column in self._chosen or _ALL not in self._chosen:
            return self._chosen.get(column)
        with contextlib.suppress(ValueError):
            _filled(dtype, self._chosen[_ALL], named=False)
            return self._chosen[_ALL]
        return None

    def fill(self, column: str, dtype: np.dtype[Any]) -> Fill | None:
        """Return the column's dtype and what stands for a missing value.

        It is None where a missing value is refused.

        `dtype` is the column's own without regard to missing values: bytes are "S", text "U".
        Raises UsageError where the value chosen for just this column cannot stand in it.
        """
        dtype = np.dtype(dtype)
        if column not in self._chosen:
            try:
                star = self._chosen.get(_ALL)
                return _default(dtype) if star is None else _filled(dtype, star, named=False)
            except ValueError:
                return _default(dtype)
        text = self._chosen[column]
        try:
            return _filled(dtype, text, named=True)
        except ValueError as error:
            raise UsageError(
                f"missing={column}:{text} cannot stand in column {column!r}: {error}."
            ) from error


def ways_out(columns: Sequence[str]) -> str:
    """Return the end of a sentence for whole-number columns that miss values: what to say."""
    spelled = not any(set(name) & set(",|=\"'\n") for name in columns)
    names = columns if spelled and len(columns) <= _NAMED else [_ALL]
    sentinels, nans = ("|".join(f"{name}:{each}" for name in names) for each in ("-1", "nan"))
    return (
        f"say --data_reader_params 'missing={nans}' for float64 with NaN, or 'missing={sentinels}' "
        "for a whole number of your choice in its place, one that is no value there"
    )


def named(columns: Sequence[str]) -> str:
    """Return the columns for a sentence; of very many, the first and how many more."""
    more = len(columns) - _NAMED
    return ", ".join(map(repr, columns[:_NAMED])) + (f" and {more} more" if more > 0 else "")


def first_inexact(values: NDArray[Any]) -> int | None:
    """Return the place of the first of these int64 or uint64 that float64 cannot hold, or None."""
    if values.dtype.kind == "i":
        wide = values.astype(np.int64)
        size = np.where(wide < 0, -wide, wide).view(np.uint64)  # -2^63 is its own negative
    else:
        size = values.astype(np.uint64)
    lowest = np.maximum(size & (~size + np.uint64(1)), np.uint64(1))  # its lowest bit that is set
    places = np.flatnonzero(size // lowest > _EXACT)
    return int(places[0]) if len(places) else None


def _default(dtype: np.dtype[Any]) -> Fill | None:
    if dtype.kind in "iub":
        return None
    values = {"f": np.nan, "U": "", "S": b"", "M": np.datetime64("NaT"), "m": np.timedelta64("NaT")}
    return Fill(dtype, values.get(dtype.kind))


def _filled(dtype: np.dtype[Any], text: str, named: bool) -> Fill:
    """Return `text` as a value of the dtype. Raises ValueError."""
    nan = text.strip().lower() == "nan"
    if dtype.kind in "iub" and nan:
        return Fill(np.dtype(np.float64), np.nan)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if not _WHOLE.fullmatch(text.strip()) or not limits.min <= int(text) <= limits.max:
            raise ValueError(f"it must be nan or a whole number that {dtype} can hold")
        return Fill(dtype, int(text))
    if dtype.kind == "b":
        if text.strip().lower() not in _BOOLS:
            raise ValueError("it must be true, false or nan")
        return Fill(dtype, _BOOLS[text.strip().lower()])
    if dtype.kind == "f":
        try:
            return Fill(dtype, float(text.replace("_", "x")))  # Python reads 1_0 as 10
        except ValueError:
            raise ValueError("it must be nan or a number") from None
    if not named and (nan or dtype.kind in "Mm"):
        raise ValueError("numbers speak of numbers: a text has no NaN, and -1 is no time")
    if dtype.kind in "Mm":
        time = np.datetime64 if dtype.kind == "M" else np.timedelta64
        return Fill(dtype, time("NaT") if nan else dtype.type(text, np.datetime_data(dtype)[0]))
    if dtype.kind == "U":
        return Fill(dtype, text)
    if dtype.kind == "S":
        return Fill(dtype, text.encode())
    raise ValueError(f"nothing can be chosen for a column of {dtype}")

"""Columns of the bytes of whole CSV records, at the speed of a kernel, where they are plain.

A field that the kernel has in doubt is converted as `csv_types` does it. What it does not
understand at all (a record that has too few fields, a text after a closing quote, bytes of another
encoding) is left to the caller, who then reads one record after the other and names the broken one.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.ragged import Ragged
from . import csv_kernels as kernels
from .csv_dialect import BROKEN, Dialect
from .csv_types import TEXT_NBYTES, Column
from .kernels import QUOTE
from .reader import Columns

_KINDS = {"int64": kernels.WHOLE, "uint64": kernels.WHOLE, "float64": kernels.FLOAT}


def _kind(column: Column) -> int:
    """Return what a field or an element of the column is to become; of other types, a text."""
    kind = _KINDS.get(column.kind, kernels.TEXT)
    return kind | kernels.STRICT if kind != kernels.TEXT and column.is_strict else kind


class Parser:
    """A parser of the records of one dialect, whose fields have these names."""

    def __init__(
        self, dialect: Dialect, names: Sequence[str], columns: Mapping[str, Column], spare: bool
    ) -> None:
        self._dialect, self._spare = dialect, spare
        found = map(columns.get, names)
        kinds = (
            kernels.UNWANTED if each is None else kernels.TEXT if each.split else _kind(each)
            for each in found
        )
        self._kinds = np.array(list(kinds), np.int8)
        self._columns = [columns[name] for name in names if name in columns]
        self._order = list(columns)
        self._wide = codecs.lookup(dialect.encoding).name in ("utf-8", "ascii")
        letters = "" if self._wide else bytes(range(256)).decode(dialect.encoding, "replace")
        self._table = np.array([ord(letter) for letter in letters], np.uint32)

    def parse(
        self, text: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> Columns | None:
        """Return the records text[begin:end]; None where they are not plain, or one is broken."""
        if self._dialect.escape or self._dialect.skip_blanks:
            return None
        data = np.frombuffer(text + self._dialect.line_end.encode() * 8, np.uint8)
        parsed = kernels.parse_csv(
            data, begins, ends, self._dialect.signs, self._kinds, self._spare, self._wide
        )
        if parsed is None:
            return None
        fields, ascii_only = parsed
        try:
            if not ascii_only:
                bounds = zip(begins.tolist(), ends.tolist(), strict=True)
                b"".join(text[begin:end] for begin, end in bounds).decode(self._dialect.encoding)
            arrays = {
                column.name: self._column(column, data, fields, j)
                for j, column in enumerate(self._columns)
            }
        except BROKEN:
            return None
        return Columns({name: arrays[name] for name in self._order})

    def _column(
        self, column: Column, data: NDArray[np.uint8], fields: kernels.Fields, j: int
    ) -> NDArray[Any] | Ragged:
        """Return column j. Raises ValueError or OverflowError where one of its fields is broken."""
        extents, states = fields.extents[j], fields.states[j]
        if not column.split:
            values, worst, longest = fields.values[j], int(fields.worst[j]), int(fields.longest[j])
            return self._singles(column, data, values, extents, states, worst, longest)
        signs = ord(column.split), int(self._dialect.signs[QUOTE])
        split = kernels.split_lists(data, extents, states, signs, _kind(column), self._wide)
        flat = self._singles(
            column, data, split.values, split.extents, split.states, split.worst, split.longest
        )
        return column.rows(flat, split.lengths)

    def _singles(
        self,
        column: Column,
        data: NDArray[np.uint8],
        values: NDArray[np.int64],
        extents: NDArray[np.int64],
        states: NDArray[np.uint8],
        worst: int,
        longest: int,
    ) -> NDArray[Any]:
        """Return fields, or elements of lists, as `csv_kernels` has read them."""
        if column.kind == "text":
            if 4 * len(values) * longest > TEXT_NBYTES:
                return column.singles(self._texts(data, extents, states))
            letters = np.empty((len(values), max(longest, 1)), np.uint32)
            quote = self._dialect.signs[QUOTE]
            starts, ends = extents
            kernels.widen(data, starts, ends, states, quote, self._table, letters)
            texts: NDArray[Any] = letters.view(f"=U{letters.shape[1]}")[:, 0]
            if (signs := column.signs.among(texts)) is not None:
                texts[signs] = ""
            if column.fill is not None and column.fill.value and (texts == "").any():
                return np.where(texts == "", column.fill.value, texts)
            return texts
        if column.kind not in _KINDS:
            return column.singles(self._texts(data, extents, states))
        numbers: NDArray[Any] = values if column.kind == "int64" else values.view(column.kind)
        if column.kind == "uint64" and ((values < 0) & (states == kernels.SURE)).any():
            raise ValueError("a negative number")
        signs = column.signs.among(numbers)
        if worst == kernels.SURE and signs is None:
            return numbers
        gaps = states == kernels.MISSING
        if signs is not None:
            gaps |= signs & (states == kernels.SURE)
        if gaps.any():
            numbers[gaps] = column.singles([""])[0]
        rows = np.flatnonzero(states > kernels.MISSING)
        if len(rows):
            numbers[rows] = column.singles(self._texts(data, extents[:, rows], states[rows]))
        return numbers

    def _texts(
        self, data: NDArray[np.uint8], extents: NDArray[np.int64], states: NDArray[np.uint8]
    ) -> list[str]:
        """Return fields as Python's csv module reads them."""
        quote, encoding = self._dialect.quote, self._dialect.encoding
        texts = [data[start:end].tobytes().decode(encoding) for start, end in extents.T.tolist()]
        return [
            text.replace(quote * 2, quote) if quoted else text
            for text, quoted in zip(texts, (states == kernels.DOUBLED).tolist(), strict=True)
        ]

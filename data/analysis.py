"""A summary of each column of a part of the data (`edl data analyze`); parts merge to the whole.

A column is of numbers (bools among them), of texts or of times. Missing are NaN, "" and NaT, and
records of TFRecord that lack the feature. Infinite numbers are counted and left out of the rest.
Elements of lists count one by one, and a record with an empty list has none. Durations are told in
whole microseconds.
The JSON is read by `edl.nn.preprocess`.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.arrays import array_of, joined
from ..common.errors import DataError
from ..common.ragged import Ragged
from .reader import Columns, Records
from .statistics import Distinct, Frequent, Moments, Quantiles

FORMAT = "edl-analysis-1"  # nn/preprocess/analysis.py reads it
PROBABILITIES = np.arange(101) / 100
_KINDS = {**dict.fromkeys("iuf", "number"), "U": "text", "M": "time", "m": "time"}
_LONG = 200  # characters: longer texts are no words, and would have no bound in memory


@dataclass(frozen=True)
class Sizes:
    """How much is kept of a column: values by frequency, hashes of values, values by rank."""

    vocabulary: int = 10_000
    distinct: int = 1 << 16
    quantiles: int = 4096


class ColumnSummary:
    """A summary of one column."""

    def __init__(self, name: str, kind: str, sizes: Sizes, seed: int) -> None:
        self.name, self.kind = name, kind
        self.dtypes: set[str] = set()
        self.count = self.missing = self.infinite = 0
        self.least: Any = None
        self.greatest: Any = None
        self.moments = Moments()
        self.distinct = Distinct(sizes.distinct)
        # Twice as many as are told, so that these are right for longer.
        self.frequent = Frequent(2 * sizes.vocabulary)
        self.quantiles = Quantiles(sizes.quantiles, np.random.default_rng(seed))

    def add(self, values: NDArray[Any]) -> None:
        """Take a flat array of values of this column's kind."""
        self.dtypes.add(str(values.dtype) if self.kind != "text" else "str")
        if self.kind == "text":
            plain = values[values != ""]
        elif self.kind == "time":
            plain = values[~np.isnat(values)]
        else:
            plain = self._add_numbers(values)
        self.missing += len(values) - len(plain)
        self.count += len(plain)
        if counts := self._counted(plain):
            self._widen(min(counts), max(counts))
            self.distinct.add(list(counts))
            self.frequent.add(self._short(counts))

    def _short(self, counts: collections.Counter[Any]) -> collections.Counter[Any]:
        """Return the counts less those of long texts, which count as the vocabulary's error."""
        if self.kind != "text" or max(map(len, counts)) <= _LONG:
            return counts
        short = collections.Counter({v: n for v, n in counts.items() if len(v) <= _LONG})
        self.frequent.error += counts.total() - short.total()
        return short

    def _counted(self, values: NDArray[Any]) -> collections.Counter[Any]:
        """Return how often each value comes, infinite ones left out."""
        if self.kind == "text":
            return collections.Counter(values.tolist())
        if values.dtype.kind == "f":
            values = values[np.isfinite(values)]
        found, counts = np.unique(values, return_counts=True)
        if values.dtype.kind == "m":
            listed = found.view(np.int64)
        else:
            listed = found.astype(str) if self.kind == "time" else found
        return collections.Counter(dict(zip(listed.tolist(), counts.tolist(), strict=True)))

    def _add_numbers(self, values: NDArray[Any]) -> NDArray[Any]:
        there = values[~np.isnan(values)] if values.dtype.kind == "f" else values
        wide = there.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        self.infinite += len(wide) - len(finite)
        self.moments = self.moments.merge(Moments.of(finite))
        self.quantiles.add(finite)
        return there

    def _widen(self, least: Any, greatest: Any) -> None:
        self.least = least if self.least is None else min(self.least, least)
        self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)

    def merge(self, other: ColumnSummary) -> None:
        """Take what another part knows. Raises DataError where it is of another kind."""
        self.dtypes |= other.dtypes
        self.count += other.count
        self.missing += other.missing
        self.infinite += other.infinite
        if other.least is not None:
            self._widen(other.least, other.greatest)
        self.moments = self.moments.merge(other.moments)
        self.distinct.merge(other.distinct)
        self.frequent.merge(other.frequent)
        self.quantiles.merge(other.quantiles)

    def to_dict(self, vocabulary: int) -> dict[str, Any]:
        """Return the JSON: texts and numbers only, None for a number that is not finite."""
        known: dict[str, Any] = {
            "kind": self.kind,
            "dtype": "|".join(sorted(self.dtypes)),
            "count": self.count,
            "missing": self.missing,
            "min": _plain(self.least),
            "max": _plain(self.greatest),
        }
        if self.kind == "number":
            some = self.moments.count > 0
            known |= {
                "infinite": self.infinite,
                "mean": _finite(self.moments.mean) if some else None,
                "deviation": _finite(self.moments.deviation) if some else None,
                "quantiles": {
                    "probabilities": PROBABILITIES.tolist(),
                    "values": self._quantile_values() if some else [],
                    "rank_error": self.quantiles.rank_error,
                },
            }
        most = self.frequent.most(vocabulary)
        return known | {
            "distinct": self.distinct.count,
            "distinct_error": self.distinct.error,
            "vocabulary": [[_plain(value), count] for value, count in most],
            "vocabulary_error": self.frequent.error,
        }

    def _quantile_values(self) -> list[float]:
        values = self.quantiles.at(PROBABILITIES).tolist()
        return [float(self.least), *values[1:-1], float(self.greatest)]


@dataclass
class Summary:
    """A summary of a part of the data, by column."""

    sizes: Sizes
    seed: int = 0
    records: int = 0
    columns: dict[str, ColumnSummary] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def add(self, records: Records) -> None:
        """Take records. Raises DataError where they are no table and no dictionaries."""
        before = self.records
        self.records += len(records)
        parts = {name: _flat(values) for name, values in _by_column(records).items()}
        for name, (values, with_some) in parts.items():
            if len(values):
                column = self._column(name, _kind(name, values), before)
                column.missing += len(records) - with_some
                column.add(values)
        for name, column in self.columns.items():
            if name not in parts or not len(parts[name][0]):
                column.missing += len(records)

    def _column(self, name: str, kind: str, before: int) -> ColumnSummary:
        if name not in self.columns:
            self.columns[name] = ColumnSummary(name, kind, self.sizes, self.seed)
            self.columns[name].missing = before
        elif self.columns[name].kind != kind:
            raise DataError(
                f"Column {name!r} is of {self.columns[name].kind} in one place and of {kind} in "
                f"another: say --data_reader_params dtypes={name}:str."
            )
        return self.columns[name]

    def merge(self, other: Summary) -> None:
        """Take what another part knows. Raises DataError where a column is of another kind."""
        for name, found in other.columns.items():
            if name not in self.columns:
                self._column(name, found.kind, self.records)
        for name, column in self.columns.items():
            if name in other.columns:
                self._column(name, other.columns[name].kind, 0).merge(other.columns[name])
            else:
                column.missing += other.records
        self.records += other.records
        self.broken += other.broken

    def to_dict(self) -> dict[str, Any]:
        columns = {name: each.to_dict(self.sizes.vocabulary) for name, each in self.columns.items()}
        return {
            "format": FORMAT,
            "records": self.records,
            "broken": self.broken,
            "columns": columns,
        }


def _by_column(records: Records) -> Mapping[str, Any]:
    """Return the values by column: an array, or a list of what each record that has it has."""
    if isinstance(records, Columns):
        return records
    found: dict[str, list[Any]] = {}
    for record in records:
        if not isinstance(record, Mapping):
            raise DataError(
                f"These records are {type(record).__name__} and no columns: only tables and "
                "examples of features can be analyzed; leave out raw=true."
            )
        for name, value in record.items():
            found.setdefault(name, []).append(value)
    return found


def _flat(values: Any) -> tuple[NDArray[Any], int]:
    """Return all elements as one array, and how many records have one or more."""
    if isinstance(values, Ragged):
        return _flat(values.own().values)[0], int(np.count_nonzero(values.lengths))
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        flat = values.ravel()
        if flat.dtype.kind == "S":
            flat = np.char.decode(flat, "utf-8", "surrogateescape")
        if flat.dtype.kind == "m":  # as whole numbers they have an order, and as texts none
            flat = flat.astype("m8[us]")
        return flat.view(np.uint8) if flat.dtype.kind == "b" else flat, len(values)
    listed = list(values)
    if not any(isinstance(each, np.ndarray | list | tuple) for each in listed):
        return _objects(listed), len(listed)
    parts = [each for each in listed if len(each)]
    if parts and all(isinstance(each, np.ndarray) and each.dtype.kind != "O" for each in parts):
        return _flat(joined([np.ravel(each) for each in parts]))[0], len(parts)
    return _objects([element for part in parts for element in part]), len(parts)


def _objects(values: list[Any]) -> NDArray[Any]:
    """Return objects as texts (bytes by UTF-8), or as numbers where all are."""
    if values and all(isinstance(each, int | float | np.number | np.bool_) for each in values):
        return array_of(values)
    texts = np.empty(len(values), object)
    texts[:] = [
        each.decode("utf-8", "surrogateescape") if isinstance(each, bytes) else each
        for each in values
    ]
    return texts


def _kind(name: str, values: NDArray[Any]) -> str:
    kind = _KINDS.get(values.dtype.kind, "text")  # objects are texts
    if values.dtype.kind == "O" and (strange := set(map(type, values.tolist())) - {str}):
        raise DataError(f"Column {name!r} has values of type {strange.pop().__name__}: not read.")
    return kind


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: text that is no UTF-8 with its bytes escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

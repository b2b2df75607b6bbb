"""Layers that make numbers or bins of numbers: Normalizer, Discretization, LogRound and others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ...common.errors import UsageError
from .analysis import Analysis, number_column
from .layer import Layer, as_numbers, as_texts, positive

_TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64") + (
    "float16", "float32", "float64",
)  # fmt: skip


@dataclass(frozen=True)
class Normalizer(Layer):
    """(x - subtractor) / divisor, as float32. A NaN stays one: put ToNumber before it."""

    subtractor: float
    divisor: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.subtractor) and math.isfinite(self.divisor) and self.divisor):
            raise UsageError(
                f"Normalizer needs finite numbers and a divisor that is not 0, and not "
                f"subtractor={self.subtractor}, divisor={self.divisor}."
            )

    @classmethod
    def from_analysis(cls, analysis: Analysis, column: str, by: str = "deviation") -> Self:
        """Return (x - mean) / deviation, or with by="range" (x - min) / (max - min)."""
        found = number_column(analysis, column)
        if by not in ("deviation", "range"):
            raise UsageError(f"Normalizer goes by deviation or by range, and not by {by!r}.")
        low, wide = (
            (found["mean"], found["deviation"])
            if by == "deviation"
            else (found["min"], found["max"] - found["min"])
        )
        if not wide:
            raise UsageError(
                f"All values of column {column!r} are {found['min']} in the analysis, so there is "
                "nothing to divide by: leave the column out, or give Normalizer a divisor."
            )
        return cls(float(low), float(wide))

    def _of(self, values: NDArray[Any]) -> NDArray[Any]:
        wide = as_numbers(self.name, values).astype(np.float64)
        return ((wide - self.subtractor) / self.divisor).astype(np.float32)


@dataclass(frozen=True)
class Discretization(Layer):
    """The number of the bin, int64: bins [0, 1, 2] make (-inf, 0), [0, 1), [1, 2), [2, inf).

    Raises ValueError for a NaN, which is in none of them.
    """

    bins: Sequence[float]

    def __post_init__(self) -> None:
        bins = tuple(float(each) for each in self.bins)
        if not bins or any(not a < b for a, b in itertools.pairwise(bins)):
            raise UsageError(
                f"Discretization needs bins that rise, one at least, and not {list(bins)}."
            )
        object.__setattr__(self, "bins", bins)

    @classmethod
    def from_analysis(cls, analysis: Analysis, column: str, num_bins: int = 10) -> Self:
        """Return bins with about as many values each, by the analysis' quantiles.

        There are fewer where a value is so frequent that it would fill several.
        """
        if num_bins < 2:
            raise UsageError(f"Discretization needs num_bins of 2 or more, and not {num_bins}.")
        known = number_column(analysis, column)["quantiles"]
        wanted = np.arange(1, num_bins) / num_bins
        edges = np.unique(np.interp(wanted, known["probabilities"], known["values"]))
        return cls(edges.tolist())

    @property
    def num_bins(self) -> int:
        return len(self.bins) + 1

    def _of(self, values: NDArray[Any]) -> NDArray[Any]:
        wide = as_numbers(self.name, values).astype(np.float64)
        if np.isnan(wide).any():
            raise ValueError(
                "Discretization got a NaN, which is in no bin: put "
                "ToNumber('float64', default_value=...) before it"
            )
        return np.searchsorted(np.array(self.bins), wide, side="right").astype(np.int64)


@dataclass(frozen=True)
class LogRound(Layer):
    """round(log(x)) to `base` (e if None), int64; the default_value where not in [0, num_bins).

    So a NaN, 0 or less is the default_value. Halves go to the even number.
    """

    num_bins: int
    default_value: int = 0
    base: float | None = None

    def __post_init__(self) -> None:
        positive(self.name, "num_bins", self.num_bins)
        if self.base is not None and not (self.base > 0 and self.base != 1):
            raise UsageError(f"LogRound needs a base above 0 that is not 1, and not {self.base}.")

    @classmethod
    def from_analysis(cls, analysis: Analysis, column: str, base: float | None = None) -> Self:
        """Return as many bins as the column's greatest value needs."""
        greatest = max(1.0, float(number_column(analysis, column)["max"]))
        return cls(round(math.log(greatest, base or math.e)) + 1, base=base)

    def _of(self, values: NDArray[Any]) -> NDArray[Any]:
        wide = as_numbers(self.name, values).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(wide)
        return _within(logs / math.log(self.base or math.e), self.num_bins, self.default_value)


@dataclass(frozen=True)
class RoundIdentity(Layer):
    """round(x), int64; the default_value where that is not in [0, num_buckets) or x is NaN."""

    num_buckets: int
    default_value: int = 0

    def __post_init__(self) -> None:
        positive(self.name, "num_buckets", self.num_buckets)

    @classmethod
    def from_analysis(cls, analysis: Analysis, column: str) -> Self:
        """Return as many buckets as the column's greatest value needs."""
        return cls(max(0, round(float(number_column(analysis, column)["max"]))) + 1)

    def _of(self, values: NDArray[Any]) -> NDArray[Any]:
        wide = as_numbers(self.name, values).astype(np.float64)
        return _within(wide, self.num_buckets, self.default_value)


def _within(values: NDArray[np.float64], count: int, default: int) -> NDArray[np.int64]:
    """Return the values rounded, and `default` for what is not in [0, count)."""
    whole = np.rint(values)
    inside = (whole >= 0) & (whole < count)  # NaN is not
    return np.where(inside, np.where(inside, whole, 0).astype(np.int64), default)


@dataclass(frozen=True)
class ToNumber(Layer):
    """Numbers of a type (such as "float32" or numpy's or torch's own) out of texts or numbers.

    A missing value, which is "" or NaN, becomes the default_value. A fraction is cut off where the
    type is of whole numbers. Raises ValueError for a text that spells no number and for a number
    that the type cannot hold.
    """

    out_type: Any
    default_value: float

    def __post_init__(self) -> None:
        name = str(self.out_type).removeprefix("torch.")
        if name not in _TYPES and isinstance(self.out_type, type | np.dtype):
            name = np.dtype(self.out_type).name
        if name not in _TYPES:
            raise UsageError(
                f"ToNumber makes numbers of {', '.join(_TYPES)}, and not {self.out_type!r}."
            )
        object.__setattr__(self, "out_type", name)
        if np.dtype(name).kind in "iu" and not float(self.default_value).is_integer():
            raise UsageError(
                f"ToNumber makes {name}, so its default_value {self.default_value} must be whole."
            )

    def _of(self, values: NDArray[Any]) -> NDArray[Any]:
        dtype = np.dtype(self.out_type)
        if values.dtype.kind in "SUOT":
            values = self._spelled(as_texts(values), np.dtype(np.int64 if dtype.kind in "iu" else
                                                              np.float64))  # fmt: skip
        values = as_numbers(self.name, values)
        if values.dtype.kind == "f":
            values = np.where(np.isnan(values), self.default_value, values)
        return _cast(values, dtype)

    def _spelled(self, texts: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return texts as numbers, exact where whole ones are wanted and they are whole."""
        missing = np.asarray(texts == "", dtype=bool)
        filled = np.where(missing, str(self.default_value), texts) if missing.any() else texts
        for kind in (dtype, np.dtype(np.float64)):
            try:
                return filled.astype(kind)
            except (ValueError, TypeError, OverflowError):
                continue
        for each in filled.ravel().tolist():
            try:
                float(each)
            except (TypeError, ValueError):
                raise ValueError(f"ToNumber got {each!r}, which is no number") from None
        raise ValueError("ToNumber got a text that is no number")


def _cast(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values in a type that can hold them. Raises ValueError."""
    if dtype.kind in "iu" and values.size:
        limits = np.iinfo(dtype)
        low, high = values.min().item(), values.max().item()
        top = limits.max if values.dtype.kind != "f" else np.nextafter(float(limits.max) + 1, 0)
        if not (limits.min <= low and high <= top):
            raise ValueError(f"ToNumber got {low if low < limits.min else high}, beyond {dtype}")
    return values.astype(dtype)

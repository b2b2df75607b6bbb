"""Layers that make numbers or bins of numbers: Normalizer, Discretization, LogRound and others.

Whole numbers of 64 bits are taken as they are: where float64 would round them first, the layer
computes with Python's numbers.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ...common.arrays import EXACT
from ...common.errors import UsageError
from .analysis import Analysis, number_column
from .layer import Layer, as_numbers, positive, whole


@dataclass(frozen=True)
class Normalizer(Layer):
    """(x - subtractor) / divisor, as float32. A NaN stays one: put ToNumber before it.

    Raises ValueError for a result that is beyond float32.
    """

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
        numbers = as_numbers(self.name, values)
        wide = floats(numbers)
        with np.errstate(over="ignore"):
            made = (wide - self.subtractor) / self.divisor
            for place in _rounded(numbers):
                made.flat[place] = self._exactly(numbers.flat[place])
            narrow = made.astype(np.float32)
        beyond = np.isinf(narrow) & np.isfinite(wide)
        if beyond.any():
            raise ValueError(
                f"Normalizer got {numbers[beyond][0]}, which becomes too large a float32"
            )
        return narrow

    def _exactly(self, number: Any) -> float:
        difference = Fraction(int(number)) - Fraction(self.subtractor)
        try:
            return float(difference / Fraction(self.divisor))
        except OverflowError:
            return math.inf


@dataclass(frozen=True)
class Discretization(Layer):
    """The number of the bin, int64: bins [0, 1, 2] make (-inf, 0), [0, 1), [1, 2), [2, inf).

    Raises ValueError for a NaN, which is in none of them.
    """

    bins: Sequence[float]

    def __post_init__(self) -> None:
        bins = tuple(float(each) for each in self.bins)
        if rounded := [n for n, each in zip(self.bins, bins, strict=True) if n != each]:
            raise UsageError(f"Discretization has a bin at {rounded[0]}, which is no float64.")
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
        numbers = as_numbers(self.name, values)
        wide = floats(numbers)
        if np.isnan(wide).any():
            raise ValueError(
                "Discretization got a NaN, which is in no bin: put "
                "ToNumber('float64', default_value=...) before it"
            )
        found = np.searchsorted(np.array(self.bins), wide, side="right").astype(np.int64)
        for place in _rounded(numbers):
            found.flat[place] = bisect.bisect_right(self.bins, int(numbers.flat[place]))
        return found


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
        whole(self.name, "default_value", self.default_value)
        if self.base is not None and not (self.base > 0 and self.base != 1):
            raise UsageError(f"LogRound needs a base above 0 that is not 1, and not {self.base}.")

    @classmethod
    def from_analysis(cls, analysis: Analysis, column: str, base: float | None = None) -> Self:
        """Return as many bins as the column's greatest value needs."""
        greatest = max(1.0, float(number_column(analysis, column)["max"]))
        return cls(round(math.log(greatest, base or math.e)) + 1, base=base)

    def _of(self, values: NDArray[Any]) -> NDArray[Any]:
        wide = floats(as_numbers(self.name, values))
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
        whole(self.name, "default_value", self.default_value)

    @classmethod
    def from_analysis(cls, analysis: Analysis, column: str) -> Self:
        """Return as many buckets as the column's greatest value needs."""
        return cls(max(0, round(float(number_column(analysis, column)["max"]))) + 1)

    def _of(self, values: NDArray[Any]) -> NDArray[Any]:
        numbers = as_numbers(self.name, values)
        found = _within(floats(numbers), self.num_buckets, self.default_value)
        for place in _rounded(numbers):
            number = int(numbers.flat[place])
            inside = 0 <= number < self.num_buckets
            found.flat[place] = number if inside else self.default_value
        return found


def floats(numbers: NDArray[Any]) -> NDArray[np.float64]:
    """Return numbers as float64, rounded where they have to be, infinite where beyond it."""
    if numbers.dtype.kind != "O":
        return numbers.astype(np.float64)
    listed = [_float(each) for each in numbers.ravel().tolist()]
    return np.array(listed, np.float64).reshape(numbers.shape)


def _float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _rounded(numbers: NDArray[Any]) -> list[int]:
    """Return the places of the whole numbers that float64 may have rounded; there are few."""
    flat = numbers.ravel()
    if flat.dtype.kind == "O":
        listed = enumerate(flat.tolist())
        return [n for n, v in listed if isinstance(v, int | np.integer) and abs(int(v)) > EXACT]
    if flat.dtype.kind not in "iu" or flat.dtype.itemsize < 8:
        return []
    return np.flatnonzero((flat > EXACT) | (flat < -EXACT)).tolist()


def _within(values: NDArray[np.float64], count: int, default: int) -> NDArray[np.int64]:
    """Return the values rounded, and `default` for what is not in [0, count)."""
    rounded = np.rint(values)
    most = min(count, 2**63) - 1
    limit = float(most)
    if int(limit) > most:  # which float64 has not
        limit = float(np.nextafter(limit, 0.0))
    inside = (rounded >= 0) & (rounded <= limit)  # NaN is not
    return np.where(inside, np.where(inside, rounded, 0).astype(np.int64), default)

"""ToNumber: numbers of a type out of texts or numbers, exact where they are whole, or refused."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.arrays import EXACT
from ...common.errors import UsageError
from ...common.spelled import is_missing, is_plain, number_of
from .layer import Layer, as_numbers, as_texts

_TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64") + (
    "float16", "float32", "float64",
)  # fmt: skip


@dataclass(frozen=True)
class ToNumber(Layer):
    """Numbers of a type (such as "float32" or numpy's or torch's own) out of texts or numbers.

    A missing value becomes the default_value: NaN, and of texts what a CSV has for one ("", NA,
    null, nan, ...). Texts spell numbers as in a CSV: ASCII digits, sign, point, exponent, inf, and
    blanks around them; neither 1_0 nor 0x10. Whole numbers are exact in types of whole numbers and
    in float64; a fraction is cut off where the type is of whole numbers, and rounded to the nearest
    where it is of floats, as are all numbers in float32 and float16.

    Raises ValueError for a text that spells no number and for a number that the type cannot hold.
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
        default = self.default_value
        if not isinstance(default, int | float | np.number | np.bool_):
            raise UsageError(f"ToNumber needs a number as its default_value, and not {default!r}.")
        if np.dtype(name).kind in "iu" and not (
            isinstance(default, int | np.integer) or float(default).is_integer()
        ):
            raise UsageError(
                f"ToNumber makes {name}, so its default_value {default} must be whole."
            )
        try:
            self._fit(default)
        except ValueError as error:
            raise UsageError(f"The default_value of ToNumber does not fit: {error}.") from error

    def _of(self, values: NDArray[Any]) -> NDArray[Any]:
        if values.dtype.kind in "SUOT":
            texts = as_texts(values)
            return self._spelled(texts.ravel().tolist()).reshape(values.shape)
        numbers = as_numbers(self.name, values)
        return self._floats(numbers) if numbers.dtype.kind == "f" else self._wholes(numbers)

    @property
    def _dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(self.out_type)
        return dtype

    def _spelled(self, values: list[Any]) -> NDArray[Any]:
        """Return texts, and objects that may be among them, as numbers."""
        if set(map(type, values)) == {str} and is_plain("".join(values)):
            whole = self._dtype.kind in "iu"
            try:  # nearly always, and fast
                if whole:
                    wide = np.uint64 if self.out_type == "uint64" else np.int64
                    return self._wholes(np.fromiter(map(int, values), wide, len(values)))
                read = np.fromiter(map(float, values), np.float64, len(values))
                if (np.abs(read) < EXACT).all():  # NaN is not
                    return self._floats(read)
            except (ValueError, OverflowError):
                pass
        known: dict[Any, Any] = {}
        made = np.empty(len(values), self._dtype)
        for place, value in enumerate(values):
            text = isinstance(value, str)
            if not text or value not in known:  # words often come again
                number = self._one(value)
                if text:
                    known[value] = number
            else:
                number = known[value]
            made[place] = number
        return made

    def _one(self, value: Any) -> Any:
        """Return what one text or object becomes."""
        if isinstance(value, str):
            if is_missing(value):
                return self._fit(self.default_value)
            if (number := number_of(value)) is None:
                raise ValueError(f"ToNumber got {value!r:.60}, which is no number")
            return self._fit(number)
        if not isinstance(value, int | float | np.integer | np.floating | np.bool_):
            raise ValueError(f"ToNumber got {value!r:.60}, which is no number")  # noqa: TRY004
        missing = isinstance(value, float | np.floating) and math.isnan(value)
        return self._fit(self.default_value if missing else value)

    def _fit(self, number: Any) -> Any:
        """Return a number as the type has it. Raises ValueError."""
        dtype = self._dtype
        whole = isinstance(number, int | np.integer | np.bool_)
        if dtype.kind in "iu":
            return self._whole(number)
        try:
            wide = float(number)
        except OverflowError:
            wide = math.inf
        with np.errstate(over="ignore"):
            made = dtype.type(wide)
        given_infinite = isinstance(number, float | np.floating) and math.isinf(number)
        if np.isinf(made) and not given_infinite:
            raise ValueError(f"ToNumber got {number!s:.60}, beyond {dtype}")
        if whole and self.out_type == "float64" and int(wide) != int(number):
            raise ValueError(f"ToNumber got {number}, and no float64 is this number")
        return made

    def _whole(self, number: Any) -> int:
        """Return a number less its fraction, which the type can hold."""
        limits = np.iinfo(self._dtype)
        beyond = number.adjusted() > 20 if isinstance(number, Decimal) else False
        if not beyond and (isinstance(number, int) or math.isfinite(number)):
            cut = int(number)
            if limits.min <= cut <= limits.max:
                return cut
        raise ValueError(f"ToNumber got {number!s:.60}, beyond {self._dtype}")

    def _wholes(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return bools or whole numbers in the type. Raises ValueError where it cannot hold one."""
        dtype = self._dtype
        if not values.size or values.dtype.kind == "b":
            return values.astype(dtype)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            for extreme in (int(values.min()), int(values.max())):
                if not limits.min <= extreme <= limits.max:
                    raise ValueError(f"ToNumber got {extreme}, beyond {dtype}")
            return values.astype(dtype)
        if self.out_type == "float64" and values.dtype.itemsize == 8:
            large = (values > EXACT) | (values < -EXACT)
            for number in values[large].tolist():
                self._fit(number)
        with np.errstate(over="ignore"):
            made = values.astype(dtype)
        return self._finite(values, made)

    def _floats(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return floats in the type; NaN is the default_value."""
        missing = np.isnan(values)
        if self._dtype.kind == "f":
            with np.errstate(over="ignore"):
                made = values.astype(self._dtype)
            made[missing] = self._fit(self.default_value)
            return self._finite(values, made)
        cut = np.trunc(values.astype(np.float64))
        limits = np.iinfo(self._dtype)
        # The end of each type is a power of two, and a float64.
        fitting = missing | ((cut >= float(limits.min)) & (cut < float(limits.max + 1)))
        if not fitting.all():
            raise ValueError(f"ToNumber got {values[~fitting][0]}, beyond {self._dtype}")
        whole = np.where(missing, 0, cut).astype(self._dtype)
        whole[missing] = self._fit(self.default_value)
        return whole

    def _finite(self, values: NDArray[Any], made: NDArray[Any]) -> NDArray[Any]:
        beyond = np.isinf(made) & np.isfinite(values)
        if beyond.any():
            raise ValueError(f"ToNumber got {values[beyond][0]}, beyond {self._dtype}")
        return made

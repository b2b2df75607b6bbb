"""What a column of each Arrow type becomes in numpy, and what a missing value is in it.

The type of a result follows from the type of the column and from what the user has chosen, never
from the values that happen to be in a file. A value that the result cannot hold is a *fault* of its
row, told when that row is asked for: nothing is rounded, and nothing becomes an object by accident.
docs/data.md has the table, which is made by reading a file of each type.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError
from .missing import Fill, Missing, first_inexact, ways_out

_INT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)
_WIDE_NBYTES = 64 << 20  # of a row group's texts as np.str_; longer ones stay objects until used
_EXACT_DIGITS = 15  # significant decimal digits that each float64 keeps


class Column(NamedTuple):
    """The values of a column, and of the rows that cannot be had: {row: why}."""

    values: NDArray[Any]
    faults: Mapping[int, str]


Convert = Callable[[Any], Column]
View = Callable[[int, int], NDArray[Any] | None]  # rows [low, high); None: these are not plain


@dataclass(frozen=True)
class Converter:
    """Makes columns of one name and Arrow type. `fill`: of its numbers or texts, None: refused."""

    convert: Convert
    fill: Fill | None
    dtype: np.dtype[Any] | None = None  # of whole numbers and bools
    plain: bool = False  # numbers as they are, in the column's own type
    text: bool = False  # objects, to be np.str_ once rows are chosen: the longest of all is wide

    def view(self, array: Any) -> View | None:
        """How to have rows of an array that is plain: much faster than `convert` of a part of it."""
        if self.text and self.fill is not None:
            return _plain_texts(array, self.fill)
        target = self.fill.dtype if self.fill is not None else self.dtype
        if not self.plain or array.null_count:
            return None
        values = array.to_numpy(zero_copy_only=False)
        if values.dtype != target or values.flags.owndata:
            return None
        return lambda low, high: values[low:high].copy()

    def column(self, chunked: Any) -> Column:
        """All rows, chunk by chunk."""
        parts = [self.convert(chunk) for chunk in chunked.chunks]
        if not parts:
            parts = [self.convert(chunked.combine_chunks())]
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0, *(len(part.values) for part in parts)]).tolist()
        faults = {
            start + row: why
            for start, part in zip(starts, parts, strict=False)
            for row, why in part.faults.items()
        }
        return Column(np.concatenate([part.values for part in parts]), faults)


@dataclass(frozen=True)
class Types:
    """Decides what columns become; `source` is named in what cannot be read."""

    arrow: Any
    source: str
    missing: Missing
    dtypes: Mapping[str, str] = field(default_factory=dict)

    def converter(self, name: str, kind: Any) -> Converter:
        """For a column. Raises DataError where its type cannot be read, UsageError for a choice."""
        if isinstance(kind, self.arrow.BaseExtensionType):
            inner = self.converter(name, kind.storage_type)
            return replace(inner, convert=lambda array: inner.convert(array.storage))
        wanted = self.dtypes.get(name)
        if wanted is not None:
            return self._chosen(name, kind, wanted)
        return self._of(name, kind, top=True)

    def _of(self, name: str, kind: Any, top: bool) -> Converter:
        is_, arrow = self.arrow.types, self.arrow
        if is_.is_dictionary(kind):
            inner = self._of(name, kind.value_type, top)
            return replace(inner, convert=lambda array: inner.convert(array.cast(kind.value_type)))
        if is_.is_boolean(kind) or is_.is_integer(kind) or is_.is_floating(kind):
            dtype = np.dtype(kind.to_pandas_dtype())
            if dtype.kind in "iu" and top:  # elements of lists, pixels say, keep their own
                dtype = np.dtype(np.uint64 if is_.is_uint64(kind) else np.int64)
            made = self._numbers(name, dtype)
            return replace(made, plain=top)
        if is_.is_decimal(kind):
            if kind.scale <= 0:
                return self._cast(name, kind, arrow.int64(), self._numbers(name, _INT64))
            return self._decimals(name)
        if is_.is_string(kind) or is_.is_large_string(kind) or _is_view(is_, "string", kind):
            return self._texts(name)
        if is_.is_binary(kind) or is_.is_large_binary(kind) or _is_view(is_, "binary", kind):
            return self._bytes(name)
        if is_.is_fixed_size_binary(kind):
            return self._bytes(name)
        if is_.is_temporal(kind) and not is_.is_interval(kind):
            return self._times(name, kind)
        if is_.is_fixed_size_list(kind):
            return self._fixed_lists(name, kind)
        if is_.is_list(kind) or is_.is_large_list(kind):
            return self._lists(name, kind)
        raise DataError(
            f"{self.source}: column {name!r} has the type {kind}, which has no place in a table of "
            "numbers and texts: " + _leave_out(name, is_.is_null(kind))
        )

    def _chosen(self, name: str, kind: Any, wanted: str) -> Converter:
        """By dtypes=: every row is cast, and a fault where that would change it."""
        arrow = self.arrow
        if wanted == "float64" and arrow.types.is_decimal(kind):
            return self._decimals(name)
        numbers = self._numbers(name, _INT64 if wanted == "int64" else _FLOAT64)
        if wanted == "float64" and (arrow.types.is_integer(kind) or arrow.types.is_boolean(kind)):
            return numbers
        inner = self._texts(name) if wanted == "str" else numbers
        target = {"str": arrow.large_string(), "int64": arrow.int64(), "float64": arrow.float64()}
        if arrow.types.is_temporal(kind) and wanted != "str":  # a number of which unit?
            raise self._none(name, kind, wanted)
        return self._cast(name, kind, target[wanted], inner)

    def _none(self, name: str, kind: Any, target: Any) -> DataError:
        return DataError(
            f"{self.source}: column {name!r} has the type {kind}, which is no {target}."
        )

    def _fill(self, name: str, dtype: np.dtype[Any]) -> Fill:
        fill = self.missing.fill(name, dtype)
        assert fill is not None, "texts, bytes, times and floats have a default"
        return fill

    def _numbers(self, name: str, dtype: np.dtype[Any]) -> Converter:
        fill = self.missing.fill(name, dtype)
        return Converter(lambda array: _numbers(name, array, dtype, fill), fill, dtype)

    def _cast(self, name: str, kind: Any, target: Any, inner: Converter) -> Converter:
        try:
            self.arrow.array([], kind).cast(target)
        except (self.arrow.ArrowInvalid, self.arrow.ArrowNotImplementedError) as error:
            raise self._none(name, kind, target) from error

        def convert(array: Any) -> Column:
            array, faults = _cast(self.arrow, name, array, target)
            column = inner.convert(array)
            return Column(column.values, {**column.faults, **faults})

        return replace(inner, convert=convert)

    def _decimals(self, name: str) -> Converter:
        fill = self._fill(name, _FLOAT64)
        return Converter(lambda array: _decimals(self.arrow, name, array, fill), fill)

    def _texts(self, name: str) -> Converter:
        fill = self._fill(name, np.dtype(np.str_))
        return Converter(lambda array: _texts(self.arrow, name, array, fill), fill, text=True)

    def _bytes(self, name: str) -> Converter:
        fill = self._fill(name, np.dtype(np.bytes_))
        return Converter(lambda array: Column(_objects(array, fill), {}), fill)

    def _times(self, name: str, kind: Any) -> Converter:
        is_, arrow = self.arrow.types, self.arrow
        code = "M" if is_.is_timestamp(kind) or is_.is_date(kind) else "m"
        unit = "D" if is_.is_date(kind) else kind.unit
        dtype = np.dtype(f"{code}8[{unit}]")
        fill = self._fill(name, dtype)

        def convert(array: Any) -> Column:
            if is_.is_date64(kind):
                array = array.cast(arrow.date32())
            if array.type.bit_width == 32:
                array = array.cast(arrow.int32())
            numbers = array.cast(arrow.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            values = numbers.view(dtype)
            if array.null_count:
                values = np.where(_nulls(array), fill.value, values).astype(dtype)
            return Column(values, {})

        return Converter(convert, fill)

    def _fixed_lists(self, name: str, kind: Any) -> Converter:
        inner, size = self._element(name, kind), kind.list_size

        def convert(array: Any) -> Column:
            flat, faults = inner.convert(array.flatten())  # without what null rows hold
            nulls = _nulls(array)
            rows = np.flatnonzero(~nulls)
            shape = (len(array), size, *flat.shape[1:])
            if len(rows) == len(array):
                values = flat.reshape(shape)
            else:
                values = np.full(shape, inner.fill.value if inner.fill else 0, flat.dtype)
                values[rows] = flat.reshape(len(rows), *shape[1:])
            faults = _of_rows(faults, np.repeat(rows, size))
            if inner.fill is None:
                why = _missing(name, inner.dtype or flat.dtype)
                faults |= dict.fromkeys(np.flatnonzero(nulls).tolist(), why)
            return Column(values, faults)

        return replace(inner, convert=convert)

    def _lists(self, name: str, kind: Any) -> Converter:
        inner = self._element(name, kind)

        def convert(array: Any) -> Column:
            flat, faults = inner.convert(array.flatten())
            if inner.text:
                flat = flat.astype(np.str_)
            sizes = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            values = np.empty(len(array), dtype=object)
            for row, end in enumerate(np.cumsum(sizes, dtype=np.int64).tolist()):
                values[row] = flat[end - int(sizes[row]) : end]
            return Column(values, _of_rows(faults, np.repeat(np.arange(len(array)), sizes)))

        return Converter(convert, inner.fill)

    def _element(self, name: str, kind: Any) -> Converter:
        is_, inner = self.arrow.types, kind.value_type
        if is_.is_list(inner) or is_.is_large_list(inner):
            raise DataError(
                f"{self.source}: column {name!r} has the type {kind}, lists of lists of any length: "
                + _leave_out(name)
            )
        return self._of(name, inner, top=False)


def _leave_out(name: str, null: bool = False) -> str:
    text = f", or say dtypes={name}:str (each value is missing)" if null else ""
    return (
        f"name the columns that you want, without it, with --data_reader_params columns=a|b{text}."
    )


def _is_view(types: Any, what: str, kind: Any) -> bool:
    return bool(getattr(types, f"is_{what}_view", lambda kind: False)(kind))


def _nulls(array: Any) -> NDArray[np.bool_]:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False))


def ways_out_of(dtypes: Mapping[str, np.dtype[Any]]) -> str:
    """What to say where these columns miss values: the end of a sentence, to be pasted."""
    said = ways_out(list(dtypes))
    for name, dtype in (*dtypes.items(), ("*", max(dtypes.values(), key=lambda each: each.kind))):
        value = {"u": "0", "b": "false"}.get(dtype.kind, "-1")  # -1 is no uint64 and no bool
        said = re.sub(rf"(?<=[=|]){re.escape(name)}:-1(?=[|'])", f"{name}:{value}", said)
    return said


def _missing(name: str, dtype: np.dtype[Any]) -> str:
    return f"column {name!r} misses a value: {ways_out_of({name: dtype})}"


def _of_rows(faults: Mapping[int, str], owners: NDArray[np.int64]) -> dict[int, str]:
    """Faults of elements as those of the rows that own them."""
    return {int(owners[element]): why for element, why in reversed(list(faults.items()))}


def _numbers(name: str, array: Any, dtype: np.dtype[Any], fill: Fill | None) -> Column:
    nulls = _nulls(array) if array.null_count else None
    if nulls is not None:
        array = array.fill_null(False if array.type.bit_width == 1 else 0)
    values = array.to_numpy(zero_copy_only=False)
    target = dtype if fill is None else fill.dtype
    faults: dict[int, str] = {}
    if target.kind == "f" and values.dtype.kind in "iu" and first_inexact(values) is not None:
        faults = {
            row: f"column {name!r}: {values[row]} would change in float64: keep it a whole number"
            for row in range(len(values))
            if first_inexact(values[row : row + 1]) is not None
        }
    values = values.astype(target, copy=False)
    if nulls is not None and fill is not None:
        values = np.where(nulls, fill.value, values).astype(target)
    elif nulls is not None:
        faults |= dict.fromkeys(np.flatnonzero(nulls).tolist(), _missing(name, dtype))
    return Column(values, faults)


def _decimals(arrow: Any, name: str, array: Any, fill: Fill) -> Column:
    """float64, each the nearest; a fault where the decimal's own digits would not come back."""
    # Arrow's own cast is not always the nearest; its parser is.
    floats = array.cast(arrow.string()).cast(arrow.float64())
    column = _numbers(name, floats, _FLOAT64, fill)
    if array.type.precision <= _EXACT_DIGITS:
        return column
    try:
        array.cast(arrow.decimal128(_EXACT_DIGITS, array.type.scale))
    except arrow.ArrowInvalid:
        pairs = zip(array.to_pylist(), column.values.tolist(), strict=True)
        faults = {
            row: f"column {name!r}: {value} would change in float64: say dtypes={name}:str"
            for row, (value, number) in enumerate(pairs)
            if value is not None and Decimal(repr(number)) != value
        }
        return Column(column.values, faults)
    return column


def _cast(arrow: Any, name: str, array: Any, kind: Any) -> tuple[Any, dict[int, str]]:
    """The array as another type; a fault, and null, for each row that cannot be."""
    with contextlib.suppress(arrow.ArrowInvalid):
        return array.cast(kind), {}
    rows, faults = [], {}
    for row in range(len(array)):
        try:
            rows.append(array.slice(row, 1).cast(kind))
        except arrow.ArrowInvalid:
            rows.append(arrow.nulls(1, kind))
            way_out = "" if kind == arrow.large_string() else f" (or say dtypes={name}:str)"
            faults[row] = f"column {name!r}: {_told(array[row])} is no {kind}{way_out}"
    return arrow.concat_arrays(rows), faults


def _told(value: Any) -> str:
    """A value for a sentence: exact, and short."""
    with contextlib.suppress(UnicodeDecodeError):
        value = value.as_py()
        return str(value) if isinstance(value, int | float | Decimal) else f"{value!r:.60}"
    return "a text that is no UTF-8"


def _objects(array: Any, fill: Fill) -> NDArray[Any]:
    values = np.array(array.to_numpy(zero_copy_only=False), dtype=object)
    if array.null_count:
        values[_nulls(array)] = fill.value
    return values


def _plain_texts(array: Any, fill: Fill) -> View | None:
    """Rows of texts that are ASCII without a NUL, by a kernel; None where there are others."""
    from .csv_kernels import widen
    from .kernels import NONE

    letters = {"string": np.int32, "large_string": np.int64}.get(str(array.type))
    if letters is None or (buffers := array.buffers())[2] is None:
        return None
    bounds = np.frombuffer(buffers[1], letters)[array.offset :][: len(array) + 1]
    data = np.frombuffer(buffers[2], np.uint8)
    seen = data[bounds[0] : bounds[-1]]
    if not len(seen) or seen.max() > 127 or not seen.min():
        return None
    nulls = _nulls(array) if array.null_count else None
    table = np.empty(0, np.uint32)

    def rows(low: int, high: int) -> NDArray[Any] | None:
        mine = bounds[low : high + 1].astype(np.int64)
        starts, ends = mine[:-1], mine[1:]
        missing = None if nulls is None else nulls[low:high]
        if missing is not None:
            ends = np.where(missing, starts, ends)
        longest = max(1, int((ends - starts).max(initial=0)))
        if 4 * len(starts) * longest > _WIDE_NBYTES:
            return None
        wide = np.empty((len(starts), longest), np.uint32)
        widen(data, starts, ends, np.zeros(len(starts), np.uint8), NONE, table, wide)
        values = wide.view(f"=U{longest}")[:, 0]
        return (
            values if missing is None or not fill.value else np.where(missing, fill.value, values)
        )

    return rows


def _texts(arrow: Any, name: str, array: Any, fill: Fill) -> Column:
    if _is_view(arrow.types, "string", array.type):
        array = array.cast(arrow.large_string())
    rows = _plain_texts(array, fill)
    if rows is not None and (plain := rows(0, len(array))) is not None:
        return Column(plain, {})
    faults: dict[int, str] = {}
    try:
        values = _objects(array, fill)
    except (UnicodeDecodeError, arrow.ArrowException):  # the latter from Arrow's own strings
        values = _objects(array.cast(arrow.large_binary()), Fill(fill.dtype, fill.value.encode()))
        for row, text in enumerate(values):
            try:
                values[row] = text.decode()
            except UnicodeDecodeError as error:
                values[row] = ""
                faults[row] = f"column {name!r}: its text is no UTF-8: {error}"
    if arrow.compute.any(arrow.compute.ends_with(array, "\0")).as_py():
        # numpy's texts end before their trailing zeros
        why = f"column {name!r}: its text ends with a NUL, which numpy's texts cannot hold"
        faults |= {row: why for row, text in enumerate(values) if text.endswith("\0")}
    if 4 * len(values) * max(map(len, values), default=0) <= _WIDE_NBYTES:
        values = values.astype(np.str_)
    return Column(values, faults)

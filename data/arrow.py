"""The types of Arrow columns, and how columns are brought to the types of a schema.

Each Arrow type has one type of a schema (`Types.stored`); a column of it becomes any type that can
hold the same (`Types.converter`), exactly. A value that cannot be had so is a *fault* of its row,
told when that row is asked for: nothing is rounded, and nothing becomes an object by accident.
docs/data.md has the table, which is made by reading a file of each type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError
from ..common.ragged import Ragged
from .arrow_values import (
    Column,
    View,
    cast_each,
    decimals,
    full,
    is_view,
    joined,
    nothing,
    nulls_of,
    numbers,
    objects,
    of_rows,
    other_texts,
    owned,
    plain_texts,
    texts,
    times,
    why_missing,
)
from .declared import fill_of
from .exact import fits
from .missing import Fill
from .schema import DECLARED, Field, Type

Convert = Callable[[Any], Column]
_CASTS = ("text", "float64", "float32", "int64", "uint64", "bool", "date", "timestamp")


@dataclass(frozen=True)
class Converter:
    """A converter of columns of one name, Arrow type and type of a schema.

    `fill`: what stands for a missing value; None: that is refused.
    """

    convert: Convert
    fill: Fill | None
    dtype: np.dtype[Any] | None = None  # of whole numbers and bools
    plain: bool = False  # numbers as they are, in the column's own type
    text: bool = False  # objects, to be np.str_ once rows are chosen: the longest of all is wide

    def view(self, array: Any) -> View | None:
        """Return a function that copies rows of a plain array; None where the array is not plain.

        It is much faster than `convert` of a part of the array.
        """
        if self.text and self.fill is not None:
            return plain_texts(array, self.fill)
        if not self.plain or array.null_count:
            return None
        values = array.to_numpy(zero_copy_only=False)
        if values.dtype != self.dtype or values.flags.owndata:
            return None
        return lambda low, high: values[low:high].copy()

    def column(self, chunked: Any) -> Column:
        """Convert all rows, chunk by chunk."""
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
        return Column(joined([part.values for part in parts]), faults)


@dataclass(frozen=True)
class Types:
    """The rules by which columns get their types; `source` is named in what cannot be read."""

    arrow: Any
    source: str

    def stored(self, name: str, kind: Any) -> Type | None:
        """Return the type of a column; None where all of its values are missing.

        Raises DataError where there is none.
        """
        is_, (inner, _) = self.arrow.types, self._plain(kind)
        if self._is_list(inner):
            element, _ = self._plain(inner.value_type)
            if self._is_list(element) or is_.is_fixed_size_list(element):
                raise DataError(
                    f"{self.source}: column {name!r} has the type {kind}, lists of lists of any "
                    "length: " + _leave_out()
                )
            found = self._single(name, kind, element, wide=True)
            return None if found is None else replace(found, lists=True)
        shape = []
        while is_.is_fixed_size_list(inner):
            shape.append(inner.list_size)
            inner, _ = self._plain(inner.value_type)
        # Elements of lists of one length, pixels say, keep their own width.
        found = self._single(name, kind, inner, wide=not shape)
        return None if found is None else replace(found, shape=tuple(shape))

    def _single(self, name: str, whole: Any, kind: Any, wide: bool) -> Type | None:
        is_ = self.arrow.types
        if is_.is_null(kind):
            return None
        if is_.is_boolean(kind) or is_.is_floating(kind):
            return Type(np.dtype(kind.to_pandas_dtype()).name)
        if is_.is_integer(kind):
            if wide:
                return Type("uint64" if is_.is_uint64(kind) else "int64")
            return Type(np.dtype(kind.to_pandas_dtype()).name)
        if is_.is_decimal(kind):
            return Type("int64" if kind.scale <= 0 else "decimal")
        if self._is_text(kind):
            return Type("text")
        if self._is_bytes(kind):
            return Type("bytes")
        if is_.is_timestamp(kind):
            return Type("timestamp", zone=kind.tz is not None)
        if is_.is_date(kind):
            return Type("date")
        if is_.is_time(kind) or is_.is_duration(kind):
            return Type("duration")
        raise DataError(
            f"{self.source}: column {name!r} has the type {whole}, which has no place in a table "
            "of numbers and texts: " + _leave_out()
        )

    def unknown(self, name: str, kind: Any) -> DataError:
        """Return what to raise for a column whose values are all missing, in all files."""
        return DataError(
            f"{self.source}: column {name!r} has the type {kind}, each value is missing, and no "
            f"file or schema says of what: say dtypes={name}:TYPE, or {_leave_out()}"
        )

    def casts(self, column: Field, kind: Any) -> bool:
        """Tell whether values are parsed or written as texts, as only a declared type has them."""
        kind, _ = self._plain(kind)
        is_, type_ = self.arrow.types, column.type
        own = None if self._is_list(kind) or is_.is_nested(kind) else self.stored("", kind)
        if own is None or column.found != DECLARED or type_.is_list or type_.kind not in _CASTS:
            return False
        if fits(type_, own) or own.kind == "bytes":
            return False
        are_numbers = all(each.is_whole or each.is_float for each in (type_, own))
        if not are_numbers and "text" not in (type_.kind, own.kind):  # of which unit, say?
            return False
        try:
            self.arrow.array([], kind).cast(self._target(type_))
        except (self.arrow.ArrowInvalid, self.arrow.ArrowNotImplementedError):
            return False
        return True

    def converter(self, column: Field, kind: Any) -> Converter:
        """Return the converter of a column of this Arrow type, whose own type fits.

        Raises UsageError where what is chosen for a missing value cannot stand in it.
        """
        inner, unwrap = self._plain(kind)
        if self.casts(column, inner):
            made = self._cast(column, self._target(column.type))
        else:
            made = self._made(column, inner)
        if unwrap is None:
            return made
        return replace(made, convert=lambda array: made.convert(unwrap(array)), plain=False)

    def _plain(self, kind: Any) -> tuple[Any, Callable[[Any], Any] | None]:
        """Return the type without dictionary and extension, and how an array is freed of them."""
        if isinstance(kind, self.arrow.BaseExtensionType):
            inner, unwrap = self._plain(kind.storage_type)
            return inner, lambda array: unwrap(array.storage) if unwrap else array.storage
        if self.arrow.types.is_dictionary(kind):
            return kind.value_type, lambda array: array.cast(kind.value_type)
        return kind, None

    def _is_list(self, kind: Any) -> bool:
        return bool(self.arrow.types.is_list(kind) or self.arrow.types.is_large_list(kind))

    def _is_text(self, kind: Any) -> bool:
        is_ = self.arrow.types
        return is_.is_string(kind) or is_.is_large_string(kind) or is_view(is_, "string", kind)

    def _is_bytes(self, kind: Any) -> bool:
        is_ = self.arrow.types
        if is_.is_fixed_size_binary(kind):
            return True
        return is_.is_binary(kind) or is_.is_large_binary(kind) or is_view(is_, "binary", kind)

    def _made(self, column: Field, kind: Any) -> Converter:
        is_, type_ = self.arrow.types, column.type
        fill = fill_of(column)
        if is_.is_null(kind):
            rows_of = lambda array: nothing(column, len(array), fill)
            return Converter(rows_of, fill, None if type_.lists else type_.dtype)
        if is_.is_fixed_size_list(kind) and type_.shape:
            return self._fixed_lists(column, kind)
        if is_.is_fixed_size_list(kind) or self._is_list(kind):
            return self._lists(column, kind)
        if is_.is_decimal(kind):
            if kind.scale <= 0:
                return self._cast(column, self.arrow.int64())
            return Converter(lambda array: decimals(self.arrow, column, array, fill), fill)
        if self._is_text(kind) or self._is_bytes(kind):
            return self._texts(column, kind)
        if is_.is_temporal(kind):
            return self._times(column, kind)
        return self._numbers(column, fill)

    def _numbers(self, column: Field, fill: Fill | None) -> Converter:
        dtype = column.type.dtype
        return Converter(lambda array: numbers(column, array, fill), fill, dtype, plain=True)

    def _target(self, type_: Type) -> Any:
        arrow = self.arrow
        if type_.kind == "timestamp":
            return arrow.timestamp("us", "UTC" if type_.zone else None)
        word = {"text": "large_string", "bool": "bool_", "date": "date32"}
        return getattr(arrow, word.get(type_.kind, type_.kind))()

    def _cast(self, column: Field, target: Any) -> Converter:
        inner = self._made(column, target)

        def convert(array: Any) -> Column:
            array, faults = cast_each(self.arrow, column.name, array, target)
            made = inner.convert(array)
            return Column(made.values, {**made.faults, **faults})

        return replace(inner, convert=convert, plain=False)

    def _texts(self, column: Field, kind: Any) -> Converter:
        arrow, fill = self.arrow, fill_of(column)
        assert fill is not None, "texts and bytes have a default"
        if column.type.kind == "text" and self._is_text(kind):
            convert = lambda array: texts(arrow, column.name, array, fill)
            return Converter(convert, fill, text=True)
        if column.type.kind == "text":
            return Converter(lambda array: other_texts(column, array, fill), fill, text=True)
        if not self._is_text(kind):
            return Converter(lambda array: Column(objects(array, fill), {}), fill)
        wide = arrow.large_string(), arrow.large_binary()  # a view has no cast to the latter
        return Converter(
            lambda array: Column(objects(array.cast(wide[0]).cast(wide[1]), fill), {}), fill
        )

    def _times(self, column: Field, kind: Any) -> Converter:
        is_, arrow, fill = self.arrow.types, self.arrow, fill_of(column)
        assert fill is not None, "times have a default"
        code = "M" if is_.is_timestamp(kind) or is_.is_date(kind) else "m"
        unit = f"{code}8[{'D' if is_.is_date(kind) else kind.unit}]"

        def convert(array: Any) -> Column:
            if is_.is_date64(kind):
                array = array.cast(arrow.date32())
            if array.type.bit_width == 32:
                array = array.cast(arrow.int32())
            return times(column, array.cast(arrow.int64()), unit, fill)

        return Converter(convert, fill)

    def _fixed_lists(self, column: Field, kind: Any) -> Converter:
        """Return the converter of lists of one length to arrays [N, n, ...]."""
        size, name = kind.list_size, column.name
        element = replace(column, type=replace(column.type, shape=column.type.shape[1:]))
        inner = self.converter(element, kind.value_type)

        def convert(array: Any) -> Column:
            flat, faults = inner.convert(array.flatten())  # without what null rows hold
            nulls = nulls_of(array)
            faults = of_rows(faults, np.repeat(np.flatnonzero(~nulls), size))
            if inner.fill is None and nulls.any():
                why = why_missing(name, inner.dtype or element.type.dtype)
                faults |= dict.fromkeys(np.flatnonzero(nulls).tolist(), why)
            return Column(_in_rows(inner, np.asarray(flat), nulls, size), faults)

        return replace(inner, convert=convert, plain=False)

    def _lists(self, column: Field, kind: Any) -> Converter:
        """Return the converter of lists, of any length or of one, to either."""
        single = replace(column, type=column.type.single)
        inner = self.converter(single, kind.value_type)
        fixed = kind.list_size if self.arrow.types.is_fixed_size_list(kind) else None

        def convert(array: Any) -> Column:
            flat, faults = inner.convert(array.flatten())  # without what null rows hold
            nulls = nulls_of(array)
            if fixed is None:
                sizes = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            else:
                sizes = np.where(nulls, 0, fixed)
            ragged = Ragged.of(np.asarray(flat), sizes)
            faults = of_rows(faults, ragged.rows) if faults else {}
            if column.type.lists:
                return Column(owned(ragged), faults)
            return _of_one_length(column, inner, ragged, nulls, faults)

        return replace(inner, convert=convert, plain=False)


def _of_one_length(
    column: Field,
    inner: Converter,
    ragged: Ragged,
    nulls: NDArray[np.bool_],
    faults: dict[int, str],
) -> Column:
    """Return lists that must have all the length of the type as an array [N, n]."""
    (size,) = column.type.shape
    lengths = ragged.lengths
    for row in np.flatnonzero((lengths != size) & ~nulls).tolist():
        told = f"here is a list of {lengths[row]}"
        faults[row] = f"column {column.name!r} is {column.type}, and {told}"
    if inner.fill is None:
        why = why_missing(column.name, column.type.dtype)
        faults |= dict.fromkeys(np.flatnonzero(nulls).tolist(), why)
    good = (lengths == size) & ~nulls
    return Column(_in_rows(inner, ragged[good].values, ~good, size), faults)


def _in_rows(
    inner: Converter, flat: NDArray[Any], absent: NDArray[np.bool_], size: int
) -> NDArray[Any]:
    """Return rows of so many values each, of which some are absent: what stands for them there."""
    rows, shape = np.flatnonzero(~absent), (len(absent), size, *flat.shape[1:])
    if len(rows) == len(absent):
        return flat.reshape(shape)
    value = inner.fill.value if inner.fill else np.zeros(1, flat.dtype)[0]
    wide = np.array(value).dtype if flat.dtype.kind == "U" else flat.dtype
    values = full(shape, value, np.result_type(wide, flat.dtype))
    values[rows] = flat.reshape(len(rows), *shape[1:])
    return values


def _leave_out() -> str:
    return "name the columns that you want, without it, with --data_reader_params columns=a|b."

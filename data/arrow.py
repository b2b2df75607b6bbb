"""The types of Arrow columns in numpy, and of the values that stand for missing ones.

The type of a result follows from the type of the column and from what the user has chosen, never
from the values that happen to be in a file. A value that the result cannot hold is a *fault* of its
row, told when that row is asked for: nothing is rounded, and nothing becomes an object by accident.
docs/data.md has the table, which is made by reading a file of each type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..common.errors import DataError
from .arrow_values import (
    Column,
    View,
    cast,
    decimals,
    is_view,
    nulls_of,
    numbers,
    objects,
    of_rows,
    plain_texts,
    texts,
    why_missing,
)
from .missing import Fill, Missing

_INT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)


Convert = Callable[[Any], Column]


@dataclass(frozen=True)
class Converter:
    """A converter of columns of one name and Arrow type.

    `fill`: what stands for missing numbers or texts; None: they are refused.
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
        target = self.fill.dtype if self.fill is not None else self.dtype
        if not self.plain or array.null_count:
            return None
        values = array.to_numpy(zero_copy_only=False)
        if values.dtype != target or values.flags.owndata:
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
        return Column(np.concatenate([part.values for part in parts]), faults)


@dataclass(frozen=True)
class Types:
    """The rules by which columns get their types; `source` is named in what cannot be read."""

    arrow: Any
    source: str
    missing: Missing
    dtypes: Mapping[str, str] = field(default_factory=dict)

    def converter(self, name: str, kind: Any) -> Converter:
        """Return the converter of a column.

        Raises DataError where its type cannot be read, UsageError for a choice that it does not
        have.
        """
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
        if is_.is_string(kind) or is_.is_large_string(kind) or is_view(is_, "string", kind):
            return self._texts(name)
        if is_.is_binary(kind) or is_.is_large_binary(kind) or is_view(is_, "binary", kind):
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
        """Return the converter by dtypes=: each row is cast, a fault where that would change it."""
        arrow = self.arrow
        if wanted == "float64" and arrow.types.is_decimal(kind):
            return self._decimals(name)
        made = self._numbers(name, _INT64 if wanted == "int64" else _FLOAT64)
        if wanted == "float64" and (arrow.types.is_integer(kind) or arrow.types.is_boolean(kind)):
            return made
        inner = self._texts(name) if wanted == "str" else made
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
        return Converter(lambda array: numbers(name, array, dtype, fill), fill, dtype)

    def _cast(self, name: str, kind: Any, target: Any, inner: Converter) -> Converter:
        try:
            self.arrow.array([], kind).cast(target)
        except (self.arrow.ArrowInvalid, self.arrow.ArrowNotImplementedError) as error:
            raise self._none(name, kind, target) from error

        def convert(array: Any) -> Column:
            array, faults = cast(self.arrow, name, array, target)
            column = inner.convert(array)
            return Column(column.values, {**column.faults, **faults})

        return replace(inner, convert=convert)

    def _decimals(self, name: str) -> Converter:
        fill = self._fill(name, _FLOAT64)
        return Converter(lambda array: decimals(self.arrow, name, array, fill), fill)

    def _texts(self, name: str) -> Converter:
        fill = self._fill(name, np.dtype(np.str_))
        return Converter(lambda array: texts(self.arrow, name, array, fill), fill, text=True)

    def _bytes(self, name: str) -> Converter:
        fill = self._fill(name, np.dtype(np.bytes_))
        return Converter(lambda array: Column(objects(array, fill), {}), fill)

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
            whole = array.cast(arrow.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            values = whole.view(dtype)
            if array.null_count:
                values = np.where(nulls_of(array), fill.value, values).astype(dtype)
            return Column(values, {})

        return Converter(convert, fill)

    def _fixed_lists(self, name: str, kind: Any) -> Converter:
        inner, size = self._element(name, kind), kind.list_size

        def convert(array: Any) -> Column:
            flat, faults = inner.convert(array.flatten())  # without what null rows hold
            nulls = nulls_of(array)
            rows = np.flatnonzero(~nulls)
            shape = (len(array), size, *flat.shape[1:])
            if len(rows) == len(array):
                values = flat.reshape(shape)
            else:
                values = np.full(shape, inner.fill.value if inner.fill else 0, flat.dtype)
                values[rows] = flat.reshape(len(rows), *shape[1:])
            faults = of_rows(faults, np.repeat(rows, size))
            if inner.fill is None:
                why = why_missing(name, inner.dtype or flat.dtype)
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
            return Column(values, of_rows(faults, np.repeat(np.arange(len(array)), sizes)))

        return Converter(convert, inner.fill)

    def _element(self, name: str, kind: Any) -> Converter:
        is_, inner = self.arrow.types, kind.value_type
        if is_.is_list(inner) or is_.is_large_list(inner):
            raise DataError(
                f"{self.source}: column {name!r} has the type {kind}, lists of lists of any "
                "length: " + _leave_out(name)
            )
        return self._of(name, inner, top=False)


def _leave_out(name: str, null: bool = False) -> str:
    text = f", or say dtypes={name}:str (each value is missing)" if null else ""
    return (
        f"name the columns that you want, without it, with --data_reader_params columns=a|b{text}."
    )

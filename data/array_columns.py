"""Arrays of numpy as columns: in this machine's byte order, and of the types of a schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError, RecordError
from ..common.ragged import Ragged
from .exact import Unfit, Values, bring, type_of
from .files import DataFile
from .merge import merged
from .schema import NO_SCHEMA, STORED, Field, Schema, Type


class ArrayColumns:
    """Columns out of arrays: in this machine's byte order, and brought to their types."""

    def __init__(self, file: DataFile, types: Mapping[str, Type]) -> None:
        self._name = file.name
        self.stored = Schema(tuple(Field(n, type_, found=STORED) for n, type_ in types.items()))
        self._held = NO_SCHEMA
        self._ready: dict[str, np.dtype[Any]] = {}  # what an array that is taken as it is has

    def hold(self, schema: Schema) -> None:
        merged([(self._name, self.stored)], schema)
        self._held = schema
        self._ready = {
            each.name: schema[each.name].type.dtype
            for each in self.stored
            if each.type.shape == schema[each.name].type.shape
        }

    def column(self, name: str, rows: Values, numbers: NDArray[np.int64]) -> Values:
        ready = self._ready.get(name)
        if ready is not None and rows.__class__ is np.ndarray and rows.dtype == ready:
            return np.ascontiguousarray(rows)
        try:
            return bring(self._held[name], _native(rows))
        except Unfit as error:
            raise RecordError(self._name, int(numbers[error.row]), error.why) from error


def _native(rows: Values) -> Values:
    if isinstance(rows, Ragged):
        return rows.replace(np.ascontiguousarray(rows.values, rows.values.dtype.newbyteorder("=")))
    return np.ascontiguousarray(rows, rows.dtype.newbyteorder("="))


def type_of_array(source: str, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Type:
    """Return the type of an array of this dtype and shape, less its first dimension.

    A whole number alone has 64 bits, of many (pixels, say) each keeps its own width. Raises
    DataError.
    """
    base, shape = dtype.base, (*shape, *dtype.shape)
    if base.kind in "iu" and not shape:
        return Type("uint64" if base == np.uint64 else "int64")
    try:
        return replace(type_of(np.empty(0, base), name), shape=shape)
    except ValueError as error:
        raise DataError(
            f"{source}: {name!r} holds {base}, which is no type of a column: save numbers, texts "
            "or times, or name the columns that you want with --data_reader_params columns=a|b."
        ) from error

"""Layers that change shapes: ToSparse, ToRagged and ConcatenateWithOffset."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.arrays import EXACT
from ...common.errors import UsageError
from ...common.ragged import Ragged, Sparse, as_column
from .layer import Layer, as_numbers, as_texts, whole


@dataclass(frozen=True)
class ToSparse(Layer):
    """A Sparse without the cells that are `ignore_value`.

    Without one these are "" of texts, -1 of whole numbers, 0 of floats and NaT of times. Lists
    become [N, longest]. A Sparse stays as it is. Raises ValueError where the ignore_value is of
    another type than the values.
    """

    ignore_value: float | str | None = None

    def __post_init__(self) -> None:
        _check_ignored(self.name, self.ignore_value)

    def numpy(self, values: Any) -> Any:
        column = as_column(values)
        if isinstance(column, Sparse):
            return column
        if isinstance(column, Ragged):
            array = _one_kind(self.name, column.values)
            indices = np.stack([column.rows, column.places], axis=1)
            shape: tuple[int, ...] = (len(column), int(column.lengths.max(initial=0)))
        else:
            array = _one_kind(self.name, column)
            indices, shape = np.argwhere(np.ones(array.shape, bool)), array.shape
        kept = _kept(self.name, array, self.ignore_value, 0.0)
        return Sparse(indices[kept.ravel()].astype(np.int64), array[kept], shape)


@dataclass(frozen=True)
class ToRagged(Layer):
    """A Ragged of the rows, without the values that are `ignore_value`.

    Texts are first split by `sep`, one character: "1,2" is two values; those of lists are values
    already. Without an ignore_value, "" of texts, -1 of whole numbers and NaT of times are left
    out. Takes columns [N] or [N, k] and lists. Raises ValueError where the ignore_value is of
    another type than the values.
    """

    sep: str = ","
    ignore_value: float | str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sep, str) or len(self.sep) != 1:
            raise UsageError(f"ToRagged splits at one character, and not at {self.sep!r}.")
        _check_ignored(self.name, self.ignore_value)

    def numpy(self, values: Any) -> Any:
        column = as_column(values)
        if isinstance(column, Sparse):
            raise ValueError("ToRagged takes columns, tensors and lists, and got a Sparse")  # noqa: TRY004
        ragged = column if isinstance(column, Ragged) else _rows(column)
        ragged = ragged.replace(_one_kind(self.name, ragged.values))
        if not isinstance(column, Ragged) and ragged.values.dtype.kind in "UOT":
            ragged = _split(ragged, self.sep)
        kept = _kept(self.name, ragged.values, self.ignore_value, None)
        return ragged if kept.all() else ragged.keep(kept)


@dataclass(frozen=True)
class ConcatenateWithOffset(Layer):
    """The inputs beside each other, with offsets[i] added to input i: ids of one table for all.

    `layer([a, b])` of [N, k] and [N, l] gives [N, k + l]; a column [N] is [N, 1]. Of Ragged inputs
    row i is the rows i one after the other, of Sparse ones the same cells. With axis=0 the inputs
    stand below each other. Ids are int64 whatever they come as. Raises ValueError for a float that
    is no id and for a sum beyond int64. Without offsets nothing is added, and floats and texts are
    taken too.
    """

    offsets: Sequence[int] | None = None
    axis: int = -1

    def __post_init__(self) -> None:
        if self.offsets is None:
            return
        try:
            offsets = tuple(operator.index(each) for each in self.offsets)
        except TypeError:
            raise UsageError(
                f"ConcatenateWithOffset needs whole numbers as offsets, and not {self.offsets!r}."
            ) from None
        for each in offsets:
            whole(self.name, "offsets", each)
        object.__setattr__(self, "offsets", offsets)

    def numpy(self, values: Any) -> Any:
        inputs = [as_column(each) for each in values]
        offsets = (0,) * len(inputs) if self.offsets is None else self.offsets
        if not inputs or len(offsets) != len(inputs):
            raise ValueError(
                f"ConcatenateWithOffset has {len(offsets)} offsets and got {len(inputs)} inputs"
            )
        lists = [each for each in inputs if isinstance(each, Ragged)]
        cells = [each for each in inputs if isinstance(each, Sparse)]
        if len(inputs) not in (len(lists), len(cells)) and (lists or cells):
            raise ValueError(
                "ConcatenateWithOffset takes arrays, or Ragged inputs only, or Sparse ones only"
            )
        arrays = [each if isinstance(each, np.ndarray) else each.values for each in inputs]
        if self.offsets is None:
            arrays = _of_one_type(arrays)
        else:
            arrays = [_added(each, by) for each, by in zip(arrays, offsets, strict=True)]
        if lists:
            return self._lists([r.replace(v) for r, v in zip(lists, arrays, strict=True)])
        if cells:
            return self._cells([s.replace(v) for s, v in zip(cells, arrays, strict=True)])
        arrays = [each[:, None] if each.ndim == 1 else each for each in arrays]
        return np.concatenate(arrays, axis=self.axis)

    def _lists(self, inputs: Sequence[Ragged]) -> Ragged:
        if self.axis == 0:
            return Ragged.concatenated(inputs)
        if self.axis not in (1, -1):
            raise ValueError(f"lists stand beside each other along axis 1, and not {self.axis}")
        if len({len(each) for each in inputs}) > 1:
            raise ValueError(f"Ragged inputs have {[len(each) for each in inputs]} rows")
        rows = np.concatenate([each.rows for each in inputs])
        order = np.argsort(rows, kind="stable")
        values = np.concatenate([each.values for each in inputs])[order]
        return Ragged.of(values, np.bincount(rows, minlength=len(inputs[0])))

    def _cells(self, inputs: Sequence[Sparse]) -> Sparse:
        """Return the cells of all inputs in one, row by row."""
        indices, shapes = [], []
        for each in inputs:
            flat = len(each.shape) == 1  # a column [N] is [N, 1]
            indices.append(np.pad(each.indices, ((0, 0), (0, 1))) if flat else each.indices.copy())
            shapes.append((*each.shape, 1) if flat else each.shape)
        dimensions = len(shapes[0])
        axis = self.axis + dimensions if self.axis < 0 else self.axis
        others = {shape[:axis] + shape[axis + 1 :] for shape in shapes}
        if not 0 <= axis < dimensions or len(others) > 1 or {*map(len, shapes)} != {dimensions}:
            raise ValueError(
                f"Sparse inputs of the shapes {[list(each) for each in shapes]} do not stand "
                f"beside each other along axis {self.axis}"
            )
        width = 0
        for cells, shape in zip(indices, shapes, strict=True):
            cells[:, axis] += width
            width += shape[axis]
        together = np.concatenate(indices)
        order = np.lexsort(together.T[::-1])
        values = np.concatenate([each.values for each in inputs])[order]
        shape = (*shapes[0][:axis], width, *shapes[0][axis + 1 :])
        return Sparse(together[order], values, shape)


def _added(values: NDArray[Any], offset: int) -> NDArray[np.int64]:
    """Return ids with an offset added, as int64. Raises ValueError where one is none, or beyond."""
    ids = as_numbers("ConcatenateWithOffset", values)
    if not ids.size:
        return ids.astype(np.int64)
    if ids.dtype.kind == "O":
        beyond = max(ids.ravel().tolist(), key=abs)
        raise ValueError(f"ConcatenateWithOffset got {beyond}, which is no id of 64 bits")
    if ids.dtype.kind == "f":
        wide = ids.astype(np.float64)
        none = ~((np.trunc(wide) == wide) & (np.abs(wide) <= EXACT))  # NaN is none
        if none.any():
            raise ValueError(
                f"ConcatenateWithOffset got {ids[none][0]}, which is no id: make whole numbers of "
                "such a column first (ToNumber, Discretization, IndexLookup or Hashing)"
            )
        ids = wide.astype(np.int64)
    for extreme in (int(ids.min()), int(ids.max())):
        if not -(2**63) <= extreme + offset < 2**63 or not -(2**63) <= extreme < 2**63:
            more = f" + {offset}" if offset else ""
            raise ValueError(f"ConcatenateWithOffset got {extreme}{more}, which is beyond int64")
    return ids.astype(np.int64) + np.int64(offset)


def _of_one_type(arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return ids as int64, numbers among which are floats as floats, or all as texts.

    Raises ValueError where texts stand beside numbers, or where a number would be rounded.
    """
    arrays = [_one_kind("ConcatenateWithOffset", each) for each in arrays]
    kinds = {each.dtype.kind for each in arrays if each.size}
    if kinds <= set("UOT"):
        return list(arrays)
    if kinds <= set("iub"):
        return [_added(each, 0) for each in arrays]
    if not kinds <= set("iubf"):
        said = ", ".join(str(each.dtype) for each in arrays)
        raise ValueError(f"ConcatenateWithOffset got values of several types: {said}")
    for each in arrays:
        if each.dtype.kind in "iu" and (large := each[(each > EXACT) | (each < -EXACT)]).size:
            raise ValueError(
                f"ConcatenateWithOffset got {large[0]} beside floats, which would round it"
            )
    return list(arrays)


def _check_ignored(layer: str, value: object) -> None:
    if value is not None and not isinstance(value, str | int | float):
        raise UsageError(f"{layer} ignores a text or a number, and not {value!r}.")


def _one_kind(layer: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return values that are all texts, or all numbers, or all times. Raises ValueError."""
    values = as_texts(values)
    if values.dtype.kind != "O" or not values.size:
        return values
    kinds = set(map(type, values.ravel().tolist()))
    strange = [kind for kind in kinds if not issubclass(kind, str)]
    if not strange:
        return values
    if len(strange) == len(kinds):
        numbers = as_numbers(layer, values)
        if numbers.dtype.kind != "O":
            return numbers
    raise ValueError(
        f"{layer} takes texts or numbers, and got a value of type {strange[0].__name__}"
    )


def _kept(
    layer: str, values: NDArray[Any], ignored: float | str | None, of_floats: float | None
) -> NDArray[np.bool_]:
    """Return which values are not the ignored one. Raises ValueError where it is none of theirs."""
    kind = values.dtype.kind
    if kind in "Mm" and ignored is None:
        return np.asarray(~np.isnat(values))
    if kind in "UOT":
        nothing: Any = "" if ignored is None else ignored
        fitting = isinstance(nothing, str)
    else:
        nothing = (-1 if kind in "iub" else of_floats) if ignored is None else ignored
        fitting = nothing is None or (kind in "iubf" and not isinstance(nothing, str))
        if fitting and kind in "iub" and nothing is not None:
            fitting = nothing == nothing // 1  # NaN and fractions are no whole numbers
            nothing = int(nothing) if fitting else nothing
    if nothing is None or not values.size:
        return np.ones(values.shape, bool)
    if not fitting:
        what = "texts" if kind in "UOT" else "times" if kind in "Mm" else str(values.dtype)
        raise ValueError(
            f"{layer} has ignore_value={nothing!r} and got {what}, none of which it is: give one "
            "of their type"
        )
    if isinstance(nothing, float) and math.isnan(nothing):
        return np.asarray(~np.isnan(values))
    return np.asarray(values != nothing, dtype=bool)


def _rows(values: NDArray[Any]) -> Ragged:
    """Return an array [N] or [N, ...] as rows."""
    flat = values.reshape(len(values), -1) if len(values) else values.reshape(0, 1)
    return Ragged.of(flat.ravel(), np.full(len(flat), flat.shape[1]))


def _split(ragged: Ragged, sep: str) -> Ragged:
    """Return texts split at a character: as one text, since a loop over records would be slow."""
    texts = ragged.values.tolist()
    if not texts:
        return ragged
    parts = sep.join(texts).split(sep)
    counts = np.fromiter((text.count(sep) + 1 for text in texts), np.int64, len(texts))
    lengths = np.diff(np.concatenate([[0], np.cumsum(counts)])[ragged.offsets])
    values = np.empty(len(parts), object)
    values[:] = parts
    return Ragged.of(values, lengths)

"""Layers that change shapes: ToSparse, ToRagged and ConcatenateWithOffset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import UsageError
from .layer import Layer, as_array, as_texts
from ...common.ragged import Ragged, Sparse


@dataclass(frozen=True)
class ToSparse(Layer):
    """A Sparse without the cells that are `ignore_value`.

    Without one these are "" of texts, -1 of whole numbers and 0 of others. A Sparse stays as it is.
    """

    ignore_value: float | str | None = None

    def numpy(self, values: Any) -> Any:
        if isinstance(values, Sparse):
            return values
        array = as_texts(as_array(values))
        nothing = _nothing(array, 0.0) if self.ignore_value is None else self.ignore_value
        kept = np.asarray(array != nothing, dtype=bool)
        return Sparse(np.argwhere(kept).astype(np.int64), array[kept], array.shape)


@dataclass(frozen=True)
class ToRagged(Layer):
    """A Ragged of the rows, without the values that are `ignore_value`.

    Texts are first split by `sep`, one character: "1,2" is two values. Without an ignore_value, ""
    of texts and -1 of whole numbers are left out. Takes columns [N] or [N, k], object columns of
    arrays (lists of Parquet) and a Ragged.
    """

    sep: str = ","
    ignore_value: float | str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sep, str) or len(self.sep) != 1:
            raise UsageError(f"ToRagged splits at one character, and not at {self.sep!r}.")

    def numpy(self, values: Any) -> Any:
        ragged = values if isinstance(values, Ragged) else _rows(as_array(values))
        array = as_texts(ragged.values)
        if array.dtype.kind in "UOT":
            ragged = _split(Ragged(array, ragged.offsets), self.sep)
        nothing = _nothing(ragged.values, None) if self.ignore_value is None else self.ignore_value
        if nothing is None:
            return ragged
        return ragged.keep(np.asarray(ragged.values != nothing, dtype=bool))


@dataclass(frozen=True)
class ConcatenateWithOffset(Layer):
    """The inputs beside each other, with offsets[i] added to input i: ids of one table for all.

    `layer([a, b])` of [N, k] and [N, l] gives [N, k + l]; a column [N] is [N, 1]. Of Ragged
    inputs row i is the rows i one after the other. Without offsets nothing is added.
    """

    offsets: Sequence[int] | None = None
    axis: int = -1

    def __post_init__(self) -> None:
        if self.offsets is not None:
            object.__setattr__(self, "offsets", tuple(int(each) for each in self.offsets))

    def numpy(self, values: Any) -> Any:
        inputs = list(values)
        offsets = (0,) * len(inputs) if self.offsets is None else self.offsets
        if not inputs or len(offsets) != len(inputs):
            raise ValueError(
                f"ConcatenateWithOffset has {len(offsets)} offsets and got {len(inputs)} inputs"
            )
        if all(isinstance(each, Ragged) for each in inputs):
            return _beside([r.replace(r.values + o) for r, o in zip(inputs, offsets, strict=True)])
        if any(isinstance(each, Ragged | Sparse) for each in inputs):
            raise ValueError("ConcatenateWithOffset takes arrays, or Ragged inputs only")
        arrays = [as_array(each) for each in inputs]
        arrays = [each[:, None] if each.ndim == 1 else each for each in arrays]
        added = [each + offset for each, offset in zip(arrays, offsets, strict=True)]
        return np.concatenate(added, axis=self.axis)


def _nothing(values: NDArray[Any], of_floats: float | None) -> Any:
    kind = values.dtype.kind
    return "" if kind in "SUOT" else -1 if kind in "iub" else of_floats


def _rows(values: NDArray[Any]) -> Ragged:
    """Return an array [N] or [N, ...], or an object array of arrays, as rows."""
    kinds = set(map(type, values.tolist())) if values.dtype.kind == "O" and values.ndim == 1 else ()
    if kinds and all(issubclass(kind, (np.ndarray, list)) for kind in kinds):
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        return Ragged.of(np.concatenate(values.tolist()), lengths)
    flat = values.reshape(len(values), -1) if len(values) else values.reshape(0, 1)
    return Ragged.of(flat.ravel(), np.full(len(flat), flat.shape[1]))


def _split(ragged: Ragged, sep: str) -> Ragged:
    """Return texts split at a character: as one text, since a loop over records would be slow."""
    texts = ragged.values.tolist()
    if not texts:
        return ragged
    if strange := [kind for kind in set(map(type, texts)) if kind is not str]:
        raise ValueError(f"ToRagged splits texts, and got a value of type {strange[0].__name__}")
    parts = sep.join(texts).split(sep)
    counts = np.fromiter((text.count(sep) + 1 for text in texts), np.int64, len(texts))
    lengths = np.diff(np.concatenate([[0], np.cumsum(counts)])[ragged.offsets])
    values = np.empty(len(parts), object)
    values[:] = parts
    return Ragged.of(values, lengths)


def _beside(inputs: Sequence[Ragged]) -> Ragged:
    if len({len(each) for each in inputs}) > 1:
        raise ValueError(f"Ragged inputs have {[len(each) for each in inputs]} rows")
    rows = np.concatenate([each.rows for each in inputs])
    order = np.argsort(rows, kind="stable")
    values = np.concatenate([each.values for each in inputs])[order]
    return Ragged.of(values, np.bincount(rows, minlength=len(inputs[0])))

"""The rows of a table as layers that never change: a base, and on it what has changed since.

A lookup asks the newest layer first, so whoever holds on to a `Layers` has one state of the table,
whatever is laid on it meanwhile for others. The rows of a layer lie where they were read, in files
that are mapped, or in memory where several layers were merged into one.

Shape suffixes: N rows, U distinct ids asked for, D row dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common import pieces
from ..common.errors import CheckpointError
from ..nn.initializers import initial_rows
from ..nn.model_spec import TableSpec
from .checkpoint import Ids, Values
from .rows import rounded, widened

_MOST_LAYERS = 8  # above the base: a lookup asks each of them for what the newer ones lack
_NO_IDS = np.zeros(0, np.int64)
_BLOCK = 1 << 16  # rows


@dataclass(frozen=True, eq=False)
class Layer:
    """Rows of a table by id, ascending, and ids that are not there any more.

    The row of ids[k] is at place[k] of all `weights` one after the other; in memory are 16 bytes a
    row beside those.
    """

    ids: Ids
    places: Ids
    weights: tuple[NDArray[Any], ...]  # each [n, D], float32 or the bits of 16-bit rows
    gone: Ids = field(default_factory=lambda: _NO_IDS)

    @classmethod
    def of(cls, spec: TableSpec, found: Sequence[pieces.Rows], gone: Sequence[int] = ()) -> Layer:
        """Sort the rows of these files. Raises CheckpointError where they are not of the table."""
        wanted = np.float32 if spec.dtype == "float32" else np.uint16
        for rows in found:
            if rows.weight.dtype != wanted or rows.weight.shape[1] != spec.dim:
                raise CheckpointError(
                    f"a file has rows of {rows.weight.shape[1]} {rows.weight.dtype}, and the table "
                    f"{spec.name!r} has rows of {spec.dim} {spec.dtype}"
                )
        ids = np.concatenate([_NO_IDS, *(rows.ids for rows in found)])
        places = np.argsort(ids)
        ids = ids[places]
        if len(twice := np.flatnonzero(ids[1:] == ids[:-1])):
            raise CheckpointError(
                f"the row {ids[twice[0]]} of the table {spec.name!r} is there twice in one cut"
            )
        return cls(ids, places, tuple(rows.weight for rows in found), np.unique(_int64(gone)))

    def __len__(self) -> int:
        return len(self.ids)

    def find(self, ids_U: Ids) -> tuple[NDArray[np.bool_], Ids]:
        """Return which ids are there, and the places of those."""
        if not len(self):
            return np.zeros(len(ids_U), np.bool_), _NO_IDS
        at = np.minimum(np.searchsorted(self.ids, ids_U), len(self) - 1)
        known_U = self.ids[at] == ids_U
        return known_U, self.places[at[known_U]]

    def is_gone(self, ids_U: Ids) -> NDArray[np.bool_]:
        """Tell of each id whether it is not there any more."""
        return np.isin(ids_U, self.gone) if len(self.gone) else np.zeros(len(ids_U), np.bool_)

    def gather(self, places: Ids) -> NDArray[Any]:
        """Return the rows at these places, as they are kept."""
        like = self.weights[0]
        if len(self.weights) == 1:
            return like[places]
        rows = np.empty((len(places), like.shape[1]), like.dtype)
        first = np.cumsum([0, *(len(weight) for weight in self.weights)])
        files = np.searchsorted(first, places, side="right") - 1
        for file in np.unique(files).tolist():
            mine = files == file
            rows[mine] = self.weights[file][places[mine] - first[file]]
        return rows


@dataclass(frozen=True, eq=False)
class Layers:
    """A table at one cut. Any thread may ask."""

    spec: TableSpec
    seed: int
    layers: tuple[Layer, ...]  # the newest first; the last is the base
    count: int  # of the rows that are there

    @classmethod
    def of(cls, spec: TableSpec, seed: int, base: Layer) -> Layers:
        """Return a table that has a base and nothing on it."""
        return cls(spec, seed, (base,), len(base))

    def __len__(self) -> int:
        return self.count

    @property
    def above(self) -> int:
        """The rows that lie above the base, some of them more than once."""
        return sum(map(len, self.layers[:-1]))

    def under(self, newer: Layer) -> Layers:
        """Return the table with these rows in place of its own; this one stays as it is."""
        new = len(newer) - int(self.known(newer.ids).sum())
        gone = int(self.known(newer.gone[~newer.find(newer.gone)[0]]).sum())
        layers = (newer, *self.layers) if len(newer) or len(newer.gone) else self.layers
        if len(layers) > 1 + _MOST_LAYERS:
            layers = (_merged(layers[:-1]), layers[-1])
        return Layers(self.spec, self.seed, layers, self.count + new - gone)

    def known(self, ids_U: Ids) -> NDArray[np.bool_]:
        """Tell of each id whether its row is there."""
        known_U = np.zeros(len(ids_U), np.bool_)
        for into, _ in self._found(ids_U):
            known_U[into] = True
        return known_U

    def rows(self, ids_U: Ids) -> Values:
        """Return the rows of these ids, first values of those that are unknown: float32[U, D]."""
        rows_UD = np.empty((len(ids_U), self.spec.dim), np.float32)
        unknown_U = np.ones(len(ids_U), np.bool_)
        for into, rows in self._found(ids_U):
            rows_UD[into] = widened(rows, self.spec.dtype)
            unknown_U[into] = False
        if unknown_U.any():
            first = initial_rows(self.seed, self.spec, ids_U[unknown_U])
            rows_UD[unknown_U] = rounded(first, self.spec.dtype)
        return rows_UD

    def blocks(self) -> Iterator[tuple[Ids, Values]]:
        """Yield all rows, each once, in blocks of bounded size."""
        for number, layer in enumerate(self.layers):
            for start in range(0, len(layer), _BLOCK):
                part = slice(start, start + _BLOCK)
                ids, places = layer.ids[part], layer.places[part]
                shown = np.ones(len(ids), np.bool_)
                for newer in self.layers[:number]:
                    shown &= ~(newer.find(ids)[0] | newer.is_gone(ids))
                if shown.any():
                    yield ids[shown], widened(layer.gather(places[shown]), self.spec.dtype)

    def _found(self, ids_U: Ids) -> Iterator[tuple[Ids, NDArray[Any]]]:
        """Yield places in `ids_U`, and the rows of the ids there."""
        left = np.arange(len(ids_U))
        for layer in self.layers:
            if not len(left):
                return
            known, places = layer.find(ids_U[left])
            if len(places):
                yield left[known], layer.gather(places)
            left = left[~known]
            if len(layer.gone):
                left = left[~layer.is_gone(ids_U[left])]


def _merged(layers: Sequence[Layer]) -> Layer:
    """Return one layer, in memory, that answers as these do, the newest first."""
    all_ids = np.concatenate([layer.ids for layer in layers])
    gone: Ids = _NO_IDS
    for layer in reversed(layers):  # what is gone may have come back
        gone = np.setdiff1d(np.union1d(gone, layer.gone), layer.ids)
    ids, first = np.unique(all_ids, return_index=True)  # the first of each: the newest
    kept = ~np.isin(ids, gone)
    ids, first = ids[kept], first[kept]
    starts = np.cumsum([0, *map(len, layers)])
    like = next((layer.weights[0] for layer in layers if layer.weights), None)
    if like is None:
        return Layer(_NO_IDS, _NO_IDS, (), gone)
    weight = np.empty((len(ids), like.shape[1]), like.dtype)
    for number, layer in enumerate(layers):
        mine = (first >= starts[number]) & (first < starts[number + 1])
        if mine.any():
            weight[mine] = layer.gather(layer.places[first[mine] - starts[number]])
    return Layer(ids, np.arange(len(ids)), (weight,), gone)


def _int64(ids: Sequence[int]) -> Ids:
    return np.asarray(ids, np.int64).reshape(-1)

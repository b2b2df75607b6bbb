"""What two checkpoints do not have in common: dense values and rows, how many and by how much.

Two NaNs are equal here, and so are 0 and -0. Differences are taken in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checkpoint import Checkpoint, Values
from .rows import Lookup, blocks

Found = dict[str, Any]


class _Differences:
    """A running account of values that differ, and the rows that they are in."""

    def __init__(self) -> None:
        self.values = self.rows = 0
        self.largest = self._sum = 0.0

    def add(self, one: Values, other: Values) -> None:
        """Compare two arrays of one shape, of which the first axis counts rows."""
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        if same.all():
            return
        apart: NDArray[np.float64] = np.abs(
            one[~same].astype(np.float64) - other[~same].astype(np.float64)
        )
        self.values += len(apart)
        self.rows += int((~same).reshape(len(one), -1).any(axis=1).sum()) if one.ndim else 1
        apart[np.isnan(apart)] = np.inf  # a NaN on one side only
        self.largest = max(self.largest, float(apart.max()))
        self._sum += float(apart.sum())

    @property
    def mean(self) -> float:
        return self._sum / self.values if self.values else 0.0


def compare(one: Checkpoint, other: Checkpoint) -> Found:
    """Return what differs, as JSON can hold it: `same`, and each tensor and table by name.

    Of those that both have: how many values (and rows) differ, by how much at most and in the mean
    of those; of the others in which they are. Raises CheckpointError where one is damaged.
    """
    dense, tables = _dense(one, other), _tables(one, other)
    return {
        "a": {"checkpoint": one.where, "version": one.manifest.version},
        "b": {"checkpoint": other.where, "version": other.manifest.version},
        "same": not any(map(_differs, (*dense, *tables))),
        "dense": dense,
        "tables": tables,
    }


def _differs(found: Found) -> bool:
    return bool("only_in" in found or "shapes" in found or found["values_that_differ"]) or bool(
        found.get("rows_only_in_a") or found.get("rows_only_in_b")
    )


def _dense(one: Checkpoint, other: Checkpoint) -> list[Found]:
    mine, theirs = one.dense(), other.dense()
    found: list[Found] = []
    for name in dict.fromkeys([*mine, *theirs]):
        if name not in mine or name not in theirs:
            found.append({"name": name, "only_in": "a" if name in mine else "b"})
        elif mine[name].shape != theirs[name].shape:
            shapes = [list(values[name].shape) for values in (mine, theirs)]
            found.append({"name": name, "shapes": shapes})
        else:
            differences = _Differences()
            differences.add(mine[name], theirs[name])
            found.append(
                {
                    "name": name,
                    "values": mine[name].size,
                    "values_that_differ": differences.values,
                    "largest": differences.largest,
                    "mean": differences.mean,
                }
            )
    return found


def _tables(one: Checkpoint, other: Checkpoint) -> list[Found]:
    mine = {table.name: table for table in one.spec.tables}
    theirs = {table.name: table for table in other.spec.tables}
    found: list[Found] = []
    for name in dict.fromkeys([*mine, *theirs]):
        if name not in mine or name not in theirs:
            found.append({"name": name, "only_in": "a" if name in mine else "b"})
        elif mine[name].dim != theirs[name].dim:
            found.append({"name": name, "shapes": [[mine[name].dim], [theirs[name].dim]]})
        else:
            found.append(_rows(name, one, other))
    return found


def _rows(table: str, one: Checkpoint, other: Checkpoint) -> Found:
    """Compare two tables, a file of the one at a time."""
    mine, theirs = (
        Lookup(each.table(table), each.spec.seed, each.rows(table)) for each in (one, other)
    )
    both, differences = 0, _Differences()
    for block in blocks(one, table):
        known = theirs.known(block.ids)
        both += int(known.sum())
        differences.add(block.weight[known], theirs.rows(block.ids[known]))
    return {
        "name": table,
        "rows": both,
        "rows_only_in_a": len(mine) - both,
        "rows_only_in_b": len(theirs) - both,
        "rows_that_differ": differences.rows,
        "values_that_differ": differences.values,
        "largest": differences.largest,
        "mean": differences.mean,
    }

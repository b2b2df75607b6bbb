"""A comparison, bit for bit, of a shard's replayed state with the one that a checkpoint holds.

Of chunks: value, optimizer state, step count and the version that changed them. Of rows: the same
rows, weight, optimizer state, step count. Of the books: version, and how far each open task is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common import storage
from ..ps.books.aggregation import Policy
from ..ps.books.slots import SlotMap
from ..ps.books.store import Store
from ..ps.snapshots import cut as snapshot
from .shards import Shard, pin

CUT = "checkpoint"
_BLOCK_ROWS = 1 << 16


@dataclass
class Compared:
    """The result of a comparison.

    `tensors`, `rows`: how many were compared; `difference`: the first, if any.
    """

    tensors: int = 0
    rows: int = 0
    difference: str = ""


class Checkpoint:
    """A checkpoint that the job wrote; `watch` keeps the states that must equal it."""

    def __init__(self, manifest: storage.Manifest) -> None:
        self.manifest = manifest
        self._books = {
            int(record.name.split("-")[1]): json.loads(storage.read_checked(manifest, record))
            for record in manifest.files
            if record.name.endswith(".json")
        }
        self._found: dict[int, list[Shard]] = {}

    def watch(self, shard: Shard) -> None:
        """Keep the shard's state if it is at the checkpoint's."""
        books = self._books[shard.timeline.index]
        found = self._found.setdefault(shard.timeline.index, [])
        if shard.state == (books["version"], books["pushes"]) and shard not in found:
            pin(shard.store, CUT)
            found.append(shard)

    def compare(self) -> Compared:
        """Compare the checkpoint with what was kept of the newest incarnation of each server."""
        result = Compared()
        names = set[str]()
        for index, books in sorted(self._books.items()):
            shards = self._found.get(index, ())
            if not shards:
                result.difference = f"server {index} never was at version {books['version']}"
                return result
            expected = self._restored(index)
            parts = [self._compare(shard.store, expected, books) for shard in reversed(shards)]
            part, tensors = min(parts, key=lambda found: bool(found[0].difference))
            names |= tensors
            result.rows += part.rows
            result.tensors = len(names)
            if part.difference:
                result.difference = f"server {index}: {part.difference}"
                return result
        return result

    def _restored(self, index: int) -> Store:
        store = Store(index=index, slot_map=SlotMap(self.manifest.num_shards), policy=Policy())
        snapshot.restore(store, self.manifest, new_job=False)
        pin(store, CUT)
        return store

    def _compare(
        self, mine: Store, theirs: Store, books: dict[str, Any]
    ) -> tuple[Compared, set[str]]:
        found = Compared()
        names = set[str]()
        spec, replayed = mine.pins.books(CUT)
        applied = {entry.task: entry.applied for entry in replayed.ledger}
        for task, _, position in books["ledger"]:
            if applied.get(task, 0) != position:
                found.difference = (
                    f"task {task} is applied up to {applied.get(task, 0)}, not {position}"
                )
                return found, names
        chunks = dict(mine.pins.chunks(CUT))
        for key, chunk in theirs.pins.chunks(CUT):
            names.add(key[0])
            own = chunks[key]
            pairs: list[tuple[str, Any, Any]] = [("value", own.value, chunk.value)]
            states = zip(own.state, chunk.state, strict=False)
            pairs += [("optimizer state", *pair) for pair in states]
            pairs += [("steps", own.steps, chunk.steps)]
            for what, here, there in pairs:
                if (place := first_difference(here, there)) is not None:
                    found.difference = (
                        f"{what} of {key[0]!r}, chunk {key[1]}, element {place}: "
                        f"{here.flat[place]!r} instead of {there.flat[place]!r}"
                    )
                    return found, names
            if own.changed != chunk.changed:
                found.difference = f"{key[0]!r} changed at another version"
                return found, names
        for table in spec.tables:
            ours, expected = _rows(mine, table.name), _rows(theirs, table.name)
            found.rows += len(expected["ids"])
            for what, there in expected.items():
                here = ours[what]
                if (place := first_difference(here, there)) is not None:
                    row = place // max(1, int(np.prod(there.shape[1:])))
                    found.difference = (
                        f"{what} of table {table.name!r}, row "
                        f"{expected['ids'][row] if row < len(there) else 'past the end'}"
                    )
                    return found, names
        return found, names


def first_difference(here: np.ndarray[Any, Any], there: np.ndarray[Any, Any]) -> int | None:
    """Return the first element that is not the same, bit for bit."""
    if here.shape != there.shape:
        return min(here.size, there.size)
    bits = np.dtype(f"u{here.dtype.itemsize}")
    unequal = np.flatnonzero(
        np.ascontiguousarray(here).reshape(-1).view(bits)
        != np.ascontiguousarray(there).reshape(-1).view(bits)
    )
    return int(unequal[0]) if len(unequal) else None


def rows_of(store: Store, table: str, cut: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return ids, weight, steps and optimizer state, by id."""
    blocks = list(store.pins.rows(cut, table, _BLOCK_ROWS))
    if not blocks:
        return {"ids": np.zeros(0, np.int64)}
    ids = np.concatenate([block.ids for block in blocks])
    order = np.argsort(ids)
    found = {"ids": ids[order]}
    found["weight"] = np.concatenate([block.weight for block in blocks])[order]
    found["steps"] = np.concatenate([block.steps for block in blocks])[order]
    for number, parts in enumerate(zip(*(block.state for block in blocks), strict=True)):
        found[f"state {number}"] = np.concatenate(parts)[order]
    return found


def _rows(store: Store, table: str) -> dict[str, np.ndarray[Any, Any]]:
    return rows_of(store, table, CUT)


def dense_of(stores: list[Store], cut: str) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield the dense tensors of all shards together, whole."""
    spec, _ = stores[0].pins.books(cut)
    chunks = {key: chunk.value for store in stores for key, chunk in store.pins.chunks(cut)}
    for tensor in spec.dense:
        parts = [chunks[tensor.name, number] for number in range(tensor.num_chunks)]
        yield tensor.name, np.concatenate(parts).reshape(tensor.shape)

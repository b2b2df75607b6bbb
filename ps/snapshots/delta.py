"""A pinned cut as files for serving: values without the optimizer's state.

All of it, or what has changed since another cut that this shard has written so. The pieces are
those of a checkpoint (cut.py), and the books are left out: nobody trains on with them.

    shard-I-of-N.dense-K       chunks: value, steps, changed
    shard-I-of-N.table-T-K     rows of table T: ids, weight, steps
    shard-I-of-N.json          the model

What has changed is what the marks say (changes.py), which the recovery snapshots read as well. Of
the cut that is written and of the one before both are held on to: whether its manifest came to be
is the master's to know, and it says next time since which of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...common import faults
from ...common.pieces import encode
from ...common.places import Place, Where
from ...common.storage import FileRecord, Part
from ..books.store import Store
from ..rows.optimizers import Ints
from ..rows.table import RowBlock
from . import cut as snapshot
from .changes import Changes, Since

_CUT = "cut "  # begins the names of these states


@dataclass(frozen=True)
class Written:
    """The files of a shard's part, and the rows in them by table."""

    files: tuple[FileRecord, ...]
    version: int
    rows: dict[str, int]


def write(
    store: Store,
    changes: Changes,
    cut: str,
    since: str,
    directory: Where,
    *,
    let_go: bool = False,
) -> Written | None:
    """Write this shard's part of a pinned cut: what has changed since another; "": all of it.

    `let_go`: what has changed is copied into memory, and the cut let go before a byte is written:
    each first write to a row copies what was there until then.

    None: this shard does not know that other cut (it was restored since), and wrote nothing.
    Raises NotPinned, OSError.
    """
    state = _CUT + cut
    life = changes.begin_at(cut, state)
    known = changes.since(_CUT + since, life) if since else None
    if since and known is None:
        changes.forget(state)
        return None
    changes.keep_only(_CUT, (state, _CUT + since))
    try:
        faults.point("ps.delta.begin", cut=cut)
        return _write(store, cut, known, Place(directory), let_go and known is not None)
    except BaseException:
        changes.forget(state)
        raise


def _write(store: Store, cut: str, since: Since | None, place: Place, let_go: bool) -> Written:
    spec, books = store.pins.books(cut)
    shard = f"shard-{store.index:05d}-of-{store.slot_map.num_shards:05d}"
    counts = dict.fromkeys((table.name for table in spec.tables), 0)

    def rows(table: str, most: int) -> Iterator[RowBlock]:
        for numbers in _parts(store.pins.pinned_rows(cut, table), table, since, most):
            block = store.pins.rows_of(cut, table, numbers)
            counts[table] += len(block.ids)
            yield block

    chunks = store.pins.chunks(cut, since.version if since else None)

    def files() -> Iterator[tuple[str, list[Part]]]:
        for name, tensors, about in snapshot.pieces(spec, books, chunks, rows, values_only=True):
            yield f"{shard}.{name}.safetensors", encode(tensors, about)
        text = json.dumps({"model": json.loads(spec.to_json()), "version": books.version})
        yield f"{shard}.json", [text.encode()]

    found = files()
    if let_go:
        found = iter(list(found))
        store.pins.unpin(cut)
    return Written(tuple(place.write_all(_told(found, cut))), books.version, counts)


def _told(files: Iterator[tuple[str, list[Part]]], cut: str) -> Iterator[tuple[str, list[Part]]]:
    """Pass files on, and say when the last one comes: half of them may be written then."""
    for name, parts in files:
        if name.endswith(".json"):
            faults.point("ps.delta.mid", cut=cut)
        yield name, parts


def _parts(size: int, table: str, since: Since | None, most: int) -> Iterator[Ints]:
    """Yield the numbers of the rows to write, so many at once."""
    if since is None:
        for start in range(0, size, most):
            yield np.arange(start, min(start + most, size))
        return
    numbers = since.rows(table, size)
    for start in range(0, len(numbers), most):
        yield numbers[start : start + most]

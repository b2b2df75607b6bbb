"""Bases and deltas of stores of this process, as a master has them written."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edl.common import storage
from edl.common.deltas import About, Name
from edl.common.places import Place
from edl.ps.books.store import Store
from edl.ps.snapshots import delta
from edl.ps.snapshots.changes import Changes


class Writer:
    """A writer of the state of stores that rest."""

    def __init__(self, stores: Sequence[Store], root: Path | Place, **settings: Any) -> None:
        self.stores, self.root, self.settings = stores, Place(root), settings
        self.changes = [Changes(store) for store in stores]
        self.number = 0

    def base(self) -> Place:
        return self._write(is_base=True)

    def delta(self) -> Place:
        return self._write(is_base=False)

    def _write(self, is_base: bool) -> Place:
        before, self.number = self.number, self.number + 1
        cut, since = f"cut-{self.number}", "" if is_base else f"cut-{before}"
        place = self.root / str(Name(self.number, None if is_base else before))
        files, rows, version = list[storage.FileRecord](), Counter[str](), 0
        for store, changes in zip(self.stores, self.changes, strict=True):
            store.pins.freeze(cut, 10.0)
            assert store.pins.pin(cut, {}, 10.0)[0], "the store knows no model"
            written = delta.write(store, changes, cut, since, place)
            store.pins.unpin(cut)
            assert written is not None
            files += written.files
            rows.update(written.rows)
            version = max(version, written.version)
        about = dataclasses.replace(About("job", cut, self.number, since), rows=dict(rows))
        books = {**about.as_books(), **({"settings": self.settings} if is_base else {})}
        number = len(self.stores)
        storage.write_manifest(
            place, version=version, num_shards=number, num_slots=1024, files=files, books=books
        )
        return place

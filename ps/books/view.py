"""The view that a store shows to code that answers pulls without it, and its observers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..rows.table import Table
from .dense import Chunk, ChunkKey


@dataclass(frozen=True)
class StoreView:
    """A shard at one version: where its rows and its dense chunks are.

    Rows and chunks are the live ones; which chunks a later version has changed, an `Observer` is
    told.
    """

    version: int
    slot_map_version: int
    tables: Mapping[str, Table]
    chunks: Mapping[ChunkKey, Chunk]


class Observer(Protocol):
    """An observer that is told, under the store's lock, what becomes of the view it was made of."""

    def step_made(self, changed: Collection[ChunkKey], version: int) -> None:
        """Note that a step to `version` has been made, which has changed these chunks, and rows."""

    def set_valid(self, valid: bool) -> None:
        """Note whether the view may be answered from.

        The last call says False: there is another view.
        """

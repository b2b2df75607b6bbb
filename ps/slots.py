"""Which shard owns what: the key space is cut into slots, and a slot map gives slots to shards.

A dense chunk's slot starts at a hash of its tensor's name and moves by the golden ratio from chunk
to chunk, so that the chunks of one tensor spread evenly over any number of shards (the three-gap
theorem). A row's slot is a hash of (table, id). Both are pure and never change; a map only says
which contiguous range of slots each shard has, so N shards' snapshots restore onto M.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..nn.initializers import mix64

NUM_SLOTS = 1024
_GOLDEN = (5**0.5 - 1) / 2


@functools.cache
def _name_hash(kind: str, name: str) -> int:
    digest = hashlib.blake2b(f"{kind}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def chunk_slot(tensor: str, chunk: int, num_slots: int = NUM_SLOTS) -> int:
    """The slot of chunk number `chunk` of a dense tensor."""
    turn = _name_hash("dense", tensor) / 2.0**64 + chunk * _GOLDEN
    return int((turn % 1.0) * num_slots) % num_slots


def row_slots(table: str, ids: NDArray[np.int64], num_slots: int = NUM_SLOTS) -> NDArray[np.int64]:
    """The slots of rows, one for each id."""
    key = np.uint64(_name_hash("table", table))
    hashes = mix64(ids.view(np.uint64) ^ key) >> np.uint64(33)
    return hashes.astype(np.int64) % num_slots


@dataclass(frozen=True)
class SlotMap:
    """Slots [i * num_slots / num_shards, (i + 1) * num_slots / num_shards) are shard i's."""

    num_shards: int
    num_slots: int = NUM_SLOTS
    version: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.num_shards <= self.num_slots:
            raise ValueError(f"{self.num_shards} shards cannot share {self.num_slots} slots")

    def shard_of_slot(self, slot: int) -> int:
        return slot * self.num_shards // self.num_slots

    def shard_of_chunk(self, tensor: str, chunk: int) -> int:
        return self.shard_of_slot(chunk_slot(tensor, chunk, self.num_slots))

    def shards_of_ids(self, table: str, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The owner of each row: int64[n]."""
        if self.num_shards == 1:
            return np.zeros(len(ids), np.int64)
        return row_slots(table, ids, self.num_slots) * self.num_shards // self.num_slots

"""Slots, into which the key space is split, and a map that gives slots to shards.

A dense chunk's slot starts at a hash of its tensor's name and moves by the golden ratio from chunk
to chunk, so that the chunks of one tensor spread evenly over any number of shards (the three-gap
theorem). A row's slot is a hash of (table, id). Both are pure and never change; a map only says
which contiguous range of slots each shard has, so N shards' snapshots restore onto M.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.hashing import mix64

NUM_SLOTS = 1024
_GOLDEN = (5**0.5 - 1) / 2
_NOT_UNIQUE, _FOREIGN = 1, 2
Ints = NDArray[np.int64]


@functools.cache
def _name_hash(kind: str, name: str) -> int:
    digest = hashlib.blake2b(f"{kind}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def chunk_slot(tensor: str, chunk: int, num_slots: int = NUM_SLOTS) -> int:
    """Return the slot of chunk number `chunk` of a dense tensor."""
    place = _name_hash("dense", tensor) / 2.0**64 + chunk * _GOLDEN
    return int((place % 1.0) * num_slots) % num_slots


def row_slots(table: str, ids: Ints, num_slots: int = NUM_SLOTS) -> Ints:
    """Return the slots of rows, one for each id."""
    key = np.uint64(_name_hash("table", table))
    hashes = mix64(ids.view(np.uint64) ^ key) >> np.uint64(33)
    return hashes.astype(np.int64) % num_slots


@dataclass(frozen=True)
class SlotMap:
    """A map that gives each shard its share of the slots.

    Slots [i * num_slots / num_shards, (i + 1) * num_slots / num_shards) are shard i's.
    """

    num_shards: int
    num_slots: int = NUM_SLOTS
    version: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.num_shards <= self.num_slots:
            raise ValueError(f"{self.num_shards} shards cannot share {self.num_slots} slots")

    def is_other(self, version: int) -> bool:
        """Tell whether a caller that names this version has another map than this; 0 names none."""
        return version != 0 and version != self.version

    def shard_of_slot(self, slot: int) -> int:
        return slot * self.num_shards // self.num_slots

    def _first_slot(self, shard: int) -> int:
        return -(-shard * self.num_slots // self.num_shards)

    def shard_of_chunk(self, tensor: str, chunk: int) -> int:
        return self.shard_of_slot(chunk_slot(tensor, chunk, self.num_slots))

    def shards_of_ids(self, table: str, ids: Ints) -> Ints:
        """Return the owner of each row: int64[n]."""
        if self.num_shards == 1:
            return np.zeros(len(ids), np.int64)
        return row_slots(table, ids, self.num_slots) * self.num_shards // self.num_slots

    def fault_of_ids(self, table: str, ids: Ints, index: int) -> str:
        """Return "" where all rows are shard `index`'s and none is named twice.

        Else what is wrong: "not unique" or "foreign".
        """
        bits = np.zeros(1 << max(1, (len(ids) // 4).bit_length()), np.uint64)  # 16 or more an id
        key, (first, end) = _name_hash("table", table), map(self._first_slot, (index, index + 1))
        fault = _kernels()[0](ids, key, self.num_slots, first, end, bits)
        return {_NOT_UNIQUE: "not unique", _FOREIGN: "foreign"}.get(fault, "")

    def partition(self, table: str, ids: Ints) -> tuple[Ints, Ints]:
        """Return the order int64[n] of the ids by shard, and bounds int64[num_shards + 1].

        ids[order[bounds[i] : bounds[i + 1]]] are shard i's, in the order in which they stand in
        `ids`.
        """
        if self.num_shards == 1:
            return np.arange(len(ids)), np.array([0, len(ids)])
        order = np.empty(len(ids), np.int64)
        bounds = np.zeros(self.num_shards + 1, np.int64)
        _kernels()[1](ids, _name_hash("table", table), self._owners, order, bounds)
        return order, bounds

    @functools.cached_property
    def _owners(self) -> Ints:
        """Return, by slot, its shard."""
        return np.arange(self.num_slots, dtype=np.int64) * self.num_shards // self.num_slots


@functools.cache
def _kernels() -> tuple[Callable[..., int], Callable[..., None]]:
    """Compile the kernels when first asked: the master imports this module without numba."""
    from numba import types

    from ...kernels.compile import INTEGER, INTS_1D, INTS_1D_IN, UINT64, compiled

    bits = types.Array(types.uint64, 1, "C")
    fault: Any = compiled(_fault, INTS_1D_IN, UINT64, *[INTEGER] * 3, bits)
    return fault, compiled(_partition, INTS_1D_IN, UINT64, INTS_1D, INTS_1D, INTS_1D)


# Compiled by numba, which sees one function at a time here: the slot's hash stands in both.


def _fault(ids, key, num_slots, first_slot, end_slot, bits):  # type: ignore[no-untyped-def]
    n, power_of_two = len(ids), (num_slots & (num_slots - 1)) == 0
    mask = np.uint64(64 * len(bits) - 1)
    place_of = np.empty(n, np.uint32)
    foreign = False
    for i in range(n):  # a loop of its own, of several ids at once: none depends on those before
        z = (np.uint64(ids[i]) ^ key) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        slot = np.int64(z >> np.uint64(33))
        slot = slot & (num_slots - 1) if power_of_two else slot % num_slots
        foreign |= (slot < first_slot) | (slot >= end_slot)
        place_of[i] = np.uint32(z & mask)
    if foreign:
        return _FOREIGN
    # Each id sets one bit; where it was set already the bit is suspect, and only the few ids of
    # suspect bits are compared. The bits stay in the cache, and nothing is hard to predict.
    suspects = np.empty(n + 1, np.uint32)
    count = np.int64(0)
    for i in range(n):
        place = suspects[count] = place_of[i]
        word, bit = np.int64(place >> np.uint32(6)), np.uint64(place & np.uint32(63))
        count += np.int64((bits[word] >> bit) & np.uint64(1))
        bits[word] |= np.uint64(1) << bit
    if count == 0:
        return 0
    bits[:] = 0
    for i in range(count):
        bits[suspects[i] >> 6] |= np.uint64(1) << np.uint64(suspects[i] & 63)
    count = np.int64(0)
    for i in range(n):
        suspects[count] = i
        count += np.int64((bits[place_of[i] >> 6] >> np.uint64(place_of[i] & 63)) & np.uint64(1))
    size = 16
    while size < 2 * count:
        size *= 2
    seen = np.zeros(size, np.uint32)
    for i in range(count):
        place = np.int64(place_of[suspects[i]]) & (size - 1)
        while seen[place] != 0:
            if ids[seen[place] - 1] == ids[suspects[i]]:
                return _NOT_UNIQUE
            place = (place + 1) & (size - 1)
        seen[place] = suspects[i] + 1
    return 0


def _partition(ids, key, owners, order, bounds):  # type: ignore[no-untyped-def]
    n, num_slots = len(ids), np.uint64(len(owners))
    power_of_two = (num_slots & (num_slots - np.uint64(1))) == 0
    owner_of = np.empty(n, np.int64)
    for i in range(n):
        z = (np.uint64(ids[i]) ^ key) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        slot = (z ^ (z >> np.uint64(31))) >> np.uint64(33)
        slot = slot & (num_slots - np.uint64(1)) if power_of_two else slot % num_slots
        owner = owners[slot]
        owner_of[i] = owner
        bounds[owner + 1] += 1
    for shard in range(1, len(bounds)):
        bounds[shard] += bounds[shard - 1]
    next_of = bounds.copy()
    for i in range(n):
        owner = owner_of[i]
        order[next_of[owner]] = i
        next_of[owner] += 1

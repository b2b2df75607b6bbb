"""The split of pushes and pulls by shard, as the slot map says, and the join of replies (pure)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ..common import rpc
from ..common.errors import EdlError
from ..nn.model_spec import CHUNK_ELEMENTS, ModelSpec
from .books.ledger import Span
from .books.slots import SlotMap
from .rows.passes import place_rows
from .wire.shard import Chunk, Floats, Ids, ShardPush

_PUSH_NBYTES = rpc.LARGEST_NBYTES - (1 << 20)  # less the envelope
Place = NDArray[np.int64] | slice  # where a shard's ids are among all


class Splitter:
    """The way to split by the slot map what is of this model.

    Raises ValueError where it is not.
    """

    def __init__(self, slot_map: SlotMap, spec: ModelSpec) -> None:
        self._slot_map = slot_map
        self._owners = {
            tensor.name: [
                self._slot_map.shard_of_chunk(tensor.name, chunk)
                for chunk in range(tensor.num_chunks)
            ]
            for tensor in spec.dense
        }
        self._dims = {table.name: table.dim for table in spec.tables}
        self._elements = {tensor.name: tensor.elements for tensor in spec.dense}

    def split_dense(self, dense: Mapping[str, Floats]) -> list[list[Chunk]]:
        """Return, by shard, its chunks of the tensors."""
        owned: list[list[Chunk]] = [[] for _ in range(self._slot_map.num_shards)]
        for tensor, values in dense.items():
            if tensor not in self._owners:
                _unknown("dense tensor", tensor, self._owners)
            flat = _flat(tensor, values)
            if flat.size != self._elements[tensor]:
                raise ValueError(
                    f"dense tensor {tensor!r} has {self._elements[tensor]} elements, "
                    f"not {flat.size}"
                )
            for number, owner in enumerate(self._owners[tensor]):
                first = number * CHUNK_ELEMENTS
                owned[owner].append((tensor, number, flat[first : first + CHUNK_ELEMENTS]))
        return owned

    def split_ids(self, table: str, ids: Ids) -> tuple[Ids, list[Place]]:
        """Return the ids, and by shard where its own are among them."""
        if table not in self._dims:
            _unknown("table", table, self._dims)
        ids = np.ascontiguousarray(ids, dtype=np.int64)
        if self._slot_map.num_shards == 1:
            return ids, [slice(None)]
        order, bounds = self._slot_map.partition(table, ids)
        return ids, [order[first:end] for first, end in itertools.pairwise(bounds)]

    def split_push(
        self,
        span: Span,
        versions: Sequence[int],
        dense: Mapping[str, Floats],
        tables: Mapping[str, tuple[Ids, Floats]],
        wire: str,
    ) -> list[ShardPush]:
        """Return, by shard, its part of a push, an empty one where there is nothing for it.

        `versions` by shard. `tables`: unique ids[n] and gradients float32[n, dim]. Raises EdlError
        where a part is larger than a message may be.
        """
        chunks = self.split_dense(dense)
        rows: list[dict[str, tuple[Ids, Floats]]] = [{} for _ in range(self._slot_map.num_shards)]
        for table, (ids, values) in tables.items():
            ids, places = self.split_ids(table, ids)
            if values.shape != (len(ids), self._dims[table]) or values.dtype != np.float32:
                raise ValueError(
                    f"gradients of table {table!r} are {values.dtype}{list(values.shape)}, "
                    f"not float32[{len(ids)}, {self._dims[table]}]"
                )
            for index, place in enumerate(places):
                if isinstance(place, slice):
                    rows[index] |= {table: (ids, values)} if len(ids) else {}
                elif len(place):
                    rows[index][table] = (ids.take(place), values.take(place, axis=0))
        sizes = []
        for index in range(self._slot_map.num_shards):
            nbytes = sum(values.nbytes for _, _, values in chunks[index])
            nbytes += sum(i.nbytes + v.nbytes for i, v in rows[index].values())
            if nbytes > _PUSH_NBYTES:
                raise EdlError(
                    f"the gradients of one minibatch for server {index} take {nbytes} bytes; "
                    f"a push may take {_PUSH_NBYTES}: use more servers (--num_ps) or a smaller "
                    "--minibatch_size"
                )
            sizes.append(nbytes)
        return [
            ShardPush(span, versions[index], chunks[index], rows[index], wire, nbytes=sizes[index])
            for index in range(self._slot_map.num_shards)
        ]

    def join_rows(
        self,
        table: str,
        count: int,
        places: Sequence[Place],
        parts: Sequence[Mapping[str, Floats]],
    ) -> Floats:
        """Return a table's rows float32[count, dim] in the order of the ids that were split."""
        if len(parts) == 1 and table in parts[0]:
            return parts[0][table]
        rows = np.empty((count, self._dims[table]), np.float32)
        for place, part in zip(places, parts, strict=True):
            if table in part and not isinstance(place, slice):
                place_rows(part[table], place, rows)
        return rows


def placing(dense: Mapping[str, Floats]) -> Callable[[str, int], Floats]:
    """Return the function that finds a chunk's values in these arrays, by tensor and number."""
    flat = {tensor: _flat(tensor, values) for tensor, values in dense.items()}

    def place(tensor: str, number: int) -> Floats:
        first = number * CHUNK_ELEMENTS
        return flat[tensor][first : first + CHUNK_ELEMENTS]

    return place


def land(chunks: Iterable[Chunk], into: Callable[[str, int], Floats]) -> set[str]:
    """Write the chunks that the carrier has not written already.

    Returns the tensors that changed.
    """
    changed = set[str]()
    for tensor, number, values in chunks:
        place = into(tensor, number)
        if not np.may_share_memory(place, values):
            place[:] = values
        changed.add(tensor)
    return changed


def in_batches(chunks: Sequence[Chunk], limit_nbytes: int) -> Iterable[list[Chunk]]:
    """Yield the chunks in runs of at most `limit_nbytes`; at least one run, maybe empty."""
    batch: list[Chunk] = []
    nbytes = 0
    for chunk in chunks:
        if batch and nbytes + chunk[2].nbytes > limit_nbytes:
            yield batch
            batch, nbytes = [], 0
        batch.append(chunk)
        nbytes += chunk[2].nbytes
    yield batch


def _flat(tensor: str, values: Floats) -> Floats:
    """Return the array as one run, without a copy (writes go through)."""
    if values.dtype != np.float32 or not values.flags.c_contiguous:
        raise ValueError(f"dense tensor {tensor!r} must be float32 and C-contiguous")
    return values.reshape(-1)


def _unknown(what: str, name: str, known: Iterable[str]) -> NoReturn:
    raise ValueError(f"unknown {what} {name!r}: the model has {', '.join(known) or 'none'}")

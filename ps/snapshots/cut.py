"""A pinned cut to files and back, onto any number of shards.

A shard writes pieces of bounded size (safetensors; the lock is held for one piece at a time):

    shard-I-of-N.dense-K       chunks: value, optimizer state, steps, changed
    shard-I-of-N.table-T-K     rows of table T: ids, weight, optimizer state, steps
    shard-I-of-N.sums-...      what the aggregation has summed and not stepped
    shard-I-of-N.json          the model, version, ledger, number of pushes that wait

Restoring, a shard reads all files and keeps what the slot map gives it. Everything that the next
step depends on is in them, so that step equals the uninterrupted run's bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray

from ...common.errors import CheckpointError
from ...common.foreign import must_be, parse
from ...common.pieces import Tensors, decode, encode
from ...common.places import Place, Where
from ...common.storage import FileRecord, Manifest, read_all, read_checked
from ...kernels.ids import sum_by_id
from ...nn.model_spec import CHUNK_ELEMENTS, ModelSpec
from ..books.aggregation import Update
from ..books.dense import Chunk, ChunkKey
from ..books.ledger import Entry
from ..books.parameters import Invalid, check_ids, check_spec
from ..books.slots import SlotMap
from ..books.state import ShardBooks
from ..books.store import Store
from ..rows.optimizers import Floats, Ints, Rules
from ..rows.table import RowBlock

# Of one file. Memory needed beside the store is about three of them; ten where files go to a URL.
PIECE_NBYTES = 64 << 20
_FLOAT32, _UINT16, _INT64 = np.dtype(np.float32), np.dtype(np.uint16), np.dtype(np.int64)
_NO_STEPS = np.zeros(1, np.int64)


# -- Writing


def write(store: Store, cut: str, directory: Where) -> tuple[list[FileRecord], int]:
    """Write this shard's part of a pinned cut, and return the files and the cut's version."""
    spec, books = store.pins.books(cut)
    place = Place(directory)
    shard = f"shard-{store.index:05d}-of-{store.slot_map.num_shards:05d}"
    found = pieces(
        spec, books, store.pins.chunks(cut), lambda table, most: store.pins.rows(cut, table, most)
    )
    records = place.write_all(
        (f"{shard}.{name}.safetensors", encode(tensors, about)) for name, tensors, about in found
    )
    return [*records, place.write(f"{shard}.json", _books_json(spec, books))], books.version


def _books_json(spec: ModelSpec, books: ShardBooks) -> bytes:
    return json.dumps(
        {
            "model": json.loads(spec.to_json()),
            "version": books.version,
            "low_water": books.low_water,
            "ledger": [[e.task, e.attempt, e.applied] for e in books.ledger],
            "pushes": books.pushes,
        }
    ).encode()


_BOOKS = {"version": int, "pushes": int, "low_water": int, "ledger": [(int, int, int)]}
Piece = tuple[str, Tensors, dict[str, Any]]  # name, tensors, what they are


def pieces(
    spec: ModelSpec,
    books: ShardBooks,
    chunks: Iterable[tuple[ChunkKey, Chunk]],
    rows: Callable[[str, int], Iterable[RowBlock]],
    *,
    values_only: bool = False,
) -> Iterator[Piece]:
    """Split a shard's state into pieces.

    `rows(table, n)`: a table's rows, in blocks of `n`. `values_only`: without the optimizer's
    state, and what waits for a step.
    """
    rules = Rules(spec.optimizer)
    for number, run in enumerate(_runs(chunks)):
        yield f"dense-{number:05d}", *_chunk_tensors(run, None if values_only else rules)
    for index, table in enumerate(spec.tables):
        states = [] if values_only else list(rules.of(table.name).state)
        row_nbytes = 4 * table.dim * (1 + len(states)) + 16
        for number, block in enumerate(rows(table.name, max(1, PIECE_NBYTES // row_nbytes))):
            tensors: Tensors = {"ids": block.ids, "weight": block.weight, "steps": block.steps}
            state = () if values_only else block.state
            tensors |= {f"state.{s}": v for s, v in zip(states, state, strict=True)}
            yield f"table-{index:03d}-{number:05d}", tensors, {"rows": table.name}
    if values_only:
        return
    sums = [(key, Chunk(v, [], _NO_STEPS, 0)) for key, v in books.sums.dense.items()]
    for number, run in enumerate(_runs(sums)):
        yield f"sums-dense-{number:05d}", *_chunk_tensors(run, None, "chunk_sums")
    for number, (name, (ids, total)) in enumerate(books.sums.rows.items()):
        yield f"sums-table-{number:03d}", {"ids": ids, "sum": total}, {"row_sums": name}


def _runs(chunks: Iterable[tuple[ChunkKey, Chunk]]) -> Iterator[list[tuple[ChunkKey, Chunk]]]:
    run: list[tuple[ChunkKey, Chunk]] = []
    nbytes = 0
    for key, chunk in chunks:
        size = chunk.value.nbytes * (1 + len(chunk.state))
        if run and nbytes + size > PIECE_NBYTES:
            yield run
            run, nbytes = [], 0
        run.append((key, chunk))
        nbytes += size
    if run:
        yield run


def _chunk_tensors(
    run: list[tuple[ChunkKey, Chunk]], rules: Rules | None, kind: str = "chunks"
) -> tuple[Tensors, dict[str, Any]]:
    tensors: Tensors = {}
    about = []
    for number, ((tensor, chunk_number), chunk) in enumerate(run):
        tensors[f"{number}.value"] = chunk.value
        states = list(rules.of(tensor).state) if rules else []
        for name, values in zip(states, chunk.state, strict=False):  # a buffer has none
            tensors[f"{number}.state.{name}"] = values
        about.append([tensor, chunk_number, int(chunk.steps[0]), chunk.changed])
    return tensors, {kind: about}


# -- Reading


def restore(store: Store, manifest: Manifest, *, new_job: bool, dense: bool = True) -> None:
    """Load what is this shard's of a checkpoint of any number of shards.

    new_job: without the ledger and the pushes that wait (see Restorer.begin). not dense: tables
    only.
    Raises CheckpointError where a file is damaged or the parts are not of one cut.
    """
    spec = spec_of(manifest.model, manifest.place)
    if not dense:
        spec = spec.of_servers
    parts = Parts(store.index, store.slot_map, spec)
    store.restorer.begin(spec, _merged_books(manifest), new_job=new_job)
    wanted = [
        record
        for record in manifest.files
        if record.name.endswith(".safetensors") and (dense or "dense-" not in record.name)
    ]
    for record, data in read_all(manifest, wanted):
        parts.load(store, data, store.restorer.insert_rows, manifest.place / record.name)
    if not new_job:
        store.restorer.set_sums(parts.sums())


def spec_of(model: dict[str, Any], where: Where) -> ModelSpec:
    """Return the model that a checkpoint or a snapshot names.

    Raises CheckpointError.
    """
    try:
        spec = ModelSpec.from_json(json.dumps(model))
        check_spec(spec)
    except (ValueError, Invalid) as error:
        raise CheckpointError(f"{where} has no model that servers can hold: {error}") from error
    return spec


def _merged_books(manifest: Manifest) -> ShardBooks:
    """Merge the books of all shards; they must be of one cut."""
    version = pushes = low_water = 0
    ledgers: list[dict[int, Entry]] = []
    for record in manifest.files:
        if not record.name.endswith(".json"):
            continue
        try:
            values = parse(read_checked(manifest, record))
            must_be(values, _BOOKS)
        except ValueError as error:
            path = manifest.place / record.name
            raise CheckpointError(f"{path} holds no books of a server: {error}") from error
        version, pushes = max((version, pushes), (values["version"], values["pushes"]))
        low_water = max(low_water, values["low_water"])
        ledgers.append({task: Entry(task, a, p) for task, a, p in values["ledger"]})
    if len(ledgers) != manifest.num_shards:
        raise CheckpointError(
            f"{manifest.place} names the books of {len(ledgers)} shards "
            f"instead of {manifest.num_shards}"
        )
    merged = []
    for task in sorted({task for ledger in ledgers for task in ledger if task >= low_water}):
        entries = [ledger.get(task, Entry(task, 0, 0)) for ledger in ledgers]
        positions = {e.applied for e in entries}
        if len(positions) > 1:
            raise CheckpointError(
                f"{manifest.place} is not one cut: its shards stand at the positions "
                f"{sorted(positions)} of task {task}"
            )
        merged.append(Entry(task, max(e.attempt for e in entries), positions.pop()))
    return ShardBooks(version, low_water, tuple(merged), pushes)


@dataclass
class Parts:
    """The parts of a cut that a slot map gives to one shard."""

    index: int
    slot_map: SlotMap
    spec: ModelSpec
    _rules: Rules = field(init=False)
    _dense_sums: dict[ChunkKey, Floats] = field(default_factory=dict)
    _row_sums: dict[str, list[tuple[Ints, Floats]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rules = Rules(self.spec.optimizer)

    def load(
        self,
        store: Store,
        data: bytes,
        insert_rows: Callable[[str, RowBlock], None],
        where: Where,
    ) -> None:
        """Put a file's part of this shard into the store; sums are gathered here.

        Raises CheckpointError where the file, whose checksum is right, is not what a server writes.
        """
        try:
            self._load(store, data, insert_rows)
        except (ValueError, KeyError, TypeError, safetensors.SafetensorError, Invalid) as error:
            what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise CheckpointError(f"{where} is no piece of a shard: {what}") from error

    def _load(
        self, store: Store, data: bytes, insert_rows: Callable[[str, RowBlock], None]
    ) -> None:
        tensors, about = decode(data)
        if "chunks" in about:
            for key, chunk in self.chunks(tensors, about["chunks"]):
                store.restorer.insert_chunk(key, chunk)
        elif "rows" in about:
            insert_rows(about["rows"], self.rows(tensors, about["rows"]))
        else:
            self.add_sums(tensors, about)

    def _is_mine(self, tensor: str, chunk: int) -> bool:
        return self.slot_map.shard_of_chunk(tensor, chunk) == self.index

    def chunks(self, tensors: Tensors, about: list[Any]) -> Iterator[tuple[ChunkKey, Chunk]]:
        must_be(about, [(str, int, int, int)], "chunks")
        for number, (tensor, chunk, steps, changed) in enumerate(about):
            if not self._is_mine(tensor, chunk):
                continue
            is_buffer, shape = self._chunk_shape(tensor, chunk)
            states = [] if is_buffer else self._rules.of(tensor).state
            names = [f"{number}.state.{name}" for name in states]
            state = [_array(tensors, name, _FLOAT32, shape).copy() for name in names]
            value = _array(tensors, f"{number}.value", _FLOAT32, shape).copy()
            yield (tensor, chunk), Chunk(value, state, np.full(1, steps, np.int64), changed)

    def _chunk_shape(self, tensor: str, chunk: int) -> tuple[bool, tuple[int]]:
        """Return whether the chunk is a buffer's, and its shape.

        Raises ValueError.
        """
        spec = next((each for each in self.spec.dense if each.name == tensor), None)
        if spec is None or chunk >= spec.num_chunks:
            raise ValueError(f"the model has no chunk {chunk} of {tensor!r}")
        elements = min(CHUNK_ELEMENTS, spec.elements - chunk * CHUNK_ELEMENTS)
        return spec.kind == "buffer", (elements,)

    def rows(self, tensors: Tensors, table: str) -> RowBlock:
        spec = next((each for each in self.spec.tables if each.name == table), None)
        if spec is None:
            raise ValueError(f"the model has no table {table!r}")
        ids = _array(tensors, "ids", _INT64, tensors["ids"].shape[:1])
        shape = len(ids), spec.dim
        dtype = _FLOAT32 if spec.dtype == "float32" else _UINT16
        weight = _array(tensors, "weight", dtype, shape)
        rule = self._rules.of(table)
        beside = len(ids), rule.width(spec.dim)
        state = tuple(_array(tensors, f"state.{name}", _FLOAT32, beside) for name in rule.state)
        steps = _array(tensors, "steps", _INT64, shape[:1])
        if len(steps) and steps.min() < 0:
            raise ValueError(f"a row of {table!r} has had {steps.min()} updates")
        block = RowBlock(ids, weight, state, steps)
        block = block.select(self.slot_map.shards_of_ids(table, ids) == self.index)
        check_ids(self.slot_map, self.index, table, block.ids)
        return block

    def add_sums(self, tensors: Tensors, about: dict[str, Any]) -> None:
        sums = about.get("chunk_sums", [])
        must_be(sums, [(str, int, int, int)], "chunk_sums")
        for number, (tensor, chunk, _, _) in enumerate(sums):
            if self._is_mine(tensor, chunk):
                _, shape = self._chunk_shape(tensor, chunk)
                value = _array(tensors, f"{number}.value", _FLOAT32, shape)
                self._dense_sums[tensor, chunk] = value.copy()
        if "row_sums" in about:
            table = about["row_sums"]
            dim = {each.name: each.dim for each in self.spec.tables}[table]
            ids = _array(tensors, "ids", _INT64, tensors["ids"].shape[:1])
            total = _array(tensors, "sum", _FLOAT32, (len(ids), dim))
            mine = self.slot_map.shards_of_ids(table, ids) == self.index
            self._row_sums.setdefault(table, []).append((ids[mine], total[mine]))

    def sums(self) -> Update:
        rows = {table: sum_by_id(parts) for table, parts in self._row_sums.items()}
        return Update(self._dense_sums, rows)


def _array(
    tensors: Tensors, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> NDArray[Any]:
    """Return a tensor of this type and shape: kernels work on it.

    Raises ValueError, KeyError.
    """
    found = tensors[name]
    if found.dtype != dtype or found.shape != shape:
        raise ValueError(f"{name} is {found.dtype}{list(found.shape)}, not {dtype}{list(shape)}")
    return found

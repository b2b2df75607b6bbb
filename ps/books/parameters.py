"""The parameters of one shard: chunks and tables under one model, and the checks of pushes.

Steps and reads may run at the same time, of any number of threads. What must see a whole state
(`pin`, `again`) is called by the store while no step is under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...common.errors import EdlError, NotPinned
from ...nn import model_spec
from ...nn.initializers import INITIALIZERS
from ...nn.model_spec import ModelSpec
from ..rows.optimizers import Floats, Ints, Rules
from ..rows.table import RowBlock, Table
from .aggregation import Update
from .dense import ChunkKey, Dense
from .slots import SlotMap

_DTYPES = ("float32", "bfloat16", "float16")
_ROUNDINGS = ("nearest", "stochastic")
_RUN = 1 << 20  # ids that are looked for in one go: 8 MiB of them
_FLOAT32 = np.dtype(np.float32)
_NEEDED = "values must be float32, in order and aligned"


class Invalid(EdlError):
    """A request that no shard can serve: the caller's mistake, named."""


@dataclass(slots=True)
class RowPlan:
    """Rows that are going to be read: row i of the answer is that of the i-th id asked for.

    `dtype` float32, or uint16: the bits of a table of 16-bit rows.
    """

    dim: int
    dtype: np.dtype[Any]
    _table: Table = field(repr=False)
    _ids: Ints = field(repr=False)
    _cut: str

    def gather(self, start: int, stop: int, out: np.ndarray[Any, Any]) -> None:
        """Write rows [start, stop) into `out`: `dtype`[stop - start, dim], C-contiguous.

        Raises NotPinned where the cut has been let go since.
        """
        try:
            self._table.gather(self._ids[start:stop], out, self._cut)
        except KeyError as error:
            raise NotPinned(f"cut {self._cut!r} was let go while it was read") from error

    def values(self) -> Floats:
        """Return all rows, float32[n, dim].

        Raises as `gather`.
        """
        try:
            return self._table.pull(self._ids, self._cut)
        except KeyError as error:
            raise NotPinned(f"cut {self._cut!r} was let go while it was read") from error


class Parameters:
    """The chunks and rows that shard `index` of a slot map owns of a model."""

    def __init__(self, spec: ModelSpec, slot_map: SlotMap, index: int) -> None:
        self.spec = spec
        self._slot_map = slot_map
        self._index = index
        self._rules = Rules(spec.optimizer)
        self.dense = Dense(spec, self._rules)
        self.tables = {t.name: Table(t, spec.seed, self._rules.of(t.name)) for t in spec.tables}
        self.awaited: dict[str, int] = {}  # by table: rows of the ids below this are on their way
        owner = slot_map.shard_of_chunk
        self._owned = {  # chunk: its elements
            (tensor.name, chunk): self.dense.elements((tensor.name, chunk))
            for tensor in spec.dense
            for chunk in range(tensor.num_chunks)
            if owner(tensor.name, chunk) == index
        }

    @property
    def complete(self) -> bool:
        """Tell whether every chunk has its first value, and every row that was given one."""
        return len(self.dense) == len(self._owned) and not self.awaited

    def make(self, chunks: Mapping[ChunkKey, Floats], version: int) -> None:
        """Make first values of chunks; what is there is left alone.

        Raises Invalid: none was made.
        """
        for key, values in chunks.items():
            self._check_chunk(key, values)
        for key, values in chunks.items():
            self.dense.make(key, values, version)

    def make_rows(self, rows: dict[str, tuple[Ints, Floats]]) -> None:
        """Make rows of these first values, by table; those that are there are left alone.

        Raises Invalid, or MemoryError where there may be no room: none was made.
        """
        self.check(Update({}, rows), ids_too=True)
        self.check_room((name, len(ids)) for name, (ids, _) in rows.items())
        for name, (ids, values) in rows.items():
            self.tables[name].make(ids, values)

    def await_rows(self, given: dict[str, int]) -> None:
        """Be not complete until the rows 0 to n - 1 of these tables are there. Raises Invalid."""
        for name in given:
            self._table(name)
        self.awaited = given

    def settle(self) -> None:
        """Await no longer the tables whose rows are all there."""
        self.awaited = {
            name: count for name, count in self.awaited.items() if not self._has_rows(name, count)
        }

    def _has_rows(self, name: str, count: int) -> bool:
        """Tell whether this shard has made all that are its own of the rows 0 to `count` - 1."""
        for start in range(0, count, _RUN):
            ids = np.arange(start, min(start + _RUN, count))
            order, bounds = self._slot_map.partition(name, ids)
            mine = ids[order[bounds[self._index] : bounds[self._index + 1]]]
            if not self.tables[name].has(mine):
                return False
        return True

    def missing(self) -> ChunkKey | None:
        """Return a chunk without a value, if there is one."""
        return next((key for key in self._owned if key not in self.dense), None)

    def again(self, spec: ModelSpec) -> Parameters:
        """Return the same values under a model of a new job.

        The optimizer's state is taken over too, where both have the same.
        """
        if (self.spec.dense, self.spec.tables) != (spec.dense, spec.tables):
            raise EdlError(difference(self.spec, spec))
        new = Parameters(spec, self._slot_map, self._index)

        def same(name: str) -> bool:
            return list(self._rules.of(name).state) == list(new._rules.of(name).state)

        for key, chunk in self.dense.changed_since(None):
            if same(key[0]) or self.dense.is_buffer(key[0]):
                new.dense.insert(key, chunk)
            else:
                new.dense.make(key, chunk.value, chunk.changed)
        for name, table in self.tables.items():
            new.tables[name].take_over(table, keep_state=same(name))
        return new

    def sizes(self) -> tuple[int, dict[str, int], int]:
        """Return dense bytes, rows by table, and bytes in all."""
        rows = {name: len(table) for name, table in self.tables.items()}
        nbytes = self.dense.nbytes
        return nbytes, rows, nbytes + sum(table.nbytes for table in self.tables.values())

    def check_room(self, rows: Iterable[tuple[str, int]]) -> None:
        """Raise MemoryError where a table may not have room for so many more rows.

        What several entries of one table ask for is added up.
        """
        more: dict[str, int] = {}
        for table, count in rows:
            more[table] = more.get(table, 0) + count
        for table, count in more.items():
            self.tables[table].check_room(count)

    def apply(self, update: Update, step: int, scale: float) -> None:
        """Make the optimizer's step number `step` (from 0), at its rate times `scale`."""
        if not (update.dense or update.rows):
            return

        def lr(name: str) -> float:
            return self._rules.rate(name, step) * scale

        if update.dense:
            self.dense.apply(update.dense, lr)
        for table, (ids, grads) in update.rows.items():
            self.tables[table].apply(ids, grads, lr(table))

    def plan_rows(self, name: str, ids: Ints, cut: str) -> RowPlan:
        """Plan to read the rows of `ids` as they are, or were at `cut`.

        Raises Invalid.
        """
        table = self._table(name)
        return RowPlan(table.spec.dim, table.wire_dtype, table, ids, cut)

    def pin(self, cut: str, *, mark: bool = False) -> None:
        self.dense.pin(cut)
        for table in self.tables.values():
            table.pin(cut, mark=mark)

    def unpin(self, cut: str) -> None:
        self.dense.unpin(cut)
        for table in self.tables.values():
            table.unpin(cut)

    def block(self, table: str, cut: str, start: int, stop: int) -> RowBlock | None:
        """Return rows [start, stop) as they were at `cut`; None: there are none.

        Raises KeyError.
        """
        if start >= self.tables[table].pinned_rows(cut):
            return None
        return self.tables[table].block(cut, start, stop)

    # -- Checks

    def check(self, update: Update, *, ids_too: bool) -> None:
        """Raise Invalid where the update cannot be applied.

        ids_too: also what takes a look at each id, see `check_rows`.
        """
        for key, values in update.dense.items():
            self._check_chunk(key, values)
        for name, (ids, grads) in update.rows.items():
            dim = self._table(name).spec.dim
            if grads.shape != (len(ids), dim):
                raise Invalid(
                    f"gradients of table {name!r} have shape {grads.shape}, not ({len(ids)}, {dim})"
                )
            if _is_odd(grads):
                raise Invalid(f"gradients of table {name!r}: {_NEEDED}, not {grads.dtype}")
            if ids_too:
                check_ids(self._slot_map, self._index, name, ids)

    def check_dim(self, name: str, dim: int) -> None:
        """Raise Invalid where the table is unknown or its rows are not of `dim` elements."""
        known = self._table(name).spec.dim
        if known != dim:
            raise Invalid(f"gradients of table {name!r} have {dim} elements a row, not {known}")

    def _table(self, name: str) -> Table:
        try:
            return self.tables[name]
        except KeyError:
            known = ", ".join(self.tables) or "none"
            raise Invalid(f"unknown table {name!r}: the model has {known}") from None

    def _check_chunk(self, key: ChunkKey, values: Floats) -> None:
        elements = self._owned.get(key)
        if elements is None:
            raise Invalid(f"chunk {key[1]} of tensor {key[0]!r} is none of server {self._index}'s")
        if len(values) != elements:
            raise Invalid(
                f"chunk {key[1]} of tensor {key[0]!r} has {elements} elements, not {len(values)}"
            )
        if _is_odd(values):
            raise Invalid(f"chunk {key[1]} of tensor {key[0]!r}: {_NEEDED}, not {values.dtype}")


def _is_odd(values: Floats) -> bool:
    """Tell whether an array is one that a kernel would refuse amid a step, where it is too late."""
    flags = values.flags
    return values.dtype != _FLOAT32 or not (flags.aligned and flags.c_contiguous)


def check_ids(slot_map: SlotMap, index: int, table: str, ids: Ints) -> None:
    """Raise Invalid where ids repeat or are not shard `index`'s."""
    match slot_map.fault_of_ids(table, ids, index):
        case "not unique":
            raise Invalid(f"ids of table {table!r} are not unique: sum gradients by id first")
        case "foreign":
            raise Invalid(f"some ids of table {table!r} live on another server")


def check_spec(spec: ModelSpec) -> None:
    """Raise Invalid for a table that cannot be made."""
    for table in spec.tables:
        if table.initializer not in INITIALIZERS or table.dim < 1:
            raise Invalid(
                f"table {table.name!r} has dim {table.dim} and initializer {table.initializer!r}: "
                f"dim must be positive, the initializer one of {', '.join(INITIALIZERS)}"
            )
        if table.dtype not in _DTYPES or table.rounding not in _ROUNDINGS:
            raise Invalid(
                f"table {table.name!r} has dtype {table.dtype!r} and rounding {table.rounding!r}: "
                f"the dtype must be one of {', '.join(_DTYPES)}, the rounding of "
                f"{', '.join(_ROUNDINGS)}"
            )


def difference(mine: ModelSpec, theirs: ModelSpec) -> str:
    """Return what a worker is told whose model is not the servers'."""
    return (
        "the servers hold another model than this worker's definition makes: "
        f"{model_spec.difference(theirs, mine)} (here: the definition, there: the servers); "
        "make it as it was, or start a new job"
    )

"""One shard: parameters, optimizer state, version and ledger under one lock.

A push is one critical section: ask the ledger, apply, advance (rules 1 and 2). The order of the
checks is: fenced, duplicate, gap, stale, held by a freeze, apply. Only the last changes anything
but an attempt, so every other answer may be given, and repeated, at any time.

A cut. `freeze` holds back pushes that would be applied; answers that apply nothing are still given.
`pin` lets through exactly the pushes that end at or before their task's target; when the ledger
covers all targets the state is pinned (copy on write) and pushes go on at once. A freeze ends by
itself at its deadline, and a pin that has not reached its targets by its own pins nothing: a
master that dies never stops training.

A step that fails half way (out of memory) leaves the shard torn for good: a repetition of the push
would apply its first half twice, and a cut would keep a half.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..common.errors import EdlError, Fenced
from ..nn import optimizers as specs
from ..nn.initializers import INITIALIZERS
from ..nn.model_spec import ModelSpec
from .aggregation import Aggregation, Policy, Update
from .dense import Chunk, ChunkKey, Dense
from .ledger import Entry, Ledger, Span, Verdict
from .optimizers import Floats, Ints, make_rule
from .slots import SlotMap
from .table import RowBlock, Table


class Invalid(EdlError):
    """A request that no shard can serve: the caller's mistake, named."""


class Outcome(enum.Enum):
    """What became of a push; the names are those of PushReply.Outcome."""

    APPLIED = enum.auto()
    DUPLICATE = enum.auto()
    FENCED = enum.auto()
    GAP = enum.auto()
    STALE = enum.auto()
    UNINITIALIZED = enum.auto()


_REFUSALS = {
    Verdict.DUPLICATE: Outcome.DUPLICATE,
    Verdict.FENCED: Outcome.FENCED,
    Verdict.GAP: Outcome.GAP,
}


@dataclass(frozen=True)
class Pushed:
    """`version` and `applied` are those after the push; `staleness` the versions it lagged."""

    outcome: Outcome
    version: int
    applied: int
    staleness: int = 0


@dataclass(frozen=True)
class Books:
    """All of a shard's state but the parameters themselves."""

    version: int = 0
    low_water: int = 0
    ledger: tuple[Entry, ...] = ()
    pushes: int = 0  # waiting in the aggregation
    sums: Update = field(default_factory=Update)  # of those


@dataclass
class _Freeze:
    cut: str
    deadline: float
    targets: Mapping[int, int] | None = None  # None: nothing passes

    def lets_through(self, span: Span) -> bool:
        return self.targets is not None and span.end <= self.targets.get(span.task, 0)


class Store:
    """The shard `index` of a slot map. Every public method may be called from any thread."""

    def __init__(
        self,
        *,
        index: int,
        slot_map: SlotMap,
        policy: Policy,
        on_version: Callable[[int], None] = lambda version: None,
    ) -> None:
        """`on_version` is called after each step, under the lock: it must only take note."""
        self.index = index
        self.slot_map = slot_map
        self._policy = policy
        self._on_version = on_version
        self._changed = threading.Condition()
        self._spec: ModelSpec | None = None
        self._spec_is_final = False
        self._dense_owned: frozenset[ChunkKey] = frozenset()
        self._version = 0
        self._ledger = Ledger()
        self._aggregation = Aggregation(policy)
        self._freeze: _Freeze | None = None
        self._cuts: dict[str, Books] = {}
        self._master_epoch = 0
        self._torn = False  # a step was begun and did not end
        self.counts = dict.fromkeys(Outcome, 0)

    # -- The model

    @property
    def spec(self) -> ModelSpec | None:
        return self._spec

    @property
    def version(self) -> int:
        return self._version

    @property
    def initialized(self) -> bool:
        """The model is known and every chunk of this shard has its first value."""
        return self._spec is not None and len(self._dense) == len(self._dense_owned)

    def init(self, spec: ModelSpec, chunks: Mapping[ChunkKey, Floats], complete: bool) -> int:
        """The model, and first values of chunks; what is there is left alone. The version."""
        with self._changed:
            _check_spec(spec)
            if self._spec is None:
                self._adopt(spec)
            elif not self._spec_is_final:
                self._readopt(spec)
            elif self._spec != spec:
                raise EdlError(_difference(self._spec, spec))
            self._spec_is_final = True
            for key, values in chunks.items():
                self._check_chunk(key, values)
            for key, values in chunks.items():
                self._dense.make(key, values, self._version)
            if complete and not self.initialized:
                missing = next(key for key in self._dense_owned if key not in self._dense)
                raise Invalid(f"init is said to be complete, but chunk {missing} has no value yet")
            return self._version

    def restore(self, spec: ModelSpec, books: Books, *, new_job: bool) -> None:
        """Begin from a snapshot's books; `insert_chunk` and `insert_rows` follow.

        new_job: the ledger and what waits in the aggregation belong to the old job and are left
        out, and the first Init may bring another optimizer or seed.
        """
        with self._changed:
            self._adopt(spec)
            self._spec_is_final = not new_job
            self._version = books.version
            if not new_job:
                self._ledger = Ledger(books.ledger, books.low_water)
                self._aggregation = Aggregation(self._policy, books.pushes)

    def restore_sums(self, sums: Update) -> None:
        """What waits in the aggregation, beside the number of pushes that `restore` was told."""
        with self._changed:
            self._aggregation = Aggregation(self._policy, self._aggregation.pushes, sums)

    def insert_chunk(self, key: ChunkKey, chunk: Chunk) -> None:
        with self._changed:
            self._dense.insert(key, chunk)

    def insert_rows(self, table: str, block: RowBlock) -> None:
        with self._changed:
            self._tables[table].insert(block)

    def _adopt(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._rule = make_rule(spec.optimizer)
        self._dense = Dense(spec, self._rule)
        self._tables = {t.name: Table(t, spec.seed, self._rule) for t in spec.tables}
        owner = self.slot_map.shard_of_chunk
        self._dense_owned = frozenset(
            (tensor.name, chunk)
            for tensor in spec.dense
            for chunk in range(tensor.num_chunks)
            if owner(tensor.name, chunk) == self.index
        )

    def _readopt(self, spec: ModelSpec) -> None:
        """A new job's model over a restored one: same tensors and tables, maybe another optimizer."""
        old = self._spec
        assert old is not None
        if (old.dense, old.tables) != (spec.dense, spec.tables):
            raise EdlError(_difference(old, spec))
        chunks, tables, rule = self._dense, self._tables, self._rule
        self._adopt(spec)
        same_state = list(rule.state) == list(self._rule.state)
        for key, chunk in chunks.changed_since(None):
            if same_state or chunks.is_buffer(key[0]):
                self._dense.insert(key, chunk)
            else:
                self._dense.make(key, chunk.value, chunk.changed)
        for name, table in tables.items():
            self._tables[name].take_over(table, keep_state=same_state)

    # -- Workers

    def pull(
        self,
        *,
        dense: bool,
        known_version: int | None,
        tables: Iterable[tuple[str, Ints]],
        cut: str = "",
    ) -> tuple[int, list[tuple[ChunkKey, bytes]], list[Floats]] | None:
        """The version, chunks changed since, rows by table; None: not initialized."""
        with self._changed:
            self._check_whole()
            if not self.initialized:
                return None
            if cut and cut not in self._cuts:
                raise Invalid(f"cut {cut!r} is not pinned on server {self.index}")
            version = self._cuts[cut].version if cut else self._version
            if known_version is not None and known_version > version:
                known_version = None  # the caller saw a server that is gone
            chunks = [
                (key, chunk.value.tobytes())
                for key, chunk in (self._dense.changed_since(known_version, cut) if dense else ())
            ]
            rows = [self._table(name).pull(ids, cut) for name, ids in tables]
            return version, chunks, rows

    def push(self, span: Span, version: int, update: Update) -> Pushed:
        """Apply a span's gradients exactly once. Raises Invalid, having changed nothing."""
        with self._changed:
            self._check_whole()
            if not self.initialized:
                return self._answer(Outcome.UNINITIALIZED, span)
            self._check(update)
            while True:
                verdict = self._ledger.offer(span)
                if verdict is not Verdict.APPLY:
                    return self._answer(_REFUSALS[verdict], span)
                if self._policy.is_stale(version, self._version):
                    return self._answer(Outcome.STALE, span)
                freeze = self._freeze
                if freeze is None or freeze.lets_through(span):
                    break
                self._wait_or_thaw(freeze)
            self._check_whole()  # again: another push may have failed while this one waited
            self._torn = True  # until the ledger has it, should anything fail on the way
            staleness = max(0, self._version - version)
            scale = self._policy.lr_scale(version, self._version)
            step = self._aggregation.add(update)
            if step is not None:
                self._step(step, scale)
            self._ledger.advance(span)
            self._torn = False
            if self._freeze is not None:
                self._changed.notify_all()
            return self._answer(Outcome.APPLIED, span, staleness)

    def _answer(self, outcome: Outcome, span: Span, staleness: int = 0) -> Pushed:
        self.counts[outcome] += 1
        return Pushed(outcome, self._version, self._ledger.applied(span.task), staleness)

    def _step(self, update: Update, scale: float) -> None:
        assert self._spec is not None
        lr = specs.learning_rate(self._spec.optimizer, self._version) * scale
        self._dense.apply(update.dense, lr, self._version + 1)
        for table, (ids, grads) in update.rows.items():
            self._tables[table].apply(ids, grads, lr)
        self._version += 1
        self._on_version(self._version)

    # -- The master

    def fence(self, attempts: Mapping[int, int], master_epoch: int) -> dict[int, int]:
        """Raise attempts; the positions applied. Retired tasks are missing from the answer."""
        with self._changed:
            if master_epoch < self._master_epoch:
                raise Fenced(
                    f"a master of epoch {self._master_epoch} has taken over: "
                    f"this one, of epoch {master_epoch}, must end"
                )
            self._master_epoch = master_epoch
            applied = {task: self._ledger.fence(task, a) for task, a in attempts.items()}
            self._changed.notify_all()
            return {task: position for task, position in applied.items() if position is not None}

    def retire(self, low_water: int) -> None:
        with self._changed:
            self._ledger.retire(low_water)

    def flush(self) -> tuple[int, int]:
        """Step with the pushes that wait. The version; how many waited."""
        with self._changed:
            waiting = self._aggregation.pushes
            self._check_whole()
            if waiting:
                self._torn = True
                self._step(self._aggregation.flush(), 1.0)
                self._torn = False
            return self._version, waiting

    def freeze(self, cut: str, timeout_s: float) -> tuple[tuple[Entry, ...], int]:
        """Hold back pushes for at most `timeout_s`. The ledger and the version."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._freeze is not None and self._freeze.cut != cut:
                self._wait_or_thaw(self._freeze)
            if cut not in self._cuts:
                self._freeze = _Freeze(cut, deadline)
            return self._ledger.entries(), self._version

    def pin(self, cut: str, targets: Mapping[int, int], timeout_s: float) -> tuple[bool, int]:
        """Pin the state at which the ledger is at `targets`. Whether it was reached; the version.

        A shard without a model, or one that this cut does not freeze (any more), pins nothing.
        """
        with self._changed:
            self._check_whole()
            freeze = self._freeze
            if freeze is not None and freeze.cut == cut:
                freeze.targets = targets
                freeze.deadline = time.monotonic() + timeout_s
                self._changed.notify_all()
                while self._freeze is freeze and not self._covers(targets):
                    self._wait_or_thaw(freeze)
                if self._freeze is freeze:
                    self._check_whole()
                    if self.initialized:
                        self._keep(cut)
                    self._thaw()
            if cut in self._cuts:  # also: a repeated call
                return True, self._cuts[cut].version
            return False, self._version

    def unpin(self, cut: str) -> None:
        with self._changed:
            self._cuts.pop(cut, None)
            if self._spec is not None:
                self._dense.unpin(cut)
                for table in self._tables.values():
                    table.unpin(cut)
            if self._freeze is not None and self._freeze.cut == cut:
                self._thaw()

    def _covers(self, targets: Mapping[int, int]) -> bool:
        return all(
            task < self._ledger.low_water or self._ledger.applied(task) >= position
            for task, position in targets.items()
        )

    def _keep(self, cut: str) -> None:
        self._cuts[cut] = Books(
            self._version,
            self._ledger.low_water,
            self._ledger.entries(),
            self._aggregation.pushes,
            self._aggregation.sums(),
        )
        self._dense.pin(cut)
        for table in self._tables.values():
            table.pin(cut)

    def _wait_or_thaw(self, freeze: _Freeze) -> None:
        """Wait for any change; let go of the freeze if its time is over."""
        left_s = freeze.deadline - time.monotonic()
        if left_s > 0:
            self._changed.wait(left_s)
        elif self._freeze is freeze:
            self._thaw()

    def _thaw(self) -> None:
        self._freeze = None
        self._changed.notify_all()

    # -- Snapshots and figures

    def cut_books(self, cut: str) -> tuple[ModelSpec, Books]:
        """The model and the books of a pinned cut."""
        with self._changed:
            if cut not in self._cuts:
                raise Invalid(f"cut {cut!r} is not pinned on server {self.index}")
            assert self._spec is not None  # nothing is pinned without a model
            return self._spec, self._cuts[cut]

    def cut_chunks(self, cut: str) -> list[tuple[ChunkKey, Chunk]]:
        """The chunks of a pinned cut; nobody writes to their arrays."""
        with self._changed:
            return list(self._dense.changed_since(None, cut))

    def cut_rows(self, cut: str, table: str, block_rows: int) -> Iterator[RowBlock]:
        """The rows of a pinned cut, in blocks; the lock is held for one block at a time."""
        start = 0
        while True:
            with self._changed:
                if cut not in self._cuts:
                    raise EdlError(f"cut {cut!r} was let go while it was read")
                if start >= self._tables[table].pinned_rows(cut):
                    return
                block = self._tables[table].block(cut, start, start + block_rows)
            yield block
            start += block_rows

    def sizes(self) -> tuple[int, dict[str, int], int]:
        """Dense bytes; rows by table; bytes in all."""
        with self._changed:
            if self._spec is None:
                return 0, {}, 0
            rows = {name: len(table) for name, table in self._tables.items()}
            dense = self._dense.nbytes
            return dense, rows, dense + sum(table.nbytes for table in self._tables.values())

    @property
    def ledger_tasks(self) -> int:
        return len(self._ledger)

    def ledger(self) -> tuple[Entry, ...]:
        with self._changed:
            return self._ledger.entries()

    # -- Checks

    def _check_whole(self) -> None:
        if self._torn:
            raise EdlError(
                f"server {self.index} failed in the midst of a step (see its log): what it holds "
                "is no longer exact, so it applies and keeps nothing more; go on from a checkpoint"
            )

    def _table(self, name: str) -> Table:
        try:
            return self._tables[name]
        except KeyError:
            known = ", ".join(self._tables) or "none"
            raise Invalid(f"unknown table {name!r}: the model has {known}") from None

    def _check(self, update: Update) -> None:
        for key, values in update.dense.items():
            self._check_chunk(key, values)
        for name, (ids, grads) in update.rows.items():
            dim = self._table(name).spec.dim
            if grads.shape != (len(ids), dim):
                raise Invalid(
                    f"gradients of table {name!r} have shape {grads.shape}, not ({len(ids)}, {dim})"
                )
            ordered = np.sort(ids)
            if (ordered[1:] == ordered[:-1]).any():
                raise Invalid(f"ids of table {name!r} are not unique: sum gradients by id first")
            if (self.slot_map.shards_of_ids(name, ids) != self.index).any():
                raise Invalid(f"some ids of table {name!r} live on another server")

    def _check_chunk(self, key: ChunkKey, values: Floats) -> None:
        if key not in self._dense_owned:
            raise Invalid(f"chunk {key[1]} of tensor {key[0]!r} is none of server {self.index}'s")
        if len(values) != self._dense.elements(key):
            raise Invalid(
                f"chunk {key[1]} of tensor {key[0]!r} has {self._dense.elements(key)} elements, "
                f"not {len(values)}"
            )


def _check_spec(spec: ModelSpec) -> None:
    for table in spec.tables:
        if table.initializer not in INITIALIZERS or table.dim < 1:
            raise Invalid(
                f"table {table.name!r} has dim {table.dim} and initializer {table.initializer!r}: "
                f"dim must be positive, the initializer one of {', '.join(INITIALIZERS)}"
            )


def _difference(mine: ModelSpec, theirs: ModelSpec) -> str:
    parts = [
        f"{part}: {getattr(mine, part)!r} here, {getattr(theirs, part)!r} there"
        for part in ("dense", "tables", "optimizer", "seed")
        if getattr(mine, part) != getattr(theirs, part)
    ]
    return "the servers hold another model than this worker's: " + "; ".join(parts)

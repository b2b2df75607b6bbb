"""One shard: parameters, version and ledger. Exactly once, in whole spans, also for many threads.

A push asks the ledger, applies, advances (rules 1 and 2). The order of the checks is: fenced,
never leased, duplicate, gap, stale, held by a freeze, apply. Only the last changes anything but an attempt, so
every other answer may be given, and repeated, at any time.

Pushes of an async job are applied at the same time, each a step:
- Under the lock the ledger lets the span through, and its task is *reserved*. Step number, learning
  rate and staleness are those that it would have if all steps begun so far had ended, so a run is
  what some order of its pushes, one by one, gives.
- Outside it the gradients are applied. Rows and chunks have locks of their own.
- Under the lock again the ledger advances, the version rises, the chunks written are marked with it.
Whoever needs the books and the values to agree waits for the reservation to end: another push of
the task and its fence for that of the task; freeze, pin and flush for all. Nothing of a step shows
in the version or in the ledger before all of it is there.

The pushes of a sync job are one critical section each: their order is their meaning. So are empty
ones (rule 1), since there is nothing to apply.

A cut. `freeze` holds back pushes that would be applied; answers that apply nothing are still given.
`pin` lets through exactly the pushes that end at or before their task's target; when the ledger
covers all targets the state is pinned (copy on write) and pushes go on at once. A freeze ends by
itself at its deadline, and a pin that has not reached its targets by its own pins nothing: a
master that dies never stops training. A master of a higher epoch ends what an older one has begun.

A recovery snapshot (recovery.py) needs no cut: `pin_moment` lets the steps under way end, pins, and
lets pushes go on at once.

A step that fails half way (out of memory) leaves the shard torn for good: a repetition of the push
would apply its first half twice, and a cut would keep a half. Steps that run beside it still end.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

from ...common.errors import EdlError, Fenced, NotPinned
from ...common.patience import Patience
from ...nn.model_spec import ModelSpec
from ..rows.optimizers import Floats, Ints
from ..rows.table import RowBlock
from .aggregation import Aggregation, Policy, Update
from .dense import Chunk, ChunkKey
from .ledger import Entry, Ledger, Span, Verdict
from .parameters import Invalid, Parameters, RowPlan, check_ids, check_spec, difference
from .slots import SlotMap
from .trace import TakenRows
from .view import Observer, StoreView

__all__ = [
    "Books",
    "Invalid",
    "NotYet",
    "Outcome",
    "PullPlan",
    "Pushed",
    "RowPlan",
    "Store",
    "span_of",
]


_Observer = TypeVar("_Observer", bound=Observer)
_WORD_S = 10.0  # for the master's word, which a heartbeat brings at once


class NotYet(EdlError):
    """It cannot be answered yet: ask again."""


class Outcome(enum.Enum):
    """What became of a push; the names are those of PushReply.Outcome."""

    APPLIED = enum.auto()
    DUPLICATE = enum.auto()
    FENCED = enum.auto()
    GAP = enum.auto()
    STALE = enum.auto()
    UNINITIALIZED = enum.auto()

    __hash__ = object.__hash__  # every push is counted: Enum's own costs as much as the lock


def span_of(task: int, attempt: int, start: int, end: int) -> Span:
    """The span that a caller names. Raises Invalid."""
    try:
        return Span(task, attempt, start, end)
    except ValueError as error:
        raise Invalid(str(error)) from error


_REFUSALS = {
    Verdict.DUPLICATE: Outcome.DUPLICATE,
    Verdict.FENCED: Outcome.FENCED,
    Verdict.GAP: Outcome.GAP,
}


class Pushed(NamedTuple):
    """`version` and `applied` are those after the push; `staleness` the versions it lagged.

    `part_of`: the version that has the push's gradients, or will have them once the other pushes of
    a sync version have come (`Store.wait_version(part_of - 1)` waits for it).
    """

    outcome: Outcome
    version: int
    applied: int
    part_of: int
    staleness: int = 0


@dataclass(slots=True)
class PullPlan:
    """What a pull answers, to be read after the call, without the store's lock.

    `chunks` are the live arrays, flat float32, to be sent as they are. A step that runs meanwhile
    may be half in them, and in rows that are gathered. It is newer than `version`, so what is
    computed on them is pushed as of a version before it: sync refuses that as stale, async does not
    mind, and the next pull that knows `version` gets these chunks again. Of a cut, chunks and rows
    never change.
    """

    version: int
    chunks: list[tuple[ChunkKey, Floats]]
    tables: list[RowPlan]


@dataclass(frozen=True)
class Books:
    """All of a shard's state but the parameters themselves."""

    version: int = 0
    low_water: int = 0
    ledger: tuple[Entry, ...] = ()
    pushes: int = 0  # waiting in the aggregation
    sums: Update = field(default_factory=Update)  # of those


@dataclass(frozen=True)
class Moment:
    """The state of a shard when it was pinned under `name`, beside no other shard."""

    name: str
    parameters: Parameters
    books: Books
    life: int  # of the parameters: a snapshot that builds on another needs the same


@dataclass
class _Freeze:
    cut: str
    deadline: float
    targets: Mapping[int, int] | None = None  # None: nothing passes

    def lets_through(self, span: Span) -> bool:
        return self.targets is not None and span.end <= self.targets.get(span.task, 0)


Traced = Callable[[Span | None, int, Update | None, int], None]  # trace.ShardTrace


class Store:
    """The shard `index` of a slot map. Every public method may be called from any thread."""

    def __init__(
        self,
        *,
        index: int,
        slot_map: SlotMap,
        policy: Policy,
        on_version: Callable[[int], None] = lambda version: None,
        trace: Traced | None = None,
    ) -> None:
        """`on_version` is called after each step, under the lock: it must only take note.

        `trace` is told, under the lock, what is going to be applied (trace.py). With it pushes are
        applied one at a time and pulls answered with copies of exactly their version.
        """
        self.index = index
        self.slot_map = slot_map
        self._policy = policy
        self._on_version = on_version
        self._trace = trace
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # For those of whom there may be one for each worker: each push would wake all of them.
        self._stepped = threading.Condition(self._lock)  # there is another version
        self._thawed = threading.Condition(self._lock)  # pushes that were held back may go on
        self._parameters: Parameters | None = None
        self._spec_is_final = False
        self._version = 0
        self._ledger = Ledger()
        self._ask: Callable[[], None] | None = None  # the master, which tasks there are
        self.asks = self._told = 0  # how often; up to which of these it has answered
        self._aggregation = Aggregation(policy)
        self._summed: set[int] = set()  # tasks with a span in the aggregation
        self._applying: dict[int, Update] = {}  # by task with a span reserved: it is being applied
        self._freeze: _Freeze | None = None
        self._cuts: dict[str, Books] = {}
        self._master_epoch = 0
        self._torn = False  # a step was begun and did not end
        self._pinning = False  # pushes wait until the steps under way have ended
        self._life = 0
        self._observers: dict[object, Observer] = {}  # by who made them
        self.counts = dict.fromkeys(Outcome, 0)

    # -- The model

    @property
    def spec(self) -> ModelSpec | None:
        return self._parameters.spec if self._parameters else None

    @property
    def version(self) -> int:
        """Steps made. Those under way do not count."""
        return self._version

    @property
    def initialized(self) -> bool:
        """The model is known and every chunk of this shard has its first value."""
        return self._parameters is not None and self._parameters.complete

    def watch(self, make: Callable[[StoreView], _Observer]) -> _Observer | None:
        """Return the observer that `make` made of what the store shows now, and make it where there
        is none yet. None: nothing is shown, for it is not initialized, or torn, or traced."""
        observer = self._observers.get(make)
        if observer is None and self._trace is None:
            with self._lock:
                observer = self._observers.get(make)
                if observer is None and self.initialized and not self._torn:
                    held = self._held()
                    chunks = dict(held.dense.changed_since(None))
                    version = self.slot_map.version
                    observer = make(StoreView(self._version, version, held.tables, chunks))
                    self._observers[make] = observer
        return cast(_Observer | None, observer)

    def _end_view(self) -> None:
        for observer in self._observers.values():
            observer.set_valid(False)
        self._observers = {}

    def init(self, spec: ModelSpec, chunks: Mapping[ChunkKey, Floats], complete: bool) -> int:
        """The model, and first values of chunks; what is there is left alone. The version."""
        check_spec(spec)
        made = None
        if self.spec != spec:  # its kernels may have to be compiled: nobody waits for the lock
            made = Parameters(spec, self.slot_map, self.index)
        with self._lock:
            self._await_steps(lambda: self._spec_is_final or not self._applying)
            if self._parameters is None:
                assert made is not None
                self._begin(made)
            elif not self._spec_is_final:
                self._begin(self._parameters.again(spec))
            elif self._parameters.spec != spec:
                raise EdlError(difference(self._parameters.spec, spec))
            self._spec_is_final = True
            parameters = self._held()
            parameters.make(chunks, self._version)
            if complete and (missing := parameters.missing()):
                raise Invalid(f"init is said to be complete, but chunk {missing} has no value yet")
            return self._version

    def restore(self, spec: ModelSpec, books: Books, *, new_job: bool) -> None:
        """Begin from a snapshot's books; `insert_chunk` and `insert_rows` follow.

        new_job: the ledger and what waits in the aggregation belong to the old job and are left
        out, and the first Init may bring another optimizer or seed.
        """
        with self._lock:
            self._begin(Parameters(spec, self.slot_map, self.index))
            self._spec_is_final = not new_job
            self._version = books.version
            if not new_job:
                self._ledger = self._ledger_of(books)
                self._aggregation = Aggregation(self._policy, books.pushes)

    def _begin(self, parameters: Parameters) -> None:
        self._end_view()
        self._parameters = parameters
        self._life += 1

    def restore_books(self, books: Books) -> None:
        """The books of a later snapshot, whose chunks and rows are there."""
        with self._lock:
            self._end_view()
            self._version = books.version
            self._ledger = self._ledger_of(books)
            self._aggregation = Aggregation(self._policy, books.pushes, books.sums)

    def _ledger_of(self, books: Books) -> Ledger:
        return Ledger(books.ledger, books.low_water, self._ledger.tasks_below)

    def restore_sums(self, sums: Update) -> None:
        """What waits in the aggregation, beside the number of pushes that `restore` was told."""
        with self._lock:
            self._aggregation = Aggregation(self._policy, self._aggregation.pushes, sums)

    def insert_chunk(self, key: ChunkKey, chunk: Chunk) -> None:
        with self._lock:
            self._end_view()
            self._held().dense.insert(key, chunk)

    def insert_rows(self, table: str, block: RowBlock) -> None:
        with self._lock:
            self._held().tables[table].insert(block)

    def put_rows(self, table: str, block: RowBlock) -> None:
        """As `insert_rows`, but in place of rows that are there."""
        with self._lock:
            self._held().tables[table].put(block)

    def _held(self) -> Parameters:
        assert self._parameters is not None, "the model is not known yet"
        return self._parameters

    # -- Workers

    def plan_pull(
        self,
        *,
        dense: bool,
        known_version: int | None,
        tables: Iterable[tuple[str, Ints]],
        cut: str = "",
    ) -> PullPlan | None:
        """The chunks that changed since `known_version`, and rows. None: not initialized."""
        with self._lock:
            self._check_whole()
            if self._parameters is None or not self._parameters.complete:
                return None
            version = self._cut(cut).version if cut else self._version
            if known_version is not None and known_version > version:
                known_version = None  # the caller saw a server that is gone
            asked = self._parameters.dense.changed_since(known_version, cut) if dense else ()
            plan = PullPlan(
                version,
                [(key, chunk.value) for key, chunk in asked],
                [self._parameters.plan_rows(name, ids, cut) for name, ids in tables],
            )
            if self._trace is not None:
                plan.chunks = [(key, values.copy()) for key, values in plan.chunks]
                plan.tables = [TakenRows(rows) for rows in plan.tables]
            return plan

    def pull(
        self,
        *,
        dense: bool,
        known_version: int | None,
        tables: Iterable[tuple[str, Ints]],
        cut: str = "",
    ) -> tuple[int, list[tuple[ChunkKey, bytes]], list[Floats]] | None:
        """The version, chunks changed since, rows by table: copies. None: not initialized."""
        plan = self.plan_pull(dense=dense, known_version=known_version, tables=tables, cut=cut)
        if plan is None:
            return None
        chunks = [(key, values.tobytes()) for key, values in plan.chunks]
        return plan.version, chunks, [rows.values() for rows in plan.tables]

    def check_rows(self, table: str, ids: Ints, dim: int) -> None:
        """May gradients of these rows be pushed here? Raises Invalid.

        For a push whose gradients are still on their way; `push(checked=True)` then leaves out what
        takes a look at each id. Needs no lock.
        """
        if self._parameters is not None:
            self._parameters.check_dim(table, dim)
        check_ids(self.slot_map, self.index, table, ids)

    def push(
        self,
        span: Span,
        version: int,
        update: Update,
        *,
        checked: bool = False,
        before_wait: Callable[[], None] = lambda: None,
    ) -> Pushed:
        """Apply a span's gradients exactly once.

        Raises Invalid, or MemoryError where a table may have no room for its rows, having changed
        nothing.

        checked: `check_rows` has passed each table's ids. Nothing of `update` is kept.
        `before_wait` is called where it has to wait for anything but this push.
        """
        parameters = self._parameters if self.initialized else None
        if parameters is not None:
            parameters.check(update, ids_too=not checked)
        with self._lock:
            if parameters is None:
                self._check_whole()
                return self._answer(Outcome.UNINITIALIZED, span)
            refused = self._wait_for_turn(span, version, before_wait)
            if refused is not None:
                return self._answer(refused, span)
            begun = self._version + len(self._applying)
            staleness = max(0, begun - version)
            scale = self._policy.lr_scale(version, begun)
            if not (self._concurrent and (update.dense or update.rows)):
                self._push_alone(span, version, update, scale)
                return self._answer(Outcome.APPLIED, span, staleness)
            parameters = self._held()
            if update.rows:  # those under way have made theirs, or will
                under_way = (more for u in self._applying.values() for more in u.row_counts())
                parameters.check_room([*under_way, *update.row_counts()])
            self._applying[span.task] = update
        whole = False
        try:
            parameters.apply(update, begun, scale)
            whole = True
        finally:
            with self._lock:
                del self._applying[span.task]
                if whole:
                    self._ledger.advance(span)
                    self._made(update)
                    self._changed.notify_all()
                else:
                    self._tear(True)
                    self._wake_all()
                pushed = self._answer(Outcome.APPLIED, span, staleness) if whole else None
        assert pushed is not None
        return pushed

    def lets_through(self, span: Span) -> bool:
        """Pushes are held back, but this one is not: a pin waits for it."""
        freeze = self._freeze
        return freeze is not None and freeze.lets_through(span)

    def wait_version(self, newer_than: int, timeout_s: float) -> int:
        """Wait until the version is above `newer_than`, or the time is over. The version."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            seen = self._version
            while self._version <= newer_than:
                self._check_whole()
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                self._stepped.wait(left_s)
                if self._version != seen:
                    seen = self._version
                    self._stepped.notify()  # the next one
            return self._version

    @property
    def _concurrent(self) -> bool:
        """Each push is a step of its own (pushes: of a checkpoint, which the next step takes)."""
        return self._policy.use_async and not self._aggregation.pushes and self._trace is None

    def _wait_for_turn(
        self, span: Span, version: int, before_wait: Callable[[], None]
    ) -> Outcome | None:
        """Until the span may be applied; the answer where it may not."""
        patience: Patience | None = None
        while True:
            self._check_whole()  # again after each wait: another push may have failed
            if span.task in self._applying:
                before_wait()
                patience = self._wait_for_step(patience)
                continue
            verdict = self._ledger.offer(span)
            if verdict is Verdict.UNLEASED:
                before_wait()
                self._must_be_leased(span)
                continue
            if verdict is not Verdict.APPLY:
                return _REFUSALS[verdict]
            if self._policy.is_stale(version, self._version + len(self._applying)):
                return Outcome.STALE
            freeze = self._freeze
            if freeze is not None and not freeze.lets_through(span):
                before_wait()
                self._wait_or_thaw(freeze, self._thawed)
            elif self._pinning or (self._applying and not self._concurrent):
                before_wait()
                patience = self._wait_for_step(patience)
            else:
                return None

    def _must_be_leased(self, span: Span) -> None:
        """Returns once the master has said that there is such a task.

        Raises Invalid where it has not leased this, NotYet where it says nothing.
        """
        if span.attempt == 1 or not self._told:
            self._hear_of(span.task)
        below = self._ledger.tasks_below
        if below is None:
            return
        if span.attempt > 1:
            raise Invalid(
                f"task {span.task} was never leased under attempt {span.attempt}: server "
                f"{self.index} has been told of no such attempt. Push under the lease's"
            )
        if span.task >= below:
            raise Invalid(f"there is no task {span.task}: the master has made those below {below}")

    def _hear_of(self, task: int) -> None:
        """Returns once the master has been asked since. Raises NotYet."""
        self.asks += 1
        mine, until = self.asks, time.monotonic() + _WORD_S
        if self._ask is not None:
            self._ask()
        while self._told < mine:
            if not self._changed.wait(max(0.0, until - time.monotonic())):
                raise NotYet(
                    f"server {self.index} has not heard from the master yet whether there is a task "
                    f"{task}: push again"
                )

    def _push_alone(self, span: Span, version: int, update: Update, scale: float) -> None:
        if update.rows:
            rows = [*self._aggregation.row_counts(), *update.row_counts()]
            self._held().check_room(rows)
        if self._trace is not None:
            self._trace(span, version, update, self._version)
        self._tear(True)  # until the ledger has it, should anything fail on the way
        step = self._aggregation.add(update)
        if step is None:
            self._summed.add(span.task)
        else:
            self._step(step, scale)
        self._ledger.advance(span)
        self._tear(False)
        self._changed.notify_all()

    def _step(self, update: Update, scale: float) -> None:
        self._held().apply(update, self._version, scale)
        self._made(update)

    def _made(self, update: Update) -> None:
        """A step has been made of all of `update`."""
        self._summed.clear()
        self._version += 1
        dense = self._held().dense
        if dense.moved:  # before a version is told that the view does not show
            dense.moved = False
            self._end_view()
        dense.mark(update.dense, self._version)
        for observer in self._observers.values():
            observer.step_made(update.dense, self._version)
        # One after the other: if a thousand woke at once they would all ask for the GIL. Each who sees
        # another version wakes the next, once, whether it is his or not, and if his time is over.
        self._stepped.notify()
        self._on_version(self._version)

    def _answer(self, outcome: Outcome, span: Span, staleness: int = 0) -> Pushed:
        self.counts[outcome] += 1
        part_of = self._version + (span.task in self._summed)
        return Pushed(outcome, self._version, self._ledger.applied(span.task), part_of, staleness)

    # -- The master

    def meet_master(self, epoch: int) -> None:
        """A master of this epoch calls. Raises Fenced where a later one has called before."""
        with self._lock:
            self._meet(epoch)

    def _meet(self, epoch: int) -> None:
        if epoch < self._master_epoch:
            raise Fenced(
                f"a master of epoch {self._master_epoch} has taken over: "
                f"this one, of epoch {epoch}, must end"
            )
        if 0 < self._master_epoch < epoch:  # nobody will let go of these
            for cut in list(self._cuts):
                self._drop(cut)
            if self._freeze is not None:
                self._thaw()
        self._master_epoch = epoch

    def fence(self, attempts: Mapping[int, int], master_epoch: int) -> dict[int, int]:
        """Raise attempts; the positions applied. Retired tasks are missing from the answer."""
        with self._lock:
            self._meet(master_epoch)
            for task, attempt in attempts.items():
                self._ledger.fence(task, attempt)  # at once: what is under way is the last
            self._wake_all()
            self._await_steps(lambda: self._applying.keys().isdisjoint(attempts))
            applied = {task: self._ledger.fence(task, a) for task, a in attempts.items()}
            return {task: position for task, position in applied.items() if position is not None}

    def expect_tasks(self, ask: Callable[[], None]) -> None:
        """From now on only spans of tasks that the master has made are applied.

        `ask` is called, under the lock, when it must be heard of a task: `tell_tasks` then follows.
        """
        with self._lock:
            self._ask, self._ledger.tasks_below = ask, 0

    def tell_tasks(self, below: int | None, asks: int) -> None:
        """The master has made the tasks below this; `asks`: what that was when it was asked."""
        with self._lock:
            self._ledger.tasks_below, self._told = below, max(self._told, asks)
            self._changed.notify_all()

    def retire(self, low_water: int) -> None:
        with self._lock:
            self._ledger.retire(low_water)

    def flush(self) -> tuple[int, int]:
        """Step with the pushes that wait. The version; how many waited."""
        with self._lock:
            self._await_steps(lambda: not self._applying)
            waiting = self._aggregation.pushes
            self._check_whole()
            if waiting:
                self._held().check_room(self._aggregation.row_counts())
                if self._trace is not None:
                    self._trace(None, self._version, None, self._version)
                self._tear(True)
                self._step(self._aggregation.flush(), 1.0)
                self._tear(False)
                self._changed.notify_all()
            return self._version, waiting

    def freeze(self, cut: str, timeout_s: float) -> tuple[tuple[Entry, ...], int]:
        """Hold back pushes for at most `timeout_s`. The ledger and the version."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while self._freeze is not None and self._freeze.cut != cut:
                self._wait_or_thaw(self._freeze, self._changed)
            freeze = _Freeze(cut, deadline)
            if cut not in self._cuts:
                self._freeze = freeze
            while self._freeze is freeze and self._applying:  # the ledger must not rise any more
                self._wait_or_thaw(freeze, self._changed)
            return self._ledger.entries(), self._version

    def pin(self, cut: str, targets: Mapping[int, int], timeout_s: float) -> tuple[bool, int]:
        """Pin the state at which the ledger is at `targets`. Whether it was reached; the version.

        A shard without a model, or one that this cut does not freeze (any more), pins nothing.
        """
        with self._lock:
            self._check_whole()
            freeze = self._freeze
            if freeze is not None and freeze.cut == cut:
                freeze.targets = targets
                freeze.deadline = time.monotonic() + timeout_s
                self._wake_all()
                while self._freeze is freeze and (self._applying or not self._covers(targets)):
                    self._wait_or_thaw(freeze, self._changed)
                if self._freeze is freeze:
                    self._check_whole()
                    if self._parameters is not None and self._parameters.complete:
                        self._keep(cut, self._parameters)
                    self._thaw()
            if cut in self._cuts:  # also: a repeated call
                return True, self._cuts[cut].version
            return False, self._version

    def unpin(self, cut: str) -> None:
        with self._lock:
            self._drop(cut)
            if self._frozen_by(cut):
                self._thaw()

    def _drop(self, cut: str) -> None:
        self._cuts.pop(cut, None)
        if self._parameters is not None:
            self._parameters.unpin(cut)

    def _covers(self, targets: Mapping[int, int]) -> bool:
        return all(
            task < self._ledger.low_water or self._ledger.applied(task) >= position
            for task, position in targets.items()
        )

    def _keep(self, cut: str, parameters: Parameters) -> None:
        self._cuts[cut] = self._books()
        parameters.pin(cut)

    def _books(self) -> Books:
        return Books(
            self._version,
            self._ledger.low_water,
            self._ledger.entries(),
            self._aggregation.pushes,
            self._aggregation.sums(),
        )

    def _frozen_by(self, cut: str) -> bool:
        return self._freeze is not None and self._freeze.cut == cut

    def _wait_or_thaw(self, freeze: _Freeze, changed: threading.Condition) -> None:
        """Wait for any change; let go of the freeze if its time is over."""
        left_s = freeze.deadline - time.monotonic()
        if left_s > 0:
            changed.wait(left_s)
        elif self._freeze is freeze:
            self._thaw()

    def _await_steps(self, over: Callable[[], bool]) -> None:
        """Until `over`: steps under way are waited for."""
        patience = None
        while not over():
            patience = self._wait_for_step(patience)

    def _wait_for_step(self, patience: Patience | None) -> Patience:
        """Wait for any change; for that step's next wait. Raises EdlError where a step does not end:
        this process can only end, to be replaced."""
        patience = patience or Patience(f"a step under way on server {self.index}")
        try:
            patience.wait(self._changed)
        except EdlError:
            self._tear(True)
            self._wake_all()
            raise
        return patience

    def _thaw(self) -> None:
        self._freeze = None
        self._wake_all()

    def _wake_all(self) -> None:
        for condition in (self._changed, self._stepped, self._thawed):
            condition.notify_all()

    # -- Snapshots and figures

    def _cut(self, cut: str) -> Books:
        if cut not in self._cuts:
            raise NotPinned(f"cut {cut!r} is not pinned on server {self.index}")
        return self._cuts[cut]

    def pin_moment(self, name: str, unless: Books | None = None) -> Moment | None:
        """Pin the state as it is. None: there is nothing yet, or the books are as in `unless`."""
        with self._lock:
            self._check_whole()
            self._pinning = True
            try:
                self._await_steps(lambda: not self._applying)
                self._check_whole()
                if self._parameters is None or not self._parameters.complete:
                    return None
                if unless is not None and self._is_at(unless):
                    return None
                moment = Moment(name, self._parameters, self._books(), self._life)
                self._parameters.pin(name, mark=True)
                return moment
            finally:
                self._pinning = False
                self._changed.notify_all()

    def _is_at(self, books: Books) -> bool:
        mine = self._version, self._ledger.low_water, self._aggregation.pushes
        return mine == (books.version, books.low_water, books.pushes) and (
            self._ledger.entries() == books.ledger
        )

    def unpin_moment(self, moment: Moment) -> None:
        with self._lock:
            moment.parameters.unpin(moment.name)

    def is_of_this_life(self, moment: Moment) -> bool:
        """The parameters are still those that were pinned, so that the pin has kept them."""
        return self._life == moment.life

    def cut_books(self, cut: str) -> tuple[ModelSpec, Books]:
        """The model and the books of a pinned cut."""
        with self._lock:
            books = self._cut(cut)
            return self._held().spec, books

    def cut_chunks(self, cut: str) -> list[tuple[ChunkKey, Chunk]]:
        """The chunks of a pinned cut; nobody writes to their arrays."""
        with self._lock:
            return list(self._held().dense.changed_since(None, cut))

    def cut_rows(self, cut: str, table: str, block_rows: int) -> Iterator[RowBlock]:
        """The rows of a pinned cut, in blocks."""
        start = 0
        while True:
            try:
                block = self._held().block(table, cut, start, start + block_rows)
            except KeyError as error:
                raise EdlError(f"cut {cut!r} was let go while it was read") from error
            if block is None:
                return
            yield block
            start += block_rows

    def sizes(self) -> tuple[int, dict[str, int], int]:
        """Dense bytes; rows by table; bytes in all."""
        with self._lock:
            if self._parameters is None:
                return 0, {}, 0
            tables = self._parameters.tables
            dense = self._parameters.dense.nbytes
            rows = {name: len(table) for name, table in tables.items()}
            return dense, rows, dense + sum(table.nbytes for table in tables.values())

    @property
    def torn(self) -> bool:
        """A step failed half way: this process can only end."""
        with self._lock:
            return self._torn

    @property
    def ledger_tasks(self) -> int:
        return len(self._ledger)

    def ledger(self) -> tuple[Entry, ...]:
        with self._lock:
            return self._ledger.entries()

    def _tear(self, torn: bool) -> None:
        self._torn = torn
        for observer in self._observers.values():
            observer.set_valid(not torn)

    def _check_whole(self) -> None:
        if self._torn:
            raise EdlError(
                f"server {self.index} failed in the midst of a step (see its log): what it holds "
                "is no longer exact, so it applies and keeps nothing more"
            )

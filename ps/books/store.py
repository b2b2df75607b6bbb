"""One shard: parameters, version and ledger, exactly once, in whole spans, for many threads.

A push asks the ledger, applies, advances (rules 1 and 2). The order of the checks is: fenced,
never leased, duplicate, gap, stale, held by a freeze, apply. Only the last changes anything but an
attempt, so every other answer may be given, and repeated, at any time.

Pushes of an async job are applied at the same time, each a step:
- Under the lock the ledger lets the span through, and its task is *reserved*. Step number, learning
  rate and staleness are those that it would have if all steps begun so far had ended, so a run is
  what some order of its pushes, one by one, gives.
- Outside it the gradients are applied. Rows and chunks have locks of their own.
- Under the lock again the ledger advances, the version rises, the chunks written are marked with
  it.
Whoever needs the books and the values to agree waits for the reservation to end: another push of
the task and its fence for that of the task; freeze, pin and flush for all. Nothing of a step shows
in the version or in the ledger before all of it is there.

The pushes of a sync job are one critical section each: their order is their meaning. So are empty
ones (rule 1), since there is nothing to apply.

Cuts, and moments for recovery snapshots, are in pins.py.

A step that fails half way (out of memory) leaves the shard torn for good: a repetition of the push
would apply its first half twice, and a cut would keep a half. Steps that run beside it still end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar, cast

from ...common.errors import EdlError
from ...common.patience import Patience
from ...nn.model_spec import ModelSpec
from ..rows.optimizers import Floats, Ints
from .aggregation import Policy, Update
from .answers import REFUSALS, Outcome, PullPlan, Pushed
from .dense import ChunkKey
from .leased import LeasedTasks
from .ledger import Entry, Span, Verdict
from .masters import Masters
from .parameters import Invalid, Parameters, check_ids, check_spec, difference
from .pins import Pins
from .restorer import Restorer
from .slots import SlotMap
from .state import ShardState
from .trace import TakenRows
from .view import Observer, StoreView

_Observer = TypeVar("_Observer", bound=Observer)
Traced = Callable[[Span | None, int, Update | None, int], None]  # trace.ShardTrace


class Store:
    """The shard `index` of a slot map.

    Every public method may be called from any thread.
    """

    def __init__(
        self,
        *,
        index: int,
        slot_map: SlotMap,
        policy: Policy,
        on_version: Callable[[int], None] = lambda _version: None,
        trace: Traced | None = None,
    ) -> None:
        """Make a shard without a model.

        `on_version` is called after each step, under the lock: it must only take note.
        `trace` is told, under the lock, what is going to be applied (trace.py). With it pushes are
        applied one at a time and pulls answered with copies of exactly their version.
        """
        self.index = index
        self.slot_map = slot_map
        self._policy = policy
        self._on_version = on_version
        self._trace = trace
        self._state = ShardState(index, slot_map, policy)
        self.pins = Pins(self._state)
        self.restorer = Restorer(self._state)
        self.leased = LeasedTasks(self._state)
        self.masters = Masters(self._state, self.pins)
        self._summed: set[int] = set()  # tasks with a span in the aggregation
        self.counts = dict.fromkeys(Outcome, 0)

    # -- The model

    @property
    def spec(self) -> ModelSpec | None:
        return self._state.parameters.spec if self._state.parameters else None

    @property
    def version(self) -> int:
        """Return the steps made, without those under way."""
        return self._state.version

    @property
    def initialized(self) -> bool:
        """Tell whether the model is known and every chunk of this shard has its first value."""
        parameters = self._state.parameters
        return parameters is not None and parameters.complete

    def watch(self, make: Callable[[StoreView], _Observer]) -> _Observer | None:
        """Return the observer that `make` made of what the store shows now.

        It is made where there is none yet. None: nothing is shown, for the store is not
        initialized, or torn, or traced.
        """
        state = self._state
        observer = state.observers.get(make)
        if observer is None and self._trace is None:
            with state.lock:
                observer = state.observers.get(make)
                if observer is None and self.initialized and not state.torn:
                    held = state.held()
                    chunks = dict(held.dense.changed_since(None))
                    version = self.slot_map.version
                    observer = make(StoreView(state.version, version, held.tables, chunks))
                    state.observers[make] = observer
        return cast(_Observer | None, observer)

    def init(
        self,
        spec: ModelSpec,
        chunks: Mapping[ChunkKey, Floats],
        complete: bool,
        rows: dict[str, tuple[Ints, Floats]] | None = None,
        rows_given: dict[str, int] | None = None,
    ) -> int:
        """Take the model, and first values of chunks and rows, and return the version.

        What is there is left alone. `rows_given`: the tables of which the rows 0 to n - 1 are given
        first values. A shard that begins with nothing is initialized once it has those that are
        its own.
        """
        state = self._state
        check_spec(spec)
        made = None
        if self.spec != spec:  # its kernels may have to be compiled: nobody waits for the lock
            made = Parameters(spec, self.slot_map, self.index)
        with state.lock:
            state.await_steps(lambda: state.spec_is_final or not state.applying)
            if state.parameters is None:
                assert made is not None
                made.await_rows(rows_given or {})
                state.begin(made)
            elif not state.spec_is_final:
                state.begin(state.parameters.again(spec))
            elif state.parameters.spec != spec:
                raise EdlError(difference(state.parameters.spec, spec))
            state.spec_is_final = True
            parameters = state.held()
            parameters.make(chunks, state.version)
            parameters.make_rows(rows or {})
            if complete and (missing := parameters.missing()):
                raise Invalid(f"init is said to be complete, but chunk {missing} has no value yet")
            if complete:
                parameters.settle()
            return state.version

    # -- Workers

    def plan_pull(
        self,
        *,
        dense: bool,
        known_version: int | None,
        tables: Iterable[tuple[str, Ints]],
        cut: str = "",
    ) -> PullPlan | None:
        """Return the chunks that changed since `known_version`, and rows.

        None: not initialized.
        """
        state = self._state
        with state.lock:
            state.check_whole()
            parameters = state.parameters
            if parameters is None or not parameters.complete:
                return None
            version = self.pins.pinned_as(cut).version if cut else state.version
            if known_version is not None and known_version > version:
                known_version = None  # the caller saw a server that is gone
            asked = parameters.dense.changed_since(known_version, cut) if dense else ()
            plan = PullPlan(
                version,
                [(key, chunk.value) for key, chunk in asked],
                [parameters.plan_rows(name, ids, cut) for name, ids in tables],
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
        """Return copies: the version, chunks changed since, rows by table.

        None: not initialized.
        """
        plan = self.plan_pull(dense=dense, known_version=known_version, tables=tables, cut=cut)
        if plan is None:
            return None
        chunks = [(key, values.tobytes()) for key, values in plan.chunks]
        return plan.version, chunks, [rows.values() for rows in plan.tables]

    def check_rows(self, table: str, ids: Ints, dim: int) -> None:
        """Check that gradients of these rows may be pushed here.

        Raises Invalid.

        For a push whose gradients are still on their way; `push(checked=True)` then leaves out what
        takes a look at each id. Needs no lock.
        """
        if self._state.parameters is not None:
            self._state.parameters.check_dim(table, dim)
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
        state = self._state
        parameters = state.parameters if self.initialized else None
        if parameters is not None:
            parameters.check(update, ids_too=not checked)
        with state.lock:
            if parameters is None:
                state.check_whole()
                return self._answer(Outcome.UNINITIALIZED, span)
            refused = self._wait_to_apply(span, version, before_wait)
            if refused is not None:
                return self._answer(refused, span)
            begun = state.version + len(state.applying)
            staleness = max(0, begun - version)
            scale = self._policy.lr_scale(version, begun)
            if not (self._concurrent and (update.dense or update.rows)):
                self._push_alone(span, version, update, scale)
                return self._answer(Outcome.APPLIED, span, staleness)
            parameters = state.held()
            if update.rows:  # those under way have made theirs, or will
                under_way = (more for u in state.applying.values() for more in u.row_counts())
                parameters.check_room([*under_way, *update.row_counts()])
            state.applying[span.task] = update
        whole = False
        try:
            parameters.apply(update, begun, scale)
            whole = True
        finally:
            with state.lock:
                del state.applying[span.task]
                if whole:
                    state.ledger.advance(span)
                    self._made(update)
                    state.changed.notify_all()
                else:
                    state.tear(True)
                    state.wake_all()
                pushed = self._answer(Outcome.APPLIED, span, staleness) if whole else None
        assert pushed is not None
        return pushed

    def lets_through(self, span: Span) -> bool:
        """Tell whether pushes are held back, but this one is not: a pin waits for it."""
        return self.pins.lets_through(span)

    def wait_version(self, newer_than: int, timeout_s: float) -> int:
        """Wait until the version is above `newer_than`, or the time is over, and return it."""
        with self._state.lock:
            return self._state.wait_version(newer_than, timeout_s)

    def flush(self) -> tuple[int, int]:
        """Step with the pushes that wait, and return the version and how many waited."""
        state = self._state
        with state.lock:
            state.await_steps(lambda: not state.applying)
            waiting = state.aggregation.pushes
            state.check_whole()
            if waiting:
                state.held().check_room(state.aggregation.row_counts())
                if self._trace is not None:
                    self._trace(None, state.version, None, state.version)
                state.tear(True)
                self._step(state.aggregation.flush(), 1.0)
                state.tear(False)
                state.changed.notify_all()
            return state.version, waiting

    @property
    def _concurrent(self) -> bool:
        """Tell whether each push is a step of its own.

        Not while there are pushes of a checkpoint, which the next step takes.
        """
        return self._policy.use_async and not self._state.aggregation.pushes and self._trace is None

    def _wait_to_apply(
        self, span: Span, version: int, before_wait: Callable[[], None]
    ) -> Outcome | None:
        """Wait until the span may be applied, or return the answer where it may not."""
        state = self._state
        patience: Patience | None = None
        while True:
            state.check_whole()  # again after each wait: another push may have failed
            if span.task in state.applying:
                before_wait()
                patience = state.wait_for_step(patience)
                continue
            verdict = state.ledger.offer(span)
            if verdict is Verdict.UNLEASED:
                before_wait()
                self.leased.must_be_leased(span)
                continue
            if verdict is not Verdict.APPLY:
                return REFUSALS[verdict]
            if self._policy.is_stale(version, state.version + len(state.applying)):
                return Outcome.STALE
            freeze = self.pins.frozen
            if freeze is not None and not freeze.lets_through(span):
                before_wait()
                self.pins.wait_or_thaw(freeze, state.thawed)
            elif state.pinning or (state.applying and not self._concurrent):
                before_wait()
                patience = state.wait_for_step(patience)
            else:
                return None

    def _push_alone(self, span: Span, version: int, update: Update, scale: float) -> None:
        state = self._state
        if update.rows:
            state.held().check_room([*state.aggregation.row_counts(), *update.row_counts()])
        if self._trace is not None:
            self._trace(span, version, update, state.version)
        state.tear(True)  # until the ledger has it, should anything fail on the way
        step = state.aggregation.add(update)
        if step is None:
            self._summed.add(span.task)
        else:
            self._step(step, scale)
        state.ledger.advance(span)
        state.tear(False)
        state.changed.notify_all()

    def _step(self, update: Update, scale: float) -> None:
        self._state.held().apply(update, self._state.version, scale)
        self._made(update)

    def _made(self, update: Update) -> None:
        """Note that a step has been made of all of `update`."""
        state = self._state
        self._summed.clear()
        state.version += 1
        dense = state.held().dense
        if dense.moved:  # before a version is told that the view does not show
            dense.moved = False
            state.end_view()
        dense.mark(update.dense, state.version)
        for observer in state.observers.values():
            observer.step_made(update.dense, state.version)
        # One after the other: if a thousand woke at once they would all ask for the GIL. Each who
        # sees another version wakes the next, once, whether it is his or not, and if his time is
        # over.
        state.stepped.notify()
        self._on_version(state.version)

    def _answer(self, outcome: Outcome, span: Span, staleness: int = 0) -> Pushed:
        state = self._state
        self.counts[outcome] += 1
        part_of = state.version + (span.task in self._summed)
        return Pushed(outcome, state.version, state.ledger.applied(span.task), part_of, staleness)

    # -- Snapshots and figures

    def sizes(self) -> tuple[int, dict[str, int], int]:
        """Return dense bytes, rows by table, and bytes in all."""
        with self._state.lock:
            parameters = self._state.parameters
            return parameters.sizes() if parameters else (0, {}, 0)

    @property
    def torn(self) -> bool:
        """Tell whether a step failed half way: this process can only end."""
        with self._state.lock:
            return self._state.torn

    @property
    def ledger_tasks(self) -> int:
        return len(self._state.ledger)

    def ledger(self) -> tuple[Entry, ...]:
        with self._state.lock:
            return self._state.ledger.entries()

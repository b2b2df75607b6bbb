"""The servers of a replay: a `Store` for each incarnation, moved along its recorded steps.

A shard keeps its state of every version that a minibatch was computed on, as a pin (copy on write),
until that minibatch has been computed again; so each may run ahead of the others. A replacement
begins as a copy of its parent at the snapshot's version; the parent goes on beside it, along the
steps that the loss of its process undid, since gradients computed on those may have been applied
elsewhere.
"""

from __future__ import annotations

import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..common import storage
from ..common.settings import JobSettings
from ..nn.model_spec import ModelSpec
from ..proto import ps_pb2 as pb
from ..ps.books.aggregation import Policy, Update
from ..ps.books.answers import Outcome
from ..ps.books.dense import ChunkKey
from ..ps.books.ledger import Span
from ..ps.books.slots import SlotMap
from ..ps.books.store import Store
from ..ps.client import Shard as Server
from ..ps.rows.optimizers import Floats, Ints
from ..ps.snapshots import cut as snapshot
from ..ps.wire.shard import ShardPull, ShardPulled, ShardPush, ShardPushed, Waiter
from ..ps.worker_client import PsClient, Pulled, PushOutcome, PushResult
from .recording import Step, Timeline

_NOW_S = 1.0  # nobody else holds anything here, so no wait is one


class Difference(Exception):
    """The error that the replay is not what was recorded: a sentence that says where."""


class Shard:
    """A server's incarnation, replayed."""

    def __init__(self, timeline: Timeline, settings: JobSettings) -> None:
        self.timeline = timeline
        self.reads = Counter[int]()  # by version: minibatches that are still to be computed on it
        self._next = 0
        self._waiting = 0  # pushes that have been applied and not stepped
        self._pinned: set[int] = set()
        self.store = Store(
            index=timeline.index,
            slot_map=SlotMap(settings.num_ps),
            policy=Policy.of(settings),
            trace=lambda _span, _on, _update, _version: None,  # one push at a time
        )
        self.begun = False

    def begin(
        self,
        spec: ModelSpec,
        first_values: Mapping[ChunkKey, Floats],
        first_rows: dict[str, tuple[Ints, Floats]],
    ) -> None:
        """Begin as the incarnation did, where that was not from a snapshot."""
        timeline = self.timeline
        if timeline.checkpoint:
            manifest = storage.load(timeline.checkpoint)
            snapshot.restore(self.store, manifest, new_job=timeline.new_job)
            first_rows = {}  # the checkpoint had them
        self._begin(spec, first_values, first_rows)

    def begin_from(self, parent: Shard, spec: ModelSpec) -> None:
        """Begin as the parent is now: at the state of the snapshot."""
        with tempfile.TemporaryDirectory() as folder:
            pin(parent.store, "snapshot")
            files, version = snapshot.write(parent.store, "snapshot", folder)
            parent.store.pins.unpin("snapshot")
            manifest = storage.write_manifest(
                folder, version=version, num_shards=1, num_slots=0, files=files
            )
            snapshot.restore(self.store, manifest, new_job=False)
        self._waiting = self.timeline.pushes
        self._begin(spec, {}, {})

    def _begin(
        self,
        spec: ModelSpec,
        first_values: Mapping[ChunkKey, Floats],
        first_rows: dict[str, tuple[Ints, Floats]],
    ) -> None:
        self.store.init(spec, {}, False)
        self.store.init(spec, first_values, True, first_rows)
        self.begun = True
        self._keep()

    @property
    def state(self) -> tuple[int, int]:
        """The version, and the pushes that wait for their step."""
        return self.store.version, self._waiting

    @property
    def next(self) -> Step | None:
        """The next step; None: all was replayed."""
        steps = self.timeline.steps
        return steps[self._next] if self.begun and self._next < len(steps) else None

    def has(self, version: int) -> bool:
        return version in self._pinned

    def apply(self, update: Update | None) -> None:
        """Make the next step. Raises Difference where it is not one any more."""
        step = self.next
        assert step is not None
        if step.version != self.store.version:
            raise Difference(
                f"{step.line}: {self.timeline.name} was at version {step.version} when it applied "
                f"this, and is at version {self.store.version} here"
            )
        if step.span is None or update is None:
            self.store.flush()
        else:
            pushed = self.store.push(step.span, step.on, update)
            if pushed.outcome is not Outcome.APPLIED:
                raise Difference(
                    f"{step.line}: {self.timeline.name} applied {step.span}, which is "
                    f"{pushed.outcome.name.lower()} here: it stands at {pushed.applied}"
                )
        self._next += 1
        self._waiting = 0 if self.store.version > step.version else self._waiting + 1
        self._keep()

    def _keep(self) -> None:
        version = self.store.version
        if self.reads[version] and version not in self._pinned:
            pin(self.store, cut_of(version))
            self._pinned.add(version)

    def forget(self, version: int) -> None:
        """Note that one minibatch less needs that version."""
        self.reads[version] -= 1
        if not self.reads[version] and version in self._pinned:
            self._pinned.remove(version)
            self.store.pins.unpin(cut_of(version))


def cut_of(version: int) -> str:
    return f"version {version}"


def pin(store: Store, cut: str) -> None:
    """Pin a store's state of now under this name."""
    store.pins.freeze(cut, _NOW_S)
    pinned, _ = store.pins.pin(cut, {}, _NOW_S)
    assert pinned, "the model is not known yet"


class Connection:
    """A connection that pulls as of a recorded version, from the shard that served it."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.shard: Shard | None = None
        self.version = 0

    def start_pull(self, pull: ShardPull, _timeout_s: float) -> Waiter[ShardPulled]:
        assert self.shard is not None
        plan = self.shard.store.plan_pull(
            dense=pull.dense,
            known_version=None,
            tables=pull.tables.items(),
            cut=cut_of(self.version),
        )
        assert plan is not None
        chunks = [(tensor, number, values) for (tensor, number), values in plan.chunks]
        tables = zip(pull.tables, plan.tables, strict=True)
        rows = {table: read.values() for table, read in tables}
        pulled = ShardPulled(pb.PullReply.OK, plan.version, chunks, rows)
        return lambda: pulled

    def start_push(self, push: ShardPush, timeout_s: float) -> Waiter[ShardPushed]:
        raise NotImplementedError("gradients are collected, not pushed")

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class LocalPs(PsClient):
    """The servers of a trainer that replays: recorded versions, and `updates` by shard."""

    def __init__(self, num_shards: int, spec: ModelSpec) -> None:
        self._connections: list[Connection] = []
        super().__init__([""] * num_shards, spec, token="replay")
        self._pulls: deque[list[tuple[Shard, int]]] = deque()
        self.updates: list[Update] = []

    def at(self, pulls: Iterable[list[tuple[Shard, int]]]) -> None:
        """Have the pulls that come see these: by server, the incarnation and its version."""
        self._pulls = deque(pulls)

    def agree(
        self, spec: ModelSpec, *, rows_given: Mapping[str, int] = {}, timeout_s: float
    ) -> None:
        """Do nothing: all shards here are told the model when they begin."""

    def pull(self, tables: Mapping[str, Any], **how: Any) -> Pulled:
        if not self._pulls:
            raise Difference("the model pulls tables more often than it did")
        for connection, seen in zip(self._connections, self._pulls.popleft(), strict=True):
            connection.shard, connection.version = seen
        return super().pull(tables, **how)

    def push(self, span: Span, versions: Sequence[int], **what: Any) -> PushResult:
        pushes = self.splitter.split_push(span, versions, what["dense"], what["tables"], "float32")
        self.updates = [
            Update({(t, n): v for t, n, v in push.dense}, dict(push.tables)) for push in pushes
        ]
        return PushResult(PushOutcome.APPLIED, tuple(versions))

    def first_chunks(self, values: Mapping[str, Floats]) -> list[dict[ChunkKey, Floats]]:
        """Return by shard: its chunks of the model's first values."""
        return [{(t, n): v for t, n, v in chunks} for chunks in self.splitter.split_dense(values)]

    def first_rows(self, rows: Mapping[str, Floats]) -> list[dict[str, tuple[Ints, Floats]]]:
        """Return by shard: its own of the rows 0 to n - 1 of tables, with their first values."""
        owned: list[dict[str, tuple[Ints, Floats]]] = [{} for _ in range(self.num_shards)]
        for table, values in rows.items():
            ids, places = self.splitter.split_ids(table, np.arange(len(values)))
            for mine, place in zip(owned, places, strict=True):
                mine[table] = ids[place], values[place]
        return owned

    def connection_to(self, _shard: Server, index: int, _address: str) -> Connection:
        self._connections.append(Connection(index))
        return self._connections[-1]

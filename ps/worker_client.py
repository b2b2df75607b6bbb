"""The workers' calls of the parameter servers: agree on the model, init, pull, push.

Tensors are split into chunks and ids into shards by the slot map (splitting.py), sent to all shards
at once, and gathered. A push goes to *every* shard, with an empty body where it has nothing for one
(rule 1), as one atomic message per shard. Every call may be repeated (client.py).
"""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..common.errors import PeerError
from ..common.identity import Identity, job_identity
from ..nn.model_spec import ModelSpec
from ..proto import ps_pb2 as pb
from .books.ledger import Span
from .books.slots import SlotMap
from .client import Find, Shard, Shards, open_shard
from .cuts import Cut, Cuts
from .splitting import Splitter, in_batches, land, placing
from .wire.auto import AutoConnection
from .wire.grpc import GrpcShardConnection, chunk_message, rows_message
from .wire.shard import (
    Floats,
    Ids,
    ShardConnection,
    ShardPull,
    ShardPulled,
    ShardPushed,
    Waiter,
)

_INIT_NBYTES = 32 << 20  # of one Init message; far below rpc.LARGEST_NBYTES


class PushOutcome(enum.Enum):
    """The end of a push over all shards; the worst of them decides, in this order."""

    FENCED = "fenced"  # the lease is void on some shard: give the task up
    UNINITIALIZED = "uninitialized"  # init, then push again
    GAP = "gap"  # rewind to `position`
    STALE = "stale"  # pull, compute again, push again: shards that applied it answer duplicate
    APPLIED = "applied"  # every shard applied it, now or before


@dataclass(frozen=True)
class PushResult:
    """The answers of all shards to a push.

    `position`: for a gap, the least position that a shard expects. `versions`: by shard.

    `pulled`: the dense values of `versions` have been written to where the push wanted them;
    `changed` are those that were. `servers_version`: the answers are those of these servers or of
    newer ones. `nbytes`: of what was pushed, by shard.
    """

    outcome: PushOutcome
    versions: tuple[int, ...]
    position: int | None = None
    pulled: bool = False
    changed: frozenset[str] = frozenset()
    servers_version: int = 0
    nbytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pulled:
    """The answers of all shards to a pull.

    `versions` by shard: hand them to `push`. `rows[table]` is float32[n, dim] in input order.
    """

    initialized: bool
    versions: tuple[int, ...]
    rows: Mapping[str, Floats]
    changed: frozenset[str]  # dense tensors that were written to
    addresses: tuple[str, ...] = ()  # of the servers that answered

    @property
    def version(self) -> int:
        """Return the version of the model: the least of the shards'."""
        return min(self.versions)


@dataclass
class _Shard(Shard):
    connection: ShardConnection
    known_version: int | None = None  # of the chunks that the caller's arrays hold

    def close(self) -> None:
        super().close()  # first: whoever asks it where the connection leads stops waiting
        self.connection.close()


class PsClient:
    """A worker's client of all shards of a job.

    Calls may run in threads, but only one dense `pull` of the present at a time: it remembers
    which versions of the chunks its caller's arrays hold.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        spec: ModelSpec,
        *,
        token: str,
        transport: str = "auto",
        identity: Identity | None = None,
        servers_version: int = 1,
        find: Find | None = None,
    ) -> None:
        """Open the shards.

        `spec`: the model of which is pulled and pushed.

        `addresses` are those of `servers_version`. `find(version, wait_s)` answers where the
        servers are now, held up to `wait_s` for a version newer than this one: it is asked while a
        server does not answer.

        `transport`: how pulls and pushes travel: "auto" (shared memory on the same host, else
        TCP), "shm", "unix", "tcp" or "grpc". `identity` is by default that of this process.
        """
        self.slot_map = SlotMap(len(addresses))
        self.splitter = Splitter(self.slot_map, spec)
        self._token = token
        self._identity = identity or job_identity(token)
        self._transport = transport
        self._shards = Shards(
            dict(enumerate(addresses)), self._open, servers_version=servers_version, find=find
        )
        self._cuts = Cuts(self._shards)

    @property
    def num_shards(self) -> int:
        return self.slot_map.num_shards

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._shards.addresses

    @property
    def servers_version(self) -> int:
        """Return the version of the map of servers that calls follow."""
        return self._shards.servers_version

    def update(self, addresses: Sequence[str], version: int) -> None:
        """Follow servers that were replaced (see `Shards.update`)."""
        self._shards.update(addresses, version)

    def close(self) -> None:
        """Give up all calls that run: they raise Unreachable."""
        self._shards.close()

    def agree(
        self, spec: ModelSpec, *, rows_given: Mapping[str, int] = {}, timeout_s: float
    ) -> None:
        """Tell every shard the model, without values.

        `rows_given`: the tables whose rows 0 to n - 1 `init` gives first values. Raises EdlError
        where a shard has another model.

        Every worker does so once: a worker whose definition builds another model must not push.
        """
        self.splitter = Splitter(self.slot_map, spec)
        request = pb.InitRequest(model_json=spec.to_json(), rows_given=rows_given)
        self._shards.call_all("Init", request, timeout_s)

    def init(
        self,
        spec: ModelSpec,
        dense: Mapping[str, Floats],
        rows: Mapping[str, Floats] | None = None,
        *,
        timeout_s: float,
    ) -> tuple[int, ...]:
        """Tell every shard the model and the first values of its chunks, and of rows.

        `rows`: by table those of the ids 0 to n - 1, float32[n, dim]; the others are made as the
        model says. Returns the shards' versions.

        The first caller wins; repeating it changes nothing. Raises EdlError where the servers
        were told another model. `timeout_s` bounds the wait for each run of rows, and for all of
        the chunks.
        """
        self.splitter = Splitter(self.slot_map, spec)
        model_json = spec.to_json()
        given = {table: len(values) for table, values in (rows or {}).items()}
        for table, values in (rows or {}).items():
            for requests in self._rows_told(model_json, given, table, values):
                self._shards.call("Init", requests, time.monotonic() + timeout_s)
        deadline = time.monotonic() + timeout_s
        owned = self.splitter.split_dense(dense)
        batches = [list(in_batches(chunks, _INIT_NBYTES)) for chunks in owned]
        versions = [0] * self.num_shards
        for number in range(max(len(b) for b in batches)):
            requests = {
                index: pb.InitRequest(
                    model_json=model_json,
                    chunks=[chunk_message(chunk) for chunk in mine[number]],
                    complete=number == len(mine) - 1,
                    rows_given=given,
                )
                for index, mine in enumerate(batches)
                if number < len(mine)
            }
            for index, reply in self._shards.call("Init", requests, deadline).items():
                versions[index] = reply.version
        return tuple(versions)

    def _rows_told(
        self, model_json: str, given: Mapping[str, int], table: str, values: Floats
    ) -> Iterator[dict[int, pb.InitRequest]]:
        """Yield, by shard, what tells it its part of a run of a table's rows."""
        run = max(1, _INIT_NBYTES // (values[:1].nbytes + 8))
        for start in range(0, len(values), run):
            part = values[start : start + run]
            ids, places = self.splitter.split_ids(table, np.arange(start, start + len(part)))
            yield {
                index: pb.InitRequest(
                    model_json=model_json,
                    rows_given=given,
                    tables=[rows_message(table, ids[place], part[place])],
                )
                for index, place in enumerate(places)
                if len(ids[place])
            }

    def pull(
        self,
        tables: Mapping[str, Ids],
        *,
        dense: Mapping[str, Floats] | None = None,
        cut: str = "",
        full: bool = False,
        timeout_s: float,
    ) -> Pulled:
        """Pull rows of tables by unique ids, and dense tensors into the given arrays.

        `dense` maps each tensor to a C-contiguous float32 array of its size; None: rows only.
        Only chunks that changed since the last dense pull are sent, so hand over the same arrays
        each time, or say full=True. A pull of a `cut` always sends all. Nothing is written and
        `initialized` is False where a shard has not been told the model yet.
        """
        deadline = time.monotonic() + timeout_s
        parts = {table: self.splitter.split_ids(table, ids) for table, ids in tables.items()}
        everything = full or bool(cut)
        into = placing(dense) if dense is not None else None

        asked: dict[int, _Shard] = {}  # `update` may replace one meanwhile

        def begin(shard: _Shard, index: int, left_s: float) -> Waiter[ShardPulled]:
            asked[index] = shard
            mine = {t: ids[places[index]] for t, (ids, places) in parts.items()}
            request = ShardPull(
                dense is not None,
                None if everything else shard.known_version,
                {t: ids for t, ids in mine.items() if len(ids)},
                cut,
                into,
            )
            return shard.connection.start_pull(request, left_s)

        replies = self._shards.ask(begin, deadline)
        self._refuse_moved(r.outcome == pb.PullReply.MOVED for r in replies)
        versions = tuple(reply.version for reply in replies)
        if any(reply.outcome == pb.PullReply.UNINITIALIZED for reply in replies):
            return Pulled(False, versions, {}, frozenset())
        changed = set[str]()
        for index, reply in enumerate(replies):
            if into is None:
                break
            changed |= land(reply.dense, into)
            if not cut:
                asked[index].known_version = reply.version
        rows = {
            table: self.splitter.join_rows(table, len(ids), places, [r.tables for r in replies])
            for table, (ids, places) in parts.items()
        }
        answered = tuple(asked[index].address for index in range(self.num_shards))
        return Pulled(True, versions, rows, frozenset(changed), answered)

    def push(
        self,
        span: Span,
        versions: Sequence[int],
        *,
        dense: Mapping[str, Floats] | None = None,
        tables: Mapping[str, tuple[Ids, Floats]] | None = None,
        wire: str = "float32",
        dense_into: Mapping[str, Floats] | None = None,
        shards: Iterable[int] | None = None,
        timeout_s: float,
    ) -> PushResult:
        """Apply the gradients of one span on every shard, or on these, exactly once.

        `versions` are those of the pull that the gradients were computed on; `tables` maps a table
        to (unique ids[n], gradients[n, dim]). Buffers' changes travel in `dense`. `wire`: how
        gradients travel (ps/wire/quantize.py). Raises Unreachable at the deadline: push the same
        span again, later or under a new attempt.

        `dense_into`: the arrays of the dense `pull`. Where all shards applied the span they get
        the values of the version that it is part of (or a later one) in the same round trip: see
        PushResult.pulled.
        """
        deadline = time.monotonic() + timeout_s
        servers_version = self._shards.servers_version
        pushes = self.splitter.split_push(span, versions, dense or {}, tables or {}, wire)
        into = placing(dense_into) if dense_into is not None else None

        asked: dict[int, _Shard] = {}

        def begin(shard: _Shard, index: int, left_s: float) -> Waiter[ShardPushed]:
            asked[index] = shard
            push = pushes[index]
            if into is not None:
                then = ShardPull(True, shard.known_version, into=into)
                push = dataclasses.replace(push, then=then)
            return shard.connection.start_push(push, left_s)

        replies = self._shards.ask(begin, deadline, shards)
        self._refuse_moved(r.outcome == pb.PushReply.MOVED for r in replies)
        result = _summary(replies, servers_version, [push.nbytes for push in pushes])
        if into is None:
            return result
        changed = set[str]()
        for index, reply in enumerate(replies):
            changed |= land(reply.dense, into)
            if reply.pulled:
                asked[index].known_version = reply.version
        pulled = all(reply.pulled for reply in replies)
        return dataclasses.replace(result, pulled=pulled, changed=frozenset(changed))

    # -- A hybrid group's cut, taken while it trains nothing

    def take_cut(self, cut: str, *, hold_s: float, timeout_s: float) -> Cut | None:
        """Pin one state of all shards (see `Cuts.take`)."""
        return self._cuts.take(cut, hold_s=hold_s, timeout_s=timeout_s)

    def unpin(self, cut: str, *, timeout_s: float) -> None:
        """Forget the cut."""
        self._cuts.unpin(cut, timeout_s=timeout_s)

    # -- One shard

    def connection_to(self, shard: Shard, index: int, address: str) -> ShardConnection:
        """Return the carrier of a shard's pulls and pushes.

        A replay has its own.
        """
        version = self.slot_map.version
        if self._transport == "grpc":
            return GrpcShardConnection(shard.stub, version)
        return AutoConnection(address, shard.stub, self._identity, version, self._transport, index)

    def _open(self, index: int, address: str) -> _Shard:
        shard = open_shard(index, address, self._token, self._identity)
        connection = self.connection_to(shard, index, address)
        return _Shard(address, shard.channel, shard.stub, connection)

    def _refuse_moved(self, moved: Iterable[bool]) -> None:
        if any(moved):
            raise PeerError(
                f"the servers do not use slot map version {self.slot_map.version}: "
                "ask the master for the servers again"
            )


def _summary(
    replies: Sequence[ShardPushed], servers_version: int, nbytes: Sequence[int]
) -> PushResult:
    versions = tuple(reply.version for reply in replies)
    outcomes = {reply.outcome for reply in replies}
    position = None
    if pb.PushReply.FENCED in outcomes:
        outcome = PushOutcome.FENCED
    elif pb.PushReply.UNINITIALIZED in outcomes:
        outcome = PushOutcome.UNINITIALIZED
    elif pb.PushReply.GAP in outcomes:
        outcome = PushOutcome.GAP
        position = min(r.applied for r in replies if r.outcome == pb.PushReply.GAP)
    elif pb.PushReply.STALE in outcomes:
        outcome = PushOutcome.STALE
    else:
        outcome = PushOutcome.APPLIED
    return PushResult(
        outcome, versions, position, servers_version=servers_version, nbytes=tuple(nbytes)
    )

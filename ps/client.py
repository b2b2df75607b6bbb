"""The other end of the parameter servers: what workers and the master call.

`PsClient` cuts tensors into chunks and ids into shards by the slot map, sends to all shards, then
gathers. Every call is idempotent (a push by the ledger), so an unreachable shard is asked again
until the caller's deadline, and only that shard. A push goes to *every* shard, with an empty body
where it has nothing for one (rule 1), as one atomic message per shard.

`ShardConnection` (shard.py) is the seam of pull and push, in plain arrays: one contract, two carriers, the
tensor plane and plain gRPC. All other calls are control and stay gRPC.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import numpy as np
from numpy.typing import NDArray

from ..common import rpc, unreliable
from ..common.errors import EdlError, PeerError, Unreachable
from ..common.identity import Identity, job_identity
from ..common.listen import host_of
from ..nn.model_spec import CHUNK_ELEMENTS, ModelSpec
from ..proto import ps_pb2 as pb
from ..proto import ps_pb2_grpc
from .books.ledger import Entry, Span
from .books.slots import SlotMap
from .wire.shard import (
    Chunk,
    Floats,
    Ids,
    Reply,
    ShardConnection,
    ShardPull,
    ShardPulled,
    ShardPush,
    ShardPushed,
    Waiter,
)

__all__ = [
    "Cut",
    "Entry",
    "GrpcShardConnection",
    "PsClient",
    "Pulled",
    "PushOutcome",
    "PushResult",
    "ShardConnection",
    "ShardPull",
    "ShardPulled",
    "ShardPush",
    "ShardPushed",
    "SlotMap",
    "Span",
]

_INIT_NBYTES = 32 << 20  # of one Init message; far below rpc.LARGEST_NBYTES
_PUSH_NBYTES = rpc.LARGEST_NBYTES - (1 << 20)  # less the envelope
_FIRST_BACKOFF_S = 0.05
_LAST_BACKOFF_S = 1.0


class GrpcShardConnection:
    """Pull and push over gRPC: slow, plain, and readable from any language.

    Gradients travel as float32, and a push brings no pull back.
    """

    def __init__(self, stub: ps_pb2_grpc.ParameterServerStub, slot_map_version: int) -> None:
        self._stub = stub
        self._slot_map_version = slot_map_version

    def start_pull(self, pull: ShardPull, timeout_s: float) -> Waiter[ShardPulled]:
        request = pb.PullRequest(
            dense=pull.dense,
            known_version=pull.known_version,
            tables=[pb.Rows(table=t, ids=ids.tobytes()) for t, ids in pull.tables.items()],
            cut=pull.cut,
            slot_map_version=self._slot_map_version,
        )
        wait = start(self._stub.Pull, request, timeout_s)

        def pulled() -> ShardPulled:
            reply = wait()
            return ShardPulled(
                reply.outcome,
                reply.version,
                [(c.tensor, c.chunk, np.frombuffer(c.data, np.float32)) for c in reply.dense],
                {
                    rows.table: np.frombuffer(rows.values, np.float32).reshape(
                        len(pull.tables[rows.table]), -1
                    )
                    for rows in reply.tables
                    if len(pull.tables[rows.table])
                },
            )

        return pulled

    def start_push(self, push: ShardPush, timeout_s: float) -> Waiter[ShardPushed]:
        request = pb.PushRequest(
            span=pb.Span(
                task=push.span.task,
                attempt=push.span.attempt,
                start=push.span.start,
                end=push.span.end,
            ),
            version=push.version,
            dense=[_chunk_message(chunk) for chunk in push.dense],
            tables=[
                pb.Rows(table=table, ids=ids.tobytes(), values=values.tobytes())
                for table, (ids, values) in push.tables.items()
            ],
            slot_map_version=self._slot_map_version,
        )
        wait = start(self._stub.Push, request, timeout_s)

        def pushed() -> ShardPushed:
            reply = wait()
            return ShardPushed(reply.outcome, reply.version, reply.applied)

        return pushed

    def close(self) -> None:
        """The channel belongs to the client."""


class AutoConnection:
    """Pull and push over the tensor plane, wherever the server says that it listens.

    It is asked at the first call, and again after a call that did not get through. A server
    without a tensor plane is spoken to over gRPC.
    """

    def __init__(
        self,
        address: str,
        stub: ps_pb2_grpc.ParameterServerStub,
        identity: Identity,
        slot_map_version: int,
        transport: str,
        shard: int,
    ) -> None:
        self._shard = shard
        self._host = host_of(address)
        self._stub = stub
        self._identity = identity
        self._slot_map_version = slot_map_version
        self._transport = transport
        self._lock = threading.Lock()
        self._plane: pb.PlaneReply | None = None
        self._connection: ShardConnection | None = None
        self._doubtful = True

    def start_pull(self, pull: ShardPull, timeout_s: float) -> Waiter[ShardPulled]:
        return self._start(lambda connection: connection.start_pull(pull, timeout_s), timeout_s)

    def start_push(self, push: ShardPush, timeout_s: float) -> Waiter[ShardPushed]:
        return self._start(lambda connection: connection.start_push(push, timeout_s), timeout_s)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def _start(
        self, begin: Callable[[ShardConnection], Waiter[Reply]], timeout_s: float
    ) -> Waiter[Reply]:
        try:
            wait = begin(self._there(timeout_s))
        except Unreachable:
            self._doubtful = True
            raise

        def gathered() -> Reply:
            try:
                return wait()
            except Unreachable:
                self._doubtful = True
                raise

        return gathered

    def _there(self, timeout_s: float) -> ShardConnection:
        with self._lock:
            if self._connection is None or self._doubtful:
                plane = rpc.call(self._stub.Plane, pb.PlaneRequest(), timeout_s)
                if self._connection is None or plane != self._plane:
                    if self._connection is not None:
                        self._connection.close()
                    self._connection = self._open(plane)
                    self._plane = plane
                self._doubtful = False
            return self._connection

    def _open(self, plane: pb.PlaneReply) -> ShardConnection:
        if not plane.tcp_port:
            return GrpcShardConnection(self._stub, self._slot_map_version)
        # The master, which never pulls, does without the kernels that this brings.
        from .wire.connection import PlaneEndpoint, PlaneShardConnection

        connection = PlaneShardConnection(
            PlaneEndpoint(self._host, plane.tcp_port, plane.unix_name, plane.host_id, self._shard),
            self._identity,
            self._slot_map_version,
            transport=self._transport,
        )
        return _UnreliableConnection(connection) if unreliable.armed else connection


class _UnreliableConnection:
    """A tensor plane over the network that EDL_NET describes (common/unreliable.py)."""

    def __init__(self, connection: ShardConnection) -> None:
        self._connection = connection

    def start_pull(self, pull: ShardPull, timeout_s: float) -> Waiter[ShardPulled]:
        return self._start("Pull", lambda: self._connection.start_pull(pull, timeout_s))

    def start_push(self, push: ShardPush, timeout_s: float) -> Waiter[ShardPushed]:
        return self._start("Push", lambda: self._connection.start_push(push, timeout_s))

    def close(self) -> None:
        self._connection.close()

    def _start(self, method: str, begin: Callable[[], Waiter[Reply]]) -> Waiter[Reply]:
        wait = unreliable.start("ps", method, begin)

        def gathered() -> Reply:
            try:
                return wait()
            except unreliable.Lost as error:
                raise rpc.translate(error) from error

        return gathered


def start(method: Any, request: Any, timeout_s: float) -> Waiter[Any]:
    """Send an RPC now; the waiter gathers its reply."""
    future = method.future(request, timeout=timeout_s)

    def wait() -> Any:
        try:
            return future.result()
        except grpc.RpcError as error:
            raise rpc.translate(error) from error
        except grpc.FutureCancelledError as error:
            raise Unreachable("CANCELLED: the connection was closed") from error
        except ValueError as error:  # the channel was closed meanwhile: its server was replaced
            raise Unreachable(f"the connection was closed: {error}") from error

    return wait


def _chunk_message(chunk: Chunk) -> pb.DenseChunk:
    tensor, number, values = chunk
    return pb.DenseChunk(tensor=tensor, chunk=number, data=values.tobytes())


# -- What callers get


class PushOutcome(enum.Enum):
    """How a push ended over all shards; the worst of them decides, in this order."""

    FENCED = "fenced"  # the lease is void on some shard: give the task up
    UNINITIALIZED = "uninitialized"  # init, then push again
    GAP = "gap"  # rewind to `position`
    STALE = "stale"  # pull, compute again, push again: shards that applied it answer duplicate
    APPLIED = "applied"  # every shard applied it, now or before


@dataclass(frozen=True)
class PushResult:
    """`position`: for a gap, the least position that a shard expects. `versions`: by shard.

    `pulled`: the dense values of `versions` have been written to where the push wanted them;
    `changed` are those that were. `servers_version`: the answers are those of these servers or of
    newer ones.
    """

    outcome: PushOutcome
    versions: tuple[int, ...]
    position: int | None = None
    pulled: bool = False
    changed: frozenset[str] = frozenset()
    servers_version: int = 0


@dataclass(frozen=True)
class Pulled:
    """`versions` by shard: hand them to `push`. `rows[table]` is float32[n, dim] in input order."""

    initialized: bool
    versions: tuple[int, ...]
    rows: Mapping[str, Floats]
    changed: frozenset[str]  # dense tensors that were written to
    addresses: tuple[str, ...] = ()  # of the servers that answered

    @property
    def version(self) -> int:
        """The version of the model: the least of the shards'."""
        return min(self.versions)


@dataclass(frozen=True)
class Cut:
    """One state of all shards, pinned under `name`: readable and writable to storage."""

    name: str
    version: int
    ledger: tuple[Entry, ...]


# -- All shards


class PsClient:
    """All shards of a job, as one.

    Calls may run in threads, but only one dense `pull` of the present at a time: it remembers
    which versions of the chunks its caller's arrays hold.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        token: str,
        spec: ModelSpec | None = None,
        slot_map: SlotMap | None = None,
        transport: str = "auto",
        identity: Identity | None = None,
        first_shard: int = 0,
        servers_version: int = 1,
        find: Callable[[int, float], tuple[Sequence[str], int]] | None = None,
        master_epoch: int | None = None,
    ) -> None:
        """`spec` is needed to pull and push; the master's calls do without.

        `addresses` are those of `servers_version`. `find(version, wait_s)` answers where the
        servers are now, held up to `wait_s` for a version newer than this one: it is asked while a
        server does not answer.

        `transport`: how pulls and pushes travel: "auto" (shared memory on the same host, else
        TCP), "shm", "unix", "tcp" or "grpc". `identity` is by default that of this process.
        `master_epoch`: of the master that calls. `first_shard`: of the first address; the others
        follow.
        """
        self.slot_map = slot_map or SlotMap(len(addresses))
        if self.slot_map.num_shards != len(addresses):
            raise ValueError(f"{len(addresses)} addresses for {self.slot_map.num_shards} shards")
        self._token = token
        self._identity = identity or job_identity(token)
        self._transport = transport
        self.servers_version = servers_version
        self._find = find
        self._master_epoch = master_epoch
        self._updating = threading.Lock()
        self._first_shard = first_shard
        self._shards = [self._open(index, address) for index, address in enumerate(addresses)]
        self._closed = threading.Event()
        self.uneven: dict[int, tuple[int, ...]] = {}
        self._spec: ModelSpec | None = None
        if spec:
            self._use(spec)

    @property
    def num_shards(self) -> int:
        return self.slot_map.num_shards

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(shard.address for shard in self._shards)

    def update(self, addresses: Sequence[str], version: int) -> None:
        """Servers that were replaced have new addresses, by a newer version of the map of servers.

        What was known of their chunks is void, and calls that run at the old ones are made again.
        An older version changes nothing.
        """
        if len(addresses) != self.num_shards:
            raise ValueError(f"{len(addresses)} addresses for {self.num_shards} shards")
        with self._updating:
            if version <= self.servers_version:
                return
            for index, address in enumerate(addresses):
                if self._shards[index].address != address:
                    replaced, self._shards[index] = self._shards[index], self._open(index, address)
                    replaced.close()
            self.servers_version = version  # last: a push that begins before may ask an old one

    def close(self) -> None:
        """Give up all calls that run: they raise Unreachable."""
        self._closed.set()
        for shard in self._shards:
            shard.close()

    # -- The worker's calls

    def agree(self, spec: ModelSpec, *, timeout_s: float) -> None:
        """Tell every shard the model, without values. Raises EdlError where it has another one.

        Every worker does so once: a worker whose definition builds another model must not push.
        """
        self._use(spec)
        request = pb.InitRequest(model_json=spec.to_json())
        self._control_all("Init", request, timeout_s)

    def init(
        self, spec: ModelSpec, dense: Mapping[str, Floats], *, timeout_s: float
    ) -> tuple[int, ...]:
        """Tell every shard the model and the first values of its chunks. The shards' versions.

        The first caller wins; repeating it changes nothing. Raises EdlError where the servers
        were told another model.
        """
        self._use(spec)
        deadline = time.monotonic() + timeout_s
        model_json = spec.to_json()
        owned = self._cut_dense(dense)
        batches = [list(_batches(chunks, _INIT_NBYTES)) for chunks in owned]
        versions = [0] * self.num_shards
        for turn in range(max(len(b) for b in batches)):
            requests = {
                index: pb.InitRequest(
                    model_json=model_json,
                    chunks=[_chunk_message(chunk) for chunk in mine[turn]],
                    complete=turn == len(mine) - 1,
                )
                for index, mine in enumerate(batches)
                if turn < len(mine)
            }
            for index, reply in self._control("Init", requests, deadline).items():
                versions[index] = reply.version
        return tuple(versions)

    def pull(
        self,
        tables: Mapping[str, Ids],
        *,
        dense: Mapping[str, Floats] | None = None,
        cut: str = "",
        full: bool = False,
        timeout_s: float,
    ) -> Pulled:
        """Rows of tables by unique ids, and dense tensors written into the given arrays.

        `dense` maps each tensor to a C-contiguous float32 array of its size; None: rows only.
        Only chunks that changed since the last dense pull are sent, so hand over the same arrays
        each time, or say full=True. A pull of a `cut` always sends all. Nothing is written and
        `initialized` is False where a shard has not been told the model yet.
        """
        deadline = time.monotonic() + timeout_s
        parts = {table: self._cut_ids(table, ids) for table, ids in tables.items()}
        everything = full or bool(cut)
        into = self._into(dense) if dense is not None else None

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

        replies = self._all(begin, deadline)
        self._refuse_moved(r.outcome == pb.PullReply.MOVED for r in replies)
        versions = tuple(reply.version for reply in replies)
        if any(reply.outcome == pb.PullReply.UNINITIALIZED for reply in replies):
            return Pulled(False, versions, {}, frozenset())
        changed = set[str]()
        for index, reply in enumerate(replies):
            if into is None:
                break
            changed |= _land(reply.dense, into)
            if not cut:
                asked[index].known_version = reply.version
        rows = {
            table: self._join_rows(table, len(ids), places, [r.tables for r in replies])
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
        gradients travel (ps/wire/quantize.py). Raises Unreachable at the deadline: push the same span
        again, later or under a new attempt.

        `dense_into`: the arrays of the dense `pull`. Where all shards applied the span they get
        the values of the version that it is part of (or a later one) in the same round trip: see
        PushResult.pulled.
        """
        deadline = time.monotonic() + timeout_s
        servers_version = self.servers_version
        pushes = self._cut_push(span, versions, dense or {}, tables or {}, wire)
        into = self._into(dense_into) if dense_into is not None else None

        asked: dict[int, _Shard] = {}

        def begin(shard: _Shard, index: int, left_s: float) -> Waiter[ShardPushed]:
            asked[index] = shard
            push = pushes[index]
            if into is not None:
                then = ShardPull(True, shard.known_version, into=into)
                push = dataclasses.replace(push, then=then)
            return shard.connection.start_push(push, left_s)

        replies = self._all(begin, deadline, shards)
        self._refuse_moved(r.outcome == pb.PushReply.MOVED for r in replies)
        result = _summary(replies, servers_version)
        if into is None:
            return result
        changed = set[str]()
        for index, reply in enumerate(replies):
            changed |= _land(reply.dense, into)
            if reply.pulled:
                asked[index].known_version = reply.version
        pulled = all(reply.pulled for reply in replies)
        return dataclasses.replace(result, pulled=pulled, changed=frozenset(changed))

    # -- The master's calls: all shards, or the ones named

    def fence(
        self,
        attempts: Mapping[int, int],
        *,
        timeout_s: float,
        master_epoch: int = 0,
        shards: Iterable[int] | None = None,
    ) -> dict[int, dict[int, int]]:
        """Refuse lower attempts of the tasks from now on. By shard: task -> position applied.

        A task that a shard has retired is missing from its answer.
        """
        request = pb.FenceRequest(
            entries=[pb.FenceRequest.Entry(task=t, attempt=a) for t, a in attempts.items()],
            master_epoch=master_epoch,
        )
        replies = self._control_all("Fence", request, timeout_s, shards)
        return {i: {e.task: e.applied for e in reply.entries} for i, reply in replies.items()}

    def freeze(
        self, cut: str, *, hold_s: float, timeout_s: float
    ) -> dict[int, tuple[tuple[Entry, ...], int]]:
        """Hold back pushes for at most `hold_s`. By shard: its ledger and its version."""
        request = pb.FreezeRequest(cut=cut, timeout_s=hold_s)
        replies = self._control_all("Freeze", request, timeout_s)
        return {
            index: (tuple(Entry(e.task, e.attempt, e.applied) for e in reply.ledger), reply.version)
            for index, reply in replies.items()
        }

    def pin(
        self, cut: str, targets: Mapping[int, int], *, hold_s: float, timeout_s: float
    ) -> dict[int, tuple[bool, int]]:
        """Let through what `targets` (task -> position) name, then pin. By shard: reached, version.

        A shard that does not reach its targets within `hold_s` pins nothing and thaws.
        """
        entries = [pb.LedgerEntry(task=t, applied=p) for t, p in targets.items()]
        request = pb.PinRequest(cut=cut, targets=entries, timeout_s=hold_s)
        replies = self._control_all("Pin", request, timeout_s)
        return {index: (reply.reached, reply.version) for index, reply in replies.items()}

    def unpin(self, cut: str, *, timeout_s: float) -> None:
        """Forget the cut; let go of its freeze."""
        self._control_all("Unpin", pb.UnpinRequest(cut=cut), timeout_s)

    def take_cut(self, cut: str, *, hold_s: float, timeout_s: float) -> Cut | None:
        """Freeze, then pin at the union of the ledgers: one state of all shards.

        None where a worker's pushes did not reach every shard within `hold_s` (it was lost in the
        midst of a push, say): nothing is pinned and all shards run on; try again later. `uneven` then
        has the tasks of which they stand at different positions, those by shard.
        """
        deadline = time.monotonic() + timeout_s
        try:
            frozen = self.freeze(cut, hold_s=hold_s, timeout_s=timeout_s)
            self.uneven = _uneven([entries for _, (entries, _) in sorted(frozen.items())])
            targets: dict[int, Entry] = {}
            for entries, _ in frozen.values():
                for e in entries:
                    seen = targets.get(e.task, e)
                    targets[e.task] = Entry(
                        e.task, max(e.attempt, seen.attempt), max(e.applied, seen.applied)
                    )
            pins = self.pin(
                cut,
                {task: entry.applied for task, entry in targets.items()},
                hold_s=hold_s,
                timeout_s=max(0.0, deadline - time.monotonic()),
            )
            if all(reached for reached, _ in pins.values()):
                version = max(version for _, version in pins.values())
                return Cut(cut, version, tuple(targets[task] for task in sorted(targets)))
        except EdlError:
            self._try_unpin(cut)
            raise
        self.unpin(cut, timeout_s=timeout_s)
        return None

    def snapshot(
        self, cut: str, directory: str, *, timeout_s: float
    ) -> tuple[list[tuple[str, int, str]], int]:
        """Every shard writes its part of the cut. All files (name, nbytes, sha256); the version."""
        request = pb.SnapshotRequest(cut=cut, directory=directory)
        replies = self._control_all("Snapshot", request, timeout_s)
        files = [
            (f.name, f.nbytes, f.sha256) for index in sorted(replies) for f in replies[index].files
        ]
        return files, max(reply.version for reply in replies.values())

    def flush(self, *, timeout_s: float) -> dict[int, tuple[int, int]]:
        """Sync mode: step with what waits. By shard: version, pushes that were waiting."""
        replies = self._control_all("Flush", pb.FlushRequest(), timeout_s)
        return {index: (reply.version, reply.pushes) for index, reply in replies.items()}

    def retire(self, low_water: int, *, timeout_s: float) -> None:
        """Tasks below the mark leave the ledgers for good."""
        self._control_all("Retire", pb.RetireRequest(low_water=low_water), timeout_s)

    def describe(
        self, *, timeout_s: float, shards: Iterable[int] | None = None
    ) -> dict[int, pb.DescribeReply]:
        """By shard: version, sizes, counters (DescribeReply of ps.proto)."""
        return self._control_all("Describe", pb.DescribeRequest(), timeout_s, shards)

    # -- Sending to all shards, asking the unreachable again

    def _open(self, index: int, address: str) -> _Shard:
        shard = self._first_shard + index
        channel = rpc.Channel(address, self._token, self._master_epoch, shard, self._identity)
        stub = ps_pb2_grpc.ParameterServerStub(channel)
        version = self.slot_map.version
        connection: ShardConnection
        if self._transport == "grpc":
            connection = GrpcShardConnection(stub, version)
        else:
            connection = AutoConnection(
                address, stub, self._identity, version, self._transport, shard
            )
        return _Shard(address, channel, stub, connection)

    def _all(
        self,
        begin: Callable[[_Shard, int, float], Waiter[Reply]],
        deadline: float,
        shards: Iterable[int] | None = None,
    ) -> list[Reply]:
        """Begin on all shards, then gather; begin again on the unreachable until the deadline."""
        indices = list(range(self.num_shards) if shards is None else shards)
        replies: dict[int, Reply] = {}
        backoff_s = _FIRST_BACKOFF_S
        while True:
            left_s = max(0.001, deadline - time.monotonic())
            missing = [index for index in indices if index not in replies]
            waiters = [(i, _begun(begin, self._shards[i], i, left_s)) for i in missing]
            failure = _gather(waiters, replies)
            if failure is None:
                return [replies[index] for index in indices]
            index, error = failure
            if not isinstance(error, Unreachable):
                raise error
            wait_s = min(deadline - time.monotonic(), backoff_s * random.uniform(0.5, 1.0))
            if wait_s <= 0 or self._wait(wait_s) or time.monotonic() >= deadline:
                address = self._shards[index].address
                raise Unreachable(f"parameter server {index} at {address}: {error}") from error
            backoff_s = min(_LAST_BACKOFF_S, 2 * backoff_s)

    def _wait(self, seconds: float) -> bool:
        """Until an unreachable server may be asked again, or is known to be elsewhere. True: closed."""
        until = time.monotonic() + seconds
        if self._find is not None and not self._closed.is_set():
            known = self.servers_version
            addresses, version = self._find(known, seconds)
            if version > known:
                self.update(addresses, version)
                return self._closed.is_set()
        return self._closed.wait(max(0.0, until - time.monotonic()))

    def _control(self, name: str, requests: Mapping[int, Any], deadline: float) -> dict[int, Any]:
        replies = self._all(
            lambda shard, index, left_s: start(getattr(shard.stub, name), requests[index], left_s),
            deadline,
            requests,
        )
        return dict(zip(requests, replies, strict=True))

    def _control_all(
        self, name: str, request: Any, timeout_s: float, shards: Iterable[int] | None = None
    ) -> dict[int, Any]:
        indices = range(self.num_shards) if shards is None else shards
        return self._control(name, dict.fromkeys(indices, request), time.monotonic() + timeout_s)

    def _try_unpin(self, cut: str) -> None:
        """Let go on the shards that still answer; the others thaw by themselves."""
        for index in range(self.num_shards):
            try:
                self._control("Unpin", {index: pb.UnpinRequest(cut=cut)}, time.monotonic() + 1.0)
            except PeerError:
                continue

    def _refuse_moved(self, moved: Iterable[bool]) -> None:
        if any(moved):
            raise PeerError(
                f"the servers do not use slot map version {self.slot_map.version}: "
                "ask the master for the servers again"
            )

    # -- Cutting by the slot map

    def _use(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._owners = {
            tensor.name: [
                self.slot_map.shard_of_chunk(tensor.name, chunk)
                for chunk in range(tensor.num_chunks)
            ]
            for tensor in spec.dense
        }
        self._dims = {table.name: table.dim for table in spec.tables}
        self._elements = {tensor.name: tensor.elements for tensor in spec.dense}

    def _cut_dense(self, dense: Mapping[str, Floats]) -> list[list[Chunk]]:
        """By shard: its chunks of the tensors."""
        owned: list[list[Chunk]] = [[] for _ in range(self.num_shards)]
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

    def _into(self, dense: Mapping[str, Floats]) -> Callable[[str, int], Floats]:
        """Where a chunk's values are, by tensor and number."""
        flat = {tensor: _flat(tensor, values) for tensor, values in dense.items()}

        def place(tensor: str, number: int) -> Floats:
            first = number * CHUNK_ELEMENTS
            return flat[tensor][first : first + CHUNK_ELEMENTS]

        return place

    def _cut_ids(self, table: str, ids: Ids) -> tuple[Ids, list[NDArray[np.int64] | slice]]:
        """The ids, and by shard where its own are among them."""
        if self._spec is None or table not in self._dims:
            _unknown("table", table, self._dims if self._spec else ())
        ids = np.ascontiguousarray(ids, dtype=np.int64)
        if self.num_shards == 1:
            return ids, [slice(None)]
        order, bounds = self.slot_map.partition(table, ids)
        return ids, [order[first:end] for first, end in itertools.pairwise(bounds)]

    def _join_rows(
        self,
        table: str,
        count: int,
        places: Sequence[NDArray[np.int64] | slice],
        parts: Sequence[Mapping[str, Floats]],
    ) -> Floats:
        if len(parts) == 1 and table in parts[0]:
            return parts[0][table]
        from .rows.passes import place_rows  # numba: the master has this module, too

        rows = np.empty((count, self._dims[table]), np.float32)
        for place, part in zip(places, parts, strict=True):
            if table in part and not isinstance(place, slice):
                place_rows(part[table], place, rows)
        return rows

    def _cut_push(
        self,
        span: Span,
        versions: Sequence[int],
        dense: Mapping[str, Floats],
        tables: Mapping[str, tuple[Ids, Floats]],
        wire: str,
    ) -> list[ShardPush]:
        chunks = self._cut_dense(dense)
        rows: list[dict[str, tuple[Ids, Floats]]] = [{} for _ in range(self.num_shards)]
        for table, (ids, values) in tables.items():
            ids, places = self._cut_ids(table, ids)
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
        for index in range(self.num_shards):
            nbytes = sum(values.nbytes for _, _, values in chunks[index])
            nbytes += sum(i.nbytes + v.nbytes for i, v in rows[index].values())
            if nbytes > _PUSH_NBYTES:
                raise EdlError(
                    f"the gradients of one minibatch for server {index} take {nbytes} bytes; "
                    f"a push may take {_PUSH_NBYTES}: use more servers (--num_ps) or a smaller "
                    "--minibatch_size"
                )
        return [
            ShardPush(span, versions[index], chunks[index], rows[index], wire)
            for index in range(self.num_shards)
        ]


@dataclass
class _Shard:
    address: str
    channel: rpc.Channel
    stub: ps_pb2_grpc.ParameterServerStub
    connection: ShardConnection
    known_version: int | None = None  # of the chunks that the caller's arrays hold

    def close(self) -> None:
        self.channel.close()  # first: whoever asks it where the connection leads stops waiting
        self.connection.close()


def _begun(
    begin: Callable[[_Shard, int, float], Waiter[Reply]], shard: _Shard, index: int, left_s: float
) -> Waiter[Reply]:
    """Begin; what that raises is the waiter's to raise, so that all other shards are begun."""
    try:
        return begin(shard, index, left_s)
    except EdlError as error:
        failure = error

    def failed() -> Reply:
        raise failure

    return failed


def _gather(
    waiters: Iterable[tuple[int, Waiter[Reply]]], replies: dict[int, Reply]
) -> tuple[int, EdlError] | None:
    """Wait for all. The first error, one that asking again cannot cure before all others."""
    failure: tuple[int, EdlError] | None = None
    for index, wait in waiters:
        try:
            replies[index] = wait()
        except EdlError as error:
            if failure is None or isinstance(failure[1], Unreachable):
                failure = (index, error)
    return failure


def _uneven(ledgers: Sequence[Iterable[Entry]]) -> dict[int, tuple[int, ...]]:
    """The tasks of which shards stand at different positions: those, by shard."""
    by_shard = [{e.task: e.applied for e in entries} for entries in ledgers]
    tasks = sorted({task for there in by_shard for task in there})
    found = {task: tuple(there.get(task, 0) for there in by_shard) for task in tasks}
    return {task: at for task, at in found.items() if len(set(at)) > 1}


def _land(chunks: Iterable[Chunk], into: Callable[[str, int], Floats]) -> set[str]:
    """Write the chunks that the carrier has not written already. The tensors that changed."""
    changed = set[str]()
    for tensor, number, values in chunks:
        place = into(tensor, number)
        if not np.may_share_memory(place, values):
            place[:] = values
        changed.add(tensor)
    return changed


def _summary(replies: Sequence[ShardPushed], servers_version: int) -> PushResult:
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
    return PushResult(outcome, versions, position, servers_version=servers_version)


def _batches(chunks: Sequence[Chunk], limit_nbytes: int) -> Iterable[list[Chunk]]:
    """The chunks in runs of at most `limit_nbytes`; at least one run, maybe empty."""
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
    """The array as one run, without a copy (writes go through)."""
    if values.dtype != np.float32 or not values.flags.c_contiguous:
        raise ValueError(f"dense tensor {tensor!r} must be float32 and C-contiguous")
    return values.reshape(-1)


def _unknown(what: str, name: str, known: Iterable[str]) -> NoReturn:
    raise ValueError(f"unknown {what} {name!r}: the model has {', '.join(known) or 'none'}")

"""The parameter server's gRPC service: bytes to numpy views and back, over the store.

A request that no shard can serve is INVALID_ARGUMENT, one that does not fit this shard's state
FAILED_PRECONDITION, with the reason; both leave the shard as it was. Values are not judged: a NaN
is the worker's to find.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import grpc
import numpy as np
from numpy.typing import NDArray

from ..common import faults, rpc
from ..common.errors import EdlError, NotPinned, Unreachable
from ..nn.model_spec import ModelSpec
from ..proto import ps_pb2 as pb
from ..proto import ps_pb2_grpc
from ..wire.listener import Listening
from .books.aggregation import Update
from .books.answers import NotYet, Outcome, span_of
from .books.dense import ChunkKey
from .books.parameters import Invalid
from .books.store import Store
from .metrics import Metrics
from .rows.optimizers import Floats
from .snapshots import cut as snapshot
from .snapshots import delta
from .snapshots.changes import Changes

Method = TypeVar("Method", bound=Callable[..., Any])  # a method of the service, of any messages


def _served(method: Method) -> Method:
    """Tell our errors as status codes, and count the time of each call."""
    name = method.__name__

    @functools.wraps(method)
    def serve(self: ParameterServerServicer, request: Any, context: grpc.ServicerContext) -> Any:
        began = time.perf_counter()
        code = grpc.StatusCode.INTERNAL
        try:
            self._is_meant(context)
            reply = method(self, request, context)
            code = grpc.StatusCode.OK
            return reply
        except Invalid as error:
            code = grpc.StatusCode.INVALID_ARGUMENT
            context.abort(code, str(error))
        except NotPinned as error:
            code = grpc.StatusCode.NOT_FOUND
            context.abort(code, str(error))
        # Unreachable: for another server, or of a failpoint: the reply is lost.
        except (Unreachable, NotYet) as error:
            code = grpc.StatusCode.UNAVAILABLE
            context.abort(code, str(error))
        except EdlError as error:
            code = grpc.StatusCode.FAILED_PRECONDITION
            context.abort(code, str(error))
        except OSError as error:
            context.abort(code, f"{name} failed on server {self.index}: {error}")
        except MemoryError:
            if name == "Snapshot" and not request.values_only:
                # All that it holds is whole, and it cannot be kept from here.
                self.exhausted = True
                code = grpc.StatusCode.UNAVAILABLE
                context.abort(code, f"server {self.index} is out of memory: it is replaced")
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            context.abort(code, f"server {self.index} is out of memory: use more servers")
        finally:
            nbytes = request.ByteSize() if name in ("Pull", "Push") else 0
            self.metrics.calls.observe(name, code.name, time.perf_counter() - began, nbytes)

    return serve  # type: ignore[return-value]


class ParameterServerServicer(ps_pb2_grpc.ParameterServerServicer):
    """The service of a store once it is there.

    Until then every call is UNAVAILABLE (ask again).
    """

    def __init__(self, index: int, store: Store | None = None) -> None:
        self.index = index
        self.metrics = Metrics(index)
        self.exhausted = False  # no memory is left to write a checkpoint: the process must end
        self._changes = Changes(store) if store else None
        self.store = store
        self.listening: Listening | None = None  # the tensor plane of this shard

    def attach(self, store: Store, changes: Changes | None = None) -> None:
        """Serve this store. `changes`: its own, where others read them too."""
        self._changes = changes or Changes(store)
        self.store = store

    def _ready(self, context: grpc.ServicerContext) -> Store:
        if self.store is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, f"server {self.index} is starting")
        assert self.store is not None  # abort has raised
        return self.store

    def _is_meant(self, context: grpc.ServicerContext) -> None:
        """Raise Unreachable where the call is for another server."""
        shard = dict(context.invocation_metadata() or ()).get(rpc.SHARD_KEY)
        if shard is not None and shard != str(self.index):
            raise Unreachable(f"server {self.index} listens here now, not server {shard!s}")

    def _of_master(self, context: grpc.ServicerContext) -> Store:
        """Return the store, for a call that only the master of now may make.

        Raises Fenced.
        """
        store = self._ready(context)
        epoch = dict(context.invocation_metadata() or ()).get(rpc.MASTER_EPOCH_KEY)
        if epoch is not None:
            store.masters.meet(int(epoch))
        return store

    @_served
    def Init(self, request: pb.InitRequest, context: grpc.ServicerContext) -> pb.InitReply:
        store = self._ready(context)
        try:
            spec = ModelSpec.from_json(request.model_json)
        except (ValueError, KeyError, TypeError) as error:
            raise Invalid(f"model_json is no ModelSpec: {error!r}") from error
        version = store.init(
            spec,
            _chunks(request.chunks),
            request.complete,
            _rows(request.tables),
            dict(request.rows_given),
        )
        return pb.InitReply(version=version)

    @_served
    def Pull(self, request: pb.PullRequest, context: grpc.ServicerContext) -> pb.PullReply:
        store = self._ready(context)
        faults.point("ps.pull")
        if store.slot_map.is_other(request.slot_map_version):
            return pb.PullReply(outcome=pb.PullReply.MOVED)
        asked = [(rows.table, _ids(rows)) for rows in request.tables]
        pulled = store.pull(
            dense=request.dense,
            known_version=request.known_version if request.HasField("known_version") else None,
            tables=asked,
            cut=request.cut,
        )
        if pulled is None:
            return pb.PullReply(outcome=pb.PullReply.UNINITIALIZED)
        version, chunks, rows = pulled
        return pb.PullReply(
            version=version,
            dense=[
                pb.DenseChunk(tensor=tensor, chunk=chunk, data=data)
                for (tensor, chunk), data in chunks
            ],
            tables=[
                pb.Rows(table=table, values=values.tobytes())
                for (table, _), values in zip(asked, rows, strict=True)
            ],
        )

    @_served
    def Push(self, request: pb.PushRequest, context: grpc.ServicerContext) -> pb.PushReply:
        store = self._ready(context)
        if store.slot_map.is_other(request.slot_map_version):
            return pb.PushReply(outcome=pb.PushReply.MOVED)
        told = request.span
        span = span_of(told.task, told.attempt, told.start, told.end)
        update = Update(_chunks(request.dense), _rows(request.tables))
        faults.point("ps.push", task=span.task, start=span.start)
        pushed = store.push(span, request.version, update)
        if pushed.outcome is Outcome.APPLIED:
            faults.point("ps.applied", task=span.task, start=span.start)
        self.metrics.calls.pushed(pushed)
        return pb.PushReply(
            outcome=pushed.outcome.name,
            version=pushed.version,
            applied=pushed.applied,
        )

    @_served
    def Fence(self, request: pb.FenceRequest, context: grpc.ServicerContext) -> pb.FenceReply:
        attempts = {entry.task: entry.attempt for entry in request.entries}
        applied = self._of_master(context).masters.fence(attempts, request.master_epoch)
        return pb.FenceReply(
            entries=[pb.FenceReply.Entry(task=t, applied=p) for t, p in applied.items()]
        )

    @_served
    def Freeze(self, request: pb.FreezeRequest, context: grpc.ServicerContext) -> pb.FreezeReply:
        entries, version = self._of_master(context).pins.freeze(
            _cut(request.cut), request.timeout_s
        )
        return pb.FreezeReply(
            ledger=[
                pb.LedgerEntry(task=e.task, attempt=e.attempt, applied=e.applied) for e in entries
            ],
            version=version,
        )

    @_served
    def Pin(self, request: pb.PinRequest, context: grpc.ServicerContext) -> pb.PinReply:
        targets = {entry.task: entry.applied for entry in request.targets}
        store = self._of_master(context)
        reached, version = store.pins.pin(_cut(request.cut), targets, request.timeout_s)
        return pb.PinReply(reached=reached, version=version)

    @_served
    def Unpin(self, request: pb.UnpinRequest, context: grpc.ServicerContext) -> pb.UnpinReply:
        self._of_master(context).pins.unpin(request.cut)
        return pb.UnpinReply()

    @_served
    def Snapshot(
        self, request: pb.SnapshotRequest, context: grpc.ServicerContext
    ) -> pb.SnapshotReply:
        store = self._of_master(context)
        if request.values_only:
            assert self._changes is not None  # there is a store
            cut, since = _cut(request.cut), request.since
            written = delta.write(
                store, self._changes, cut, since, request.directory, let_go=request.let_go
            )
            if written is None:
                return pb.SnapshotReply(unknown=True)
            files, version, rows = [*written.files], written.version, written.rows
        else:
            files, version = snapshot.write(store, request.cut, request.directory)
            rows = {}
        return pb.SnapshotReply(
            files=[
                pb.SnapshotReply.File(name=f.name, nbytes=f.nbytes, sha256=f.sha256) for f in files
            ],
            version=version,
            rows=rows,
        )

    @_served
    def Flush(self, _request: pb.FlushRequest, context: grpc.ServicerContext) -> pb.FlushReply:
        version, pushes = self._of_master(context).flush()
        return pb.FlushReply(version=version, pushes=pushes)

    @_served
    def Retire(self, request: pb.RetireRequest, context: grpc.ServicerContext) -> pb.RetireReply:
        self._of_master(context).masters.retire(request.low_water)
        return pb.RetireReply()

    @_served
    def Plane(self, _request: pb.PlaneRequest, _context: grpc.ServicerContext) -> pb.PlaneReply:
        return pb.PlaneReply(**dataclasses.asdict(self.listening) if self.listening else {})

    @_served
    def Describe(
        self, _request: pb.DescribeRequest, context: grpc.ServicerContext
    ) -> pb.DescribeReply:
        store = self._ready(context)
        dense_bytes, table_rows, _ = store.sizes()
        return pb.DescribeReply(
            shard=store.index,
            version=store.version,
            initialized=store.initialized,
            dense_bytes=dense_bytes,
            table_rows=table_rows,
            ledger_tasks=store.ledger_tasks,
            pushes_applied=store.counts[Outcome.APPLIED],
            pushes_duplicate=store.counts[Outcome.DUPLICATE],
            pushes_fenced=store.counts[Outcome.FENCED],
            pushes_stale=store.counts[Outcome.STALE],
            pushes_gap=store.counts[Outcome.GAP],
        )


def _cut(name: str) -> str:
    if not name:
        raise Invalid("a cut needs a name")
    return name


def _chunks(messages: Iterable[pb.DenseChunk]) -> dict[ChunkKey, Floats]:
    chunks: dict[ChunkKey, Floats] = {}
    for message in messages:
        key = (message.tensor, message.chunk)
        if key in chunks:
            raise Invalid(f"chunk {message.chunk} of tensor {message.tensor!r} comes twice")
        chunks[key] = _view(message.data, np.dtype(np.float32), f"chunk of {message.tensor!r}")
    return chunks


def _rows(messages: Iterable[pb.Rows]) -> dict[str, tuple[NDArray[np.int64], Floats]]:
    rows: dict[str, tuple[NDArray[np.int64], Floats]] = {}
    for message in messages:
        if message.table in rows:
            raise Invalid(f"table {message.table!r} comes twice")
        ids = _ids(message)
        values = _view(message.values, np.dtype(np.float32), f"values of {message.table!r}")
        if len(ids) == 0 or len(values) % len(ids):
            raise Invalid(
                f"table {message.table!r}: {len(values)} values do not fill {len(ids)} rows"
            )
        rows[message.table] = ids, values.reshape(len(ids), -1)
    return rows


def _ids(message: pb.Rows) -> NDArray[np.int64]:
    return _view(message.ids, np.dtype(np.int64), f"ids of {message.table!r}")


def _view(data: bytes, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    if len(data) % dtype.itemsize:
        raise Invalid(f"{what}: {len(data)} bytes are no whole number of {dtype}")
    return np.frombuffer(data, dtype)

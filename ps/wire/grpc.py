"""Plain gRPC as a carrier of pulls and pushes, and how a call of many shards is begun.

It is slow, plain and readable from any language. The other carrier is the tensor plane
(connection.py).
"""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np

from ...common import rpc
from ...common.errors import Unreachable
from ...proto import ps_pb2 as pb
from ...proto import ps_pb2_grpc
from .shard import Chunk, Floats, Ids, ShardPull, ShardPulled, ShardPush, ShardPushed, Waiter


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
            dense=[chunk_message(chunk) for chunk in push.dense],
            tables=[
                rows_message(table, ids, values) for table, (ids, values) in push.tables.items()
            ],
            slot_map_version=self._slot_map_version,
        )
        wait = start(self._stub.Push, request, timeout_s)

        def pushed() -> ShardPushed:
            reply = wait()
            return ShardPushed(reply.outcome, reply.version, reply.applied)

        return pushed

    def close(self) -> None:
        """Do nothing: the channel belongs to the client."""


# `Any`: the generated stubs tie neither a method to its messages nor a future to its reply.
def start(method: Any, request: Any, timeout_s: float) -> Waiter[Any]:
    """Send an RPC now; the waiter gathers its reply. It raises as `rpc.call`."""
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


def chunk_message(chunk: Chunk) -> pb.DenseChunk:
    """Return the message of a chunk, with a copy of its values."""
    tensor, number, values = chunk
    return pb.DenseChunk(tensor=tensor, chunk=number, data=values.tobytes())


def rows_message(table: str, ids: Ids, values: Floats) -> pb.Rows:
    """Return the message of rows, with copies."""
    return pb.Rows(table=table, ids=ids.tobytes(), values=values.tobytes())

"""The gRPC faces of the coordinator: for the nodes, and for `edl status`, `wait` and `stop`.

Nothing is decided here. A beat whose connection breaks tells the coordinator so: a node that is
killed is known to be within seconds, not after its lease.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import grpc

from ..common import finite, launched
from ..common.errors import EdlError, UsageError
from ..proto import master_pb2, master_pb2_grpc, rendezvous_pb2_grpc
from ..proto import rendezvous_pb2 as pb
from .coordinator import Coordinator
from .nodes import Failure

_LONGEST_WAIT_S = 60.0  # of a held call

Answer = TypeVar("Answer")


class RendezvousServicer(rendezvous_pb2_grpc.RendezvousServicer):
    """The calls of node agents."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def Beat(self, request: pb.BeatRequest, context: grpc.ServicerContext) -> pb.BeatReply:
        _check(request.node, context)
        answered = False

        def ended() -> None:
            if not answered:
                self._coordinator.dropped(request.node)

        if not context.add_callback(ended):
            ended()
            return pb.BeatReply()
        report = None
        if request.HasField("report"):
            report = (_number(request.report, "throughput"), _number(request.report, "remaining_s"))
        restart, closed = _ask(
            lambda: self._coordinator.beat(
                request.node,
                host=request.host,
                pid=request.pid,
                round=request.round,
                report=report,
                wait_s=_held(request.wait_s),
            ),
            context,
        )
        answered = True
        return pb.BeatReply(
            restart=restart,
            closed=closed,
            settings_json=self._coordinator.settings.to_json(),
        )

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinReply:
        _check(request.node, context)
        if request.nproc < 1 or not request.store or not request.request_id:
            _refuse(context, "a node that joins names its nproc, its store and its request_id")
        failure = None
        if request.HasField("failure"):
            told = request.failure
            failure = Failure(told.rank, told.exit_code, told.words)
        round, closed = _ask(
            lambda: self._coordinator.join(
                request.node,
                request=request.request_id,
                nproc=request.nproc,
                store=request.store,
                newest=request.newest,
                failure=failure,
                wait_s=_held(request.wait_s),
            ),
            context,
        )
        if round is None:
            return pb.JoinReply(closed=closed)
        return pb.JoinReply(
            round=round.number,
            rank=round.rank(request.node) or 0,
            num_nodes=len(round.members),
            store=round.store,
            restarts=round.restarts,
            identical=len({member.nproc for member in round.members}) == 1,
        )

    def Finish(self, request: pb.FinishRequest, context: grpc.ServicerContext) -> pb.FinishReply:
        _check(request.node, context)
        restart, closed = _ask(
            lambda: self._coordinator.finish(request.node, request.round, _held(request.wait_s)),
            context,
        )
        return pb.FinishReply(restart=restart, closed=closed)

    def Leave(self, request: pb.LeaveRequest, context: grpc.ServicerContext) -> pb.LeaveReply:
        _check(request.node, context)
        _ask(lambda: self._coordinator.leave(request.node), context)
        return pb.LeaveReply()


class LookServicer(master_pb2_grpc.MasterServicer):
    """The calls of `edl status`, `wait` and `stop`, as any job answers them."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def Status(
        self, request: master_pb2.StatusRequest, _context: grpc.ServicerContext
    ) -> master_pb2.StatusReply:
        revision, status = self._coordinator.status(request.known_revision, _held(request.wait_s))
        return master_pb2.StatusReply(revision=revision, status_json=finite.dumps(status))

    def Stop(
        self, request: master_pb2.StopRequest, context: grpc.ServicerContext
    ) -> master_pb2.StopReply:
        _ask(lambda: self._coordinator.stop(request.reason), context)
        return master_pb2.StopReply()

    def Checkpoint(
        self, _request: master_pb2.CheckpointRequest, _context: grpc.ServicerContext
    ) -> master_pb2.CheckpointReply:
        return master_pb2.CheckpointReply(refused=launched.SAVES_ITSELF)

    def Scale(
        self, request: master_pb2.ScaleRequest, context: grpc.ServicerContext
    ) -> master_pb2.ScaleReply:
        try:
            if request.num_servers:
                raise UsageError("A script's job has no servers: scale its nodes alone.")
            before = _ask(lambda: self._coordinator.scale(request.num_workers), context)
        except UsageError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise AssertionError("abort raises") from error
        return master_pb2.ScaleReply(previous=before)


def _number(report: pb.NodeReport, name: str) -> float | None:
    return float(getattr(report, name)) if report.HasField(name) else None


def _held(wait_s: float) -> float:
    return min(max(wait_s, 0.0), _LONGEST_WAIT_S)


def _check(node: str, context: grpc.ServicerContext) -> None:
    if not node:
        _refuse(context, "a request must name its node")


def _refuse(context: grpc.ServicerContext, message: str) -> None:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)


def _ask(question: Callable[[], Answer], context: grpc.ServicerContext) -> Answer:
    try:
        return question()
    except UsageError:
        raise  # what was asked for, not who was asked
    except EdlError as error:  # its journal cannot be written, or is another's: it ends
        context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    raise AssertionError("abort raises")

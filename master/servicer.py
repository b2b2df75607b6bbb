"""The gRPC face of the master: posts requests to the loop and waits for its answers.

Nothing is decided here. A request that lacks what it must have is INVALID_ARGUMENT.
"""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

import grpc

from ..common.errors import EdlError, Unreachable
from ..proto import master_pb2 as pb
from ..proto import master_pb2_grpc
from .master import Master

_ANSWER_S = 30.0  # the loop answers at once; more than a lease means that it hangs
_LONGEST_WAIT_S = 60.0  # of a long poll

Reply = TypeVar("Reply")


class MasterServicer(master_pb2_grpc.MasterServicer):
    def __init__(self, master: Master) -> None:
        self._master = master

    def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterReply:
        _check_replica(request.replica, context)
        return _wait(self._master.register(request), context)

    def GetTask(self, request: pb.GetTaskRequest, context: Any) -> pb.GetTaskReply:
        _check_replica(request.replica, context, worker=True)
        if not request.request_id:
            _refuse(context, "request_id is empty: it is what makes a repeat harmless")
        request.wait_s = min(request.wait_s, _LONGEST_WAIT_S)
        return _wait(self._master.get_task(request), context, request.wait_s)

    def ReportTask(self, request: pb.ReportTaskRequest, context: Any) -> pb.ReportTaskReply:
        _check_replica(request.replica, context, worker=True)
        if request.WhichOneof("outcome") is None:
            _refuse(context, "a report must say done, failed or handed_back")
        return _wait(self._master.report_task(request), context)

    def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatReply:
        _check_replica(request.replica, context)
        return _wait(self._master.heartbeat(request), context)

    def GetServers(self, request: pb.GetServersRequest, context: Any) -> pb.GetServersReply:
        request.wait_s = min(request.wait_s, _LONGEST_WAIT_S)
        return _wait(self._master.get_servers(request), context, request.wait_s)

    def Join(self, request: pb.JoinRequest, context: Any) -> pb.JoinReply:
        _check_replica(request.replica, context, worker=True)
        self._must_reduce(context)
        request.wait_s = min(request.wait_s, _LONGEST_WAIT_S)
        return _wait(self._master.join(request), context, request.wait_s)

    def WatchRound(self, request: pb.WatchRoundRequest, context: Any) -> pb.WatchRoundReply:
        _check_replica(request.replica, context, worker=True)
        self._must_reduce(context)
        request.wait_s = min(request.wait_s, _LONGEST_WAIT_S)
        return _wait(self._master.watch_round(request), context, request.wait_s)

    def PutKey(self, request: pb.PutKeyRequest, context: Any) -> pb.PutKeyReply:
        self._must_reduce(context)
        return _wait(self._master.put_key(request), context)

    def GetKey(self, request: pb.GetKeyRequest, context: Any) -> pb.GetKeyReply:
        self._must_reduce(context)
        request.wait_s = min(request.wait_s, _LONGEST_WAIT_S)
        return _wait(self._master.get_key(request), context, request.wait_s)

    def ReportOrder(self, request: pb.ReportOrderRequest, context: Any) -> pb.ReportOrderReply:
        _check_replica(request.replica, context, worker=True)
        self._must_reduce(context)
        return _wait(self._master.report_order(request), context)

    def _must_reduce(self, context: Any) -> None:
        if self._master.collective is None:
            _refuse(context, "this job keeps its parameters on servers: there are no rounds")

    def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:
        request.wait_s = min(request.wait_s, _LONGEST_WAIT_S)
        return _wait(self._master.get_status(request), context, request.wait_s)

    def Scale(self, request: pb.ScaleRequest, context: Any) -> pb.ScaleReply:
        if request.num_workers < 1:
            _refuse(context, f"{request.num_workers} workers: scale to at least 1, or stop the job")
        return _wait(self._master.scale(request), context)

    def Stop(self, request: pb.StopRequest, context: Any) -> pb.StopReply:
        return _wait(self._master.stop(request.reason), context)


def _check_replica(replica: pb.Replica, context: Any, worker: bool = False) -> None:
    roles = (pb.WORKER,) if worker else (pb.WORKER, pb.SERVER)
    if replica.role not in roles or not replica.incarnation:
        _refuse(context, "a request must name the role and the incarnation of its sender")


def _refuse(context: Any, message: str) -> None:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)


def _wait(future: Future[Reply], context: Any, wait_s: float = 0.0) -> Reply:
    try:
        return future.result(wait_s + _ANSWER_S)
    except FutureTimeout:
        context.abort(grpc.StatusCode.UNAVAILABLE, "the master does not answer now")
    except Unreachable as error:
        context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    except EdlError as error:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
    raise AssertionError("abort raises")

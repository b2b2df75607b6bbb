"""The gRPC faces of the master: posts requests to the loop and waits for its answers.

Nothing is decided here. A request that lacks what it must have is INVALID_ARGUMENT. The handlers
are coroutines: a worker that waits for a task costs no thread (common/rpc.AsyncServer).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from ..common.errors import EdlError, Unreachable, UsageError
from ..proto import master_pb2 as pb
from ..proto import master_pb2_grpc, registry_pb2_grpc
from ..proto import registry_pb2 as registry
from .master import Master

_ANSWER_S = 30.0  # the loop answers at once; more than a lease means that it hangs
_LONGEST_WAIT_S = 60.0  # of a long poll
TEACHERS = "teachers"  # the name of a job's, for those who follow them as at a registry
_NOBODY = 1  # the version of the list of another name, which stays empty
_NOT_HERE = "a master lists the teachers that it has started: register at an `edl registry`"
MOST_REPORTS = 64  # of one call: as many are remembered, should it be repeated (leases.py)

Reply = TypeVar("Reply")
if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]


class MasterServicer(master_pb2_grpc.MasterServicer):
    """The gRPC service of a master."""

    def __init__(self, master: Master) -> None:
        self._front = master.front
        self._group = master.group

    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterReply:
        await _check_replica(request.replica, context)
        return await _wait(self._front.register(request), context)

    async def GetTask(self, request: pb.GetTaskRequest, context: Context) -> pb.GetTaskReply:
        await _check_replica(request.replica, context, worker=True)
        if not request.request_id:
            await _refuse(context, "request_id is empty: it is what makes a repeat harmless")
        await _check_reports(request.reports, context)
        request.wait_s = min(request.wait_s, _LONGEST_WAIT_S)
        return await _wait(self._front.get_task(request), context, request.wait_s)

    async def ReportTask(
        self, request: pb.ReportTaskRequest, context: Context
    ) -> pb.ReportTaskReply:
        await _check_replica(request.replica, context, worker=True)
        await _check_reports([request], context)
        return await _wait(self._front.report_task(request), context)

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatReply:
        await _check_replica(request.replica, context)
        await _check_reports(request.reports, context)
        return await _wait(self._front.heartbeat(request), context)

    async def GetServers(
        self, request: pb.GetServersRequest, context: Context
    ) -> pb.GetServersReply:
        request.wait_s = min(request.wait_s, _LONGEST_WAIT_S)
        return await _wait(self._front.get_servers(request), context, request.wait_s)

    async def GetTeachers(
        self, request: pb.GetTeachersRequest, context: Context
    ) -> pb.GetTeachersReply:
        request.wait_s = min(request.wait_s, _LONGEST_WAIT_S)
        return await _wait(self._front.get_teachers(request), context, request.wait_s)

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinReply:
        await _check_replica(request.replica, context, worker=True)
        await self._must_reduce(context)
        request.wait_s = min(request.wait_s, _LONGEST_WAIT_S)
        return await _wait(self._front.join(request), context, request.wait_s)

    async def WatchRound(
        self, request: pb.WatchRoundRequest, context: Context
    ) -> pb.WatchRoundReply:
        await _check_replica(request.replica, context, worker=True)
        await self._must_reduce(context)
        request.wait_s = min(request.wait_s, _LONGEST_WAIT_S)
        return await _wait(self._front.watch_round(request), context, request.wait_s)

    async def PutKey(self, request: pb.PutKeyRequest, context: Context) -> pb.PutKeyReply:
        await self._must_reduce(context)
        return await _wait(self._front.put_key(request), context)

    async def GetKey(self, request: pb.GetKeyRequest, context: Context) -> pb.GetKeyReply:
        await self._must_reduce(context)
        request.wait_s = min(request.wait_s, _LONGEST_WAIT_S)
        return await _wait(self._front.get_key(request), context, request.wait_s)

    async def ReportOrder(
        self, request: pb.ReportOrderRequest, context: Context
    ) -> pb.ReportOrderReply:
        await _check_replica(request.replica, context, worker=True)
        await self._must_reduce(context)
        return await _wait(self._front.report_order(request), context)

    async def _must_reduce(self, context: Context) -> None:
        try:
            self._group.workers.members()
        except UsageError as error:
            await _refuse(context, str(error))

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.StatusReply:
        request.wait_s = min(request.wait_s, _LONGEST_WAIT_S)
        return await _wait(self._front.get_status(request), context, request.wait_s)

    async def Scale(self, request: pb.ScaleRequest, context: Context) -> pb.ScaleReply:
        others = request.num_servers > 0 or request.HasField("num_teachers")
        if request.num_workers < (0 if others else 1):
            await _refuse(
                context, f"{request.num_workers} workers: scale to at least 1, or stop the job"
            )
        if request.num_teachers < 0:
            await _refuse(context, f"{request.num_teachers} teachers: give 0 or more")
        if request.max_teachers and request.max_teachers < request.num_teachers:
            bounds = f"{request.num_teachers}:{request.max_teachers}"
            await _refuse(context, f"{bounds} teachers: MIN is above MAX")
        if request.num_servers < 0:
            await _refuse(context, f"{request.num_servers} servers: a job has at least 1")
        return await _wait(self._front.scale(request), context)

    async def Checkpoint(
        self, request: pb.CheckpointRequest, context: Context
    ) -> pb.CheckpointReply:
        if not request.request_id:
            await _refuse(context, "request_id is empty: it is what makes a repeat harmless")
        wait_s = min(request.wait_s, _LONGEST_WAIT_S)
        return await _wait(self._front.checkpoint(request.request_id, wait_s), context, wait_s)

    async def Stop(self, request: pb.StopRequest, context: Context) -> pb.StopReply:
        return await _wait(self._front.stop(request.reason), context)


class TeachersServicer(registry_pb2_grpc.RegistryServicer):
    """The job's teachers as a registry lists them, for scripts that are no workers of the job.

    Whoever has the job's identity follows them by the name TEACHERS. `ttl_s`: for how long he asks
    them while a master that was started again finds them. Nobody registers here.
    """

    def __init__(self, master: Master, ttl_s: float) -> None:
        self._front, self._ttl_s = master.front, ttl_s

    async def List(self, request: registry.ListRequest, context: Context) -> registry.ListReply:
        wait_s = min(request.wait_s, _LONGEST_WAIT_S)
        if request.name != TEACHERS:
            if request.known_version == _NOBODY:
                await asyncio.sleep(wait_s)
            return registry.ListReply(version=_NOBODY, names=[TEACHERS])
        asked = pb.GetTeachersRequest(known_version=request.known_version, wait_s=wait_s)
        told = await _wait(self._front.get_teachers(asked), context, wait_s)
        teachers = [registry.Teacher(address=each, ttl_s=self._ttl_s) for each in told.addresses]
        return registry.ListReply(version=told.version, teachers=teachers)

    async def Register(
        self, _request: registry.RegisterRequest, _context: Context
    ) -> registry.RegisterReply:
        return registry.RegisterReply(refused=_NOT_HERE)

    async def Leave(
        self, _request: registry.LeaveRequest, _context: Context
    ) -> registry.LeaveReply:
        return registry.LeaveReply()


async def _check_replica(replica: pb.Replica, context: Context, worker: bool = False) -> None:
    roles = (pb.WORKER,) if worker else (pb.WORKER, pb.SERVER, pb.TEACHER)
    if replica.role not in roles or not replica.incarnation:
        await _refuse(context, "a request must name the role and the incarnation of its sender")


async def _check_reports(reports: Sequence[pb.ReportTaskRequest], context: Context) -> None:
    if len(reports) > MOST_REPORTS:
        await _refuse(context, f"{len(reports)} reports in one call: at most {MOST_REPORTS}")
    if any(report.WhichOneof("outcome") is None for report in reports):
        await _refuse(context, "a report must say done, failed or handed_back")


async def _refuse(context: Context, message: str) -> None:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)


async def _wait(future: Future[Reply], context: Context, wait_s: float = 0.0) -> Reply:
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), wait_s + _ANSWER_S)
    except TimeoutError:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the master does not answer now")
    except Unreachable as error:
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    except EdlError as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
    raise AssertionError("abort raises")

"""The master's client: by it workers, servers' launchers and the command line talk to the master.

Every call is repeated while the master is unreachable (common/line.py); the master's answers are
idempotent, so repeating changes nothing. A lost reply to `get_task` leases nothing twice: the
repeat carries the same request id.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from ..common import finite, paths, rpc
from ..common.errors import JobError
from ..common.identity import Identity
from ..common.line import Line
from ..proto import master_pb2 as pb
from ..proto import master_pb2_grpc

_MOST_REPORTS = 64  # of one call


class MasterClient(Line):
    """A caller's line to the master.

    Safe to share among threads.

    `replica` says who calls (None for the command line, which may only look, scale and stop).
    `where` tells the master's address of now; by default the job's folder (EDL_JOB_DIR) does.
    `identity` is by default that of this process. Raises Unreachable when the master has not
    answered for `patience_s`, Unauthenticated where token or certificate are another job's. Answers
    that say `fenced` are returned, not raised.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        replica: pb.Replica | None = None,
        patience_s: float = 120.0,
        where: Callable[[], str | None] | None = None,
        identity: Identity | None = None,
    ) -> None:
        self.replica = replica
        self._numbers = itertools.count(1)
        self._later: deque[tuple[pb.ReportTaskRequest, Callable[[bool], object]]] = deque()
        super().__init__(
            address,
            master_pb2_grpc.MasterStub,
            who="master",
            advice="; see `edl logs`, or whether its process still runs",
            token=rpc.job_token() if token is None else token,
            identity=identity,
            patience_s=patience_s,
            where=where or _where_the_job_says,
        )

    # -- replicas

    def register(
        self, address: str = "", metrics_address: str = "", pid: int = 0, host: str = ""
    ) -> pb.RegisterReply:
        """Say hello; the reply brings the settings of the job."""
        request = pb.RegisterRequest(
            replica=self.replica,
            address=address,
            metrics_address=metrics_address,
            pid=pid,
            host=host,
        )
        reply: pb.RegisterReply = self._call("Register", request)
        return reply

    def get_task(self, wait_s: float = 10.0, most: int = 1) -> pb.GetTaskReply:
        """Lease a task, or at most so many at once.

        The master holds the call up to `wait_s` while there is none.
        """
        request_id = f"{self.replica.incarnation if self.replica else ''}/{next(self._numbers)}"
        request = pb.GetTaskRequest(
            replica=self.replica, request_id=request_id, wait_s=wait_s, most=most
        )
        reply: pb.GetTaskReply = self._call_with_reports("GetTask", request, wait_s)
        return reply

    def report_done(
        self,
        task: int,
        attempt: int,
        *,
        records: int,
        result: bytes = b"",
        slot_map_version: int = 0,
    ) -> bool:
        """Report that the lease is done: all its spans are acknowledged by all shards.

        False: fenced.

        `slot_map_version`: of the servers that acknowledged the last one.
        """
        return self.report_task(
            pb.ReportTaskRequest(
                task=task,
                attempt=attempt,
                done=True,
                records=records,
                result=result,
                slot_map_version=slot_map_version,
            )
        )

    def report_later(
        self, report: pb.ReportTaskRequest, told: Callable[[bool], object] = lambda _: None
    ) -> None:
        """Send a report with the next `get_task`, heartbeat or `send_reports`.

        `told` whether it was accepted. What is not sent when this process is killed is found by the
        fence of its task.
        """
        self._later.append((report, told))

    def send_reports(self, state: str = "") -> None:
        """Send the reports that were left for later."""
        while self._later:
            self.heartbeat(state=state)

    def _call_with_reports(
        self, method: str, request: Any, wait_s: float = 0.0, **options: Any
    ) -> Any:
        taken: list[tuple[pb.ReportTaskRequest, Callable[[bool], object]]] = []
        with suppress(IndexError):
            while len(taken) < _MOST_REPORTS:
                taken.append(self._later.popleft())
        request.reports.extend(report for report, _ in taken)
        try:
            reply = self._call(method, request, wait_s, **options)
        except BaseException:  # whatever has ended the call, the reports go with the next one
            self._later.extendleft(reversed(taken))
            raise
        for (_, told), accepted in zip(taken, reply.accepted, strict=False):  # fenced: none
            told(accepted)
        return reply

    def report_failed(self, task: int, attempt: int, failure: pb.Failure, *, records: int) -> bool:
        """Report that the content of a span failed. False: fenced."""
        return self.report_task(
            pb.ReportTaskRequest(task=task, attempt=attempt, failed=failure, records=records)
        )

    def hand_back(self, task: int, attempt: int, position: int, *, records: int) -> bool:
        """Give the lease back; all shards have acknowledged up to `position`. False: fenced."""
        return self.report_task(
            pb.ReportTaskRequest(task=task, attempt=attempt, handed_back=position, records=records)
        )

    def report_task(self, request: pb.ReportTaskRequest) -> bool:
        """Send a report made by the caller; `replica` is filled in. False: fenced."""
        assert self.replica is not None, "only a worker reports tasks"
        request.replica.CopyFrom(self.replica)
        return bool(self._call("ReportTask", request).accepted)

    def heartbeat(
        self,
        *,
        progress: Iterable[pb.Progress] = (),
        version: int = 0,
        scalars: Mapping[str, float] | None = None,
        state: str = "",
        round_: int = 0,
        patience_s: float | None = None,
    ) -> pb.HeartbeatReply:
        """Say that this replica lives; renews all leases of a worker."""
        request = pb.HeartbeatRequest(
            progress=progress,
            version=version,
            scalars=scalars or {},
            state=state,
            round=round_,
        )
        return self.heartbeat_with(request, patience_s)

    def heartbeat_with(
        self, request: pb.HeartbeatRequest, patience_s: float | None = None
    ) -> pb.HeartbeatReply:
        """Send a heartbeat made by the caller; `replica` is filled in."""
        assert self.replica is not None, "only a replica has a heart"
        request.replica.CopyFrom(self.replica)
        reply: pb.HeartbeatReply = self._call_with_reports(
            "Heartbeat", request, patience_s=patience_s
        )
        return reply

    def begins(self, task: int, attempt: int, start: int, end: int, round_: int = 0) -> None:
        """Say that this worker begins with a span of a careful lease, and does nothing beside."""
        trying = pb.Trying(task=task, attempt=attempt, start=start, end=end)
        self.heartbeat_with(pb.HeartbeatRequest(trying=trying, round=round_))

    def get_servers(
        self,
        known_slot_map_version: int = 0,
        wait_s: float = 10.0,
        patience_s: float | None = None,
    ) -> pb.GetServersReply:
        """Return the addresses of the servers.

        `slot_map_version` is 0 while not all of them are there.
        """
        request = pb.GetServersRequest(known_slot_map_version=known_slot_map_version, wait_s=wait_s)
        reply: pb.GetServersReply = self._call("GetServers", request, wait_s, patience_s=patience_s)
        return reply

    def get_teachers(
        self,
        known_version: int = 0,
        wait_s: float = 10.0,
        patience_s: float | None = None,
        *,
        met: tuple[str, str] = ("", ""),
    ) -> pb.GetTeachersReply:
        """Return the addresses of the teachers, once they are others than the known ones.

        And the fingerprint of all: the first that any worker has met. `met`: where this one has met
        which; an address "" is of nobody who is known any more.
        """
        request = pb.GetTeachersRequest(
            known_version=known_version, wait_s=wait_s, met=met[0], fingerprint=met[1]
        )
        reply: pb.GetTeachersReply = self._call(
            "GetTeachers", request, wait_s, patience_s=patience_s
        )
        return reply

    # -- members of an all-reduce group

    def get_task_of_round(self, round_: int, number: int, wait_s: float = 10.0) -> pb.GetTaskReply:
        """Lease the task of this number of the round, or one for this member alone."""
        request_id = f"{self.replica.incarnation if self.replica else ''}/{next(self._numbers)}"
        request = pb.GetTaskRequest(
            replica=self.replica, request_id=request_id, wait_s=wait_s, round=round_, number=number
        )
        reply: pb.GetTaskReply = self._call("GetTask", request, wait_s)
        return reply

    def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        """Wait for a round with this member; `replica` is filled in."""
        request.replica.CopyFrom(self.replica or pb.Replica())
        reply: pb.JoinReply = self._call("Join", request, request.wait_s)
        return reply

    def watch_round(self, request: pb.WatchRoundRequest) -> pb.WatchRoundReply:
        """Wait for something that a member must know; `replica` is filled in."""
        request.replica.CopyFrom(self.replica or pb.Replica())
        reply: pb.WatchRoundReply = self._call("WatchRound", request, request.wait_s)
        return reply

    def put_key(self, round_: int, key: str, value: bytes) -> None:
        self._call("PutKey", pb.PutKeyRequest(round=round_, key=key, value=value))

    def get_key(self, round_: int, key: str, wait_s: float) -> pb.GetKeyReply:
        request = pb.GetKeyRequest(round=round_, key=key, wait_s=wait_s)
        reply: pb.GetKeyReply = self._call("GetKey", request, wait_s)
        return reply

    def report_order(self, report: pb.ReportOrderRequest) -> None:
        """Report what became of an order; `replica` is filled in."""
        report.replica.CopyFrom(self.replica or pb.Replica())
        self._call("ReportOrder", report)

    # -- command line

    def status(self, known_revision: int = 0, wait_s: float = 0.0) -> tuple[int, dict[str, Any]]:
        """Return revision and status of the job.

        The call is held up to `wait_s` until there is a revision newer than `known_revision`.
        """
        request = pb.StatusRequest(known_revision=known_revision, wait_s=wait_s)
        reply = self._call("Status", request, wait_s)
        return reply.revision, finite.loads(reply.status_json)

    def scale(
        self,
        num_workers: int,
        num_servers: int = 0,
        num_teachers: int | None = None,
        max_teachers: int = 0,
    ) -> int:
        """Ask for so many of each; returns how many workers were wanted before.

        0 workers or servers, None: as many as there are. `max_teachers`: from `num_teachers` to so
        many by need; 0: no need. Raises JobError where those of this job cannot change.
        """
        request = pb.ScaleRequest(
            num_workers=num_workers,
            num_servers=num_servers,
            num_teachers=num_teachers,
            max_teachers=max_teachers,
        )
        reply: pb.ScaleReply = self._call("Scale", request)
        if reply.refused:
            raise JobError(reply.refused)
        return int(reply.previous)

    def checkpoint(self, timeout_s: float = float("inf"), poll_s: float = 10.0) -> str:
        """Have a checkpoint of now written; return where it is, "": not yet, after `timeout_s`.

        Raises JobError where there can be none.
        """
        request = pb.CheckpointRequest(request_id=uuid.uuid4().hex)
        give_up = time.monotonic() + timeout_s
        while True:
            request.wait_s = max(0.0, min(poll_s, give_up - time.monotonic()))
            reply: pb.CheckpointReply = self._call("Checkpoint", request, request.wait_s)
            if reply.refused:
                raise JobError(reply.refused)
            if not reply.pending or time.monotonic() >= give_up:
                return str(reply.checkpoint)

    def stop(self, reason: str = "") -> None:
        """Drain the workers, write a checkpoint if the job has a place for one, end."""
        self._call("Stop", pb.StopRequest(reason=reason))


def _where_the_job_says() -> str | None:
    folder = os.environ.get("EDL_JOB_DIR")
    return paths.master_address(folder) if folder else None

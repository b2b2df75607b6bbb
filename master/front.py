"""The front of a master: what others ask of it, and its answers.

Public methods may be called from any thread.

A request becomes an event of the loop, which is answered at once or waits (asking.py). No answer
leaves before the decisions that it may tell of are on disk (Core.answer).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TypeVar

from ..common import faults
from ..proto import master_pb2 as pb
from . import servers_change
from .asking import CHECKPOINT, ROUND, SERVERS, TASK, TEACHERS, Asking
from .books.decisions import Done, Failed, HandBack
from .books.task import Failure, Task
from .core import Core
from .course import Course
from .groups.group import Group
from .lookers import Lookers
from .losses import Losses
from .membership import SERVER, TEACHER, WORKER, Member
from .processes import Processes
from .shutdown import Shutdown
from .teachers import Teachers
from .told import about

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

_ROLES = {pb.WORKER: WORKER, pb.SERVER: SERVER, pb.TEACHER: TEACHER}
_CLOSING_S = 0.02  # between two heartbeats of a worker whose last records are waited for
_BEATS_PER_S = 300  # of all workers together, while that leaves each of them three in a lease


class Front:
    """The front of a master: one method for each question."""

    def __init__(
        self,
        core: Core,
        *,
        group: Group,
        course: Course,
        losses: Losses,
        processes: Processes,
        shutdown: Shutdown,
        lookers: Lookers,
        asking: Asking,
    ) -> None:
        self._core = core
        self._group = group
        self._course = course
        self._losses = losses
        self._processes = processes
        self._shutdown = shutdown
        self._lookers = lookers
        self._asking = asking
        self.teachers = Teachers(core, processes)
        asking.follow_teachers(lambda: self.teachers.version)

    # -- requests (any thread)

    def register(self, request: pb.RegisterRequest) -> Future[pb.RegisterReply]:
        return self._asking.ask(lambda: self._register(request))

    def heartbeat(self, request: pb.HeartbeatRequest) -> Future[pb.HeartbeatReply]:
        return self._asking.ask(lambda: self._heartbeat(request))

    def report_task(self, request: pb.ReportTaskRequest) -> Future[pb.ReportTaskReply]:
        return self._asking.ask(
            lambda: pb.ReportTaskReply(accepted=self._report(request.replica, request))
        )

    def get_task(self, request: pb.GetTaskRequest) -> Future[pb.GetTaskReply]:
        accepted: list[bool] = []

        def come() -> None:
            # A request is a sign of life when it comes, not for as long as it is parked.
            self._heard(request.replica.incarnation)
            accepted.extend(self._report(request.replica, report) for report in request.reports)

        def answer() -> pb.GetTaskReply | None:
            reply = self._get_task(request)
            if reply is not None:
                reply.accepted.extend(accepted)
            return reply

        return self._asking.ask_and_wait(
            ROUND if self._group.workers.trains_in_rounds else TASK,
            answer,
            lambda: pb.GetTaskReply(outcome=pb.GetTaskReply.WAIT, accepted=accepted),
            request.wait_s,
            come,
            (request.replica.incarnation, request.request_id),
        )

    def get_servers(self, request: pb.GetServersRequest) -> Future[pb.GetServersReply]:
        def newer() -> pb.GetServersReply | None:
            reply = self._group.server_map.reply()
            return reply if reply.slot_map_version > request.known_slot_map_version else None

        return self._asking.ask_and_wait(
            SERVERS, newer, self._group.server_map.reply, request.wait_s
        )

    def get_teachers(self, request: pb.GetTeachersRequest) -> Future[pb.GetTeachersReply]:
        def come() -> None:
            if request.fingerprint:
                self.teachers.meet(request.met, request.fingerprint)

        def newer() -> pb.GetTeachersReply | None:
            is_news = self.teachers.version > request.known_version
            return self.teachers.reply() if is_news else None

        return self._asking.ask_and_wait(TEACHERS, newer, self.teachers.reply, request.wait_s, come)

    def get_status(self, request: pb.StatusRequest) -> Future[pb.StatusReply]:
        future: Future[pb.StatusReply] = Future()
        return self._asking.post(lambda: self._lookers.park(request, future), future)

    def scale(self, request: pb.ScaleRequest) -> Future[pb.ScaleReply]:
        def scale() -> pb.ScaleReply:
            core, servers = self._core, request.num_servers
            if request.HasField("num_teachers"):
                if refused := self.teachers.scale(request.num_teachers, request.max_teachers):
                    return pb.ScaleReply(refused=refused)
                if not (servers or request.num_workers):
                    return pb.ScaleReply(previous=core.replicas.wanted)
            changing = core.changing
            previous = core.replicas.wanted if changing is None else changing.workers
            workers = request.num_workers or previous
            if servers and (changing is not None or servers != core.settings.num_ps):
                refused = servers_change.ask(core, servers, workers)
                if refused:
                    core.tell(f"stays on {core.settings.num_ps} servers: {refused}")
                return pb.ScaleReply(previous=previous, refused=refused)
            return pb.ScaleReply(previous=self._processes.scale(workers))

        return self._asking.ask(scale)

    def checkpoint(self, request_id: str, wait_s: float) -> Future[pb.CheckpointReply]:
        requested = self._course.requested
        return self._asking.ask_and_wait(
            CHECKPOINT,
            lambda: requested.answer(request_id),
            lambda: pb.CheckpointReply(pending=True),
            wait_s,
            lambda: requested.ask(request_id),
        )

    def stop(self, reason: str) -> Future[pb.StopReply]:
        def stop() -> pb.StopReply:
            self._shutdown.stop(reason)
            return pb.StopReply()

        return self._asking.ask(stop)

    # -- requests of workers that train in rounds: the servicer asks only where there are some

    def join(self, request: pb.JoinRequest) -> Future[pb.JoinReply]:
        def answer() -> pb.JoinReply | None:
            replica = request.replica
            if self._core.members.get(replica.incarnation) is None:
                return pb.JoinReply(outcome=pb.JoinReply.FENCED)
            if request.leaves:
                return self._group.workers.members().leave(request)
            if self._core.status.state == "done" or self._processes.must_leave(
                WORKER, replica.index
            ):
                return pb.JoinReply(outcome=pb.JoinReply.LEAVE)
            return self._group.workers.members().joined(request)

        def come() -> None:
            self._heard(request.replica.incarnation)
            if answer() is None and not request.leaves:
                self._group.workers.members().join(request)

        return self._asking.ask_and_wait(
            ROUND, answer, lambda: pb.JoinReply(outcome=pb.JoinReply.WAIT), request.wait_s, come
        )

    def watch_round(self, request: pb.WatchRoundRequest) -> Future[pb.WatchRoundReply]:
        def answer() -> pb.WatchRoundReply | None:
            leaving = self._processes.must_leave(WORKER, request.replica.index)
            return self._group.workers.members().watched(request, leaving)

        return self._asking.ask_and_wait(ROUND, answer, pb.WatchRoundReply, request.wait_s)

    def put_key(self, request: pb.PutKeyRequest) -> Future[pb.PutKeyReply]:
        def put() -> pb.PutKeyReply:
            self._group.workers.members().put_key(request)
            return pb.PutKeyReply()

        return self._asking.ask(put)

    def get_key(self, request: pb.GetKeyRequest) -> Future[pb.GetKeyReply]:
        def answer() -> pb.GetKeyReply | None:
            return self._group.workers.members().get_key(request)

        return self._asking.ask_and_wait(ROUND, answer, pb.GetKeyReply, request.wait_s)

    def report_order(self, request: pb.ReportOrderRequest) -> Future[pb.ReportOrderReply]:
        def report() -> pb.ReportOrderReply:
            self._group.workers.members().reported(request)
            return pb.ReportOrderReply()

        return self._asking.ask(report)

    # -- events (the loop's thread, as everything below)

    def _register(self, request: pb.RegisterRequest) -> pb.RegisterReply:
        replica = request.replica
        role = _ROLES[replica.role]
        member = Member(
            role,
            replica.index,
            replica.incarnation,
            self._core.clock.now(),
            request.address,
            request.metrics_address,
            request.pid,
            request.host,
        )
        accepted, replaced = self._core.members.register(member)
        for before in replaced:
            self._processes.lost(before, "replaced")
        if not accepted:
            return pb.RegisterReply(fenced=True)
        self._processes.registered(role, replica.index)
        self._core.tell(
            f"{role} {replica.index} registered (pid {request.pid})",
            **about("start", member, machine=request.host),
        )
        if request.note:
            self._core.tell(f"{role} {replica.index}: {request.note}")
        self._core.save_soon()
        return pb.RegisterReply(
            settings_json=self._core.settings.to_json(), job_dir=str(self._core.job_dir)
        )

    def _heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        replica = request.replica
        known = self._core.members.heard(
            replica.incarnation,
            self._core.clock.now(),
            version=request.version,
            state=request.state,
            scalars=request.scalars,
        )
        if not known:
            return pb.HeartbeatReply(fenced=True)
        role = _ROLES[replica.role]
        if replica.role == pb.WORKER:
            self.teachers.heard(replica.incarnation, request.scalars)
        if replica.role == pb.SERVER:
            if not self._group.workers.trains_in_rounds:  # its members count the steps
                self._core.version = max(self._core.version, request.version)
            if request.HasField("coverage"):
                self._group.server_map.covered(replica.index, request.coverage)
        accepted = [self._report(replica, report) for report in request.reports]
        for note in request.notes:
            self._core.tell(f"{role} {replica.index}: {note}")
        lessee = self._group.workers.lessee_of(replica.incarnation, request.round)
        if lessee != replica.incarnation:
            self._core.version = max(self._core.version, request.version)
        if request.state not in ("", "starting"):
            incarnation = self._processes.incarnation(role, replica.index)
            self._core.replicas.works(role, replica.index, incarnation)
        if request.fails and not self._core.ended:
            self._core.fail(f"{role} {replica.index}: {request.fails}")
        if request.HasField("stuck"):
            process = self._processes.find(WORKER, replica.index)
            if self._losses.hangs(request, process, lessee):
                self._processes.stop(WORKER, replica.index, 0)
            elif request.HasField("trying") and lessee != replica.incarnation:
                stuck_s = request.stuck.seconds
                self._group.workers.members().stalls(replica.incarnation, request.trying, stuck_s)
        elif request.HasField("trying"):
            self._losses.begins(request.trying, replica.incarnation, lessee)
        told = ((each.task, each.attempt, each.position) for each in request.progress)
        self._core.hear_progress(lessee, told)
        return pb.HeartbeatReply(
            drain=self._processes.must_leave(role, replica.index),
            low_water=self._core.queue.low_water,
            slot_map_version=self._group.server_map.version,
            tasks_below=self._core.queue.plan.first_id_of(self._core.queue.opened),
            accepted=accepted,
            interval_s=self._interval_s if replica.role == pb.WORKER else 0.0,
        )

    @property
    def _interval_s(self) -> float:
        """The seconds between two heartbeats of a worker: the more there are, the longer."""
        lease_s, workers = self._core.settings.lease_s, self._core.members.count(WORKER)
        closing = self._core.lessons.is_closing and not self._core.ended
        soonest_s = _CLOSING_S if closing else min(1.0, lease_s / 5)
        return min(max(soonest_s, workers / _BEATS_PER_S), lease_s / 3)

    def _get_task(self, request: pb.GetTaskRequest) -> pb.GetTaskReply | None:
        replica = request.replica
        if self._core.members.get(replica.incarnation) is None:
            return pb.GetTaskReply(outcome=pb.GetTaskReply.FENCED)
        if self._core.status.state == "done":
            return pb.GetTaskReply(outcome=pb.GetTaskReply.FINISHED)
        if self._processes.must_leave(WORKER, replica.index):
            return pb.GetTaskReply(outcome=pb.GetTaskReply.DRAIN)
        workers = self._core.members.count(WORKER)
        if workers < self._core.settings.min_workers and workers < self._core.replicas.wanted:
            return None
        tasks = self._group.workers.lease(request, self._course.evaluating)
        if tasks is None:
            return pb.GetTaskReply(outcome=pb.GetTaskReply.ROUND_OVER)
        return self._leased(replica, tasks) if tasks else None

    def _leased(self, replica: pb.Replica, tasks: Sequence[Task]) -> pb.GetTaskReply:
        process = self._processes.incarnation(WORKER, replica.index)
        self._core.replicas.works(WORKER, replica.index, process)
        for task in tasks:
            faults.point("master.lease", task=task.id)
            log.debug("task=%d attempt=%d -> leased by=%d", task.id, task.attempt, replica.index)
        first, *more = map(self._task_message, tasks)
        return pb.GetTaskReply(outcome=pb.GetTaskReply.TASK, task=first, more=more)

    def _heard(self, incarnation: str) -> None:
        self._core.members.heard(incarnation, self._core.clock.now())

    def _report(self, replica: pb.Replica, request: pb.ReportTaskRequest) -> bool:
        self._heard(replica.incarnation)
        worker = self._group.workers.lessee_of(replica.incarnation, request.round)
        about = worker, request.task, request.attempt
        outcome = request.WhichOneof("outcome")
        if worker != replica.incarnation:
            self._core.version = max(self._core.version, request.version)
            if outcome == "failed":
                self._group.workers.failed()
        if outcome == "done":
            doubtful = request.slot_map_version < self._group.server_map.version
            return self._core.decide(Done(*about, request.result, doubtful))
        if outcome == "handed_back":
            return self._core.decide(HandBack(*about))
        told = request.failed
        record = told.record if told.HasField("record") else None
        failure = Failure(told.start, told.end, told.error, told.source, record, told.traceback)
        # What else fails until the workers hear of it is no news.
        over = self._core.queue.broken is not None
        accepted = self._core.decide(Failed(*about, failure))
        if accepted and not over:
            where = f"positions {told.start}-{told.end} of task {request.task}"
            self._core.tell(f"worker {replica.index} failed at {where}: {told.error}")
            log.warning("%s\n%s", told.error, told.traceback)
        return accepted

    def _task_message(self, task: Task) -> pb.Task:
        return pb.Task(
            id=task.id,
            attempt=task.attempt,
            kind=pb.TaskKind.Name(task.kind),
            source=task.source,
            start=task.start,
            end=task.end,
            epoch=task.epoch,
            position=task.position,
            boundaries=task.boundaries,
            skips=sorted(task.skips),
            cut=task.cut,
            payload=task.payload,
            lease_s=self._core.settings.lease_s,
            careful=task.careful,
        )

"""The master: one thread that owns the books and decides (see loop.py).

Handlers turn what workers, servers, the runtime and people say into events of the pure state
machines; each decision about tasks is journaled before its answer leaves. `_settle` runs after
every batch of events and does what the state calls for: processes are started and given up, the
servers looked after (server_group.py), who waits is answered. What the job does from its start to
its end is the script of course.py.

`resume` begins where the master before ended: the processes are adopted, and nobody but the user
notices.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ..common import cold, faults
from ..common.clock import Clock
from ..common.errors import EdlError, Fenced, JobError, Unreachable
from ..common.identity import Identity
from ..common.settings import JobSettings
from ..durable.journal import Journal
from ..durable.loop import Script
from ..proto import master_pb2 as pb
from ..runtime.base import Exit, Note, OnReport, Replica, Report, Runtime
from .collective import Collective
from .core import EXIT_FAILED, EXIT_INTERRUPTED, Core, as_told, go_on_with
from .course import Course
from .hybrid import Hybrid
from .judge import Judges
from .losses import Losses
from .membership import SERVER, WORKER, Member
from .parking import Parked, Parking
from .plan import Piece
from .replicas import LONGEST_PAUSE_S, Start
from .server_group import ServerGroup
from .servers import Servers
from .state import dump, dump_fields, load, load_fields
from .task_queue import Task, TaskQueue

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

_ROLES = {pb.WORKER: WORKER, pb.SERVER: SERVER}
_TICK_S = 0.5  # how late a silent server may be noticed
_JUST_AFTER_S = 0.001  # a worker's lease has ended, at the next look
_AWAY_S = 4 * _TICK_S  # a longer pause between two looks is no ordinary one
_SILENT_LEASES = 3  # a process silent for so many leases is killed
_SERVER_GRACE_S = 10.0
_FAILED_GRACE_S = 2.0
_COMPACT_AT = 20_000  # decisions, or twice what there is to store: less than a second of replay
_MOST_TASKS = 32  # of one lease: half of what the books remember of a worker (task_queue.py)
_BEATS_PER_S = 300  # of all workers together, while that leaves each of them three in a lease
# What who waits for an answer waits for.
_TASK, _SERVERS, _ROUND = "task", "servers", "round"


class Master:
    """One job. Public methods may be called from any thread and return futures."""

    def __init__(
        self,
        *,
        settings: JobSettings,
        job_dir: Path,
        queue: TaskQueue,
        validation: Sequence[Piece],
        journal: Journal,
        judges: Judges | None = None,
        connect: Callable[[Sequence[str]], Servers],
        clock: Clock,
        identity: Identity,
        restore: str = "",
        watch: Callable[[dict[str, Any]], None] = lambda status: None,
    ) -> None:
        """`validation`: the pieces of evaluations while training. `restore`: the checkpoint whose
        books `queue` goes on with. `watch` is shown the status now and then."""
        core = Core(
            settings=settings,
            job_dir=job_dir,
            queue=queue,
            journal=journal,
            clock=clock,
            memory=self._memory,
        )
        self.core = core
        self.collective: Collective | None = None
        self.servers: ServerGroup | None = None
        self.group: ServerGroup | Collective
        if settings.strategy != "allreduce":
            self.group = self.servers = ServerGroup(core, connect, restore)
        if settings.strategy != "ps":
            self.group = self.collective = (
                Hybrid(core, restore, self.servers) if self.servers else Collective(core, restore)
            )
        self.course = Course(core, self.group, validation, judges or Judges())
        self.settings, self.queue, self.loop, self.status = settings, queue, core.loop, core.status
        self.members, self.replicas = core.members, core.replicas
        self.losses = Losses(core, self.collective)
        self.status.began_from = restore or None
        self.status.begin_run(clock.now(), queue.records_done)
        self._identity = identity
        self._watch = watch
        self._runtime: Runtime | None = None
        self._processes: dict[tuple[str, int], Replica] = {}
        self._parking = Parking()
        self._asked_tasks = self._asked_servers = 0  # what was new when those who wait were asked
        self._watchers: list[tuple[int, Parked]] = []
        self._looked = clock.now()  # for who is silent
        self._silent: dict[tuple[str, int], float] = {}  # role, index: last heard
        self._goes_on = bool(queue.fencing)  # with tasks that are not fenced yet
        self._stop_reason = ""
        self._resumed = self._superseded = False
        self._leaving = self._last_worker_gone = self._over = False

    # -- life

    def run(self, start_runtime: Callable[[OnReport], Runtime]) -> int:
        """The whole job; returns its exit code."""
        self._runtime = start_runtime(self.reported)
        try:
            self._begin()
            self._run_loop()
        except Fenced:
            self._superseded = True
            self._runtime.detach()  # all that runs is the other master's
            raise
        except BaseException as error:
            if not self.core.ended:
                why = f"the master broke: {error!r}"
                self.status.end("failed", EXIT_FAILED, why, self.core.resume)
            raise
        finally:
            self._runtime.close()
            self.loop.close()
            self._dismiss()
            self.group.close()
        assert self.status.exit_code is not None
        return self.status.exit_code

    def resume(self, after: str, memory: dict[str, Any], failed: str | None = None) -> None:
        """Go on where the master before ended (`after`: how). Before `run`.

        `failed`: so the job had ended. Nothing runs any more, and what counted against its
        processes and its tasks is forgiven.
        """
        now = self.core.clock.now()
        self._resumed = True
        self.status.remember(memory["status"], now, self.core.journal.epoch)
        if failed is not None or not after:  # it did not run meanwhile, for who knows how long
            self.status.begin_run(now, self.queue.records_done)
        members = [dataclasses.replace(m, last_heard=now) for m in load(memory["members"])]
        if failed is not None:
            self.core.tell(f"goes on; it had failed: {failed}")
            self.status.go_on("running" if memory["connected"] else "starting")
            self.members.restore([], [*memory["gone"], *(m.incarnation for m in members)])
            self.core.do("forgive")
            members = []
        else:
            self._remember_processes(memory, members, now)
        load_fields(self.core.evaluations, memory["evaluations"])
        self.core.version = memory["version"]
        self.group.remember(memory)
        self.course.remember(memory)
        there = {m.incarnation for m in members}
        if self.collective is not None:
            there.add(self.collective.lessee)
        for worker in {t.worker for t in self.queue.leased_tasks} - there:
            self.core.do("lost", worker=worker)  # its loss was half told when the master was killed
        self.core.tell(
            f"the master {after or 'ended'}; started again (epoch {self.core.journal.epoch})"
        )
        self.core.save()

    def _remember_processes(
        self, memory: dict[str, Any], members: Sequence[Member], now: float
    ) -> None:
        """Who was there when the master before ended; `run` finds out who still is."""
        self.members.restore(members, memory["gone"])
        load_fields(self.replicas, memory["replicas"])
        for slot in self.replicas.slots.values():  # later where the machine was booted since
            slot.started = min(slot.started, now)
            slot.not_before = min(slot.not_before, now + LONGEST_PAUSE_S)
        self._stop_reason = memory["stop_reason"]
        started = {fields[2]: Replica(*fields) for fields in memory["processes"]}
        for slot in (*self.replicas.running(WORKER), *self.replicas.running(SERVER)):
            # One whose start was not finished is not known by its pid: it is given up, and refused
            # where it exists.
            unknown = Replica(slot.role, slot.index, slot.incarnation)
            replica = started.get(slot.incarnation, unknown)
            self._processes[slot.role, slot.index] = replica
            if replica.pid:
                self._await_registration(replica)
        for member in members:
            self._silent.pop((member.role, member.index), None)

    def _memory(self) -> dict[str, Any]:
        """All that a successor must know, and that is not the queue's."""
        return {
            "status": self.status.memory(),
            "members": dump([m.lasting() for m in self.members.all]),
            "gone": self.members.gone,
            "replicas": dump_fields(self.replicas),
            "processes": [dataclasses.astuple(r) for r in self._processes.values()],
            "evaluations": dump_fields(self.core.evaluations),
            "version": self.core.version,
            "connected": self.group.connected,
            "stop_reason": self._stop_reason,
            **self.group.memory(),
            **self.course.memory(),
        }

    def _begin(self) -> None:
        self.core.save()
        if self._resumed:
            assert self._runtime is not None
            for replica in list(self._processes.values()):
                self._runtime.adopt(replica)
            faults.point("master.recover")
        else:
            self.core.tell("starting")
            if promise := self.course.checkpoints.promise():
                self.core.tell(promise)
            if self.servers is not None and cold.must_compile():
                self.core.tell(
                    "the servers compile their kernels first, some ten seconds, once for an "
                    "installation: `edl kernels` does it ahead"
                )
        if not self.core.ended:
            self.loop.spawn(self.course.run())
        if self.status.state == "stopping":
            self.loop.spawn(self._stopping(self._stop_reason))

    def _dismiss(self) -> None:
        """Answer all who wait; where there is another master, that one shall."""
        with suppress(EdlError):  # then they are told
            self.core.commit()
        for parked in (*self._parking.take_all(), *(each for _, each in self._watchers)):
            if self._superseded:
                parked.future.set_exception(Unreachable("this master has ended"))
            else:
                parked.future.set_result(parked.answer() or parked.otherwise())
        self._watchers.clear()

    def _run_loop(self) -> None:
        while True:
            try:
                self.loop.run(self._settle, lambda: self._over)
                return
            except Fenced:
                raise
            except EdlError as error:
                with suppress(JobError):  # servers refuse the calls of an older master, too
                    self.core.journal.check()
                # A decision that could not be journaled, or one that the books rule out: nothing
                # may be answered any more. What still runs is ended in order.
                if self.core.ended:
                    raise
                log.exception("job -> failed")
                self.core.fail(str(error))

    def fence(self, why: str) -> None:
        """There is another master: this one ends, and touches nothing more."""

        def end() -> None:
            raise Fenced(why)

        self.loop.post(end)

    def abort(self) -> None:
        """Kill every process now; the caller ends this one."""
        if self._runtime is not None:
            self._runtime.close()

    def reported(self, report: Report) -> None:
        """The runtime says what has become of a process."""
        self.loop.post(lambda: self._reported(report))

    # -- requests (any thread)

    def register(self, request: pb.RegisterRequest) -> Future[pb.RegisterReply]:
        return self._ask(lambda: self._register(request))

    def heartbeat(self, request: pb.HeartbeatRequest) -> Future[pb.HeartbeatReply]:
        return self._ask(lambda: self._heartbeat(request))

    def report_task(self, request: pb.ReportTaskRequest) -> Future[pb.ReportTaskReply]:
        return self._ask(
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

        return self._ask_and_wait(
            _TASK if self.collective is None else _ROUND,
            answer,
            lambda: pb.GetTaskReply(outcome=pb.GetTaskReply.WAIT, accepted=accepted),
            request.wait_s,
            come,
        )

    def get_servers(self, request: pb.GetServersRequest) -> Future[pb.GetServersReply]:
        def newer() -> pb.GetServersReply | None:
            reply = self.group.reply()
            return reply if reply.slot_map_version > request.known_slot_map_version else None

        return self._ask_and_wait(_SERVERS, newer, self.group.reply, request.wait_s)

    # of all-reduce

    @property
    def members_group(self) -> Collective:
        """The servicer asks only where there is one."""
        assert self.collective is not None
        return self.collective

    def join(self, request: pb.JoinRequest) -> Future[pb.JoinReply]:
        def answer() -> pb.JoinReply | None:
            replica = request.replica
            if self.members.get(replica.incarnation) is None:
                return pb.JoinReply(outcome=pb.JoinReply.FENCED)
            if request.leaves:
                return self.members_group.leave(request)
            if self.status.state == "done" or self._must_leave(WORKER, replica.index):
                return pb.JoinReply(outcome=pb.JoinReply.LEAVE)
            return self.members_group.joined(request)

        def come() -> None:
            self._heard(request.replica.incarnation)
            if answer() is None and not request.leaves:
                self.members_group.join(request)

        return self._ask_and_wait(
            _ROUND, answer, lambda: pb.JoinReply(outcome=pb.JoinReply.WAIT), request.wait_s, come
        )

    def watch_round(self, request: pb.WatchRoundRequest) -> Future[pb.WatchRoundReply]:
        def answer() -> pb.WatchRoundReply | None:
            leaving = self._must_leave(WORKER, request.replica.index)
            return self.members_group.watched(request, leaving)

        return self._ask_and_wait(_ROUND, answer, pb.WatchRoundReply, request.wait_s)

    def put_key(self, request: pb.PutKeyRequest) -> Future[pb.PutKeyReply]:
        def put() -> pb.PutKeyReply:
            self.members_group.put_key(request)
            return pb.PutKeyReply()

        return self._ask(put)

    def get_key(self, request: pb.GetKeyRequest) -> Future[pb.GetKeyReply]:
        def answer() -> pb.GetKeyReply | None:
            return self.members_group.get_key(request)

        return self._ask_and_wait(_ROUND, answer, pb.GetKeyReply, request.wait_s)

    def report_order(self, request: pb.ReportOrderRequest) -> Future[pb.ReportOrderReply]:
        def report() -> pb.ReportOrderReply:
            self.members_group.reported(request)
            return pb.ReportOrderReply()

        return self._ask(report)

    def get_status(self, request: pb.StatusRequest) -> Future[pb.StatusReply]:
        future: Future[pb.StatusReply] = Future()

        def park() -> None:
            deadline = self.core.clock.now() + request.wait_s
            parked = Parked(lambda: None, self._status_reply, deadline, future)
            self._watchers.append((request.known_revision, parked))

        return self._post(park, future)

    def scale(self, request: pb.ScaleRequest) -> Future[pb.ScaleReply]:
        return self._ask(lambda: pb.ScaleReply(previous=self._scale(request.num_workers)))

    def stop(self, reason: str) -> Future[pb.StopReply]:
        def stop() -> pb.StopReply:
            if self.status.state in ("starting", "running"):
                self.status.state = "stopping"
                self._stop_reason = reason
                self.core.tell(f"stopping: {reason or 'asked to'}")
                self.core.save()
                self.loop.spawn(self._stopping(reason))
            return pb.StopReply()

        return self._ask(stop)

    def _ask(self, answer: Callable[[], Answer]) -> Future[Answer]:
        future: Future[Answer] = Future()

        def event() -> None:
            try:
                self.core.answer(future, answer())
            except EdlError as error:
                future.set_exception(as_told(error))
                raise

        return self._post(event, future)

    def _ask_and_wait(
        self,
        topic: str,
        answer: Callable[[], Answer | None],
        otherwise: Callable[[], Answer],
        wait_s: float,
        come: Callable[[], Any] = lambda: None,
    ) -> Future[Answer]:
        """`come` happens once, when the request comes."""
        future: Future[Answer] = Future()

        def park() -> None:
            come()
            deadline = self.core.clock.now() + wait_s
            self._parking.park(topic, Parked(answer, otherwise, deadline, future))

        return self._post(park, future)

    def _post(self, event: Callable[[], Any], future: Future[Answer]) -> Future[Answer]:
        future.set_running_or_notify_cancel()  # whoever asked may go away; it is answered all the same
        if not self.loop.post(event):
            future.set_exception(Unreachable("the job is over"))
        return future

    # -- events (the loop's thread, as everything below)

    def _register(self, request: pb.RegisterRequest) -> pb.RegisterReply:
        replica = request.replica
        role = _ROLES[replica.role]
        accepted, replaced = self.members.register(
            Member(
                role,
                replica.index,
                replica.incarnation,
                self.core.clock.now(),
                request.address,
                request.metrics_address,
                request.pid,
                request.host,
            )
        )
        for member in replaced:
            self._lost(member, "replaced")
        if not accepted:
            return pb.RegisterReply(fenced=True)
        self._silent.pop((role, replica.index), None)
        self.core.tell(f"{role} {replica.index} registered (pid {request.pid})")
        if request.note:
            self.core.tell(f"{role} {replica.index}: {request.note}")
        self.core.save_soon()
        return pb.RegisterReply(
            settings_json=self.settings.to_json(), job_dir=str(self.core.job_dir)
        )

    def _heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        replica = request.replica
        known = self.members.heard(
            replica.incarnation,
            self.core.clock.now(),
            version=request.version,
            state=request.state,
            scalars=request.scalars,
        )
        if not known:
            return pb.HeartbeatReply(fenced=True)
        if replica.role == pb.SERVER:
            self.core.version = max(self.core.version, request.version)
            if request.HasField("coverage") and self.servers is not None:
                self.servers.covered(replica.index, request.coverage)
        accepted = [self._report(replica, report) for report in request.reports]
        for note in request.notes:
            self.core.tell(f"{_ROLES[replica.role]} {replica.index}: {note}")
        lessee = replica.incarnation
        if self.collective is not None and self.collective.is_member(lessee, request.round):
            lessee = self.collective.lessee
            self.core.version = max(self.core.version, request.version)
        if request.state not in ("", "starting"):
            self.replicas.works(_ROLES[replica.role], replica.index, self._process_of(replica))
        if request.HasField("stuck"):
            process = self._processes.get((WORKER, replica.index))
            if self.losses.hangs(request, process, lessee):
                self._stop_process(WORKER, replica.index, 0)
        elif request.HasField("trying"):
            self.losses.begins(request.trying, replica.incarnation, lessee)
        proven = set(self.queue.proven)
        for told in request.progress:
            self.queue.progress(lessee, told.task, told.attempt, told.position)
        for kind in self.queue.proven - proven:
            self.core.journal.append("prove", {"kind": int(kind)})
        return pb.HeartbeatReply(
            drain=self._must_leave(_ROLES[replica.role], replica.index),
            low_water=self.queue.low_water,
            slot_map_version=self.servers.version if self.servers is not None else 0,
            tasks_below=self.queue.plan.first_id_of(self.queue.opened),
            accepted=accepted,
            interval_s=self._interval_s if replica.role == pb.WORKER else 0.0,
        )

    @property
    def _interval_s(self) -> float:
        """Between two heartbeats of a worker: the more there are, the longer."""
        lease_s, workers = self.settings.lease_s, self.members.count(WORKER)
        return min(max(min(1.0, lease_s / 5), workers / _BEATS_PER_S), lease_s / 3)

    def _process_of(self, replica: pb.Replica) -> str:
        """The incarnation that the process was started as: it may have had others since."""
        process = self._processes.get((_ROLES[replica.role], replica.index))
        return process.incarnation if process is not None else ""

    def _get_task(self, request: pb.GetTaskRequest) -> pb.GetTaskReply | None:
        replica = request.replica
        if self.members.get(replica.incarnation) is None:
            return pb.GetTaskReply(outcome=pb.GetTaskReply.FENCED)
        if self.status.state == "done":
            return pb.GetTaskReply(outcome=pb.GetTaskReply.FINISHED)
        if self._must_leave(WORKER, replica.index):
            return pb.GetTaskReply(outcome=pb.GetTaskReply.DRAIN)
        workers = self.members.count(WORKER)
        if workers < self.settings.min_workers and workers < self.replicas.wanted:
            return None
        if self.collective is not None:
            return self._get_task_of_round(self.collective, request)
        self._goes_on = self._goes_on and bool(self.queue.fencing)
        if self._goes_on:
            return None  # what a checkpoint left in the midst comes first: the order is its job's
        # Near the end of an epoch everybody gets a share of what is left.
        share = self.queue.todo // (2 * max(1, workers))
        most = max(1, min(request.most, _MOST_TASKS, share))
        about: dict[str, Any] = {"worker": replica.incarnation, "request": request.request_id}
        about["most"] = most
        tasks = self.queue.lease_some(**about)
        return self._leased(request, "lease_some", about, tasks) if tasks else None

    def _get_task_of_round(
        self, group: Collective, request: pb.GetTaskRequest
    ) -> pb.GetTaskReply | None:
        """What comes next in the round: the same for all its members, or a task that one does alone
        on the state that all have by then."""
        if not group.is_member(request.replica.incarnation, request.round):
            return pb.GetTaskReply(outcome=pb.GetTaskReply.ROUND_OVER)
        group.begun()
        together = {"worker": group.lessee, "request": str(request.number)}
        if self.queue.knows(**together):
            return self._lease(request, together)
        if group.changing or self._must_leave(WORKER, request.replica.index):
            # The others get the same answer: none of them has this one.
            return pb.GetTaskReply(outcome=pb.GetTaskReply.ROUND_OVER)
        alone = {"worker": request.replica.incarnation, "request": request.request_id}
        reply = self._lease(request, {**alone, "planned": False})
        # What servers still fence comes first once they have: the order of tasks is then that of one
        # worker, however long they take.
        if reply is None and not self.course.evaluating and not self.queue.fencing:
            reply = self._lease(request, {**together, "planned": True})
        return reply

    def _lease(self, request: pb.GetTaskRequest, terms: dict[str, Any]) -> pb.GetTaskReply | None:
        task = self.queue.lease(**terms)
        return self._leased(request, "lease", terms, [task]) if task is not None else None

    def _leased(
        self, request: pb.GetTaskRequest, kind: str, terms: dict[str, Any], tasks: list[Task]
    ) -> pb.GetTaskReply:
        replica = request.replica
        self.core.journal.append(kind, terms)
        self.replicas.works(WORKER, replica.index, self._process_of(replica))
        for task in tasks:
            faults.point("master.lease", task=task.id)
            log.debug("task=%d attempt=%d -> leased by=%d", task.id, task.attempt, replica.index)
        first, *more = map(self._task_message, tasks)
        return pb.GetTaskReply(outcome=pb.GetTaskReply.TASK, task=first, more=more)

    def _heard(self, incarnation: str) -> None:
        self.members.heard(incarnation, self.core.clock.now())

    def _report(self, replica: pb.Replica, request: pb.ReportTaskRequest) -> bool:
        worker = replica.incarnation
        self._heard(worker)
        group = self.collective
        if group is not None and request.round and group.is_member(worker, request.round):
            worker = group.lessee
            self.core.version = max(self.core.version, request.version)
            if request.WhichOneof("outcome") == "failed":
                group.failed()
        about = {"worker": worker, "task": request.task, "attempt": request.attempt}
        outcome = request.WhichOneof("outcome")
        if outcome == "done":
            servers = self.servers.version if self.servers is not None else 0
            doubtful = request.slot_map_version < servers
            return bool(self.core.do("done", **about, result=request.result, doubtful=doubtful))
        if outcome == "handed_back":
            return bool(self.core.do("hand_back", **about))
        told = request.failed
        failure = {
            "start": told.start,
            "end": told.end,
            "error": told.error,
            "source": told.source,
            "record": told.record if told.HasField("record") else None,
            "traceback": told.traceback,
        }
        over = self.queue.broken is not None  # what else fails until the workers hear is no news
        accepted = self.core.do("failed", **about, failure=failure)
        if accepted and not over:
            where = f"positions {told.start}-{told.end} of task {request.task}"
            self.core.tell(f"worker {replica.index} failed at {where}: {told.error}")
            log.warning("%s\n%s", told.error, told.traceback)
        return bool(accepted)

    def _reported(self, report: Report) -> None:
        if isinstance(report, Exit):
            self._exited(report)
        elif isinstance(report, Note):
            if report.replica is not None:
                self._slot_waits(report.replica, report.text)
            who = f"{report.replica.role} {report.replica.index} " if report.replica else ""
            self.core.tell(f"{who}{report.text}")
        elif self.members.get(report.replica.incarnation) is None:
            self._slot_waits(report.replica, "")
            self._await_registration(report.replica)

    def _slot_waits(self, replica: Replica, why: str) -> None:
        slot = self.replicas.slots.get((replica.role, replica.index))
        if slot is not None and slot.incarnation == replica.incarnation:
            slot.waits = why

    def _await_registration(self, replica: Replica) -> None:
        if self._processes.get((replica.role, replica.index)) != replica:
            return  # another has taken its place
        until = self.core.clock.now() + self.settings.master_timeout_s
        self._silent[replica.role, replica.index] = until

    def _exited(self, exit: Exit) -> None:
        replica = exit.replica
        if self._processes.get((replica.role, replica.index)) != replica:
            return
        del self._processes[replica.role, replica.index]
        slot, verdict = self.losses.exited(exit)
        self.core.tell(f"{replica.role} {replica.index} {slot.last_end} ({verdict})")
        for member in self.members.lose_index(replica.role, replica.index):
            self._lost(member, slot.last_end)
        self.members.lose(replica.incarnation)  # also where it never registered
        self._silent.pop((replica.role, replica.index), None)
        self.core.save_soon()

    def _lost(self, member: Member, why: str) -> None:
        """Only a worker holds leases: the loss of server i moves no task of worker i."""
        if member.role != WORKER or self.core.ended:
            return
        fences = self.core.do("lost", worker=member.incarnation)
        if self.collective is not None:
            self.collective.lost(member.incarnation)
        log.info("worker=%d -> lost reason=%r tasks=%d", member.index, why, len(fences))
        faults.point("master.requeue", tasks=len(fences))

    def _scale(self, workers: int) -> int:
        if self.status.state not in ("starting", "running"):
            self.core.tell(f"not scaled to {workers} workers: the job is {self.status.state}")
            return self.replicas.wanted
        previous = self.replicas.scale(workers)
        if previous == workers:
            return previous
        self.core.tell(f"workers wanted: {workers} (were {previous})")
        self.core.save_soon()
        for slot in self.replicas.running(WORKER):
            if slot.leaving:
                self._stop_process(WORKER, slot.index, self.settings.drain_grace_s)
        return previous

    # -- what the state calls for, after each batch of events

    def _must_be_newest(self) -> None:
        """Whoever slept may have been replaced meanwhile. Of a job that is over nothing hangs on it,
        and what ended it may be the journal."""
        if not self.core.ended:
            self.core.journal.check()

    def _settle(self) -> float:
        self._must_be_newest()
        now = self.core.clock.now()
        if not self._over:
            self._expire(now)
            self._start_replicas(now)
            self.group.settle()
            if self.collective is not None:
                while self.collective.gave_up:
                    self._stop_process(WORKER, self.collective.gave_up.pop(), 0)
            self._check()
            self.course.settle()
            if self.core.ended and not self._leaving:
                self._leaving = True
                self.loop.spawn(self._leave())
            if self.core.journal.length >= max(_COMPACT_AT, 2 * len(self.queue.tasks)):
                self.core.journal.compact({"queue": dump_fields(self.queue)})
        self._answer_parked(now)
        self.core.commit()
        self._show(now)
        tick = now + _TICK_S
        waiting = self._parking.next_deadline() or tick
        silent = self.members.next_expiry()
        expiry = tick if silent is None else max(silent, now) + _JUST_AFTER_S
        return min(tick, expiry, self.replicas.next_start() or tick, waiting)

    def _expire(self, now: float) -> None:
        away_s, self._looked = now - self._looked, now
        if away_s > max(_AWAY_S, self.settings.lease_s / 2):
            # This process itself was stopped, or its disk was slow: who spoke meanwhile is not
            # heard yet.
            self.members.excuse(away_s)
        for member in self.members.expire(now):
            whose = ", which this job has not started,"
            if (WORKER, member.index) in self._processes:
                self._silent[WORKER, member.index] = member.last_heard
                whose = ""
            self.core.tell(
                f"worker {member.index}{whose} was silent for {self.settings.lease_s:g} s: lost"
            )
            self._lost(member, "silent")
            self.core.save_soon()
        for (role, index), last_heard in list(self._silent.items()):
            if now - last_heard > _SILENT_LEASES * self.settings.lease_s:
                del self._silent[role, index]
                self.core.tell(f"{role} {index} stays silent: killed")
                self._stop_process(role, index, 0)
        for member in self.members.hung_servers(now, self.settings.server_timeout_s):
            self.core.tell(f"server {member.index} stays silent: killed")
            self._stop_process(SERVER, member.index, 0)

    def _start_replicas(self, now: float) -> None:
        starts = self.replicas.starts(now)
        if starts:
            self.core.save()  # that they may run from now on
        for start in starts:
            try:
                if not self.core.ended:
                    self._start(start)
                    continue
            except EdlError as error:
                self.core.fail(str(error))
            # It never was: nobody is to wait for its end.
            self.replicas.exited(start.role, start.index, start.incarnation, EXIT_FAILED, now)
        if starts:
            self.core.save()  # by which pids they are known

    def _start(self, start: Start) -> None:
        assert self._runtime is not None
        env = {
            **self.settings.envs,
            **self._identity.variables(),
            "EDL_JOB_DIR": str(self.core.job_dir),
            "EDL_JOB_NAME": self.settings.job_name,
            "EDL_ROLE": start.role,
            "EDL_INDEX": str(start.index),
            "EDL_INCARNATION": start.incarnation,
        }
        arguments: tuple[str, ...] = ()
        if self.servers is not None and start.role == SERVER:
            arguments = self.servers.arguments(start.index)
        replica = self._runtime.start(start.role, start.index, start.incarnation, env, arguments)
        self._processes[start.role, start.index] = replica
        if replica.pid:
            self._await_registration(replica)

    def _check(self) -> None:
        if self.core.ended:
            return
        dead, failed = self.replicas.dead_server, self.replicas.all_workers_failed
        if self.queue.broken is not None:
            self.core.fail(f"the definition or the data is broken: {self.queue.broken}")
        elif dead is not None:
            self.core.fail(
                f"parameter server {dead.index} {dead.last_end}{self._last_line(SERVER, dead.index)}"
                f"; {self.core.how_to_go_on()}"
            )
        elif failed is not None:
            self.core.fail(
                f"all workers failed; the last was worker {failed.index}, which {failed.last_end}"
                f"{self._last_line(WORKER, failed.index)}; {self.core.how_to_go_on()}"
            )

    def _answer_parked(self, now: float) -> None:
        news, self._asked_tasks = self.core.saves > self._asked_tasks, self.core.saves
        self._parking.settle(_TASK, lambda: news or self.queue.has_todo, self._give)
        version = self.servers.version if self.servers is not None else 0
        newer, self._asked_servers = version > self._asked_servers, version
        self._parking.settle(_SERVERS, lambda: newer, self._give)
        self._parking.settle(_ROUND, lambda: True, self._give)
        for parked in self._parking.overdue(now):
            if not self._give(parked):
                self.core.answer(parked.future, parked.otherwise())

    def _give(self, parked: Parked) -> bool:
        """Answer, where there is an answer."""
        try:
            reply = parked.answer()
        except EdlError as error:
            parked.future.set_exception(as_told(error))
            raise
        if reply is not None:
            self.core.answer(parked.future, reply)
        return reply is not None

    def _show(self, now: float) -> None:
        began = self.core.clock.now()
        if self.status.tick(now):
            self._watch(self._status())
        self._release_watchers(now)
        ended = self.core.clock.now()
        self.status.took(ended, ended - began)

    def _release_watchers(self, now: float) -> None:
        """All of them are told the same, which is made once."""
        waiting, self._watchers = self._watchers, []
        reply = None
        for known, parked in waiting:
            if self.status.revision > known or now >= parked.deadline:
                reply = reply or self._status_reply()
                parked.future.set_result(reply)
            else:
                self._watchers.append((known, parked))

    # -- the end

    def _stopping(self, reason: str) -> Script[None]:
        """Somebody wants the job to stop: hand everything back, keep what was learnt."""
        if self.collective is not None:
            resume = yield from self._stop_members(self.collective)
        else:
            resume = yield from self._stop_workers()
        if not self.core.ended:
            text = f"stopped ({reason or 'asked to'}) at record {self.queue.records_done}"
            self.core.end("failed", EXIT_INTERRUPTED, f"{text}; {go_on_with(resume)}", resume)

    def _stop_workers(self) -> Script[str | None]:
        """What goes on: a checkpoint of the servers, once the workers have left."""
        queue, running = self.queue, self.replicas.running
        grace_s = self.settings.drain_grace_s
        trains = self.settings.command == "train"
        saves = trains and self.group.connected
        if saves:
            # Workers level what a lost one left uneven; without them there is no cut any more.
            until = self.core.clock.now() + grace_s
            self.loop.wake_at(until)
            yield from self.core.until(
                lambda: not (queue.uneven and running(WORKER)) or self.core.clock.now() >= until,
                lambda: "the workers to level what the servers hold",
            )
        self.replicas.scale(0)
        self._stop_all(WORKER, grace_s)
        yield from self.core.until(
            lambda: not running(WORKER) and not queue.fencing, self._what_stops_waits_for
        )
        if trains and not saves:  # nothing was done that what it began from has not
            return self.status.newest_checkpoint
        # Not `version`: the servers' heartbeats tell it up to a second late.
        if saves and queue.records_done:
            if queue.uneven:
                self.core.tell("no checkpoint: a worker was killed in the midst of a push")
            elif not self.core.ended:
                yield from self.course.checkpoints.write(last=True)
                return self.status.checkpoint
        return self.core.resume

    def _what_stops_waits_for(self) -> str:
        there = [str(slot.index) for slot in self.replicas.running(WORKER)]
        if there:
            return f"worker {', '.join(there)} to hand back and leave"
        return f"the servers to answer about task {', '.join(map(str, self._fenced()))}"

    def _fenced(self) -> list[int]:
        return [fence.task for fence in self.queue.fencing][:5]

    def _stop_members(self, group: Collective) -> Script[str | None]:
        """What goes on: what the last worker leaves, which stopped after the same step as the others.

        Where none did in time, the journal and the newest snapshot go on.
        """
        self.replicas.scale(0)
        self._stop_all(WORKER, self.settings.drain_grace_s)
        yield from self.core.until(
            lambda: not self.replicas.running(WORKER), self._what_stops_waits_for
        )
        if group.left is not None and not self.core.ended:
            group.stand()
            yield from self.core.until(lambda: not self.queue.fencing, self._what_stops_waits_for)
            if not self.queue.uneven:
                yield from self.course.checkpoints.keep(group.left)
                return self.status.checkpoint
            self.core.tell("no checkpoint: a worker was killed in the midst of a push")
        return self.core.resume if self.queue.records_done else self.status.newest_checkpoint

    def _leave(self) -> Script[None]:
        """Workers first, so that none sees its servers vanish; whoever does not go is killed."""
        faults.point("master.shutdown")
        grace_s = self.settings.drain_grace_s
        if self.status.state != "done":  # what they hold is void, and the servers may be gone
            grace_s = _FAILED_GRACE_S
            self._stop_all(WORKER, grace_s)
        until = self.core.clock.now() + grace_s
        self.loop.wake_at(until)
        yield lambda: not self.replicas.running(WORKER) or self.core.clock.now() >= until
        self._stop_all(WORKER, 0)
        yield lambda: not self.replicas.running(WORKER)
        self._last_worker_gone = True
        self._stop_all(SERVER, _SERVER_GRACE_S)
        yield lambda: not self.replicas.running(SERVER)
        self._over = True

    # -- small things

    def _must_leave(self, role: str, index: int) -> bool:
        if role == SERVER:
            return self._last_worker_gone  # the runtime stops them
        return self.status.state == "failed" or self.replicas.is_leaving(role, index)

    def _stop_all(self, role: str, grace_s: float) -> None:
        for slot in self.replicas.running(role):
            self._stop_process(role, slot.index, grace_s)

    def _stop_process(self, role: str, index: int, grace_s: float) -> None:
        replica = self._processes.get((role, index))
        if replica is not None and self._runtime is not None:
            self.losses.asked(replica)
            self._runtime.stop(replica, grace_s)

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
            lease_s=self.settings.lease_s,
            careful=task.careful,
        )

    def _status(self) -> dict[str, Any]:
        return self.status.render(
            now=self.core.clock.now(),
            settings=self.settings,
            queue=self.queue,
            members=self.members,
            replicas=self.replicas,
            evaluations=self.core.evaluations,
            version=self.core.version,
            lessee=self.collective.lessee if self.collective is not None else "",
        )

    def _status_reply(self) -> pb.StatusReply:
        return pb.StatusReply(revision=self.status.revision, status_json=self.status_json())

    def status_json(self) -> str:
        """The status as JSON; from another thread only once `run` has returned."""
        return json.dumps(self._status())

    def _last_line(self, role: str, index: int) -> str:
        """What a process said last, for a message."""
        if self.settings.runtime == "kubernetes":
            return ""  # the cluster keeps their logs; what lies here is not theirs
        path = self.core.job_dir / "logs" / f"{role}-{index}.log"
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.path.getsize(path) - 4096))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return f" (its last words: {lines[-1].strip()}; all of them: {path})" if lines else ""

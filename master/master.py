"""The master: one thread that owns the books and decides (see loop.py).

Handlers turn what workers, servers, the runtime and people say into events of the pure state
machines; each decision about tasks is journaled before its answer leaves. `_settle` runs after
every batch of events and does what the state calls for: fences, retirement, starts of replicas,
answers to those who wait. The course of the job (epochs, evaluations, checkpoints, the end) is in
the scripts, which read from top to bottom.

Decisions about tasks are journaled one by one; all else that a successor must know is small and is
journaled as a whole, by `_save`, before anybody is told (`_memory`). `resume` begins where the master
before ended: the processes are adopted, and nobody but the user notices.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
import shlex
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..common import faults, storage
from ..common.clock import Clock
from ..common.errors import EdlError, Fenced, JobError, PeerError, Unreachable
from ..common.settings import JobSettings
from ..proto import master_pb2 as pb
from ..runtime.base import Exit, OnExit, Replica, Runtime
from .evaluation import Evaluations, Round, pack
from .journal import Journal
from .loop import Loop, Script
from .membership import SERVER, WORKER, Member, Membership
from .plan import Kind, Piece
from .replicas import LONGEST_PAUSE_S, Replicas, Start
from .servers import NUM_SLOTS, Cut, Servers
from .state import dump, dump_fields, dump_queue, load, load_fields
from .status import Status
from .task_queue import UNPLANNED_IDS, Fence, Task, TaskQueue

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

EXIT_DONE, EXIT_FAILED, EXIT_QUARANTINED, EXIT_INTERRUPTED = 0, 1, 3, 130

_ROLES = {pb.WORKER: WORKER, pb.SERVER: SERVER}
_END: list[Piece] = [("", 0, 0)]  # the one piece of a task that has no records
_TRAIN_END = "train-end"
_ROUND_END = "-end"  # of the group of an evaluation's last task
_TICK_S = 0.5  # how late a silent worker may be noticed
_AWAY_S = 4 * _TICK_S  # a longer pause between two looks is no ordinary one
_RETRY_S = 0.5  # pause before an unreachable server is asked again
_CUT_HOLD_S = 2.0  # how long a cut may hold back pushes at first; doubled up to
_LONGEST_CUT_HOLD_S = 16.0
_SILENT_LEASES = 3  # a process silent for so many leases is killed
_SERVER_GRACE_S = 10.0
_FAILED_GRACE_S = 2.0
_COMPACT_AT = 20_000  # decisions: half a second of replay
MEMORY = "job"  # the name of `_memory` in the journal


def _lasting(member: Member) -> Member:
    """What of a member does not change with each heartbeat."""
    return dataclasses.replace(member, last_heard=0.0, version=0, scalars={}, state="")


@dataclass
class _Parked:
    """Somebody who waits for an answer until `deadline`."""

    answer: Callable[[], Any | None]
    otherwise: Callable[[], Any]
    deadline: float
    future: Future[Any]


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
        connect: Callable[[Sequence[str]], Servers],
        clock: Clock,
        token: str,
        restore: str = "",
        watch: Callable[[dict[str, Any]], None] = lambda status: None,
    ) -> None:
        """`validation`: the pieces of evaluations while training. `restore`: the checkpoint whose
        books `queue` goes on with. `watch` is shown the status now and then."""
        self.settings = settings
        self.queue = queue
        self.loop = Loop(clock)
        self.members = Membership(settings.lease_s)
        self.evaluations = Evaluations()
        self.replicas = Replicas(
            settings.num_workers,
            settings.num_ps,
            relaunches=settings.relaunch_on_worker_failure,
            name=lambda: uuid.uuid4().hex[:12],
        )
        self.status = Status(clock.now())
        self.version = 0
        self._job_dir = job_dir
        self._validation = list(validation)
        self._journal = journal
        self._connect = connect
        self._clock = clock
        self._token = token
        self._restore = restore
        self.status.checkpoint = restore or None
        self._watch = watch
        self._runtime: Runtime | None = None
        self._processes: dict[tuple[str, int], Replica] = {}
        self._servers: Servers | None = None
        self.servers_version = 0  # of the map of servers; 0: not all have been there yet
        self._serving: dict[int, Member] = {}  # by shard: where the map says that it is
        self._recovering: set[str] = set()  # incarnations of servers that are being made ready
        self._coverage: dict[int, pb.Coverage] = {}  # by shard
        self._newly_covered = False
        self._parked: deque[_Parked] = deque()
        self._watchers: deque[tuple[int, _Parked]] = deque()
        self._fences_sent: set[tuple[int, int]] = set()
        self._looked = clock.now()  # for who is silent
        self._silent: dict[tuple[str, int], float] = {}  # role, index: last heard
        self._cutting = False
        self._cut_numbers = itertools.count(1)
        self._epochs_ended = max(0, queue.opened - 1)
        self._due: list[int] = []  # epochs of the evaluations that run, their cuts included
        self._stop_reason = ""
        self._resumed = self._superseded = False
        self._saved_memory = ""
        self._checkpointing = False
        self._kept: tuple[int, dict[str, Any]] | None = None  # what the last checkpoint holds
        self._over = False

    # -- life

    def run(self, start_runtime: Callable[[OnExit], Runtime]) -> int:
        """The whole job; returns its exit code."""
        self._runtime = start_runtime(self.exited)
        try:
            self._begin()
            self._run_loop()
        except Fenced:
            self._superseded = True
            self._runtime.detach()  # all that runs is the other master's
            raise
        except BaseException as error:
            if self.status.exit_code is None:
                self.status.end("failed", EXIT_FAILED, f"the master broke: {error!r}")
            raise
        finally:
            self._runtime.close()
            self.loop.close()
            self._dismiss()
            if self._servers is not None:
                self._servers.close()
        assert self.status.exit_code is not None
        return self.status.exit_code

    def resume(self, after: str, memory: dict[str, Any]) -> None:
        """Go on where the master before ended (`after`: how). Before `run`."""
        now = self._clock.now()
        self._resumed = True
        self.status.remember(memory["status"], now, self._journal.epoch)
        members = [dataclasses.replace(m, last_heard=now) for m in load(memory["members"])]
        self.members.restore(members, memory["gone"])
        load_fields(self.replicas, memory["replicas"])
        for slot in self.replicas.slots.values():  # later where the machine was booted since
            slot.started = min(slot.started, now)
            slot.not_before = min(slot.not_before, now + LONGEST_PAUSE_S)
        load_fields(self.evaluations, memory["evaluations"])
        self.version = memory["version"]
        self._restore = memory["restore"]
        self._epochs_ended, self._due = memory["epochs_ended"], memory["due"]
        self._stop_reason = memory["stop_reason"]
        started = {fields[2]: Replica(*fields) for fields in memory["processes"]}
        for slot in (*self.replicas.running(WORKER), *self.replicas.running(SERVER)):
            # One whose start was not finished is not known by its pid: it is given up, and refused
            # where it exists.
            unknown = Replica(slot.role, slot.index, slot.incarnation)
            self._processes[slot.role, slot.index] = started.get(slot.incarnation, unknown)
            self._silent[slot.role, slot.index] = now + self.settings.master_timeout_s
        for member in members:
            self._silent.pop((member.role, member.index), None)
        self._coverage = {
            index: pb.Coverage(snapshot=number) for index, number in memory["snapshots"]
        }
        self.servers_version = memory["servers_version"]
        self._serving = {member.index: member for member in load(memory["serving"])}
        if self._serving:
            self._servers = self._connect(self._addresses())
        self._give_up_rounds()
        for worker in {t.worker for t in self.queue.leased_tasks} - {
            m.incarnation for m in members
        }:
            self._do("lost", worker=worker)  # its loss was half told when the master was killed
        self._tell(f"the master {after or 'ended'}; started again (epoch {self._journal.epoch})")

    def _give_up_rounds(self) -> None:
        """Evaluations that ran, and the end of training, are begun anew: their cuts are gone."""
        groups = {t.group for t in self.queue.tasks.values() if t.id >= UNPLANNED_IDS}
        for group in sorted(groups):
            self._do("cancel", group=group)
        of_plan = self.settings.command == "evaluate"
        for name in [*self.evaluations.running]:
            if name.endswith(_ROUND_END) or not of_plan:
                del self.evaluations.running[name]

    def _memory(self) -> dict[str, Any]:
        """All that a successor must know, and that is not the queue's."""
        return {
            "status": self.status.memory(),
            "members": dump([_lasting(m) for m in self.members.all]),
            "gone": self.members.gone,
            "replicas": dump_fields(self.replicas),
            "processes": [dataclasses.astuple(r) for r in self._processes.values()],
            "evaluations": dump_fields(self.evaluations),
            "version": self.version,
            "restore": self._restore,
            "epochs_ended": self._epochs_ended,
            "due": self._due,
            "stop_reason": self._stop_reason,
            "servers_version": self.servers_version,
            "serving": dump([_lasting(m) for m in self._serving.values()]),
            "snapshots": [[index, c.snapshot] for index, c in self._coverage.items()],
        }

    def _save(self) -> None:
        """Journal what a successor must know, where that has changed. Before anybody is told."""
        memory = self._memory()
        text = json.dumps({**memory, "version": 0})
        if text != self._saved_memory:
            try:
                self._journal.put(MEMORY, memory)
            except JobError:
                if self.status.exit_code is None:
                    raise
                return  # what has ended the job may be the journal itself; the message tells of it
            self._saved_memory = text

    def _begin(self) -> None:
        self._save()
        if not self._resumed:
            self.loop.spawn(self._job())
            return
        assert self._runtime is not None
        for replica in list(self._processes.values()):
            self._runtime.adopt(replica)
        faults.point("master.recover")
        if self.status.exit_code is not None:
            self.loop.spawn(self._leave())
            return
        self.loop.spawn(self._job())
        if self.status.state == "stopping":
            self.loop.spawn(self._stopping(self._stop_reason))

    def _dismiss(self) -> None:
        """Answer all who wait; where there is another master, that one shall."""
        for parked in (*self._parked, *(each for _, each in self._watchers)):
            if self._superseded:
                parked.future.set_exception(Unreachable("this master has ended"))
            else:
                parked.future.set_result(parked.answer() or parked.otherwise())
        self._parked.clear()
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
                    self._journal.check()
                # A decision that could not be journaled, or one that the books rule out: nothing
                # may be answered any more. What still runs is ended in order.
                if self.status.exit_code is not None:
                    raise
                log.exception("job -> failed")
                self._end_job("failed", EXIT_FAILED, str(error))

    def abort(self) -> None:
        """Kill every process now; the caller ends this one."""
        if self._runtime is not None:
            self._runtime.close()

    def exited(self, exit: Exit) -> None:
        """The runtime says that a process has ended."""
        self.loop.post(lambda: self._exited(exit))

    # -- requests (any thread)

    def register(self, request: pb.RegisterRequest) -> Future[pb.RegisterReply]:
        return self._ask(lambda: self._register(request))

    def heartbeat(self, request: pb.HeartbeatRequest) -> Future[pb.HeartbeatReply]:
        return self._ask(lambda: self._heartbeat(request))

    def report_task(self, request: pb.ReportTaskRequest) -> Future[pb.ReportTaskReply]:
        return self._ask(lambda: pb.ReportTaskReply(accepted=self._report(request)))

    def get_task(self, request: pb.GetTaskRequest) -> Future[pb.GetTaskReply]:
        # A request is a sign of life when it comes, not for as long as it is parked.
        self.loop.post(lambda: self._heard(request.replica.incarnation))
        return self._ask_and_wait(
            lambda: self._get_task(request),
            lambda: pb.GetTaskReply(outcome=pb.GetTaskReply.WAIT),
            request.wait_s,
        )

    def get_servers(self, request: pb.GetServersRequest) -> Future[pb.GetServersReply]:
        def newer() -> pb.GetServersReply | None:
            reply = self._get_servers()
            return reply if reply.slot_map_version > request.known_slot_map_version else None

        return self._ask_and_wait(newer, self._get_servers, request.wait_s)

    def get_status(self, request: pb.StatusRequest) -> Future[pb.StatusReply]:
        future: Future[pb.StatusReply] = Future()

        def park() -> None:
            deadline = self._clock.now() + request.wait_s
            parked = _Parked(lambda: None, self._status_reply, deadline, future)
            self._watchers.append((request.known_revision, parked))

        return self._post(park, future)

    def scale(self, request: pb.ScaleRequest) -> Future[pb.ScaleReply]:
        return self._ask(lambda: pb.ScaleReply(previous=self._scale(request.num_workers)))

    def stop(self, reason: str) -> Future[pb.StopReply]:
        def stop() -> pb.StopReply:
            if self.status.state in ("starting", "running"):
                self.status.state = "stopping"
                self._stop_reason = reason
                self._tell(f"stopping: {reason or 'asked to'}")
                self._save()
                self.loop.spawn(self._stopping(reason))
            return pb.StopReply()

        return self._ask(stop)

    def _ask(self, answer: Callable[[], Answer]) -> Future[Answer]:
        future: Future[Answer] = Future()

        def event() -> None:
            try:
                self._must_be_newest()
                future.set_result(answer())
            except Fenced as error:
                future.set_exception(Unreachable(str(error)))
                raise
            except EdlError as error:
                future.set_exception(error)
                raise

        return self._post(event, future)

    def _ask_and_wait(
        self, answer: Callable[[], Answer | None], otherwise: Callable[[], Answer], wait_s: float
    ) -> Future[Answer]:
        future: Future[Answer] = Future()

        def park() -> None:
            self._parked.append(_Parked(answer, otherwise, self._clock.now() + wait_s, future))

        return self._post(park, future)

    def _post(self, event: Callable[[], Any], future: Future[Answer]) -> Future[Answer]:
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
                self._clock.now(),
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
        self._tell(f"{role} {replica.index} registered (pid {request.pid})")
        if request.note:
            self._tell(f"{role} {replica.index}: {request.note}")
        self._save()
        return pb.RegisterReply(settings_json=self.settings.to_json(), job_dir=str(self._job_dir))

    def _heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        replica = request.replica
        known = self.members.heard(
            replica.incarnation,
            self._clock.now(),
            version=request.version,
            state=request.state,
            scalars=request.scalars,
        )
        if not known:
            return pb.HeartbeatReply(fenced=True)
        if replica.role == pb.SERVER:
            self.version = max(self.version, request.version)
            if request.HasField("coverage"):
                self._covered(replica.index, request.coverage)
        for note in request.notes:
            self._tell(f"{_ROLES[replica.role]} {replica.index}: {note}")
        proven = set(self.queue.proven)
        for told in request.progress:
            self.queue.progress(replica.incarnation, told.task, told.attempt, told.position)
        for kind in self.queue.proven - proven:
            self._journal.append("prove", {"kind": int(kind)})
        return pb.HeartbeatReply(
            drain=self._must_leave(_ROLES[replica.role], replica.index),
            low_water=self.queue.low_water,
            slot_map_version=self.servers_version,
        )

    def _get_task(self, request: pb.GetTaskRequest) -> pb.GetTaskReply | None:
        replica = request.replica
        if self.members.get(replica.incarnation) is None:
            return pb.GetTaskReply(outcome=pb.GetTaskReply.FENCED)
        if self.status.state == "done":
            return pb.GetTaskReply(outcome=pb.GetTaskReply.FINISHED)
        if self._must_leave(WORKER, replica.index):
            return pb.GetTaskReply(outcome=pb.GetTaskReply.DRAIN)
        task: Task | None = self.queue.lease(replica.incarnation, request.request_id)
        if task is None:
            return None
        self._journal.append(
            "lease", {"worker": replica.incarnation, "request": request.request_id}
        )
        faults.point("master.lease", task=task.id)
        log.debug("task=%d attempt=%d worker=%d -> leased", task.id, task.attempt, replica.index)
        return pb.GetTaskReply(outcome=pb.GetTaskReply.TASK, task=self._task_message(task))

    def _heard(self, incarnation: str) -> None:
        self.members.heard(incarnation, self._clock.now())

    def _report(self, request: pb.ReportTaskRequest) -> bool:
        worker = request.replica.incarnation
        self._heard(worker)
        about = {"worker": worker, "task": request.task, "attempt": request.attempt}
        outcome = request.WhichOneof("outcome")
        if outcome == "done":
            doubtful = request.slot_map_version < self.servers_version
            return bool(self._do("done", **about, result=request.result, doubtful=doubtful))
        if outcome == "handed_back":
            return bool(self._do("hand_back", **about))
        told = request.failed
        failure = {
            "start": told.start,
            "end": told.end,
            "error": told.error,
            "source": told.source,
            "record": told.record if told.HasField("record") else None,
            "traceback": told.traceback,
        }
        accepted = self._do("failed", **about, failure=failure)
        if accepted:
            where = f"positions {told.start}-{told.end} of task {request.task}"
            self._tell(f"worker {request.replica.index} failed at {where}: {told.error}")
            log.warning("%s\n%s", told.error, told.traceback)
        return bool(accepted)

    def _exited(self, exit: Exit) -> None:
        replica = exit.replica
        if self._processes.get((replica.role, replica.index)) != replica:
            return
        del self._processes[replica.role, replica.index]
        verdict = self.replicas.exited(
            replica.role, replica.index, replica.incarnation, exit.code, self._clock.now()
        )
        slot = self.replicas.slots[replica.role, replica.index]
        if exit.unknown:
            slot.last_end = "ended, nobody knows how: an earlier master had started it"
        self._tell(f"{replica.role} {replica.index} {slot.last_end} ({verdict})")
        for member in self.members.lose_index(replica.role, replica.index):
            self._lost(member, slot.last_end)
        self.members.lose(replica.incarnation)  # also where it never registered
        self._silent.pop((replica.role, replica.index), None)
        self._save()

    def _lost(self, member: Member, why: str) -> None:
        """Only a worker holds leases: the loss of server i moves no task of worker i."""
        if member.role != WORKER or self.status.exit_code is not None:
            return
        fences = self._do("lost", worker=member.incarnation)
        log.info("worker=%d -> lost reason=%r tasks=%d", member.index, why, len(fences))
        faults.point("master.requeue", tasks=len(fences))

    def _scale(self, workers: int) -> int:
        if self.status.state not in ("starting", "running"):
            self._tell(f"not scaled to {workers} workers: the job is {self.status.state}")
            return self.replicas.wanted
        previous = self.replicas.scale(workers)
        self._tell(f"workers wanted: {workers} (were {previous})")
        self._save()
        for slot in self.replicas.running(WORKER):
            if slot.leaving:
                self._stop_process(WORKER, slot.index, self.settings.drain_grace_s)
        return previous

    # -- what the state calls for, after each batch of events

    def _must_be_newest(self) -> None:
        """Whoever slept may have been replaced meanwhile. Of a job that is over nothing hangs on it,
        and what ended it may be the journal."""
        if self.status.exit_code is None:
            self._journal.check()

    def _settle(self) -> float:
        self._must_be_newest()
        now = self._clock.now()
        if not self._over:
            self._expire(now)
            self._start_replicas(now)
            self._connect_servers()
            self._send_fences()
            self._retire()
            self._check()
            self._open_overlapping_epoch()
            if self._journal.length >= _COMPACT_AT:
                self._journal.compact({"queue": dump_queue(self.queue)})
        self._answer_parked(now)
        self._show(now)
        waiting = (p.deadline for p in self._parked)
        return min([now + _TICK_S, self.replicas.next_start() or now + _TICK_S, *waiting])

    def _expire(self, now: float) -> None:
        away_s, self._looked = now - self._looked, now
        if away_s > max(_AWAY_S, self.settings.lease_s / 2):
            # This process itself was stopped, or its disk was slow: who spoke meanwhile is not
            # heard yet.
            self.members.excuse(away_s)
        for member in self.members.expire(now):
            self._silent[WORKER, member.index] = member.last_heard
            self._tell(f"worker {member.index} was silent for {self.settings.lease_s:g} s: lost")
            self._lost(member, "silent")
            self._save()
        for (role, index), last_heard in list(self._silent.items()):
            if now - last_heard > _SILENT_LEASES * self.settings.lease_s:
                del self._silent[role, index]
                self._tell(f"{role} {index} stays silent: killed")
                self._stop_process(role, index, 0)
        for member in self.members.hung_servers(now, self.settings.server_timeout_s):
            self._tell(f"server {member.index} stays silent: killed")
            self._stop_process(SERVER, member.index, 0)

    def _start_replicas(self, now: float) -> None:
        starts = self.replicas.starts(now)
        if starts:
            self._save()  # that they may run from now on
        for start in starts:
            try:
                if self.status.exit_code is None:
                    self._start(start)
                    continue
            except EdlError as error:
                self._fail(str(error))
            # It never was: nobody is to wait for its end.
            self.replicas.exited(start.role, start.index, start.incarnation, EXIT_FAILED, now)

    def _start(self, start: Start) -> None:
        assert self._runtime is not None
        env = {
            **self.settings.envs,
            "EDL_TOKEN": self._token,
            "EDL_JOB_DIR": str(self._job_dir),
            "EDL_JOB_NAME": self.settings.job_name,
            "EDL_ROLE": start.role,
            "EDL_INDEX": str(start.index),
            "EDL_INCARNATION": start.incarnation,
        }
        arguments = self._server_arguments(start.index) if start.role == SERVER else ()
        replica = self._runtime.start(start.role, start.index, start.incarnation, env, arguments)
        self._processes[start.role, start.index] = replica
        self._save()
        # until it registers
        self._silent[start.role, start.index] = self._clock.now() + self.settings.master_timeout_s

    def _server_arguments(self, index: int) -> tuple[str, ...]:
        """What a server begins with: the job's checkpoint, or what its forerunner has left."""
        arguments: tuple[str, ...] = ("--restore", self._restore) if self._restore else ()
        if index in self._serving:
            coverage = self._coverage.get(index, pb.Coverage())
            left = f"{self._serving[index].incarnation}:{coverage.snapshot}"
            arguments += ("--recover", left)
        return arguments

    def _connect_servers(self) -> None:
        members = self.members.of(SERVER)
        if self._servers is None and len(members) == self.settings.num_ps:
            self._servers = self._connect([member.address for member in members])
            self._serving = {member.index: member for member in members}
            self.servers_version = 1
            if self.status.state == "starting":
                self.status.state = "running"
            self._save()
        if self._servers is None or self.status.exit_code is not None:
            return
        for member in members:
            known = member.incarnation in self._recovering
            if not known and self._serving[member.index].incarnation != member.incarnation:
                self._recovering.add(member.incarnation)
                self.loop.spawn(self._recover(member))

    def _send_fences(self) -> None:
        if self._servers is None:
            return
        fences = [f for f in self.queue.fencing if (f.task, f.attempt) not in self._fences_sent]
        if fences:
            self._fences_sent.update((f.task, f.attempt) for f in fences)
            self.loop.spawn(self._fence(fences))

    def _retire(self) -> None:
        """Forget what is done and durable (rule 4): nobody can ask for it again.

        Not during a cut: its books need the tasks that the frozen ledgers name.
        """
        if self._cutting:
            return
        running = self.evaluations.running
        tasks = self.queue.tasks
        gone = [n for n in self.queue.done_results if tasks[n].group not in running]
        if self._newly_covered:
            self._newly_covered = False
            gone += self._durable_tasks()
        if gone:
            self._do("durable", tasks=gone)

    def _durable_tasks(self) -> list[int]:
        """Train tasks that every shard would have after the worst that can happen to it."""
        if len(self._coverage) < self.settings.num_ps:
            return []
        by_shard = [
            (c.low_water, {t.task: t.position for t in c.tasks}) for c in self._coverage.values()
        ]
        done = (self.queue.tasks[n] for n in self.queue.done_tasks)
        return [
            task.id
            for task in done
            if task.kind == Kind.TRAIN
            and all(task.id < low or at.get(task.id) == task.size for low, at in by_shard)
        ]

    def _covered(self, index: int, coverage: pb.Coverage) -> None:
        if coverage.snapshot >= self._coverage.get(index, pb.Coverage()).snapshot:
            newer = coverage.snapshot > self._coverage.get(index, pb.Coverage()).snapshot
            self._coverage[index] = coverage
            if newer:  # a replacement must never begin with less than what was relied on
                self._save()
            self._newly_covered = True

    def _check(self) -> None:
        if self.status.exit_code is not None:
            return
        dead, failed = self.replicas.dead_server, self.replicas.all_workers_failed
        if self.queue.broken is not None:
            self._fail(f"the definition or the data is broken: {self.queue.broken}")
        elif dead is not None:
            self._fail(
                f"parameter server {dead.index} {dead.last_end}{self._last_line(SERVER, dead.index)}"
                f"; {self._how_to_go_on()}"
            )
        elif failed is not None:
            self._fail(
                f"all workers failed; the last was worker {failed.index}, which {failed.last_end}"
                f"{self._last_line(WORKER, failed.index)}; {self._how_to_go_on()}"
            )

    def _open_overlapping_epoch(self) -> None:
        queue = self.queue
        if (
            queue.plan.overlap_epochs
            and self.status.state == "running"
            and queue.opened > 0
            and not queue.all_epochs_opened
            and not queue.has_todo
            and queue.epochs_done(queue.opened - 1)  # at most one epoch ahead
        ):
            self._do("open_epoch")

    def _answer_parked(self, now: float) -> None:
        for _ in range(len(self._parked)):
            parked = self._parked.popleft()
            try:
                reply = parked.answer()
            except EdlError as error:
                fenced = isinstance(error, Fenced)
                parked.future.set_exception(Unreachable(str(error)) if fenced else error)
                raise
            if reply is None and now >= parked.deadline:
                reply = parked.otherwise()
            if reply is None:
                self._parked.append(parked)
            else:
                parked.future.set_result(reply)

    def _show(self, now: float) -> None:
        if self.status.tick(now):
            self._watch(self._status())
        self._release_watchers(now)

    def _release_watchers(self, now: float) -> None:
        for _ in range(len(self._watchers)):
            known, parked = self._watchers.popleft()
            if self.status.revision > known or now >= parked.deadline:
                parked.future.set_result(parked.otherwise())
            else:
                self._watchers.append((known, parked))

    # -- the course of the job

    def _job(self) -> Script[None]:
        if not self._resumed:
            self._tell("starting")
        yield lambda: self._servers is not None
        if self.settings.command == "train":
            yield from self._train()
        elif self.settings.command == "evaluate":
            yield from self._evaluate_plan()
        else:
            if not self.queue.opened:
                self._do("open_epoch")
            yield lambda: self.queue.plan_done
        self._succeed()

    def _train(self) -> Script[None]:
        queue, plan = self.queue, self.queue.plan
        self.version = yield from self._insist(lambda: self._shards.version())
        self.loop.spawn(self._periodically(self.settings.evaluation_steps, self._evaluate_between))
        self.loop.spawn(self._periodically(self.settings.checkpoint_steps, self._checkpoint))
        due, self._due = self._due, []
        for ended in due:  # their cuts went with the master that took them
            self.loop.spawn(self._evaluate_now(ended))
        epoch = self._epochs_ended
        whole = 0
        while plan.epochs is None or epoch < plan.epochs:
            if queue.opened == epoch:
                # Of the one before, a server that was replaced since may lack something again.
                yield lambda: plan.overlap_epochs or queue.epochs_done(epoch)  # noqa: B023
                self._do("open_epoch")
            last = epoch + 1 == plan.epochs
            step = not self.settings.use_async and (last or not plan.overlap_epochs)
            whole = yield from self._epochs_done(epoch + 1, step)
            self._tell(f"epoch {epoch} is done")
            self._epochs_ended = epoch + 1
            if self._validation:
                self._due.append(epoch)
            self._save()
            faults.point("master.epoch_end", epoch=epoch)
            if self._validation:
                cut, _ = yield from self._cut()
                self.loop.spawn(self._evaluate(cut, epoch))
            epoch += 1
        yield lambda: not self._due
        while True:
            if whole != self.servers_version:
                whole = yield from self._epochs_done(queue.opened, not self.settings.use_async)
            if self.settings.checkpoint_dir:  # first: the end runs the user's code, which may fail
                yield from self._checkpoint(last=True)
            self._do("add", kind=int(Kind.TRAIN_END), pieces=_END, group=_TRAIN_END)
            yield lambda: queue.group_done(_TRAIN_END)
            if whole == self.servers_version:
                return
            # What it saw may have been a server that lacked something yet: once more.

    def _epochs_done(self, epochs: int, step: bool) -> Script[int]:
        """So many epochs are done, on the servers of the version that is returned.

        step: they have made a step of all of it.
        """
        while True:
            yield lambda: self.queue.epochs_done(epochs)
            version = self.servers_version
            if step:
                yield from self._flush()
            if version == self.servers_version and self.queue.epochs_done(epochs):
                return version

    def _periodically(self, steps: int, action: Callable[[], Script[None]]) -> Script[None]:
        """Run `action` whenever the version passes a multiple of `steps`, until training ends."""
        if not steps:
            return
        passed = self.version // steps
        while True:
            yield lambda: self.version // steps > passed or self.queue.plan_done  # noqa: B023
            if self.queue.plan_done or self.status.exit_code is not None:
                return
            passed = self.version // steps
            if self.status.state == "running":
                yield from action()

    def _evaluate_between(self) -> Script[None]:
        if self._validation and not self._due:
            yield from self._evaluate_now(self.queue.opened - 1)

    def _evaluate_now(self, epoch: int) -> Script[None]:
        self._due.append(epoch)
        self._save()
        cut, _ = yield from self._cut()
        yield from self._evaluate(cut, epoch)

    def _evaluate_plan(self) -> Script[None]:
        """The whole of an evaluation job."""
        if self.evaluations.finished:
            return
        round_ = next(iter(self.evaluations.running.values()), None)
        if round_ is None:
            self.version = yield from self._insist(lambda: self._shards.version())
            round_ = self.evaluations.begin(self.version, 0, "")
            self._save()
        if not self.queue.opened:
            self._do("open_epoch", group=round_.name)
        yield from self._evaluation(round_, self.servers_version)

    def _evaluate(self, cut: Cut, epoch: int) -> Script[None]:
        """A round on the cut; anew, on another one, where a server that holds it was replaced."""
        while True:
            version = self.servers_version
            round_ = self.evaluations.begin(cut.version, epoch, cut.name)
            self._do(
                "add",
                kind=int(Kind.EVALUATE),
                pieces=self._validation,
                epoch=epoch,
                cut=cut.name,
                group=round_.name,
            )
            faults.point("master.evaluate", round=round_.name)
            whole = yield from self._evaluation(round_, version)
            if whole:
                self._due.remove(epoch)
                self._save()
            yield from self._insist(lambda: self._shards.unpin(cut.name))  # noqa: B023
            if whole:
                return
            cut, _ = yield from self._cut()

    def _evaluation(self, round_: Round, version: int) -> Script[bool]:
        """Its tasks to their end. False: given up, with the servers of `version` gone."""
        queue = self.queue
        yield lambda: queue.group_done(round_.name) or self._cut_is_gone(round_, version)
        if not queue.group_done(round_.name):
            self._do("cancel", group=round_.name)
            del self.evaluations.running[round_.name]
            return False
        results = [
            queue.tasks[n].result for n in queue.done_results if queue.tasks[n].group == round_.name
        ]
        end = f"{round_.name}{_ROUND_END}"
        self.evaluations.running[end] = round_  # so that its result is kept until it is read
        (number,) = self._do(
            "add",
            kind=int(Kind.EVALUATE_END),
            pieces=_END,
            epoch=round_.epoch,
            cut=round_.cut,
            payload=pack(results),
            group=end,
        )
        yield lambda: queue.group_done(end)
        self.evaluations.end(round_.name, queue.tasks[number].result)
        del self.evaluations.running[end]
        if self.settings.command == "evaluate":
            self._save()
        values = " ".join(
            f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in (round_.metrics or {}).items()
        )
        self._tell(f"evaluation of version {round_.version}: {values or 'no metrics'}")
        return True

    def _cut_is_gone(self, round_: Round, version: int) -> bool:
        return bool(round_.cut) and version != self.servers_version

    def _checkpoint(self, last: bool = False) -> Script[None]:
        """last: the one that nothing follows; the others may fail, and training goes on."""
        yield lambda: not self._checkpointing
        self._checkpointing = True
        try:
            while True:
                version = self.servers_version
                try:
                    yield from self._keep_checkpoint()
                    return
                except (OSError, EdlError) as error:
                    if version != self.servers_version:
                        continue  # a server that held the cut was replaced: another cut
                    text = f"checkpoint {self._checkpoint_dir} cannot be written: {error}"
                    if last:
                        self._fail(text)
                    else:
                        self._tell(f"{text}; training goes on")
                    return
        finally:
            self._checkpointing = False

    def _keep_checkpoint(self) -> Script[None]:
        cut, books = yield from self._cut()
        try:
            if self._kept != (cut.version, books):
                written = yield self.loop.background(lambda: self._write_checkpoint(cut, books))
                self._kept = cut.version, books
                self._saved(written)
        finally:
            self.loop.background(lambda: self._shards.unpin(cut.name))

    def _write_checkpoint(self, cut: Cut, books: dict[str, Any]) -> Path:
        """In the background. Where it is."""
        folder = self._checkpoint_dir
        directory = storage.free_directory(folder, cut.version)
        directory.mkdir(parents=True, exist_ok=True)
        snapshot = self._shards.snapshot(cut.name, directory)
        storage.write_manifest(
            directory,
            version=cut.version,
            num_shards=snapshot.num_shards,
            num_slots=NUM_SLOTS,
            files=snapshot.files,
            model=snapshot.model,
            books={**books, "settings": dataclasses.asdict(self.settings)},
        )
        storage.prune(folder, self.settings.keep_checkpoint_max)
        return directory

    def _saved(self, directory: Path) -> None:
        self.status.checkpoint = str(directory)
        self._tell(f"checkpoint {directory.name} is written")
        self._save()

    def _cut(self) -> Script[tuple[Cut, dict[str, Any]]]:
        """One state of all shards, pinned on the servers of now, and the books of that very state."""
        yield lambda: not self._cutting
        self._cutting = True
        hold_s = _CUT_HOLD_S
        try:
            while True:
                # Positions that a lost worker left uneven are only levelled by the next lease.
                yield lambda: not self.queue.uneven
                version = self.servers_version
                cut = yield from self._insist(lambda: self._take_cut(hold_s))  # noqa: B023
                if version != self.servers_version:
                    continue  # one that has pinned it may be gone
                if cut is not None:
                    faults.point("master.cut", cut=cut.name)
                    return cut, self.queue.books(cut.applied)
                hold_s = min(2 * hold_s, _LONGEST_CUT_HOLD_S)
                yield from self.loop.sleep(1.0)
        finally:
            self._cutting = False

    def _take_cut(self, hold_s: float) -> Cut | None:
        """In the background, one at a time. A try that failed may have left its name pinned on
        some shards, at a state that is old by now: each try has a name of its own."""
        name = f"cut-{self._journal.epoch}-{next(self._cut_numbers)}"
        return self._shards.cut(name, hold_s)

    def _flush(self) -> Script[None]:
        """Sync mode: step with the pushes that wait; not while a cut is taken, which would have
        the step on some shards and lack it on others."""
        yield lambda: not self._cutting
        self._cutting = True
        try:
            self.version = yield from self._insist(lambda: self._shards.flush())
        finally:
            self._cutting = False

    def _fence(self, fences: Sequence[Fence]) -> Script[None]:
        attempts = {fence.task: fence.attempt for fence in fences}
        version = self.servers_version
        answer = yield from self._insist(lambda: self._shards.fence(attempts))
        self._fences_sent.difference_update(attempts.items())
        if version != self.servers_version:
            return  # one of the answers may be that of a server which is gone: asked again
        for task, attempt in attempts.items():
            applied = list(answer[task])
            self._do("fenced", task=task, attempt=attempt, applied=applied)
            log.info("task=%d attempt=%d -> requeued applied=%s", task, attempt, applied)

    def _recover(self, member: Member) -> Script[None]:
        """Rule 5: a server that replaces a lost one stands where its snapshot does.

        Nobody knows its address yet. It learns the attempts first, so that no zombie finds it open;
        what it lacks of done tasks is leased again, and the others drop the duplicates.
        """
        asked: dict[int, int] = {}
        applied: dict[int, int] = {}
        answered = False
        while True:
            attempts = dict(self.queue.unretired.items() - asked.items())
            if answered and not attempts:
                break
            try:
                applied |= yield self.loop.background(
                    lambda: self._shards.fence_one(member.index, member.address, attempts)  # noqa: B023
                )
                asked |= attempts
                answered = True
            except Unreachable as error:  # it may still be restoring
                log.debug("server=%d -> not ready error=%r", member.index, str(error))
                yield from self.loop.sleep(_RETRY_S)
            if self.members.get(member.incarnation) is None or self.status.exit_code is not None:
                return  # lost again
        there = self.queue.unretired
        if missing := sorted(there.keys() - applied.keys()):
            raise PeerError(f"server {member.index} has retired tasks {missing}, which are not")
        before = self.queue.records_done
        self._do("recovered", applied={t: p for t, p in applied.items() if t in there})
        self._serving[member.index] = member
        self.servers_version += 1
        self._tell(
            f"server {member.index} is back; {before - self.queue.records_done} records are "
            "computed again for it"
        )
        self._save()
        self._shards.replace(self._addresses(), self.servers_version)

    def _addresses(self) -> list[str]:
        return [self._serving[index].address for index in sorted(self._serving)]

    def _insist(self, call: Callable[[], Answer]) -> Script[Answer]:
        """The result of a remote call, asked again until the servers answer."""
        while True:
            try:
                return (yield self.loop.background(call))  # type: ignore[no-any-return]
            except Unreachable as error:
                log.warning("servers -> unreachable error=%r", str(error))
            yield from self.loop.sleep(_RETRY_S)

    def _stopping(self, reason: str) -> Script[None]:
        """Somebody wants the job to stop: hand everything back, keep what was learnt."""
        queue, running = self.queue, self.replicas.running
        grace_s = self.settings.drain_grace_s
        saves = self.settings.command == "train" and self._servers is not None
        if saves:
            # Workers level what a lost one left uneven; without them there is no cut any more.
            until = self._clock.now() + grace_s
            self.loop.wake_at(until)
            yield lambda: not (queue.uneven and running(WORKER)) or self._clock.now() >= until
        self.replicas.scale(0)
        self._stop_all(WORKER, grace_s)
        yield lambda: not running(WORKER) and not queue.fencing
        # Not `version`: the servers' heartbeats tell it up to a second late.
        if saves and queue.records_done:
            if queue.uneven:
                self._tell("no checkpoint: a worker was killed in the midst of a push")
            elif self.status.exit_code is None:
                yield from self._checkpoint(last=True)
        if self.status.exit_code is None:
            text = f"stopped ({reason or 'asked to'}) at record {self.queue.records_done}"
            self._end_job("failed", EXIT_INTERRUPTED, f"{text}; {self._how_to_go_on()}")

    def _succeed(self) -> None:
        if self.status.exit_code is not None or self.status.state == "stopping":
            return
        skipped = self.queue.quarantined_records
        if skipped > self.settings.skip_records:
            self._end_job(
                "done",
                EXIT_QUARANTINED,
                f"finished, but {skipped} records were quarantined (the budget, --skip_records, "
                f"is {self.settings.skip_records}): they are named under quarantined",
            )
        else:
            self._end_job("done", EXIT_DONE, "done")

    def _fail(self, message: str) -> None:
        if self.status.exit_code is None:
            self._end_job("failed", EXIT_FAILED, message)

    def _end_job(self, state: str, code: int, message: str) -> None:
        self.status.end(state, code, message)
        self._tell(message)
        log.info("job -> %s exit_code=%d message=%r", state, code, message)
        self.replicas.end()
        self._save()
        self.loop.spawn(self._leave())

    def _leave(self) -> Script[None]:
        """Workers first, so that none sees its servers vanish; whoever does not go is killed."""
        faults.point("master.shutdown")
        grace_s = self.settings.drain_grace_s
        if self.status.state != "done":  # what they hold is void, and the servers may be gone
            grace_s = _FAILED_GRACE_S
            self._stop_all(WORKER, grace_s)
        until = self._clock.now() + grace_s
        self.loop.wake_at(until)
        yield lambda: not self.replicas.running(WORKER) or self._clock.now() >= until
        self._stop_all(WORKER, 0)
        yield lambda: not self.replicas.running(WORKER)
        self._stop_all(SERVER, _SERVER_GRACE_S)
        yield lambda: not self.replicas.running(SERVER)
        self._over = True

    # -- small things

    @property
    def _shards(self) -> Servers:
        assert self._servers is not None
        return self._servers

    def _do(self, kind: str, /, **arguments: Any) -> Any:
        """One decision about tasks: made, and on disk before anybody is told."""
        result = getattr(self.queue, kind)(**arguments)
        self._journal.append(kind, arguments)
        return result

    def _must_leave(self, role: str, index: int) -> bool:
        if role == SERVER:
            return False  # servers are stopped by the runtime, after the last worker
        return self.status.state == "failed" or self.replicas.is_leaving(role, index)

    def _stop_all(self, role: str, grace_s: float) -> None:
        for slot in self.replicas.running(role):
            self._stop_process(role, slot.index, grace_s)

    def _stop_process(self, role: str, index: int, grace_s: float) -> None:
        replica = self._processes.get((role, index))
        if replica is not None and self._runtime is not None:
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
        )

    def _get_servers(self) -> pb.GetServersReply:
        if not self.servers_version:
            return pb.GetServersReply()
        return pb.GetServersReply(
            slot_map_version=self.servers_version,
            addresses=[self._serving[index].address for index in sorted(self._serving)],
            num_slots=NUM_SLOTS,
        )

    def _status(self) -> dict[str, Any]:
        return self.status.render(
            now=self._clock.now(),
            settings=self.settings,
            queue=self.queue,
            members=self.members,
            replicas=self.replicas,
            evaluations=self.evaluations,
            version=self.version,
        )

    def _status_reply(self) -> pb.StatusReply:
        return pb.StatusReply(revision=self.status.revision, status_json=self.status_json())

    def status_json(self) -> str:
        """The status as JSON; from another thread only once `run` has returned."""
        return json.dumps(self._status())

    def _tell(self, text: str) -> None:
        self.status.tell(self._clock.now(), text)
        log.info("%s", text)

    def _how_to_go_on(self) -> str:
        if self.settings.command != "train":
            return "start it again"
        if self.status.checkpoint is None:
            return (
                "there is no checkpoint to go on from: set --checkpoint_dir and "
                "--checkpoint_steps, and start again"
            )
        return f"go on with: edl train --resume {shlex.quote(self.status.checkpoint)}"

    @property
    def _checkpoint_dir(self) -> Path:
        """Where a job that is stopped writes in any case."""
        return Path(self.settings.checkpoint_dir or self._job_dir / "checkpoints")

    def _last_line(self, role: str, index: int) -> str:
        """What a process said last, for a message."""
        path = self._job_dir / "logs" / f"{role}-{index}.log"
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.path.getsize(path) - 4096))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return f" (its last words: {lines[-1].strip()}; all of them: {path})" if lines else ""

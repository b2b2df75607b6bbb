"""The meaning of the ends of processes: preemption, a process's failure, or the doing of a span.

The master knows who was asked to go, and hears who hangs; the books know what each worker had begun
with. From both follows what counts against the process (replicas.py) and what against the records
(failures.py, "careful").
"""

from __future__ import annotations

import logging

from ..common.process import STARVED
from ..proto import master_pb2 as pb
from ..runtime.base import Exit, Replica
from .books.decisions import Ended, Tries
from .core import Core
from .groups.group import Group
from .membership import DRAINING, WORKER
from .replicas import Slot, describe_end, own_doing

log = logging.getLogger(__name__)

_NAMED_AT = (2, 3, 5)  # endings at one span of which the user hears, and each tenth


class Losses:
    """The judge of processes that have ended."""

    def __init__(self, core: Core, group: Group) -> None:
        self._core = core
        self._group = group
        self._asked: set[str] = set()  # incarnations of processes that the master has told to go
        self._hangs: dict[str, tuple[str, str]] = {}  # how, and whose lease it holds up

    def asked(self, replica: Replica) -> None:
        """Note that the master tells this process to end: that is nobody else's doing."""
        self._asked.add(replica.incarnation)

    def begins(self, trying: pb.Trying, worker: str, lessee: str) -> None:
        """Note that a worker begins with a span of a careful lease, its own or its round's."""
        if self._core.queue.leases.holds(worker, trying.task, trying.attempt):
            lessee = worker
        if self._core.queue.leases.holds(lessee, trying.task, trying.attempt):
            task, attempt, start, end = trying.task, trying.attempt, trying.start, trying.end
            self._core.decide(Tries(worker, task, attempt, start, end, lessee))

    def hangs(self, request: pb.HeartbeatRequest, process: Replica | None, lessee: str) -> bool:
        """Tell whether to kill a worker that says that it is stuck.

        A worker that says so again changes nothing.
        """
        stuck, index = request.stuck, request.replica.index
        if process is None or process.incarnation in self._hangs:
            return False
        how = f"hung for {stuck.seconds:.0f} s in {stuck.what}"
        if not stuck.over:
            self._core.tell(
                f"worker {index} has been in {stuck.what} for {stuck.seconds:.0f} s; its log has "
                "the stack"
            )
            return False
        if request.HasField("trying"):
            trying, worker = request.trying, request.replica.incarnation
            if self._core.queue.leases.holds(worker, trying.task, trying.attempt):
                lessee = worker
            held_up = (each for _, each in self._hangs.values())
            # Members of a round wait for the one that hangs: one of them ends the round for all.
            if lessee in held_up or not self._core.queue.leases.holds(
                lessee, trying.task, trying.attempt
            ):
                return False
            self.begins(trying, worker, lessee)
        self._hangs[process.incarnation] = how, lessee
        self._core.tell(f"worker {index} {how}: killed (--hang_s); its log has the stack")
        return True

    def exited(self, exit: Exit) -> tuple[Slot, str]:
        """Judge a process that has ended.

        Returns its slot, whose `last_end` says how, and the verdict on it.
        """
        core, replica, code = self._core, exit.replica, exit.code
        slot = core.replicas.slots[replica.role, replica.index]
        hung = self._hangs.pop(replica.incarnation, ("", ""))[0]
        unknown = "ended, nobody knows how: an earlier master had started it"
        how = hung or exit.why or (unknown if exit.unknown else describe_end(code))
        asked = replica.incarnation in self._asked and not hung
        self._asked.discard(replica.incarnation)
        own, excused = bool(hung), 0
        if replica.role == WORKER and not (asked or slot.leaving or core.ended):
            own, excused = self._blame(exit, how, bool(hung))
        verdict = core.replicas.exited(
            replica.role,
            replica.index,
            replica.incarnation,
            code,
            core.clock.now(),
            own=own,
            excused=excused,
        )
        if how != describe_end(code) and verdict:
            slot.last_end = slot.last_end.replace(describe_end(code), how)
        return slot, verdict

    def _blame(self, exit: Exit, how: str, hung: bool) -> tuple[bool, int]:
        """Tell whether a worker's end was its own doing.

        Returns also how many failures the books count for it.
        """
        core, own, excused = self._core, hung, 0
        for member in core.members.of(WORKER):
            if member.index != exit.replica.index:
                continue
            worker = member.incarnation
            lessee = self._group.workers.owes(worker)
            if not any(core.queue.leases.held_by(each) for each in (worker, lessee) if each):
                continue
            # Who leaves in order hands back, and says so before it ends with 0.
            quit_ = exit.code == 0 and member.state != DRAINING
            # What the system did not give is no doing of a record.
            known = not exit.unknown and exit.code != STARVED
            own = hung or (known and (own_doing(exit.code) or quit_))
            at = core.decide(Ended(worker, how, own, lessee))
            for task, start, endings in at:
                excused = own * (2 if endings == 1 else 1)  # with the one that nobody could place
                if endings in _NAMED_AT or endings % 10 == 0:
                    core.tell(
                        f"position {start} of task {task} has ended its worker {endings} times"
                    )
        return own, excused

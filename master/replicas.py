"""The replicas of a job: which should run, against which do. Pure.

    wanted --start--> running --exit--> wanted (again, at once or after a pause) | finished | failed

How a process ended decides what follows:
  killed by a signal from outside    preemption: started again at once, however often
  exit 0, told to leave              finished: gone for good
  exit 0, not told                   drained by somebody else (SIGTERM, as preemption does):
                                     as above, if it had worked; else a failure
  exit code, or a signal of a crash  failure: again after a growing pause, up to the limit
What the books count against records (failures.py) does not count here: such an end is `excused`.
One that is killed again and again before it has worked fails for good once that is no chance
(endings.py). The same holds for servers; `dead_server` is one that failed for good. Scaling down
drains the highest indexes, scaling up reuses the indexes that have left.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from ..common.process import ended_with
from ..common.retry import Backoff
from .books.endings import beyond_chance
from .membership import SERVER, TEACHER, WORKER

# A process that gets one of these made it itself; all others come from outside.
_CRASHES = {
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSYS,
    signal.SIGTRAP,
}
LONGEST_PAUSE_S = 30.0
_BACKOFF = Backoff(1.0, LONGEST_PAUSE_S)  # guesses
_SHORT_LIFE_S = 2.0  # who leaves sooner without being told is not started again without a pause


class Phase(Enum):
    """The phase that the process of a replica is in."""

    WAITING = "waiting"  # to be started at `not_before`
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass
class Slot:
    """A place for a replica: its role and index, and what became of its processes."""

    role: str
    index: int
    phase: Phase = Phase.WAITING
    incarnation: str = ""
    not_before: float = 0.0
    started: float = 0.0
    leaving: bool = False  # told to leave
    failures: int = 0
    preemptions: int = 0
    excused: int = 0  # of the failures
    worked: bool = False  # its last process has got to work
    stillborn: int = 0  # processes in a row that have not
    last_end: str = ""  # how its last process ended, in words
    waits: str = ""  # why the process that is to run does not, in words of the runtime


@dataclass(frozen=True)
class Start:
    """The demand to start this replica now."""

    role: str
    index: int
    incarnation: str


@dataclass
class ServersWanted:
    """A change of the servers that is under way: to so many, and then to so many workers.

    `then`: what was asked for since, once that is over; 0: nothing else.
    """

    servers: int
    workers: int
    then: int = 0


@dataclass
class Ends:
    """The ends of processes of a role whose places are gone: for the eye alone."""

    role: str
    failures: int = 0
    preemptions: int = 0


@dataclass(frozen=True)
class ReplicasState:
    """The content of Replicas, for the journal, without what their maker gives."""

    ending: bool
    good_starts: int
    slots: list[Slot]
    waiting: list[tuple[str, int]]
    gave_up: bool
    dead_server: Slot | None
    before: list[Ends] = field(default_factory=list)


class Replicas:
    """The replicas of a job, by role and index.

    `relaunches`: restarts of one that failed. `name()` makes a fresh incarnation's name.
    """

    def __init__(
        self,
        workers: int,
        servers: int,
        *,
        relaunches: int,
        name: Callable[[], str],
        teachers: int = 0,
    ) -> None:
        self._relaunches = relaunches
        self._name = name
        self._ending = False
        self._good_starts = 0  # processes that have got to work
        self.slots: dict[tuple[str, int], Slot] = {}
        self._waiting: dict[tuple[str, int], None] = {}  # those that wait, and some that have
        self._gave_up = False  # some place
        self._before: dict[str, Ends] = {}  # by role
        for index in range(servers):
            self._put(Slot(SERVER, index))
        for index in range(workers):
            self._put(Slot(WORKER, index))
        for index in range(teachers):
            self._put(Slot(TEACHER, index))
        self.dead_server: Slot | None = None

    def state(self) -> ReplicasState:
        """Return what other Replicas of the same maker need to become as these, not copied."""
        return ReplicasState(
            ending=self._ending,
            good_starts=self._good_starts,
            slots=list(self.slots.values()),
            waiting=list(self._waiting),
            gave_up=self._gave_up,
            dead_server=self.dead_server,
            before=list(self._before.values()),
        )

    def restore(self, state: ReplicasState) -> None:
        """Become as the Replicas whose state this is."""
        self._ending, self._good_starts = state.ending, state.good_starts
        self.slots = {(slot.role, slot.index): slot for slot in state.slots}
        self._waiting = dict.fromkeys(state.waiting)
        self._gave_up, self.dead_server = state.gave_up, state.dead_server
        self._before = {ends.role: replace(ends) for ends in state.before}

    def forgive(self, state: ReplicasState) -> None:
        """Begin anew after a job that had ended so: what has happened is kept for the eye alone."""
        self._before = {ends.role: replace(ends) for ends in state.before}
        for slot in state.slots:
            self._count(slot, slot.failures)

    def starts(self, now: float) -> list[Start]:
        """Return what to start now; it counts as started."""
        due = [slot for slot in self._those_that_wait() if slot.not_before <= now]
        for slot in due:
            slot.phase = Phase.RUNNING
            slot.incarnation = self._name()
            slot.started = now
            slot.waits = ""
            slot.worked = False
        return [Start(s.role, s.index, s.incarnation) for s in due]

    def next_start(self) -> float | None:
        """Return when `starts` has something to say again."""
        return min((slot.not_before for slot in self._those_that_wait()), default=None)

    def _those_that_wait(self) -> list[Slot]:
        for place in [p for p in self._waiting if self.slots[p].phase != Phase.WAITING]:
            del self._waiting[place]
        return [self.slots[place] for place in self._waiting]

    def _count(self, slot: Slot, failures: int) -> None:
        """Keep, for the eye, how often processes have ended at a place that is none any more."""
        ends = self._before.setdefault(slot.role, Ends(slot.role))
        ends.failures += failures
        ends.preemptions += slot.preemptions

    def _put(self, slot: Slot) -> None:
        self.slots[slot.role, slot.index] = slot
        self._waiting[slot.role, slot.index] = None

    def works(self, role: str, index: int, incarnation: str) -> None:
        """Note that a process has got beyond its start."""
        slot = self.slots.get((role, index))
        if slot is not None and slot.incarnation == incarnation and not slot.worked:
            slot.worked, slot.stillborn = True, 0
            self._good_starts += 1

    def exited(
        self,
        role: str,
        index: int,
        incarnation: str,
        code: int,
        now: float,
        *,
        own: bool = False,
        excused: int = 0,
    ) -> str:
        """Note that a process has ended.

        Returns "preempted", "failed", "finished" or "" (not ours).

        own: its own doing, whatever the code says. excused: so many failures, this one among them,
        are counted elsewhere.
        """
        slot = self.slots.get((role, index))
        if slot is None or slot.incarnation != incarnation or slot.phase != Phase.RUNNING:
            return ""
        slot.last_end = describe_end(code)
        if slot.leaving or self._ending:
            slot.phase = Phase.FINISHED
            return "finished"
        slot.phase = Phase.WAITING
        self._waiting[role, index] = None
        slot.not_before = now
        slot.excused = min(slot.failures + 1, slot.excused + excused)
        if not slot.worked:
            slot.stillborn += 1
        own = own or own_doing(code) or (code == 0 and not slot.worked)
        if not own:
            slot.preemptions += 1
            if code == 0 and now - slot.started < _SHORT_LIFE_S:
                slot.not_before = now + _BACKOFF.first_s
            if beyond_chance(slot.stillborn, 0, self._good_starts):
                slot.last_end += f", {slot.stillborn} times in a row before it had done anything"
                self._give_up(slot)
                return "failed"
            return "preempted"
        slot.failures += 1
        counted = slot.failures - slot.excused
        slot.not_before = now + _BACKOFF.after(max(1, counted))
        if counted > self._relaunches:
            self._give_up(slot)
        return "failed"

    def scale(self, number: int, role: str = WORKER) -> int:
        """Want so many of a role; returns how many were wanted before."""
        wanted = self._wanted_of(role)
        for slot in wanted[number:]:
            slot.leaving = True
            if slot.phase == Phase.WAITING:
                slot.phase = Phase.FINISHED
        missing = number - len(wanted)
        index = 0
        while missing > 0:
            taken = self.slots.get((role, index))
            if taken is None or taken.phase == Phase.FINISHED:
                counted = taken.failures - taken.excused if taken else 0
                if taken is not None:
                    self._count(taken, taken.excused)  # the others it takes with it
                self._put(Slot(role, index, failures=counted))
                missing -= 1
            index += 1
        return len(wanted)

    def renew_servers(self, servers: int) -> None:
        """Want so many servers, all of them new ones; those that run are none of these."""
        for slot in [each for each in self.slots.values() if each.role == SERVER]:
            self._count(slot, slot.failures)
        self.slots = {place: slot for place, slot in self.slots.items() if place[0] != SERVER}
        self._waiting = {place: None for place in self._waiting if place[0] != SERVER}
        for index in range(servers):
            self._put(Slot(SERVER, index))

    @property
    def servers(self) -> int:
        """The number of servers that there are, or are to be."""
        return sum(slot.role == SERVER for slot in self.slots.values())

    def end(self) -> None:
        """Start nothing more: the job is over, and whoever leaves now has finished."""
        self._ending = True
        for slot in self.slots.values():
            slot.leaving = True
            if slot.phase == Phase.WAITING:
                slot.phase = Phase.FINISHED

    def is_leaving(self, role: str, index: int) -> bool:
        """Tell whether who has this place is to leave.

        A worker that somebody else has started has no place: it leaves when all of ours do.
        """
        slot = self.slots.get((role, index))
        if slot is None and role == WORKER:
            return self._ending or not self.wanted
        return slot is None or slot.leaving

    def running(self, role: str) -> list[Slot]:
        return [s for s in self.slots.values() if s.role == role and s.phase == Phase.RUNNING]

    @property
    def wanted(self) -> int:
        """The number of workers that are wanted."""
        return self.wanted_of(WORKER)

    def wanted_of(self, role: str) -> int:
        """Return how many of a role are wanted."""
        return len(self._wanted_of(role))

    @property
    def all_workers_failed(self) -> Slot | None:
        """The last worker's slot, where every worker that is wanted has failed for good."""
        if not self._gave_up:
            return None
        wanted = self._wanted_of(WORKER)
        failed = [s for s in wanted if s.phase == Phase.FAILED]
        return failed[-1] if failed and len(failed) == len(wanted) else None

    def total(self, what: str, role: str) -> int:
        """Sum "failures" or "preemptions" over the places of a role, those of before among them."""
        mine = [slot for slot in self.slots.values() if slot.role == role]
        total: int = sum(getattr(each, what) for each in (*mine, *self._of_before(role)))
        return total

    def _of_before(self, role: str) -> list[Ends]:
        return [ends for ends in self._before.values() if ends.role == role]

    def _give_up(self, slot: Slot) -> None:
        slot.phase = Phase.FAILED
        self._gave_up = True
        if slot.role == SERVER:
            self.dead_server = slot

    def _wanted_of(self, role: str) -> list[Slot]:
        slots = (s for s in self.slots.values() if s.role == role and not s.leaving)
        return sorted(slots, key=lambda s: s.index)


def own_doing(code: int) -> bool:
    """Tell whether a process that ends so was not ended from outside."""
    return code > 0 or -code in _CRASHES


def describe_end(code: int) -> str:
    """Return an exit code in words."""
    if code >= 0:
        return ended_with(code)
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"

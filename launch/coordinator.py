"""The coordinator of a launched job: the rounds (launch/rounds.py) behind one lock, and on disk.

Every event is applied under the lock, written to the journal before it is answered, and wakes all
held calls. A thread lets time pass. Killed and started again, the coordinator finds its state and
serves where it did; the nodes repeat their calls and the round that runs goes on.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ..common.clock import Clock
from ..common.errors import EdlError, Fenced, JobError, UsageError
from ..durable.journal import Journal
from ..durable.schema import Json
from ..runtime.base import Report
from . import state as states
from . import status
from .fleet import Fleet
from .history import History
from .nodes import Failure, Round
from .rounds import STOPPED, Rendezvous
from .settings import LaunchSettings

log = logging.getLogger("edl.launch")

STATE = "rendezvous"  # in the journal
FORMAT = 1  # of what stands there: the fields of nodes.State; 0 is that of before
_MOST_EVENTS = 200
_PARK_S = 60.0

Answer = TypeVar("Answer")


class Coordinator:
    """The rounds of a launched job, as its processes may ask for them.

    Any thread may call; `run` is the main one's. Calls are held up to their `wait_s`.
    """

    def __init__(self, settings: LaunchSettings, journal: Journal, clock: Clock) -> None:
        self.settings = settings
        self._journal = journal
        self._clock = clock
        self._changed = threading.Condition()
        now = clock.now()
        found = journal.get(STATE)
        self._events: list[Json] = []
        self._rendezvous = Rendezvous(settings.policy, now)
        if found is not None:
            self._go_on(found, now)
        self._round = self._rendezvous.round  # that was looked at
        self._history = History()  # it begins anew with each coordinator
        self._written = ""
        self._revision = 1
        self._error: EdlError | None = None
        self._gone = False
        self._fleet: Fleet | None = None
        if found is not None:
            self._tell("the coordinator was killed and goes on")
            log.info("resuming epoch=%d", journal.epoch)

    def _go_on(self, found: dict[str, Json], now: float) -> None:
        """Go on from the state that the coordinator before has written.

        Raises JobError where no such one has written this.
        """
        try:
            dumped = found["rendezvous"]
            if self._journal.format < FORMAT:  # of before formats had a number
                dumped["nodes"] = list(dumped["nodes"].items())
            self._rendezvous = Rendezvous.restored(self.settings.policy, dumped, now)
            self._events = found["events"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # whatever stands there
            why = error if isinstance(error, ValueError) else repr(error)
            raise JobError(
                f"the job {self.settings.job_name} cannot be gone on with: what its journal says "
                f"is not what a coordinator of this version writes: {why}. Go on with it by the "
                "version that wrote it, or start it again: its script loads the state that it has "
                "saved"
            ) from error
        if self._journal.format < FORMAT:
            self._journal.compact({}, {STATE: {**found, "rendezvous": self._rendezvous.dump()}})

    # -- of nodes

    def beat(
        self,
        node: str,
        *,
        host: str,
        pid: int,
        round: int,
        report: tuple[float | None, float | None] | None,
        wait_s: float,
    ) -> tuple[bool, str]:
        """Return whether a node's workers must be stopped, and how the job ended.

        "" says that the job has not ended.
        """

        def event(machine: Rendezvous, now: float) -> None:
            machine.heard(node, now, host=host, pid=pid)
            if report is not None:
                machine.reported(node, now, *report)
                self._note(node, now, report[0])

        def news(machine: Rendezvous) -> tuple[bool, str] | None:
            now_in, closed = machine.runs_in(node), machine.outcome[0]
            restart = round > 0 and now_in != round
            began = round == 0 and now_in is not None  # it will want to hear of that round's end
            return (restart, closed) if restart or closed or began else None

        return self._apply(event, news, wait_s) or (False, "")

    def dropped(self, node: str) -> None:
        """Note that a node's connection broke."""
        with self._changed:
            self._settle(lambda machine, now: machine.dropped(node, now))
            self._changed.notify_all()  # its lease ends sooner than `run` knows

    def join(
        self,
        node: str,
        *,
        request: str,
        nproc: int,
        store: str,
        newest: int,
        failure: Failure | None,
        wait_s: float,
    ) -> tuple[Round | None, str]:
        """Return the round that a node is a member of, if there is one yet, and how the job ended.

        "" says that the job has not ended.
        """

        def event(machine: Rendezvous, now: float) -> None:
            machine.join(
                node,
                now,
                request=request,
                nproc=nproc,
                store=store,
                newest=newest,
                failure=failure,
            )

        def formed(machine: Rendezvous) -> tuple[Round | None, str] | None:
            if closed := machine.outcome[0]:
                return None, closed
            return (machine.round, "") if machine.runs_in(node) is not None else None

        return self._apply(event, formed, wait_s) or (None, "")

    def finish(self, node: str, round: int, wait_s: float) -> tuple[bool, str]:
        """Return whether the round is over before all have finished, and how the job ended.

        "" says that the job has not ended.
        """

        def over(machine: Rendezvous) -> tuple[bool, str] | None:
            if closed := machine.outcome[0]:
                return False, closed
            return (True, "") if machine.runs_in(node) != round else None

        return self._apply(
            lambda machine, now: machine.succeed(node, round, now), over, wait_s
        ) or (False, "")

    def leave(self, node: str) -> None:
        self._apply(lambda machine, now: machine.leave(node, now), lambda _: True, 0.0)

    # -- of the agents that are kept here

    def keep(self, fleet: Fleet, number: int) -> None:
        """Keep these agents from now on: those of the journal, or `number` at first."""

        def begin(machine: Rendezvous, _now: float) -> None:
            fleet.begin(machine, number, self.happened)
            self._fleet = fleet

        with self._changed:
            self._settle(begin)
            self._changed.notify_all()

    def happened(self, report: Report) -> None:
        """Note what the runtime reports of an agent."""

        def event(machine: Rendezvous, now: float) -> None:
            if self._fleet is not None:
                self._fleet.happened(machine, report, now)

        with self._changed:
            self._settle(event)
            self._changed.notify_all()

    def scale(self, number: int) -> int:
        """Want so many agents here; return how many were wanted before. Raises UsageError."""
        if self._fleet is None:
            raise UsageError(
                "this coordinator keeps no node agents: `edl launch --join` brings one more."
            )
        fleet, before = self._fleet, [0]
        fleet.check(number, self.settings)

        def event(machine: Rendezvous, _now: float) -> None:
            before[0] = fleet.scale(machine, number)

        self._apply(event, lambda _: True, 0.0)
        return before[0]

    # -- of the command line

    def fence(self, reason: str) -> None:
        """End this coordinator, not the job: another one goes on."""
        with self._changed:
            self._error = self._error or Fenced(reason)
            self._changed.notify_all()

    def stop(self, reason: str) -> None:
        self._apply(lambda machine, _: machine.end(STOPPED, reason), lambda _: True, 0.0)

    def status(self, known_revision: int, wait_s: float) -> tuple[int, dict[str, Any]]:
        """Return the revision and the status, held until it is newer than `known_revision`."""
        with self._changed:
            self._changed.wait_for(lambda: self._revision > known_revision, wait_s)
            return self._revision, self._status()

    # -- the process

    def run(self, goodbye_s: float) -> int:
        """Wait until the job is over and its nodes are gone, and return the exit code.

        The nodes have `goodbye_s` at most to go. Raises Fenced where another coordinator has taken
        the job over, JobError where the journal cannot be written.
        """
        over = True
        try:
            return self._run(goodbye_s)
        except Fenced:
            over = False  # another one goes on with all that runs
            raise
        finally:
            if self._fleet is not None:
                self._fleet.close(over)

    def _run(self, goodbye_s: float) -> int:
        give_up: float | None = None
        with self._changed:
            while True:
                now = self._clock.now()
                self._settle(lambda machine, now: machine.tick(now))
                if self._error is not None:
                    raise self._error
                ended = self._rendezvous.outcome[0]
                if ended:
                    give_up = give_up if give_up is not None else now + goodbye_s
                    gone = self._fleet is None or self._fleet.has_ended()
                    if (gone and not self._rendezvous.nodes) or now >= give_up:
                        self._gone = True
                        self._bump()
                        return status.CODES[ended]
                due = self._due(now) if give_up is None else give_up
                self._changed.wait(min(max(due - now, 0.01), _PARK_S))

    def _due(self, now: float) -> float:
        """Return when something is to be done, if nothing happens before."""
        due = self._rendezvous.next_tick(now)
        start = self._fleet.places.next_start() if self._fleet is not None else None
        return due if start is None else min(due, start)

    def final_status(self) -> dict[str, Any]:
        with self._changed:
            return self._status()

    # -- inside

    def _apply(
        self,
        event: Callable[[Rendezvous, float], None],
        answer: Callable[[Rendezvous], Answer | None],
        wait_s: float,
    ) -> Answer | None:
        """Apply an event, and return what `answer` gives when not None; None after `wait_s`."""
        with self._changed:
            self._settle(event)
            self._changed.wait_for(
                lambda: self._error is not None or answer(self._rendezvous) is not None, wait_s
            )
            if self._error is not None:
                raise self._error
            return answer(self._rendezvous)

    def _note(self, node: str, now: float, throughput: float | None) -> None:
        """Keep a rate that a member of the running round tells, unless it is none."""
        state = self._rendezvous.state
        if throughput is None or not 0 <= throughput < math.inf:
            return
        if state.round is not None and state.runs_in(node) is not None:
            self._history.tell(state.round, state.forming_since, now, throughput)

    def _settle(self, event: Callable[[Rendezvous, float], None]) -> None:
        """Apply an event; what it changed is on disk and told when this returns."""
        if self._error is not None:
            return
        machine, now = self._rendezvous, self._clock.now()
        event(machine, now)
        self._look_at_round()
        fleet = None if machine.outcome[0] else self._fleet
        if fleet is None:
            self._write()
            return
        starts = fleet.due(machine, now)
        if not self._write():
            return
        for place in starts:
            fleet.start(machine, place, now)
        fleet.stop_leaving()
        if starts:
            self._write()  # where they run

    def _look_at_round(self) -> None:
        """Say so where a round begins, not the first, and nothing is there to go on from."""
        machine, folder = self._rendezvous, self.settings.checkpoint_dir
        found, before = machine.round, self._round
        self._round = found
        if found is None or found == before or not found.restarts:
            return
        if states.is_empty(folder):
            machine.news.append(
                f"nothing is saved in {folder}: the script begins anew in round {found.number}"
            )

    def _write(self) -> bool:
        """Put what has changed on disk, then tell it; return whether it is on disk."""
        for text in self._rendezvous.news:
            self._tell(text)
        self._rendezvous.news.clear()
        dumped = self._rendezvous.dump()
        lasting = json.dumps(_lasting(dumped))
        if lasting == self._written:
            return True
        try:
            self._journal.put(STATE, {"rendezvous": dumped, "events": self._events})
        except EdlError as error:  # nothing is said any more that is not on disk; `run` raises it
            self._error = error
        self._written = lasting
        self._bump()
        return self._error is None

    def _bump(self) -> None:
        self._revision += 1
        self._changed.notify_all()

    def _tell(self, text: str) -> None:
        log.info("%s", text)
        since = round(self._clock.now() - self._rendezvous.state.began_at, 3)
        self._events = [*self._events[1 - _MOST_EVENTS :], {"t": since, "text": text}]

    def _status(self) -> dict[str, Any]:
        history, events = self._history, self._events
        now = self._clock.now()
        found = status.render(self.settings, self._rendezvous, history, events, self._gone, now)
        return {**found, "nothing_saved": states.is_empty(self.settings.checkpoint_dir)}


def _lasting(dumped: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a state that does not change with each heartbeat."""
    nodes = {name: {**node, "last_heard": 0.0} for name, node in sorted(dumped.get("nodes", ()))}
    return {**dumped, "nodes": nodes}

"""The node agents that a coordinator keeps itself, through a runtime: processes here, or pods.

Which of them should run is decided by places.py, and stands in the coordinator's journal before
anything is asked of the runtime; so a coordinator that is started again adopts those that run.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..common.errors import EdlError, UsageError
from ..runtime.base import Exit, Note, OnReport, Replica, Report, Runtime
from .nodes import Place
from .places import Places
from .rounds import FAILED, Rendezvous
from .settings import LaunchSettings
from .status import end_of


@dataclass(frozen=True)
class Crew:
    """The agents of a job. `arguments`: what each gets; `role`: its word in the runtime.

    `in_pods`: one that has ended is replaced.
    """

    role: str
    env: Mapping[str, str]
    arguments: Sequence[str]
    grace_s: float
    in_pods: bool
    relaunches: int = 3


class Fleet:
    """The agents of a job: what the coordinator says of them is done by the runtime.

    All is called with the coordinator's lock held; the runtime never blocks.
    """

    def __init__(self, crew: Crew, make_runtime: Callable[[OnReport], Runtime]) -> None:
        self.crew = crew
        self._make_runtime = make_runtime
        self._runtime: Runtime | None = None
        self._stopped: set[str] = set()

    def begin(self, machine: Rendezvous, number: int, report: OnReport) -> None:
        """Take over the agents of the journal; `number` of them are wanted where it has none."""
        state = machine.state
        self.places = Places(
            state,
            replaces=self.crew.in_pods,
            relaunches=self.crew.relaunches,
            name=lambda: secrets.token_hex(6),
        )
        self._policy = machine.policy
        self._runtime = self._make_runtime(report)
        for place in self.places.running():
            self._runtime.adopt(self._replica(place))
        if not state.places and not state.wanted:
            self.places.scale(number)
        self._let_in(machine)

    def check(self, number: int, settings: LaunchSettings) -> None:
        """Refuse a number of agents that the job does not allow. Raises UsageError.

        In pods it is the spec that bounds it.
        """
        most = settings.max_nodes
        if not self.crew.in_pods and not 1 <= number <= most:
            raise UsageError(
                f"{number} nodes are not within --nodes {settings.min_nodes}:{most} of the job: "
                f"choose a number from 1 to {most}."
            )

    def scale(self, machine: Rendezvous, number: int) -> int:
        """Want so many agents; return how many were wanted before."""
        before = self.places.scale(number)
        self._let_in(machine)
        if before != number:
            machine.news.append(f"{before} -> {number} nodes are wanted")
        return before

    def due(self, machine: Rendezvous, now: float) -> list[Place]:
        """Return the places whose agents are to be started, once this is in the journal."""
        if machine.running and machine.round is not None:
            for member in machine.round.members:
                self.places.worked(member.name)
        return self.places.starts(now)

    def start(self, machine: Rendezvous, place: Place, now: float) -> None:
        """Start the agent of a place."""
        assert self._runtime is not None
        crew = self.crew
        try:
            replica = self._runtime.start(
                crew.role, place.index, place.incarnation, crew.env, crew.arguments
            )
        except EdlError as error:
            self._ended(machine, place.incarnation, 1, f"could not be started: {error}", now)
            return
        place.pid, place.started = replica.pid, replica.started

    def happened(self, machine: Rendezvous, report: Report, now: float) -> None:
        """Note what the runtime reports."""
        name = report.replica.incarnation if report.replica else ""
        if isinstance(report, Exit):
            how = report.why or end_of(report.code)
            machine.leave(name, now, f"is lost: it {how}")
            self._ended(machine, name, report.code, how, now)
            return
        place = self.places.of(name)
        if place is not None:
            place.waits = report.text if isinstance(report, Note) else ""
        if isinstance(report, Note):
            machine.news.append(f"node {place.index} {report.text}" if place else report.text)

    def _ended(self, machine: Rendezvous, name: str, code: int, how: str, now: float) -> None:
        place = self.places.of(name)
        if place is None:
            return
        if machine.outcome[0]:
            place.leaving = True
        if not place.leaving:
            machine.news.append(f"the agent of node {place.index} {how}")
        if why := self.places.exited(name, code, how, now):
            machine.end(FAILED, why)

    def _let_in(self, machine: Rendezvous) -> None:
        """Let no more nodes in than are wanted, where all of them are kept here."""
        if self.crew.in_pods:
            most = max(machine.state.wanted, 1)
            least = min(self._policy.min_nodes, most)
            machine.policy = dataclasses.replace(self._policy, min_nodes=least, max_nodes=most)

    def stop_leaving(self) -> None:
        """Tell those to go who are to."""
        assert self._runtime is not None
        for place in self.places.leaving():
            if place.incarnation not in self._stopped:
                self._stopped.add(place.incarnation)
                self._runtime.stop(self._replica(place), self.crew.grace_s)

    def has_ended(self) -> bool:
        """Tell whether no agent runs."""
        return not self.places.running()

    def close(self, over: bool) -> None:
        """End what still runs where the job is over, else let it go: another one adopts it."""
        if self._runtime is not None:
            if over:
                self._runtime.close()
            else:
                self._runtime.detach()

    def _replica(self, place: Place) -> Replica:
        return Replica(self.crew.role, place.index, place.incarnation, place.pid, place.started)

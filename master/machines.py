"""The machines of a job, and what became of the time that it had of each. Pure.

A machine counts whole, from the moment that a process of the job has said hello there until none is
left. What its time was, is by its workers: their share that works on records is useful; the rest
starts or is idle. A machine without workers (of servers, teachers, the master) is useful while any
worker works. When records that were done are to be computed again, the time that so many had taken
is useful no more.

What is not seen: the time until a process says hello, and a machine that is kept without the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..durable.schema import Json

_WORKING = ("training", "evaluating", "predicting")
_NOT_YET = ("starting", "waiting for servers")
_UNTOLD = ""  # the state of who has said nothing to this master yet


@dataclass
class Machine:
    """The seconds that a job has had of one machine."""

    name: str
    useful_s: float = 0.0  # in which records were computed that are applied
    recompute_s: float = 0.0  # in which such were computed as are to be computed again
    idle_s: float = 0.0
    start_s: float = 0.0


@dataclass(frozen=True)
class MachinesState:
    """The content of Machines, for the journal."""

    looked: float = 0.0
    records: int = 0
    before: int = 0
    machines: list[Machine] = field(default_factory=list)


class Machines:
    """The machines of a job. `here`: the name of the master's."""

    def __init__(self, now: float, here: str) -> None:
        self._here = here
        self._looked = now
        self._records = 0
        self._before = 0  # records that were done elsewhere
        self._machines: dict[str, Machine] = {}
        self._began = False  # somebody has worked

    def state(self) -> MachinesState:
        """Return what other Machines need to become as these, not copied."""
        there = list(self._machines.values())
        return MachinesState(self._looked, self._records, self._before, there)

    def restore(self, state: MachinesState, now: float, went_on: bool) -> None:
        """Become as the Machines whose state this is. `went_on`: the job ran meanwhile."""
        self._looked = min(state.looked, now) if went_on and state.machines else now
        self._records, self._before = state.records, state.before
        self._machines = {each.name: each for each in state.machines}
        self._began = any(each.useful_s for each in state.machines)

    def look(
        self, now: float, records: int, workers: Iterable[tuple[str, str]], others: Iterable[str]
    ) -> None:
        """Count the time since the last look.

        `workers`: machine and state of each that is there; `others`: the machines of servers and
        teachers. Just after a restart of the master, nothing is counted until all have said what
        they do.
        """
        states: dict[str, list[str]] = {self._here: [], **{name: [] for name in others}}
        for name, said in workers:
            if said == _UNTOLD:
                return
            states.setdefault(name, []).append(said)
        if not self._machines:
            self._records = self._before = records
        elif records < self._records:
            self._lose(self._records - records)
        seconds, self._looked, self._records = max(0.0, now - self._looked), now, records
        works = any(said in _WORKING for each in states.values() for said in each)
        self._began = self._began or works
        alone = "training" if works else "waiting" if self._began else "starting"
        for name, each in states.items():
            self._count(name, each or [alone], seconds)

    def usage(self) -> dict[str, Json]:
        """Return the machines, and the records that were done on them, as the status tells it."""
        rows = [
            {key: round(v, 3) if key != "name" else v for key, v in vars(each).items()}
            for each in self._machines.values()
        ]
        return {"records": max(0, self._records - self._before), "machines": rows}

    def _count(self, name: str, states: list[str], seconds: float) -> None:
        machine = self._machines.setdefault(name, Machine(name))
        useful = sum(said in _WORKING for said in states) / len(states)
        start = sum(said in _NOT_YET for said in states) / len(states)
        machine.useful_s += seconds * useful
        machine.start_s += seconds * start
        machine.idle_s += seconds * (1 - useful - start)

    def _lose(self, records: int) -> None:
        share = min(1.0, records / max(1, self._records - self._before))
        for machine in self._machines.values():
            lost = machine.useful_s * share
            machine.useful_s -= lost
            machine.recompute_s += lost

"""The machines of a job, and what became of the time that it had of each. Pure.

A machine counts whole, from the moment that a process of the job has said hello there until none is
left. What its time was, is by its workers: their share that works on records is useful; the rest
starts or is idle. A machine without workers (of servers, teachers, the master) is useful while any
worker works. When records that were done are to be computed again, the time that so many had taken
is useful no more.

What workers wait for while they work is counted beside: a part of the time that is useful.
What is not seen: the time until a process says hello, and a machine that is kept without the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..durable.schema import Json

_WORKING = ("training", "evaluating", "predicting")
_NOT_YET = ("starting", "waiting for servers")
Waited = tuple[str, str, Mapping[str, float]]  # machine, worker, seconds by cause
_UNTOLD = ""  # the state of who has said nothing to this master yet


@dataclass
class Machine:
    """The seconds that a job has had of one machine."""

    name: str
    useful_s: float = 0.0  # in which records were computed that are applied
    recompute_s: float = 0.0  # in which such were computed as are to be computed again
    idle_s: float = 0.0
    start_s: float = 0.0
    waited_s: dict[str, float] = field(default_factory=dict)  # of useful_s, by cause


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
        self._told: dict[str, Mapping[str, float]] = {}  # by worker, how long it has waited

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
        self,
        now: float,
        records: int,
        workers: Iterable[tuple[str, str]],
        others: Iterable[str],
        waited: Sequence[Waited] = (),
    ) -> None:
        """Count the time since the last look.

        `workers`: machine and state of each that is there; `others`: the machines of servers and
        teachers; `waited`: of each worker that measures it, how long it has by now. Just after a
        restart of the master, nothing is counted until all have said what
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
        self._wait(waited)

    def usage(self) -> dict[str, Json]:
        """Return the machines, and the records that were done on them, as the status tells it."""
        rows = [_row(each) for each in self._machines.values()]
        return {"records": max(0, self._records - self._before), "machines": rows}

    def _count(self, name: str, states: list[str], seconds: float) -> None:
        machine = self._machines.setdefault(name, Machine(name))
        useful = sum(said in _WORKING for said in states) / len(states)
        start = sum(said in _NOT_YET for said in states) / len(states)
        machine.useful_s += seconds * useful
        machine.start_s += seconds * start
        machine.idle_s += seconds * (1 - useful - start)

    def _wait(self, waited: Sequence[Waited]) -> None:
        """Count what workers have waited since the last look, each as its part of its machine."""
        told, self._told = self._told, {who: sums for _, who, sums in waited}
        workers = Counter(name for name, _, _ in waited)
        for name, who, sums in waited:
            if (before := told.get(who)) is None:  # how long it had, the master before has counted
                continue
            spent = self._machines[name].waited_s
            for cause, seconds in sums.items():
                more = max(0.0, seconds - before.get(cause, 0.0)) / workers[name]
                spent[cause] = spent.get(cause, 0.0) + more

    def _lose(self, records: int) -> None:
        share = min(1.0, records / max(1, self._records - self._before))
        for machine in self._machines.values():
            lost = machine.useful_s * share
            machine.useful_s -= lost
            machine.recompute_s += lost
            kept = 1 - share
            machine.waited_s = {cause: kept * s for cause, s in machine.waited_s.items()}


def _row(machine: Machine) -> dict[str, Json]:
    """Return a machine's row of the status."""
    waited = {f"waited_{cause}_s": seconds for cause, seconds in machine.waited_s.items()}
    names = "useful_s", "recompute_s", "idle_s", "start_s"
    sums = {name: getattr(machine, name) for name in names} | waited
    return {"name": machine.name, **{name: round(value, 3) for name, value in sums.items()}}

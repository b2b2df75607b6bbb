"""One EdlJob that a queue of Kueue holds: what its Workloads let it have, and what they lack. Pure.

- A job that waits is given to the policy once its base is admitted, as one to be served first.
- Whoever runs without an admitted base is suspended. Its base goes once no pod of it lives, which
  gives back the quota, and is made anew, which queues the job again. Not after _EVICTIONS times of
  pods that were not ready in Kueue's time: that would go on for ever.
- A job has at most the workers of its base and of its admitted pieces. What holds quota goes only
  when no worker lives that needs it.
- A job that runs stays in the queue of its base, and so do its pieces, whatever its label says by
  now; where the base is gone, an annotation says that there was one.
- A Workload that is deactivated stays as it is, whatever is planned, until it is activated or the
  job is over. No other piece is asked for in the place of one that is.
- A piece that waits goes only where fewer workers than are admitted were planned for long: what
  Kueue has begun for it, such as a ProvisioningRequest, would begin anew.
- A Workload of which Kueue says nothing for long is made anew: one that is deleted and made under
  its name while Kueue's controller begins is never looked at, since 0.17.0 counts the old one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..k8s import job as edljob
from ..k8s import names
from ..k8s.api import Object
from . import flavors, workloads
from .gate import OPEN, Drop, Gate, Make, Step, Suspend
from .place import seconds

_PENDING_S = 60.0  # of a piece that is not admitted, until no more workers are planned than may be
_STEADY_S = 120.0  # that nobody has planned for a piece that waits, until it goes; a guess
_UNHEARD_S = 30.0  # without a word of Kueue's, until a Workload is made anew; it takes milliseconds
_EVICTIONS = 3  # by PodsReadyTimeout, until a job is held


class Patience:
    """Since when which piece that waits is not planned for.

    It is not kept: a scheduler that begins waits anew, which only keeps pieces longer.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._now = 0.0
        self._before: dict[str, float] = {}
        self._since: dict[str, float] = {}

    def begin(self, now: float) -> None:
        """Begin a round; whoever is not named in it begins anew."""
        self._now = now
        self._before, self._since = self._since, {}

    def is_unheard(self, workload: Object) -> bool:
        """Tell whether Kueue has said nothing of a Workload for long."""
        age = self._now - seconds(workload["metadata"]["creationTimestamp"])
        return age > _UNHEARD_S and workloads.is_unheard(workload)

    def is_over(self, piece: Object) -> bool:
        """Tell whether a piece, which is not planned for, was so in all rounds for long."""
        uid = piece["metadata"]["uid"]
        since = self._since[uid] = self._before.get(uid, self._now)
        return self._now - since >= _STEADY_S


class KueueJob:
    """A job whose Workloads are looked after, and what lives of it."""

    def __init__(
        self,
        job: Object,
        has: Sequence[Object],
        roles: Sequence[str],
        sets: Sequence[Object],
        problem: str,
    ) -> None:
        """Take the Workloads that it has, the roles of its pods that live, and what it asks for.

        `problem`: why it asks for nothing.
        """
        self.job = job
        self.uid = str(job["metadata"]["uid"])
        self._sets = sets
        self._problem = problem
        self._base = next((each for each in has if not workloads.index_of(each)), None)
        self._pieces = sorted(filter(workloads.index_of, has), key=workloads.index_of)
        self._lives = bool(roles)
        self._workers = sum(role == "worker" for role in roles)
        self._is_over = (job.get("status") or {}).get("phase") in names.OVER
        self._label = workloads.queue_of(job)
        self._queue = workloads.held_to(job)
        is_suspended = bool(job["spec"].get("suspend"))
        if self._base is not None and not is_suspended:
            self._queue = str(self._base["spec"]["queueName"])
        was = self._base is not None or bool(workloads.admitted_by(job))
        held = bool(self._queue) and not self._is_over
        self._waits = held and edljob.is_queued(job)
        # spec.scheduling of a job that runs may be gone: Kueue's quota is held all the same
        self._runs = held and not is_suspended and ("scheduling" in job["spec"] or was)

    def gate(self, now: float, specs: Mapping[str, Object]) -> Gate:
        """Return the leave that the job has. `specs`: of flavors, as far as they are known."""
        base = self._base
        if not (self._waits or self._runs):
            return OPEN
        if base is None or not workloads.is_admitted(base) or (self._waits and self._is_stale()):
            says = [self._problem or self._closed(), self._moved() if base is not None else ""]
            return Gate(is_open=False, says="; it ".join(filter(None, says)))
        admitted = [each for each in self._pieces if self._runs and workloads.is_admitted(each)]
        workers = workloads.workers_of(base) + sum(map(workloads.workers_of, admitted))
        held_up = self._held_up() if self._runs else []
        waiting = [
            each
            for each in self._pieces
            if not workloads.is_admitted(each)
            and not workloads.is_over(each)
            and each not in held_up
            and now - seconds(each["metadata"]["creationTimestamp"]) > _PENDING_S
        ]
        says = [self._problem or flavors.lacks(self._sets, self.flavors(), specs), self._moved()]
        if (held_up or waiting) and not says[0]:
            said = workloads.words((held_up or waiting)[0])
            count = f"{workers} worker{'s' if workers != 1 else ''}"
            says[0] = f"may have {count} by the queue {self._queue} of Kueue" + (
                f": {said}" if said else ""
            )
        return Gate(
            True,
            "; it ".join(filter(None, says)),
            workers,
            workloads.servers_of(base),
            self._queue,
            bool(waiting),
            len(held_up),
        )

    def steps(
        self, planned: int | None, gate: Gate, version: str, patience: Patience
    ) -> list[Step]:
        """Return what is to be done. `planned`: workers, None where there is no plan for it now."""
        if self._runs and gate.workers is None:
            why = gate.says
            if not edljob.durable(self.job["spec"]):
                why += "; it begins anew then, for it has no spec.jobVolume"
            late = self._base is not None and workloads.is_late(self._base)
            return [Suspend(self.job, why, workloads.evictions(self.job) + late)]
        if self._runs:
            return self._running(planned, gate, version, patience)
        if self._base is None and self._waits and self._sets:
            if workloads.evictions(self.job) >= _EVICTIONS:
                return []
            return [self._make(workloads.base(self.job, self._sets, version))]
        gone = [each for each in self._pieces if not self._stays(each)]
        base = self._base
        if base is not None and (self._is_to_go(base) or patience.is_unheard(base)):
            gone.append(base)
        return self._drops(gone, not self._lives)

    def flavors(self) -> dict[str, set[str]]:
        """Return the flavors that were assigned, by set of pods."""
        found: dict[str, set[str]] = {}
        for each in [*([self._base] if self._base is not None else []), *self._pieces]:
            for name, some in workloads.flavors(each).items():
                found.setdefault(name, set()).update(some)
        return found

    def _closed(self) -> str:
        """Say why the job may not run."""
        times = workloads.evictions(self.job)
        if times >= _EVICTIONS and self._base is None:
            name, mark = self.job["metadata"]["name"], names.EVICTIONS
            return (
                f"is held: Kueue has evicted it {times} times because nobody told that its pods "
                f"were ready (PodsReadyTimeout); {workloads.NO_WAITING}, and let it be queued anew "
                f"by `kubectl annotate edljob {name} {mark}-`"
            )
        if self._base is None and not self._label:
            return (
                f"has lost its base in the queue {self._queue} of Kueue, and its label "
                f"{workloads.QUEUE_LABEL} was removed while it ran: no queue holds it from now on"
            )
        if self._base is None:
            return f"waits for the queue {self._label or self._queue} of Kueue"
        queue, said = self._base["spec"]["queueName"], workloads.words(self._base)
        return f"waits for the queue {queue} of Kueue" + (f": {said}" if said else "")

    def _moved(self) -> str:
        """Say that the label of a job that runs names its queue no more."""
        if not self._runs or self._label == self._queue:
            return ""
        is_held = f"stays in the queue {self._queue} of Kueue until it is suspended"
        label = workloads.QUEUE_LABEL
        if self._label:
            return f"{is_held}: its label {label} was changed, and {self._label} counts after that"
        return f"{is_held}: its label {label} was removed, and no queue holds it after that"

    def _running(
        self, planned: int | None, gate: Gate, version: str, patience: Patience
    ) -> list[Step]:
        """Ask for what was planned, give back what is not, and take leave of what was taken."""
        assert self._base is not None
        assert gate.workers is not None
        least = workloads.workers_of(self._base)
        held_up = self._held_up()
        dead = [each for each in self._pieces if workloads.is_over(each) and each not in held_up]
        live = [each for each in self._pieces if each not in dead and each not in held_up]
        live.sort(key=_order)
        room = len(live) if planned is None else max(0, planned - least - len(held_up))
        needed = max(self._workers, edljob.workers(self.job["spec"])) - least
        admitted = [each for each in live if workloads.is_admitted(each)]
        spare = admitted[max(room, needed) :]
        idle = live[max(room, len(admitted)) :]
        # A plan for as many as are admitted does not say that no more are wanted (Gate.fit).
        if planned is None or planned >= gate.workers + gate.held_up:
            idle = []
        idle = [each for each in idle if patience.is_over(each)]
        unheard = [each for each in live if each not in idle and patience.is_unheard(each)]
        steps = self._drops([*idle, *unheard, *spare], True)
        steps += self._drops(dead, needed <= len(admitted) - len(spare))
        taken = {workloads.index_of(each) for each in self._pieces}
        indices = [k for k in range(1, room + len(taken) + 1) if k not in taken]
        for index in indices[: max(0, room - len(live) - len(dead))] if self._sets else []:
            made = workloads.piece(self.job, self._sets, index, version, self._queue)
            steps.append(self._make(made))
        return steps

    def _held_up(self) -> list[Object]:
        """Return the pieces that are deactivated, and hold no quota any more."""
        return [
            each
            for each in self._pieces
            if not workloads.is_active(each) and not each["metadata"].get("deletionTimestamp")
        ]

    def _stays(self, workload: Object) -> bool:
        """Tell whether a Workload of a job that does not run stays for who has deactivated it."""
        return not workloads.is_active(workload) and not self._is_over and bool(self._label)

    def _is_to_go(self, base: Object) -> bool:
        """Tell whether the base of a job that does not run is of no use."""
        if self._stays(base):  # whatever the job asks for by now
            return False
        return not self._waits or workloads.is_over(base) or self._is_stale()

    def _is_stale(self) -> bool:
        base, sets = self._base, self._sets
        return base is not None and bool(sets) and not workloads.is_asked(base, self.job, sets)

    def _make(self, body: Object) -> Step:
        return Make(self.job["metadata"]["name"], body)

    def _drops(self, gone: Sequence[Object], may: bool) -> list[Step]:
        name, found = self.job["metadata"]["name"], [each["metadata"] for each in gone]
        return [
            Drop(name, each["namespace"], each["name"], each["uid"])
            for each in found
            if may and not each.get("deletionTimestamp")
        ]


def _order(piece: Object) -> tuple[Any, ...]:
    """Sort pieces: those that are admitted stay first, then those with quota, then the others."""
    admitted, reserved = workloads.is_admitted(piece), workloads.is_reserved(piece)
    return not admitted, not reserved, workloads.index_of(piece)

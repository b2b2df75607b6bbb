"""The gate of Kueue before EdlJobs that name one of its queues: what it lets through. Pure.

Kueue knows no EdlJob, but admits any Workload: the scheduler writes those of a job (workloads.py),
reads what Kueue says of them, and holds the job to it.

- A job that waits is given to the policy once its base is admitted, as one to be served first.
- Whoever runs without an admitted base is suspended. Its base goes once no pod of it lives, which
  gives back the quota, and is made anew, which queues the job again.
- A job has at most the workers of its base and of its admitted pieces. What holds quota goes only
  when no worker lives that needs it.

All that is known stands in the objects, and each step is right by itself: the scheduler may end
between any two of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..common.errors import UsageError
from ..k8s import job as edljob
from ..k8s import names
from ..k8s.api import Object
from ..k8s.observe import takes_room
from . import workloads
from .jobs import Given, Job
from .place import seconds

_OVER = ("Succeeded", "Failed")
_PENDING_S = 60.0  # of a piece that is not admitted, until no more workers are planned than may be


@dataclass(frozen=True)
class Make:
    """Make a Workload for a job."""

    job: str
    body: Object = field(compare=False)


@dataclass(frozen=True)
class Drop:
    """Delete a Workload of a job, if it is still the one of this uid."""

    job: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class Suspend:
    """Suspend a job that runs and may not, as it was seen."""

    job: Object = field(compare=False)
    why: str


Step = Make | Drop | Suspend


@dataclass(frozen=True)
class Gate:
    """The leave that Kueue gives a job.

    `is_open`: it is given to the policy. `workers`: the most that it may have, None where Kueue has
    no say. `says`: what is in the way, or "".
    """

    is_open: bool = True
    says: str = ""
    workers: int | None = None
    servers: int = 0
    is_full: bool = False  # more were asked for, for long, and not admitted

    def fit(self, job: Job) -> Job:
        """Return the job as the policy may plan it: Kueue alone suspends it and begins it."""
        if self.workers is None:
            return job
        most = job.maximum
        if self.is_full:
            most = min(most, max(job.minimum, self.workers))
        return replace(
            job,
            maximum=most,
            waits_since=None if job.waits_since is None else 0.0,
            servers=(job.held.servers if job.held.workers else self.servers,),
            is_pinned=job.is_pinned and job.held.workers <= self.workers,
            may_be_suspended=False,
        )

    def bound(self, given: Given) -> Given:
        """Return what was planned, with no more workers than are admitted."""
        planned = given.shape.workers
        if self.workers is None or planned <= self.workers:
            return given
        why = f"{given.why}; {self.workers} of {planned} workers are admitted by Kueue"
        return replace(given, shape=replace(given.shape, workers=self.workers), why=why)


OPEN = Gate()


class Gates:
    """The gates of the EdlJobs of a cluster, by what was seen last."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._gates: dict[str, Gate] = {}  # by uid
        self._jobs: list[_Seen] = []
        self._sets: dict[tuple[str, int], list[Object]] = {}  # of pods, by uid and generation
        self.labels: dict[str, dict[str, str]] = {}  # of nodes, by flavor: told from outside
        self.told: set[str] = set()  # what went wrong, for whoever acts

    def look(
        self,
        jobs: Iterable[Object],
        found: Sequence[Object] | None,
        pods: Iterable[Object],
        now: float,
    ) -> None:
        """Judge all jobs. `found`: Workloads, None without a Kueue; `now`: s since the epoch."""
        theirs: dict[str, list[Object]] = {}
        for each in found or []:
            owners = each["metadata"].get("ownerReferences") or []
            if workloads.PIECE_LABEL in (each["metadata"].get("labels") or {}) and owners:
                theirs.setdefault(owners[0]["uid"], []).append(each)
        known, self._sets = self._sets, {}
        self._gates, self._jobs = {}, []
        mine = [
            each
            for each in jobs
            if (workloads.queue_of(each) or each["metadata"]["uid"] in theirs)
            and not each["metadata"].get("deletionTimestamp")
        ]
        living = _living(pods) if mine else {}
        for each in mine:
            about = each["metadata"]
            has = theirs.get(about["uid"], [])
            is_over = (each.get("status") or {}).get("phase") in _OVER
            if not is_over and (gate := _no_gate(each, found is not None)):
                self._gates[about["uid"]] = gate
            elif has or (found is not None and not is_over):
                sets, problem = self._asked(each, known)
                roles = living.get((about["namespace"], about["name"]), [])
                seen = _Seen(each, has, roles, sets, problem)
                self._jobs.append(seen)
                self._gates[about["uid"]] = seen.gate(now, self.labels)

    def _asked(
        self, job: Object, known: Mapping[tuple[str, int], list[Object]]
    ) -> tuple[list[Object], str]:
        """Return the sets of pods that a job asks for, and what is wrong with it."""
        key = job["metadata"]["uid"], job["metadata"]["generation"]
        if key not in known:
            if "maxReplicas" not in (job["spec"].get("worker") or {}):
                return [], "is left alone: spec.worker.maxReplicas is missing"
            try:
                self._sets[key] = workloads.pod_sets(job, edljob.templates(job))
            except UsageError as error:
                return [], f"is left alone: {error}"
        else:
            self._sets[key] = known[key]
        return self._sets[key], ""

    def of(self, job: Object) -> Gate:
        """Return the gate of a job that was looked at."""
        return self._gates.get(job["metadata"]["uid"], OPEN)

    def steps(self, planned: Mapping[str, int], version: str) -> list[Step]:
        """Return what is to be done about Workloads, and about jobs that run without.

        `planned`: workers by the uid of the job, also those that are not admitted; `version`: of
        Kueue's API.
        """
        every = [
            step
            for seen in self._jobs
            for step in seen.steps(planned.get(seen.uid), self.of(seen.job), version)
        ]
        return sorted(every, key=lambda step: not isinstance(step, Suspend))

    def flavors(self) -> set[str]:
        """Return the flavors that were assigned and whose labels nobody has told."""
        found = [each for seen in self._jobs for each in seen.flavors().values()]
        return set[str]().union(*found) - self.labels.keys()


def _no_gate(job: Object, has_kueue: bool) -> Gate | None:
    """Return the gate of a job whose label has no effect, None where it has."""
    if not workloads.queue_of(job):
        return None
    if "scheduling" not in job["spec"]:
        return Gate(
            says=f"has the label {workloads.QUEUE_LABEL}, which does nothing without "
            "spec.scheduling: write `scheduling: {}` into its spec"
        )
    if has_kueue:
        return None
    return Gate(
        is_open=False,
        says=f"is left alone: it has the label {workloads.QUEUE_LABEL}, and this cluster had no "
        "Kueue of v1beta1 or v1beta2 when the scheduler began: install one, or remove the label",
    )


def _living(pods: Iterable[Object]) -> dict[tuple[str, str], list[str]]:
    """Return the roles of the pods that take room, by namespace and job."""
    found: dict[tuple[str, str], list[str]] = {}
    for pod in pods:
        about, labels = pod["metadata"], pod["metadata"].get("labels") or {}
        if names.JOB_LABEL in labels and takes_room(pod):
            role = str(labels.get(names.ROLE_LABEL, ""))
            found.setdefault((about["namespace"], labels[names.JOB_LABEL]), []).append(role)
    return found


class _Seen:
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
        spec, phase = job["spec"], (job.get("status") or {}).get("phase")
        gated = "scheduling" in spec and phase not in _OVER
        self._queue = workloads.queue_of(job)
        self._waits = gated and bool(self._queue) and edljob.is_queued(job)
        # As Kueue has it, the queue of a job that runs stays what it was.
        if self._base is not None and not spec.get("suspend"):
            self._queue = self._base["spec"]["queueName"]
        self._runs = gated and bool(self._queue) and not spec.get("suspend")

    def gate(self, now: float, labels: Mapping[str, dict[str, str]]) -> Gate:
        base = self._base
        if not (self._waits or self._runs):
            return OPEN
        if base is None or not workloads.is_admitted(base) or (self._waits and self._is_stale()):
            said = workloads.words(base) if base is not None else ""
            says = f"waits for the queue {self._queue} of Kueue" + (f": {said}" if said else "")
            return Gate(is_open=False, says=self._problem or says)
        admitted = [each for each in self._pieces if self._runs and workloads.is_admitted(each)]
        workers = workloads.workers_of(base) + sum(map(workloads.workers_of, admitted))
        waiting = [
            each
            for each in self._pieces
            if not workloads.is_admitted(each)
            and not workloads.is_over(each)
            and now - seconds(each["metadata"]["creationTimestamp"]) > _PENDING_S
        ]
        says = self._problem or self._other_nodes(labels)
        if waiting and not says:
            said = workloads.words(waiting[0])
            says = f"may have {workers} workers by the queue {self._queue} of Kueue" + (
                f": {said}" if said else ""
            )
        return Gate(True, says, workers, workloads.servers_of(base), bool(waiting))

    def steps(self, planned: int | None, gate: Gate, version: str) -> list[Step]:
        if self._runs and gate.workers is None:
            why = gate.says
            if not edljob.durable(self.job["spec"]):
                why += "; it begins anew then, for it has no spec.jobVolume"
            return [Suspend(self.job, why)]
        if self._runs:
            return self._running(planned, gate, version)
        if self._base is None and self._waits and self._sets:
            return [self._make(workloads.base(self.job, self._sets, version))]
        gone = list(self._pieces)
        if self._base is not None and self._is_to_go(self._base):
            gone.append(self._base)
        return self._drops(gone, not self._lives)

    def flavors(self) -> dict[str, set[str]]:
        """Return the flavors that were assigned, by set of pods."""
        found: dict[str, set[str]] = {}
        for each in [*([self._base] if self._base is not None else []), *self._pieces]:
            for name, some in workloads.flavors(each).items():
                found.setdefault(name, set()).update(some)
        return found

    def _running(self, planned: int | None, gate: Gate, version: str) -> list[Step]:
        """Ask for what was planned, give back what is not, and take leave of what was taken."""
        assert self._base is not None
        assert gate.workers is not None
        least = workloads.workers_of(self._base)
        has = gate.workers - least
        wants = has if planned is None else max(0, planned - least)
        dead = [
            each for each in self._pieces if workloads.is_over(each) and workloads.is_active(each)
        ]
        live = [each for each in self._pieces if each not in dead]
        # Those that are admitted stay first; one that an administrator holds up is not passed by.
        live.sort(key=lambda each: (not workloads.is_admitted(each), workloads.index_of(each)))
        surplus = live[wants:]
        if gate.is_full:  # what waits stays in the queue, or it would never be known to be free
            surplus = [each for each in surplus if workloads.is_admitted(each)]
        kept = [each for each in live if each not in surplus]
        needed = max(self._workers, edljob.workers(self.job["spec"]))
        free = needed <= least + sum(map(workloads.is_admitted, kept))
        steps = self._drops([each for each in surplus if not workloads.is_admitted(each)], True)
        held = [each for each in surplus if workloads.is_admitted(each)]
        steps += self._drops([*dead, *held], free)
        taken = {workloads.index_of(each) for each in self._pieces}
        indices = [k for k in range(1, wants + len(taken) + 1) if k not in taken]
        for index in indices[: max(0, wants - len(live) - len(dead))] if self._sets else []:
            steps.append(self._make(workloads.piece(self.job, self._sets, index, version)))
        return steps

    def _is_to_go(self, base: Object) -> bool:
        """Tell whether the base of a job that does not run is of no use."""
        if not self._waits:
            return True
        # What an administrator holds up stays held up, whatever the job asks for by now.
        return workloads.is_active(base) and (workloads.is_over(base) or self._is_stale())

    def _is_stale(self) -> bool:
        base, sets = self._base, self._sets
        return base is not None and bool(sets) and not workloads.is_asked(base, self.job, sets)

    def _other_nodes(self, labels: Mapping[str, dict[str, str]]) -> str:
        """Say which labels of nodes Kueue has counted on, and no pod asks for."""
        for each in self._sets:
            asked = each["template"]["spec"].get("nodeSelector") or {}
            for flavor in sorted(self.flavors().get(each["name"], ())):
                lacks = dict(labels.get(flavor, {}).items() - asked.items())
                if lacks:
                    words = ", ".join(f"{name}: {value}" for name, value in sorted(lacks.items()))
                    return (
                        f"is admitted for the flavor {flavor} of Kueue, whose nodes its pods may "
                        f"miss: write {{{words}}} into spec.{each['name']}.nodeSelector"
                    )
        return ""

    def _make(self, body: Object) -> Step:
        return Make(self.job["metadata"]["name"], body)

    def _drops(self, gone: Sequence[Object], may: bool) -> list[Step]:
        name, found = self.job["metadata"]["name"], [each["metadata"] for each in gone]
        return [
            Drop(name, each["namespace"], each["name"], each["uid"])
            for each in found
            if may and not each.get("deletionTimestamp")
        ]

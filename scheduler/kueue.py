"""The gate of Kueue before EdlJobs that name one of its queues: what it lets through. Pure.

Kueue knows no EdlJob, but admits any Workload: the scheduler writes those of a job (workloads.py),
reads what Kueue says of them, and holds the job to it (kueue_job.py). All that is known stands in
the objects, and each step is right by itself: the scheduler may end between any two of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..common.errors import UsageError
from ..k8s import job as edljob
from ..k8s import names
from ..k8s.api import Object
from ..k8s.observe import takes_room
from . import workloads
from .gate import OPEN, Gate, Step, Suspend
from .kueue_job import KueueJob, Patience


class Gates:
    """The gates of the EdlJobs of a cluster, by what was seen last."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._gates: dict[str, Gate] = {}  # by uid
        self._jobs: list[KueueJob] = []
        self._sets: dict[tuple[str, int], list[Object]] = {}  # of pods, by uid and generation
        self._patience = Patience()
        self.specs: dict[str, Object] = {}  # of flavors, by name: told from outside
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
        self._patience.begin(now)
        mine = [
            each
            for each in jobs
            if (workloads.held_to(each) or each["metadata"]["uid"] in theirs)
            and not each["metadata"].get("deletionTimestamp")
        ]
        living = _living(pods) if mine else {}
        for each in mine:
            about = each["metadata"]
            has = theirs.get(about["uid"], [])
            is_over = (each.get("status") or {}).get("phase") in names.OVER
            if not is_over and (gate := _no_gate(each, bool(has), found is not None)):
                self._gates[about["uid"]] = gate
            elif has or (found is not None and not is_over):
                sets, problem = self._asked(each, known)
                roles = living.get((about["namespace"], about["name"]), [])
                seen = KueueJob(each, has, roles, sets, problem)
                self._jobs.append(seen)
                self._gates[about["uid"]] = seen.gate(now, self.specs)

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

        `planned`: workers by the uid of the job, also those that are not admitted, of each job for
        which there is a plan; `version`: of Kueue's API.
        """
        every = [
            step
            for seen in self._jobs
            for step in seen.steps(
                planned.get(seen.uid), self.of(seen.job), version, self._patience
            )
        ]
        return sorted(every, key=lambda step: not isinstance(step, Suspend))

    def flavors(self) -> set[str]:
        """Return the flavors that were assigned and of which nobody has told what they are."""
        found = [each for seen in self._jobs for each in seen.flavors().values()]
        return set[str]().union(*found) - self.specs.keys()


def _no_gate(job: Object, has_workloads: bool, has_kueue: bool) -> Gate | None:
    """Return the gate of a job whose label has no effect, None where it has."""
    if not (queue := workloads.held_to(job)):
        return None
    if "scheduling" not in job["spec"] and not has_workloads and not workloads.admitted_by(job):
        return Gate(
            says=f"has the label {workloads.QUEUE_LABEL}, which does nothing without "
            "spec.scheduling: write `scheduling: {}` into its spec"
        )
    if has_kueue:
        return None
    return Gate(
        is_open=False,
        says=f"is left alone: it is held to the queue {queue} by the label "
        f"{workloads.QUEUE_LABEL}, and this cluster had no Kueue of v1beta1 or v1beta2 when the "
        "scheduler began: install one, or remove the label while the job is suspended",
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

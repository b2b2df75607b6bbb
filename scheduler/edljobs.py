"""EdlJobs as the scheduler sees them, and the changes that it makes in them. Pure.

An EdlJob is the scheduler's to change if it has `spec.scheduling`. One that is suspended waits in
the queue if it has not begun yet, or if the scheduler suspended it, which an annotation tells; one
that somebody else suspended is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..common import report as reports
from ..common.errors import EdlError, UsageError
from ..k8s import job as edljob
from ..k8s import names, observe
from ..k8s.api import Object
from .cluster import Node, Resources
from .jobs import Given, Job, Shape
from .kueue import Gates
from .machines import expected, machines, resources
from .place import Seen, seconds
from .speed import served_s, speed_of

_RESIZE_S = 3.0  # that a change of the workers costs until one was measured
_BEGINS_S = 120.0  # a job whose workers have not come by then may be changed all the same
_UNPLACED_S = 20.0  # of a pod that no node takes, until fewer are believed to fit
_FULL_S = 300.0  # for so long after that
_OVER = ("Succeeded", "Failed")
_ROLES = ("master", "ps", "worker")


@dataclass(frozen=True)
class Asked:
    """What a job's pods ask for. Of one spec it is always the same."""

    worker: Object  # the spec of its pods
    needs: Mapping[str, Resources]  # of a pod of each role


@dataclass(frozen=True)
class Copy:
    """The objects of a cluster, at about one moment."""

    jobs: Sequence[Object]
    nodes: Sequence[Object]
    pods: Sequence[Object]
    workloads: Sequence[Object] | None = None  # Kueue's, of EdlJobs; None where there is no Kueue


def asked(job: Object) -> Asked:
    """Return what a job's pods ask for. Raises UsageError, as the controller would."""
    made = edljob.templates(job)
    needs = {role: resources(edljob.requested(made[role]["spec"])) for role in _ROLES}
    return Asked(made["worker"]["spec"], needs)


class Looker:
    """Makes what the scheduler sees out of the objects of a cluster."""

    def __init__(self, is_everywhere: bool) -> None:
        """Look at the jobs of all namespaces (which are in their names then), or of one."""
        self._is_everywhere = is_everywhere
        self._asked: dict[tuple[str, int], Asked] = {}  # by uid and generation
        self._held: dict[str, int] = {}  # workers, by uid
        self._resizes: dict[str, int] = {}
        self._full: dict[str, tuple[int, float]] = {}  # by uid: workers that fit, believed until
        self.gates = Gates()
        self.objects: dict[str, Object] = {}  # the EdlJobs of what was seen last, by name

    def look(self, copy: Copy, now: float) -> Seen:
        """Return the jobs and nodes; `now`: s since the epoch."""
        ignored: dict[str, str] = {}
        theirs: dict[tuple[str, str], list[Object]] = {}
        for pod in copy.pods:
            about = pod["metadata"]
            if job := (about.get("labels") or {}).get(names.JOB_LABEL):
                theirs.setdefault((about["namespace"], job), []).append(pod)
        self.gates.look(copy.jobs, copy.workloads, copy.pods, now)
        self.objects, asks, jobs, ours = {}, {}, [], set()
        known = self._asked
        self._asked = {}
        for each in copy.jobs:
            about = each["metadata"]
            name = f"{about['namespace']}/{about['name']}" if self._is_everywhere else about["name"]
            gate = self.gates.of(each)
            if gate.says:
                ignored[name] = gate.says
            if not gate.is_open or not _is_ours(each):
                continue
            key = about["uid"], about["generation"]
            try:
                asks[name] = self._asked[key] = known.get(key) or asked(each)
                mine = theirs.get((about["namespace"], about["name"]), [])
                job = gate.fit(self._job(name, each, self._asked[key], mine, now, ignored))
            except EdlError as error:
                ignored[name] = f"is left alone: {error}"
                continue
            self.objects[name] = each
            jobs.append(job)
            if job.held.workers:
                ours |= {id(pod) for pod in mine if _role(pod) in ("worker", "ps")}
        others = [pod for pod in copy.pods if id(pod) not in ours]
        specs = {job.name: asks[job.name].worker for job in jobs}
        nodes, welcome = machines(copy.nodes, others, specs)
        seen = []
        for job in jobs:
            if welcome and not any(job.name in jobs for jobs in welcome.values()):
                ignored[job.name] = (
                    "is left alone: no node has the labels that its workers ask for, or bears them"
                )
                continue
            seen.append(job)
        self._held = {
            self.objects[job.name]["metadata"]["uid"]: job.held.workers
            for job in seen
            if job.held.workers
        }
        seen = expected(seen, nodes, welcome)
        if len(welcome) > 1:
            seen = [_restricted(job, nodes, welcome) for job in seen]
        return Seen(seen, nodes, ignored)

    def _job(
        self,
        name: str,
        it: Object,
        ask: Asked,
        mine: Sequence[Object],
        now: float,
        ignored: dict[str, str],
    ) -> Job:
        spec, about, status = it["spec"], it["metadata"], it.get("status") or {}
        worker, scheduling = spec.get("worker") or {}, spec["scheduling"]
        if "maxReplicas" not in worker:
            raise UsageError(
                "spec.worker.maxReplicas is missing: say the most workers that it may be given."
            )
        report = None
        try:
            if status.get("report") is not None:
                report = reports.read(status["report"])
        except EdlError as error:
            ignored[name] = f"has a report that is ignored: {error}"
        waits, alive = bool(spec.get("suspend")), [pod for pod in mine if _is_alive(pod)]
        held = 0 if waits else edljob.workers(spec)
        before = self._held.get(about["uid"])
        if before and held and before != held:
            self._resizes[about["uid"]] = self._resizes.get(about["uid"], 0) + 1
        begun = _begun(it)
        begins = not waits and status.get("phase", "Pending") == "Pending"
        speed, is_known = speed_of(report)
        cost_s = report.resize.workers if report is not None else None
        servers = int((spec.get("ps") or {}).get("replicas", 1)) if _has_servers(spec) else 0
        minimum, maximum = int(worker.get("minReplicas", 1)), int(worker["maxReplicas"])
        placed = [pod for pod in alive if pod["spec"].get("nodeName")]
        has_master = any(_role(pod) == "master" for pod in placed)
        if held and _is_stuck(alive, now):
            fits = max(minimum, sum(_role(pod) == "worker" for pod in placed))
            self._full[about["uid"]] = fits, now + _FULL_S
        fits, until = self._full.get(about["uid"], (0, 0.0))
        if now < until:
            maximum = min(maximum, fits)
        return Job(
            name=name,
            speed=speed,
            worker=ask.needs["worker"],
            server=ask.needs["ps"],
            master=Resources() if has_master else ask.needs["master"],
            submitted=seconds(about["creationTimestamp"]),
            namespace=about["namespace"],
            user=str(scheduling.get("user") or ""),
            priority=int(scheduling.get("priority") or 0),
            minimum=minimum,
            maximum=maximum,
            servers=(servers,),
            left=report.records_left if report is not None and is_known else None,
            deadline=seconds(scheduling["deadline"]) if scheduling.get("deadline") else None,
            held=Shape(held, servers if held else 0),
            resize_s=_RESIZE_S if cost_s is None else cost_s,
            resizes=self._resizes.get(about["uid"], 0),
            served_s=served_s(report),
            waits_since=_waits_since(it) if waits else None,
            is_pinned=bool(waits and alive) or (begins and now - begun < _BEGINS_S),
            is_nearly_done=report is not None and report.nearly_done,
            may_be_suspended=edljob.durable(spec),
            may_move=False,
            workers_on=_counts(placed, "worker") if held else {},
            servers_on=_counts(placed, "ps") if held else {},
        )


def change(it: Object, job: Job, given: Given, now: str) -> Object | None:
    """Return the merge patch of an EdlJob that gives it what was planned; None: it has that.

    It holds for the version that was seen alone. `now`: RFC 3339.
    """
    has, gets = job.held, given.shape
    about: Object = {"resourceVersion": it["metadata"]["resourceVersion"]}
    if job.is_pinned or (has.workers, has.servers) == (gets.workers, gets.servers):
        return None
    if has.workers and (not gets.workers or has.servers != gets.servers):
        return {
            "metadata": {**about, "annotations": {names.QUEUED: now}},
            "spec": {"suspend": True},
        }
    spec: Object = {"worker": {"replicas": gets.workers}}
    if not has.workers:
        about["annotations"] = {names.QUEUED: None}
        spec["suspend"] = False
        if gets.servers:
            spec["ps"] = {"replicas": gets.servers}
    return {"metadata": about, "spec": spec}


def _is_ours(it: Object) -> bool:
    """Tell whether the scheduler has a say in an EdlJob."""
    spec, about, status = it["spec"], it["metadata"], it.get("status") or {}
    if "scheduling" not in spec or about.get("deletionTimestamp") or status.get("phase") in _OVER:
        return False
    return not spec.get("suspend") or edljob.is_queued(it)


def _restricted(job: Job, nodes: Sequence[Node], welcome: Mapping[str, set[str]]) -> Job:
    """Return the job with the kind of nodes that it is on, and no speed on those barred to it."""
    speed, barred = job.speed, {kind for kind, jobs in welcome.items() if job.name not in jobs}
    kinds = [node.kind for node in nodes for _ in range(job.workers_on.get(node.name, 0))]
    held = replace(job.held, kind=max(sorted(kinds), key=kinds.count)) if kinds else job.held
    return replace(
        job, held=held, speed=lambda shape: 0.0 if shape.kind in barred else speed(shape)
    )


def _has_servers(spec: Object) -> bool:
    settings: Object = spec.get("settings") or {}
    return settings.get("strategy") != "allreduce"


def _role(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(names.ROLE_LABEL, ""))


def _is_alive(pod: Object) -> bool:
    return not isinstance(observe.observe(pod), observe.Ended)


def _counts(placed: Sequence[Object], role: str) -> dict[str, int]:
    """Return how many pods of a role are on each node."""
    where = [pod["spec"]["nodeName"] for pod in placed if _role(pod) == role]
    return {node: where.count(node) for node in sorted(set(where))}


def _is_stuck(alive: Sequence[Object], now: float) -> bool:
    """Tell whether no node has taken a worker for a while, whatever was planned."""
    for pod in alive:
        for each in (pod.get("status") or {}).get("conditions") or []:
            if (each.get("type"), each.get("status")) == ("PodScheduled", "False"):
                since = each.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"]
                if _role(pod) == "worker" and now - seconds(since) > _UNPLACED_S:
                    return True
    return False


def _begun(it: Object) -> float:
    """Return when the job was told to run last, s since the epoch."""
    times = [it["metadata"]["creationTimestamp"]]
    for each in (it.get("status") or {}).get("conditions") or []:
        if (each["type"], each["status"]) == ("Suspended", "False"):
            times.append(each["lastTransitionTime"])
    return max(map(seconds, times))


def _waits_since(it: Object) -> float:
    about = it["metadata"]
    return seconds((about.get("annotations") or {}).get(names.QUEUED) or about["creationTimestamp"])

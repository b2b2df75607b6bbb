"""EdlJobs as the scheduler sees them, and the changes that it makes in them. Pure.

An EdlJob is the scheduler's to change if it has `spec.scheduling`. One that is suspended waits in
the queue if it has not begun yet, or if the scheduler suspended it, which an annotation tells; one
that somebody else suspended is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..common import launched
from ..common import report as reports
from ..common.errors import EdlError
from ..k8s import job as edljob
from ..k8s import names
from ..k8s.api import Object
from ..k8s.counting import Requests, requested
from ..k8s.job_status import number
from ..k8s.nodes import is_ready
from ..k8s.observe import takes_room
from . import workloads
from .cluster import Node, Resources
from .jobs import Given, Job, Quota, Shape, Speed
from .kueue import Gates
from .machines import expected, further_of, machines, may_be_on, no_node, resources
from .place import Seen, seconds
from .speed import Told

_RESIZE_S = 10.0  # until a new worker computes: the least that a change of the workers costs
_SERVERS_RESIZE_S = 25.0  # and one of the servers
_BEGINS_S = 120.0  # a job whose workers have not come by then may be changed all the same
_COMES_S = 30.0  # a job whose new workers have not come by then may be changed again
_UNPLACED_S = 20.0  # of a pod that no node takes, until fewer are believed to fit
_FULL_S = 300.0  # for so long after that
_ROLES = ("master", "ps", "worker")
_WHERE = ("nodeSelector", "affinity", "tolerations")


@dataclass(frozen=True)
class Asked:
    """The needs of a job's pods. Of one spec they are always the same."""

    worker: Object  # the spec of its pods
    needs: Mapping[str, Requests]  # of a pod of each role, by Kubernetes' names
    elsewhere: Mapping[str, Object]  # specs of roles that ask for other nodes than workers do


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
    needs = {role: {**requested(made[role]["spec"]), "pods": 1.0} for role in _ROLES}
    specs = {role: made[role]["spec"] for role in _ROLES}
    where = {role: [spec.get(key) for key in _WHERE] for role, spec in specs.items()}
    elsewhere = {role: spec for role, spec in specs.items() if where[role] != where["worker"]}
    is_split = "low" in (job["spec"].get("worker") or {})
    return Asked(_either(made) if is_split else specs["worker"], needs, elsewhere)


def _either(made: Mapping[str, Object]) -> Object:
    """Return a spec for nodes that workers of high priority may be on, or those of low."""
    high, low = made["worker_high"]["spec"], made["worker_low"]["spec"]
    terms = [
        {
            "matchExpressions": [
                {"key": key, "operator": "In", "values": [value]}
                for key, value in (each.get("nodeSelector") or {}).items()
            ]
        }
        for each in (high, low)
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    places = {"nodeSelector": {}, "affinity": {"nodeAffinity": required}}
    return {**high, **places, "tolerations": low.get("tolerations") or []}


@dataclass
class _Known:
    """The knowledge of one job that is kept between two looks at it."""

    held: int = 0  # workers, 0 where it is not one to be planned for
    resizes: int = 0
    changed: float = 0.0  # when its workers were changed last
    fits: int = 0  # workers that the nodes have taken,
    fits_until: float = 0.0  # which is believed until then


class Looker:
    """Makes what the scheduler sees out of the objects of a cluster."""

    def __init__(self, is_everywhere: bool, quotas: Sequence[Quota] = ()) -> None:
        """Look at the jobs of all namespaces (in their names then), or of one, under quotas."""
        self._is_everywhere = is_everywhere
        self._quotas = quotas
        self._asked: dict[tuple[str, int], Asked] = {}  # by uid and generation
        self._known: dict[str, _Known] = {}  # by uid
        self.gates = Gates()
        self.objects: dict[str, Object] = {}  # the EdlJobs of what was seen last, by name
        self.every: dict[str, Object] = {}  # also those that are not given to the policy

    def look(self, copy: Copy, now: float) -> Seen:
        """Return the jobs and nodes; `now`: s since the epoch."""
        ignored: dict[str, str] = {}
        theirs: dict[tuple[str, str], list[Object]] = {}
        for pod in copy.pods:
            about = pod["metadata"]
            if job := (about.get("labels") or {}).get(names.JOB_LABEL):
                theirs.setdefault((about["namespace"], job), []).append(pod)
        counted = [workloads.ranked(each, self._quotas) for each in copy.jobs]
        self.gates.look(counted, copy.workloads, copy.pods, now)
        self.objects, self.every, asks, jobs, ours = {}, {}, {}, [], set()
        before, self._asked = self._asked, {}
        uids = {each["metadata"]["uid"] for each in copy.jobs}
        self._known = {uid: self._known.get(uid) or _Known() for uid in uids}
        for each in copy.jobs:
            about = each["metadata"]
            name = f"{about['namespace']}/{about['name']}" if self._is_everywhere else about["name"]
            gate, self.every[name] = self.gates.of(each), each
            if gate.says:
                ignored[name] = gate.says
            if says := _stands_by(each):
                ignored.setdefault(name, says)
            if not gate.is_open or not _is_ours(each):
                continue
            key = about["uid"], about["generation"]
            try:
                asks[name] = self._asked[key] = before.get(key) or asked(each)
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
        further = further_of(needs for job in jobs for needs in asks[job.name].needs.values())
        nodes, welcome = machines(copy.nodes, others, specs, further)
        theirs_are = {node.name for node in nodes}
        there = [node for node in copy.nodes if node["metadata"]["name"] in theirs_are]
        seen, is_there = [], any(map(is_ready, copy.nodes))
        for job in jobs:
            if not any(job.name in jobs for jobs in welcome.values()):
                if welcome:
                    ignored[job.name] = f"is left alone: {no_node(specs[job.name], copy.nodes)}"
                    continue
                if is_there:  # nodes for it may be asked for
                    ignored[job.name] = no_node(specs[job.name], copy.nodes)
            seen.append(_counted(job, asks[job.name], there, further))
        held = {self.objects[job.name]["metadata"]["uid"]: job.held.workers for job in seen}
        for uid, known in self._known.items():
            known.held = held.get(uid, 0)
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
        scheduling = spec["scheduling"]
        told = Told.by(status.get("report"))
        if told.problem:
            ignored[name] = told.problem
        waits, alive = bool(spec.get("suspend")), [pod for pod in mine if takes_room(pod)]
        held = 0 if waits else edljob.workers(spec)
        known = self._known[about["uid"]]
        if held and known.held not in (0, held):
            known.resizes, known.changed = known.resizes + 1, now
        begins = not waits and (status.get("phase", "Pending") == "Pending" or _changes(it))
        grows = _ready(it) < held and now - known.changed < _COMES_S
        resize = told.resize
        placed = [pod for pod in alive if pod["spec"].get("nodeName")]
        has_master = any(_role(pod) == "master" for pod in placed)
        servers, choice, maximum = _choice(spec, held, told)
        if held and _is_stuck(alive, now):
            known.fits = sum(_role(pod) == "worker" for pod in placed)
            known.fits_until = now + _FULL_S
        minimum = int(spec["worker"].get("minReplicas", 1))
        least = minimum if edljob.preemptible(spec) else max(minimum, held)
        return Job(
            name=name,
            speed=_by_nodes(spec, told.speed),
            worker=resources(ask.needs["worker"]),
            server=resources(ask.needs["ps"]),
            master=Resources() if has_master else resources(ask.needs["master"]),
            submitted=seconds(about["creationTimestamp"]),
            namespace=about["namespace"],
            user=str(scheduling.get("user") or ""),
            priority=int(scheduling.get("priority") or 0),
            minimum=minimum,
            maximum=max(least, min(maximum, known.fits)) if now < known.fits_until else maximum,
            servers=choice,
            left=told.left,
            **_terms(scheduling, told.report),
            held=Shape(held, servers if held else 0),
            resize_s=max(_RESIZE_S, resize.workers or 0.0),
            servers_resize_s=_SERVERS_RESIZE_S if resize.servers is None else resize.servers,
            resizes=known.resizes,
            served_s=told.served_s,
            waits_since=_waits_since(it) if waits else None,
            is_pinned=bool(waits and alive) or grows or (begins and now - _begun(it) < _BEGINS_S),
            is_nearly_done=told.is_nearly_done,
            may_be_suspended=edljob.durable(spec),
            is_preemptible=edljob.preemptible(spec),
            may_move=False,
            # those of the highest numbers go first
            workers_on=_counts([pod for pod in placed if number(pod) < held], "worker"),
            servers_on=_counts(placed, "ps") if held else {},
        )


def change(it: Object, job: Job, given: Given, now: str, queue: str = "") -> Object | None:
    """Return the merge patch of an EdlJob that gives it what was planned; None: it has that.

    One that begins or suspends it holds for the version that was seen alone. `now`: RFC 3339;
    `queue`: of Kueue, whose quota it has.
    """
    has, gets = job.held, given.shape
    about: Object = {"resourceVersion": it["metadata"]["resourceVersion"]}
    if job.is_pinned or (has.workers, has.servers) == (gets.workers, gets.servers):
        return None
    if has.workers and not gets.workers:
        return {
            "metadata": {**about, "annotations": {names.QUEUED: now}},
            "spec": {"suspend": True},
        }
    spec: Object = {"worker": {"replicas": gets.workers}}
    if not has.workers:
        about["annotations"] = {names.QUEUED: None, **({names.ADMITTED: queue} if queue else {})}
        spec["suspend"] = False
        return {"metadata": about, "spec": spec}
    if has.servers != gets.servers:
        spec["ps"] = {"replicas": gets.servers}
    return {"spec": spec}


def _is_ours(it: Object) -> bool:
    """Tell whether the scheduler has a say in an EdlJob."""
    spec, about, status = it["spec"], it["metadata"], it.get("status") or {}
    if (
        "scheduling" not in spec
        or about.get("deletionTimestamp")
        or status.get("phase") in names.OVER
    ):
        return False
    return not spec.get("suspend") or edljob.is_queued(it)


def _stands_by(it: Object) -> str:
    """Say that somebody else has suspended a job; "" where nobody has."""
    who, about = edljob.held_by(it), it["metadata"]
    if not who or (it.get("status") or {}).get("phase") in names.OVER:
        return ""
    return (
        f"is left alone: {who} has suspended it (spec.suspend): `edl resume {about['name']}"
        f"{names.option(about)}`, and leave suspend out of a manifest that is applied again"
    )


def _counted(job: Job, ask: Asked, nodes: Sequence[Object], further: Sequence[str]) -> Job:
    """Return the job with all that its pods take, but for those that no node of workers takes."""
    takes = {role: resources(needs, further) for role, needs in ask.needs.items()}
    takes |= {} if job.master.pods else {"master": Resources()}
    takes |= {
        role: Resources()
        for role, spec in ask.elsewhere.items()
        if not any(may_be_on(spec, node) for node in nodes)
    }
    return replace(job, worker=takes["worker"], server=takes["ps"], master=takes["master"])


def _restricted(job: Job, nodes: Sequence[Node], welcome: Mapping[str, set[str]]) -> Job:
    """Return the job with the kind of nodes that it is on, and no speed on those barred to it."""
    speed, barred = job.speed, {kind for kind, jobs in welcome.items() if job.name not in jobs}
    kinds = [node.kind for node in nodes for _ in range(job.workers_on.get(node.name, 0))]
    held = replace(job.held, kind=max(sorted(kinds), key=kinds.count)) if kinds else job.held
    return replace(
        job, held=held, speed=lambda shape: 0.0 if shape.kind in barred else speed(shape)
    )


def _by_nodes(spec: Object, speed: Speed) -> Speed:
    """Return the speed of a job whose workers, as the scheduler counts them, are nodes of a script.

    The report counts its processes.
    """
    settings: Object = spec.get("settings") or {}
    each = (
        int(settings.get("nproc_per_node") or 1) if spec.get("command") == launched.COMMAND else 1
    )
    return speed if each == 1 else lambda s: speed(replace(s, workers=s.workers * each))


def _terms(scheduling: Object, report: reports.Report | None) -> dict[str, float | None]:
    """Return a job's deadline, and what is left of its budget, $, if all records cost alike."""
    deadline, budget = scheduling.get("deadline"), scheduling.get("budget")
    if report is None or report.records_left is None or not report.records_total:
        budget = None
    elif budget is not None:
        budget = budget * report.records_left / report.records_total
    return {"deadline": seconds(deadline) if deadline else None, "budget": budget}


def _choice(spec: Object, held: int, told: Told) -> tuple[int, tuple[int, ...], int]:
    """Return a job's servers, the numbers of them that it may have, and its most workers.

    Where servers may change, one thing after the other is learnt of: while what it has was not
    measured, it gets no more.
    """
    worker, ps = spec.get("worker") or {}, spec.get("ps") or {}
    servers = int(ps.get("replicas", 1)) if edljob.has_servers(spec) else 0
    maximum = int(worker["maxReplicas"])
    if not (held and servers and "maxReplicas" in ps):
        return servers, (servers,), maximum
    if not told.is_measured(Shape(held, servers)):
        return servers, (servers,), max(int(worker.get("minReplicas", 1)), held)
    most = max(int(ps["maxReplicas"]), servers)
    return servers, tuple(range(1, most + 1)), maximum


def _changes(it: Object) -> bool:
    """Tell whether a job whose servers may change waits for some of them."""
    ps, ready = it["spec"].get("ps") or {}, (it.get("status") or {}).get("psReady")
    wanted = int(ps.get("replicas", 1))
    return "maxReplicas" in ps and ready is not None and ready != f"{wanted}/{wanted}"


def _role(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(names.ROLE_LABEL, ""))


def _ready(it: Object) -> int:
    """Return how many workers of a job train."""
    said = str((it.get("status") or {}).get("workersReady") or "0/0")
    return int(said.partition("/")[0])


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

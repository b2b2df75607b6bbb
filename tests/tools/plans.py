"""Jobs and nodes of a cluster that there is not, and what is wrong with a plan for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edl.scheduler.cluster import Node, Resources
from edl.scheduler.jobs import Given, Job, Plan, Quota, Shape

GPU = Resources(gpu=1)
_NOTHING = Resources()


def nodes(count: int, gpus: float = 4, kind: str = "") -> list[Node]:
    """Return nodes with so many GPUs each."""
    return [Node(f"{kind}n{i}", Resources(gpu=gpus), kind) for i in range(count)]


class Speed:
    """A speed of `one` records/s with one worker, which more make faster by a power of them.

    Servers keep up with `served` workers each; on several nodes all is a tenth slower.
    """

    def __init__(self, one: float = 100.0, power: float = 0.8, served: float = 3.0) -> None:
        self._one, self._power, self._served = one, power, served

    def __call__(self, shape: Shape) -> float:
        workers = float(shape.workers)
        if shape.servers:
            workers = min(workers, self._served * shape.servers)
        elif shape.nodes > 1:
            workers *= 0.9
        return float(self._one * workers**self._power)


def held(job: Job, given: Given, now: float) -> dict[str, object]:
    """Return the fields of a job once it has what it is given."""
    waits = None
    if not given.shape.workers:
        waits = now if job.held.workers or job.waits_since is None else job.waits_since
    return {
        "held": given.shape,
        "workers_on": given.workers_on,
        "servers_on": given.servers_on,
        "waits_since": waits,
        "resizes": job.resizes + (given.shape != job.held and bool(job.held.workers)),
        "master": Resources() if given.shape.workers else job.master,
    }


def stays(job: Job) -> bool:
    """Tell whether a plan must leave the job as it is."""
    bad = not 1 <= job.minimum <= job.maximum
    return bad or job.is_pinned or (job.is_nearly_done and bool(job.held.workers))


def broken(
    plan: Plan, jobs: Sequence[Job], machines: Sequence[Node], quotas: Sequence[Quota] = ()
) -> list[str]:
    """Return what the plan breaks."""
    wrong = [] if list(plan) == [job.name for job in jobs] else [f"jobs are {list(plan)}"]
    for job in jobs:
        wrong += [f"{job.name}: {fault}" for fault in _faults(job, plan[job.name], machines)]
    wrong += _overfull(plan, jobs, machines)
    wrong += _moved(plan, jobs, machines)
    for quota in quotas:
        mine = [
            job
            for job in jobs
            if quota.namespace in (None, job.namespace) and quota.user in (None, job.user)
        ]
        if not _fits(_sum(plan, mine, True), quota.most, _sum(plan, mine, False)):
            wrong.append(f"{quota} is exceeded")
    return wrong


def _faults(job: Job, given: Given, machines: Sequence[Node]) -> Iterator[str]:
    shape = given.shape
    if not given.why:
        yield "no reason"
    if stays(job):
        if (shape, given.workers_on, given.servers_on) != (
            job.held,
            job.workers_on,
            job.servers_on,
        ):
            yield "changed"
        return
    # what a job has that stays where it is may have lost its nodes
    waits = not job.may_move and 0 < shape.workers <= job.held.workers
    if sum(given.workers_on.values()) != shape.workers and not waits:
        yield f"{given.workers_on} are not {shape.workers} workers"
    if sum(given.servers_on.values()) != shape.servers and not waits:
        yield f"{given.servers_on} are not {shape.servers} servers"
    if not shape.workers:
        if shape != Shape():
            yield f"{shape} without workers"
        return
    if not job.minimum <= shape.workers <= job.maximum:
        yield f"{shape.workers} workers"
    if shape.servers not in job.servers:
        yield f"{shape.servers} servers"
    if not shape.servers and len(given.workers_on) != shape.nodes and not waits:
        yield f"{given.workers_on} are not {shape.nodes} nodes"
    on = {*given.workers_on, *given.servers_on}
    if {node.kind for node in machines if node.name in on} != {shape.kind} and not waits:
        yield f"on {on} of another kind than {shape.kind}"


def _moved(plan: Plan, jobs: Sequence[Job], machines: Sequence[Node]) -> Iterator[str]:
    """Yield the pods that were moved although they stay where they are."""
    for job in jobs:
        given = plan[job.name]
        fewer = given.shape.workers < job.held.workers
        if job.may_move or stays(job) or fewer or given.shape.kind != job.held.kind:
            continue
        for node in (each.name for each in machines):
            if given.workers_on.get(node, 0) < job.workers_on.get(node, 0):
                yield f"{job.name} was moved from {node}: {job.workers_on} -> {given.workers_on}"


def _overfull(plan: Plan, jobs: Sequence[Job], machines: Sequence[Node]) -> Iterator[str]:
    spans: dict[str, str] = {}
    for job in jobs:
        given = plan[job.name]
        if job.may_move and not given.shape.servers and len(given.workers_on) > 1:
            for name in given.workers_on:
                if name in spans and not (stays(job) and spans[name] == "fixed"):
                    yield f"{job.name} and {spans[name]} span node {name}"
                spans[name] = "fixed" if stays(job) else job.name
    masters = [job.master for job in jobs if plan[job.name].shape.workers and not stays(job)]
    for node in machines:
        new, old = _NOTHING, _NOTHING
        for master in list(masters):  # all of one size: whichever node comes first
            beside = new + master + sum((_on(plan, job, node.name) for job in jobs), _NOTHING)
            if _fits(beside, node.free, _NOTHING):
                new += master
                masters.remove(master)
        for job in jobs:
            takes = _on(plan, job, node.name)
            new, old = (new, old + takes) if stays(job) else (new + takes, old)
        if not _fits(new, node.free, old):
            yield f"{node} holds {new} beside {old}"
    if any(master != _NOTHING for master in masters):
        yield f"{len(masters)} masters have no room"


def _on(plan: Plan, job: Job, node: str) -> Resources:
    given = plan[job.name]
    return job.worker * given.workers_on.get(node, 0) + job.server * given.servers_on.get(node, 0)


def _sum(plan: Plan, jobs: Sequence[Job], changed: bool) -> Resources:
    total = _NOTHING
    for job in jobs:
        if stays(job) != changed:
            shape = plan[job.name].shape
            total += job.worker * shape.workers + job.server * shape.servers
    return total


def _fits(new: Resources, most: Resources, old: Resources) -> bool:
    """Tell whether what is new fits beside what is old, which may be too much already."""
    return all(
        takes <= max(0.0, has - before) * (1 + 1e-8) + 1e-8
        for takes, has, before in (
            (new.cpu, most.cpu, old.cpu),
            (new.memory, most.memory, old.memory),
            (new.gpu, most.gpu, old.gpu),
        )
    )

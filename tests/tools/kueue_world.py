"""A world of EdlJobs that the stand-in of Kueue holds: each step of the scheduler is at once."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from edl.common.times import rfc3339
from edl.k8s import job as edljobs
from edl.k8s import names
from edl.scheduler import gate, workloads
from edl.scheduler.edljobs import Copy, Looker, change
from edl.scheduler.jobs import Given, Shape
from edl.scheduler.place import Seen
from tools.kueue import Kueue, Object, holds
from tools.scheduled import NOW, edljob, node, pod

LABEL = {workloads.QUEUE_LABEL: "q"}
SUSPENDED: Object = {"status": {}, "suspend": True}
Wish = Callable[[str], int]


def queued(name: str = "a", labels: Mapping[str, str] = LABEL, **spec: Any) -> Object:
    it = edljob(name, **{**SUSPENDED, "priority": 0, **spec})
    it["metadata"]["labels"] = dict(labels)
    it["spec"]["scheduling"] = {"priority": it["spec"].pop("priority")}
    return it


class World:
    """EdlJobs, their pods and Workloads: each step of the scheduler changes it at once."""

    def __init__(self, jobs: Sequence[Object], quota: float) -> None:
        self.kueue = Kueue({"cpu": quota})
        self.jobs = {each["metadata"]["name"]: each for each in jobs}
        self.pods: dict[str, dict[str, int]] = {name: {} for name in self.jobs}  # by role, how many
        self.workloads: Object = {}  # by name
        self.now = NOW
        self.made = 0
        self.chosen = random.Random(0)
        self.suspended: list[str] = []
        self.looker = Looker(False)

    # -- others

    def ask_kueue(self) -> None:
        for each in self.kueue.look(self.workloads.values(), self.now):
            self.workloads[each["metadata"]["name"]] = each

    def move_pods(self, chosen: random.Random | None = None) -> None:
        """Let each job take a step to what its spec says."""
        chosen = chosen or self.chosen
        for name, job in self.jobs.items():
            spec, has = job["spec"], self.pods[name]
            over = job["status"].get("phase") == "Succeeded"
            runs = not spec.get("suspend") and not over
            wanted = {"master": 1, "ps": 2, "worker": edljobs.workers(spec)} if runs else {}
            for role in ("master", "ps", "worker"):
                less, more = has.get(role, 0), wanted.get(role, 0)
                if chosen.random() < 0.7:
                    has[role] = less + (more > less) - (more < less)
            if runs and has.get("worker"):
                job["status"] = {"phase": "Running", "startTime": rfc3339(self.now)}

    def end(self, name: str) -> None:
        self.jobs[name]["status"] = {"phase": "Succeeded"}

    # -- the scheduler

    def seen(self) -> Seen:
        pods = [
            pod(role, job=name)
            for name, has in self.pods.items()
            for role, count in has.items()
            for _ in range(count)
        ]
        jobs, found = list(self.jobs.values()), list(self.workloads.values())
        return self.looker.look(Copy(jobs, [node(cpu="1000")], pods, found), self.now)

    def actions(self, wish: Wish) -> Iterator[Callable[[], None]]:
        """Yield what the scheduler would do, each to be done at once; `wish`: workers by job."""
        seen = self.seen()
        gates, objects = self.looker.gates, self.looker.objects
        planned = {}
        for job in seen.jobs:
            workers = max(job.minimum, min(job.maximum, wish(job.name)))
            plan = Given(Shape(workers, job.servers[0]), "so")
            it = objects[job.name]
            if not (job.is_pinned and workers == job.held.workers):
                planned[it["metadata"]["uid"]] = workers
            queue = gates.of(it).queue
            patch = change(it, job, gates.of(it).bound(plan), rfc3339(self.now), queue)
            if patch:
                yield functools.partial(self.patch, job.name, patch)
        for step in gates.steps(planned, "v1beta2"):
            yield functools.partial(self.do, step)

    def patch(self, name: str, patch: Object) -> None:
        job = self.jobs[name]
        for key, value in patch["spec"].items():
            job["spec"][key] = {**job["spec"][key], **value} if key != "suspend" else value
        for key, value in patch.get("metadata", {}).get("annotations", {}).items():
            job["metadata"]["annotations"].pop(key, None)
            if value is not None:
                job["metadata"]["annotations"][key] = value

    def do(self, step: gate.Step) -> None:
        if isinstance(step, gate.Suspend):
            name = step.job["metadata"]["name"]
            self.suspended.append(name)
            self.patch(
                name,
                {
                    "metadata": {
                        "annotations": {
                            names.QUEUED: rfc3339(self.now),
                            names.ADMITTED: None,
                            **({names.EVICTIONS: str(step.evictions)} if step.evictions else {}),
                        }
                    },
                    "spec": {"suspend": True},
                },
            )
        elif isinstance(step, gate.Make):
            self.made += 1
            about = {"uid": f"w{self.made}", "creationTimestamp": rfc3339(self.now)}
            body = {**step.body, "metadata": {**step.body["metadata"], **about}}
            assert body["metadata"]["name"] not in self.workloads
            self.workloads[body["metadata"]["name"]] = body
        elif self.workloads.get(step.name, {"metadata": {"uid": ""}})["metadata"]["uid"]:
            del self.workloads[step.name]

    def round(self, wish: Wish = lambda _: 8, most: int | None = None, fails: float = 0.0) -> None:
        for done, action in enumerate(list(self.actions(wish))):
            if done == most:
                break
            if self.chosen.random() >= fails:
                action()
        self.now += 5.0

    # -- what is looked at

    def held(self, name: str) -> tuple[int, bool]:
        """Return the workers of a job for which quota is held, and whether its base is."""
        mine = [
            w for w in self.workloads.values() if w["metadata"]["labels"][names.JOB_LABEL] == name
        ]
        held = [each for each in mine if holds(each)]
        has_base = any(not workloads.index_of(each) for each in held)
        return sum(map(workloads.workers_of, held)), has_base

    def check(self) -> None:
        assert self.kueue.used(self.workloads.values())["cpu"] <= self.kueue.quota["cpu"]
        for name, has in self.pods.items():
            workers, has_base = self.held(name)
            assert has.get("worker", 0) <= workers, (name, has, self.workloads)
            assert has_base or not any(has.values()), (name, has)

    def settle(self, wish: Wish = lambda _: 8, rounds: int = 12, is_exact: bool = True) -> None:
        for _ in range(rounds):
            self.round(wish)
            self.ask_kueue()
            for _ in range(8):
                self.move_pods()
            if is_exact:
                self.check()


def replicas(world: World, name: str = "a") -> int:
    return int(world.jobs[name]["spec"]["worker"]["replicas"])


def pieces(world: World, name: str = "a") -> list[int]:
    return sorted(
        workloads.index_of(each)
        for each in world.workloads.values()
        if each["metadata"]["labels"][names.JOB_LABEL] == name and workloads.index_of(each)
    )


def uids(world: World) -> dict[str, str]:
    return {name: each["metadata"]["uid"] for name, each in world.workloads.items()}

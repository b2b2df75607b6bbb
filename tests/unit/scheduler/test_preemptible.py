"""A job that nobody may preempt keeps what it has, whoever else waits, and may get more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tools.plans import GPU, Speed, nodes
from tools.scheduled import NOW, THEN, edljob, node, pod

from edl.scheduler.cluster import Node, Resources
from edl.scheduler.edljobs import Copy, Looker
from edl.scheduler.jobs import Job, Quota, Shape
from edl.scheduler.policy import OBJECTIVES, Limits, make_policy

HOUR = 3600.0


def job(name: str, **more: object) -> Job:
    return replace(Job(name, Speed(), GPU, 0.0, maximum=8), **more)


def holds(name: str, has_servers: int = 0, **more: object) -> Job:
    """Return a job that has all of 4 workers, and nobody may take one."""
    on = {"n0": has_servers} if has_servers else {}
    known = {"held": Shape(4, has_servers, 1), "workers_on": {"n0": 4}, "servers_on": on}
    known |= {"is_preemptible": False, "may_move": False, "served_s": 9 * HOUR, "priority": -1}
    return job(name, **{**known, **more})


WAITS = job("waits", minimum=4, maximum=4, priority=9, waits_since=-9 * HOUR)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_it_keeps_what_it_has_for_whoever_waits(objective: str) -> None:
    """Broken once: its minimum alone."""
    policy = make_policy(objective)

    made = policy.plan([holds("runs"), WAITS], nodes(1), 0.0)
    preempted = policy.plan([holds("runs", is_preemptible=True), WAITS], nodes(1), 0.0)

    assert (made["runs"].shape.workers, made["waits"].shape.workers) == (4, 0)
    assert preempted["runs"].shape.workers < 4


def test_it_keeps_what_it_has_where_a_quota_fell_or_a_node_went() -> None:
    quota = (Quota("default", None, Resources(gpu=2)),)

    fell = make_policy("finish", Limits(quota)).plan([holds("runs")], nodes(1), 0.0)
    gone = make_policy("finish").plan([holds("runs"), WAITS], nodes(1, gpus=3), 0.0)

    assert fell["runs"].shape.workers == gone["runs"].shape.workers == 4
    assert gone["waits"].shape.workers == 0


def test_it_keeps_its_servers_and_gets_more_workers_where_there_is_room() -> None:
    """One server would be better for it. Broken once: it gets that."""
    machine = Node("n0", Resources(cpu=4, gpu=8))
    more = {"servers": (1, 2), "server": Resources(cpu=1), "left": 1e6}
    held = holds("runs", has_servers=2, speed=lambda s: s.workers * (3.0 - s.servers), **more)
    policy = make_policy("finish")

    made = policy.plan([held], [machine], 0.0)["runs"].shape
    preempted = policy.plan([replace(held, is_preemptible=True)], [machine], 0.0)["runs"].shape

    assert (made.workers, made.servers) == (8, 2)
    assert preempted.servers == 1


def test_it_begins_with_its_minimum_as_any_other() -> None:
    made = make_policy("finish").plan(
        [job("new", minimum=2, is_preemptible=False)], nodes(1, gpus=3), 0.0
    )

    assert 2 <= made["new"].shape.workers <= 3


def test_an_edljob_says_it_and_keeps_workers_that_no_node_has_taken() -> None:
    """Broken once: as many as fit are the most that it may have."""
    waiting = {"type": "PodScheduled", "status": "False", "lastTransitionTime": THEN}
    pods = [pod("worker"), pod("worker", on="", index=1, phase="Pending", conditions=[waiting])]
    worker = {"replicas": 2, "minReplicas": 1, "maxReplicas": 4}

    def most(**spec: object) -> tuple[bool, int]:
        it = edljob(worker=worker, **spec)
        (seen,) = Looker(False).look(Copy([it], [node()], pods), NOW).jobs
        return seen.is_preemptible, seen.maximum

    assert (most(), most(preemptible=False)) == ((True, 1), (False, 2))

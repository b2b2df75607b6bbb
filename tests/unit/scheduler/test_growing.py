"""A place whose nodes come and go: what is planned on, what is asked, and what is told."""

from dataclasses import replace

from edl.k8s import nodes as told
from edl.scheduler.asking.fleet import Pool
from edl.scheduler.asking.place import Growing
from edl.scheduler.autoscaler import Autoscaler, Rules
from edl.scheduler.cluster import Node, Resources
from edl.scheduler.jobs import Given, Job, Shape
from edl.scheduler.place import Seen
from edl.scheduler.policy import make_policy

FOUR = Resources(cpu=4)
NONE = {"a": Given(Shape(), "")}


class Inner:
    """A place with nodes n0 to n5 and these jobs."""

    def __init__(self, jobs):
        self.jobs = jobs
        self.acted = 0

    def look(self):
        return Seen(self.jobs, [Node(f"n{i}", FOUR) for i in range(6)], {})

    def act(self, plan, seen, tell):
        self.acted += 1
        self.plan = plan

    def keep(self, plan, tell):
        self.kept = plan


class Cloud:
    """Whoever is asked for nodes."""

    takes = Resources(cpu=0.5)

    def __init__(self):
        self.wishes = []

    def ask(self, pool, wish, now):
        self.wishes.append(wish)
        return "asked"


def a_job(**more):
    known = {"speed": lambda s: min(s.workers, 2), "maximum": 9, "left": 1e6}
    return Job("a", worker=Resources(cpu=1), submitted=0.0, **{**known, **more})


def of(server, api, jobs, freeze_s=600.0):
    for i in range(6):
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        labels = {"node.kubernetes.io/instance-type": "m5"}
        server.add("nodes", f"n{i}", metadata={"labels": labels}, spec={}, status=status)
    inner, cloud = Inner(jobs), Cloud()
    scaler = Autoscaler(Pool(FOUR), make_policy(), Rules(freeze_s=freeze_s))
    nodes = lambda: api.list("Node")[0]
    return Growing(inner, nodes, api, scaler, cloud, lambda: 0.0), inner, cloud


def test_nodes_that_are_to_go_are_emptied_and_those_with_servers_stay(server, api):
    mine = a_job(workers_on={"n0": 1, "n3": 1}, servers_on={"n0": 1})
    growing, inner, cloud = of(server, api, [mine], freeze_s=0.0)
    said = []

    growing.act(NONE, growing.look(), said.append)  # two cores of 24 are of use: one node is enough
    later = growing.look()

    assert [(node.name, node.free.cpu) for node in later.nodes] == [("n0", 3.5)]
    assert (inner.acted, cloud.wishes[-1].nodes["on-demand"]) == (1, 1)
    assert said[0].startswith("nodes: 0 spot and 6 on-demand -> 0 and 1: utility 0.10 is below")
    growing.keep({"at": 7, "jobs": []}, said.append)
    assert inner.kept["at"] == 7
    assert inner.kept["nodes"]["wanted"] == {"on-demand": 1, "spot": 0}


def test_nothing_is_planned_on_a_node_with_a_notice(server, api):
    growing, _, cloud = of(server, api, [a_job()])
    api.patch("Node", "n2", {"spec": {"taints": [{"key": "karpenter.sh/disrupted"}]}})

    seen = growing.look()
    growing.act(NONE, seen, print)

    assert "n2" not in [node.name for node in seen.nodes]
    assert growing.told()["nodes"]["notices"] == {"n2": "karpenter.sh/disrupted"}
    assert "n2" not in cloud.wishes[0].fleet.markets


def test_the_kinds_of_a_jobs_nodes_are_noted_at_it_for_its_bill(server, api):
    server.add("edljobs", "a", spec={}, metadata={"generation": 1})
    growing, _, _ = of(server, api, [a_job(workers_on={"n1": 2}, servers_on={"n0": 1})])

    growing.act(NONE, growing.look(), print)
    growing.act(NONE, growing.look(), print)

    noted = server.objects["edljobs", "a"]["metadata"]["annotations"][told.NOTED]
    assert told.read_noted(noted) == {"n0": ("m5", "on-demand"), "n1": ("m5", "on-demand")}
    assert 1 == sum(method == "PATCH" for method, _ in server.requests)


def test_a_cluster_that_does_not_answer_is_told_and_asked_again(server, api):
    growing, _, _ = of(server, api, [a_job(workers_on={"n1": 2})])
    server.forbidden.add(("get", "edljobs"))
    said = []

    growing.act(NONE, growing.look(), said.append)

    assert any("cannot ask" in each and "forbidden" in each for each in said)


def test_a_job_whose_nodes_were_all_taken_is_not_suspended_while_others_come(server, api):
    """Broken once: its master and servers ended, and began anew when nodes were there again."""
    bare, other = a_job(held=Shape(2, 1, 1), workers_on={"taken": 2}), a_job(workers_on={"n0": 1})
    bare = replace(bare, name="bare")
    growing, inner, _ = of(server, api, [bare, replace(other, held=Shape(1, 0, 1))])
    nothing = {"bare": Given(Shape(), "no room"), "a": Given(Shape(), "others come first")}

    plans = []
    for time in (0.0, 360.0, 361.0):
        growing._clock = lambda time=time: time
        growing.act(nothing, growing.look(), print)
        plans.append(inner.plan)

    assert [plan["bare"].shape for plan in plans] == [Shape(2, 1, 1), Shape(2, 1, 1), Shape()]
    assert plans[0]["a"].shape == Shape()

"""Nodes are asked for in three ways, and what is on one with a notice is told to go."""

from queue import Queue

import pytest

from edl.common.errors import UsageError
from edl.k8s import nodes as told
from edl.scheduler.asking.fleet import Fleet, Pool, Wish, fleet_of
from edl.scheduler.asking.nodepool import NodePool
from edl.scheduler.asking.notices import Notices
from edl.scheduler.asking.placeholders import Placeholders
from edl.scheduler.asking.provisioning import Provisioning
from edl.scheduler.cluster import Resources
from edl.scheduler.prices import ON_DEMAND, SPOT

POOL = Pool(Resources(cpu=3.9), {"pool": "edl"}, ("capacity", "spot"))
NOW = 1_800_000_000.0


def node(name, ready="True", taints=(), **labels):
    return {
        "metadata": {"name": name, "labels": {"pool": "edl", **labels}},
        "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def wish(on_demand=0, spot=0, there=(), busy=()):
    fleet = Fleet(dict(there), dict.fromkeys(("busy", "idle", "other"), ("m5", ON_DEMAND)), {})
    return Wish({ON_DEMAND: on_demand, SPOT: spot}, fleet, frozenset(busy))


def names(server, plural):
    return sorted(name for kind, name in server.objects if kind == plural)


def test_a_fleet_is_what_is_ready_of_the_pool_without_a_notice():
    cordoned = node("c")
    cordoned["spec"]["unschedulable"] = True
    found = fleet_of(
        POOL,
        [
            node("a"),
            node("b", capacity="spot"),
            cordoned,
            node("d", ready="Unknown"),
            node("e", pool="another"),
            node("f", taints=["karpenter.sh/disrupted"]),
        ],
    )

    assert found.markets == {"a": ON_DEMAND, "b": SPOT}
    assert found.notices == {"f": "karpenter.sh/disrupted"}
    assert len(found.kinds) == 6


def test_placeholders_are_one_for_each_node_that_is_wished(server, api):
    asker = Placeholders(api)

    said = asker.ask(POOL, wish(on_demand=2, spot=1, there=[("a", ON_DEMAND)]), NOW)
    made = names(server, "pods")
    asker.ask(POOL, wish(on_demand=2, spot=1, there=[("a", ON_DEMAND)]), NOW)

    assert said == "3 placeholders, 2 of them for nodes that are to come"
    assert made == names(server, "pods")
    assert made == [f"edl-placeholder-{name}" for name in ("on-demand-0", "on-demand-1", "spot-0")]
    spec = server.objects["pods", "edl-placeholder-spot-0"]["spec"]["affinity"]["nodeAffinity"]
    (terms,) = spec["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [(t["key"], t["operator"]) for t in terms["matchExpressions"]] == [
        ("pool", "In"),
        ("capacity", "In"),
    ]


def test_placeholders_that_wait_or_are_on_idle_nodes_go_first(server, api):
    asker = Placeholders(api)
    asker.ask(POOL, wish(on_demand=4), NOW)
    for i, name in enumerate(("busy", "idle", "other")):
        pod = server.objects["pods", f"edl-placeholder-on-demand-{i}"]
        pod["spec"]["nodeName"], pod["status"] = name, {"phase": "Running"}

    asker.ask(POOL, wish(on_demand=2, busy=["busy", "other"]), NOW)
    left = [pod["metadata"]["name"] for pod in server.pods()]

    assert sorted(left) == ["edl-placeholder-on-demand-0", "edl-placeholder-on-demand-2"]


def test_a_placeholder_that_has_ended_or_whose_node_is_gone_is_made_anew(server, api):
    asker = Placeholders(api)
    asker.ask(POOL, wish(on_demand=3), NOW)
    ended = [{"name": "placeholder", "state": {"terminated": {"exitCode": 0}}}]
    server.set_status("edl-placeholder-on-demand-0", phase="Running", containerStatuses=ended)
    server.objects["pods", "edl-placeholder-on-demand-1"]["spec"]["nodeName"] = "taken"
    server.objects["pods", "edl-placeholder-on-demand-2"]["spec"]["nodeName"] = "told"
    fleet = Fleet({}, {"told": ("m5", ON_DEMAND)}, {"told": "karpenter.sh/disrupted"})

    asker.ask(POOL, Wish({ON_DEMAND: 3}, fleet), NOW)

    assert [pod["status"]["phase"] for pod in server.pods()] == ["Pending"] * 3
    assert not [pod for pod in server.pods() if "nodeName" in pod["spec"]]


def condition(server, request, kind, time="2027-01-15T08:00:00Z"):  # which is NOW
    found = server.objects["provisioningrequests", request]
    about = {"type": kind, "status": "True", "reason": "R", "message": "no room in the zone"}
    found.setdefault("status", {}).setdefault("conditions", []).append(
        {**about, "lastTransitionTime": time}
    )


def test_a_provisioning_request_is_for_all_that_is_missing_or_none(server, api):
    asker = Provisioning(api)

    said = asker.ask(POOL, wish(on_demand=3, there=[("a", ON_DEMAND)]), NOW)
    again = asker.ask(POOL, wish(on_demand=3, there=[("a", ON_DEMAND)]), NOW + 5)

    (name,) = names(server, "provisioningrequests")
    assert names(server, "podtemplates") == [name]
    spec = server.objects["provisioningrequests", name]["spec"]
    assert spec["podSets"] == [{"count": 2, "podTemplateRef": {"name": name}}]
    assert said == f"2 on-demand nodes are asked for, all or none ({name})"
    assert again == f"2 on-demand nodes are asked for ({name})"


def test_a_request_that_came_to_nothing_is_asked_anew_after_a_pause_that_doubles(server, api):
    asker, missing = Provisioning(api), wish(spot=2)
    pauses = []
    asker.ask(POOL, missing, NOW)
    for _ in range(7):
        (name,) = names(server, "provisioningrequests")
        condition(server, name, "Failed")
        told_ = asker.ask(POOL, missing, NOW)
        pauses.append(int(told_.rpartition(" in ")[2].split()[0]))
        asker.ask(POOL, missing, NOW + pauses[-1] + 0.5)

    assert pauses == [60, 120, 240, 480, 960, 1800, 1800]
    assert told_.startswith("2 spot nodes could not be had (no room in the zone)")


def test_a_request_ends_when_its_nodes_are_there_or_are_wished_no_more(server, api):
    asker = Provisioning(api)
    asker.ask(POOL, wish(on_demand=2), NOW)
    (first,) = names(server, "provisioningrequests")

    asker.ask(POOL, wish(on_demand=1), NOW + 1)  # less, while none is made: another atom
    (second,) = names(server, "provisioningrequests")
    condition(server, second, "Provisioned")
    said = asker.ask(POOL, wish(on_demand=1), NOW + 2)
    there = asker.ask(POOL, wish(on_demand=1, there=[("a", ON_DEMAND)]), NOW + 3)

    assert first != second
    assert said == f"1 on-demand nodes are made ({second})"
    assert there == "nothing is missing"
    assert names(server, "provisioningrequests") == names(server, "podtemplates") == []


def test_a_nodepool_is_limited_to_what_is_wished_and_nothing_else_of_it_is_touched(server, api):
    server.add("nodepools", "gpu", spec={"limits": {"memory": "1Ti"}, "weight": 3})

    said = NodePool(api, "gpu").ask(POOL, wish(on_demand=2, spot=1), NOW)

    spec = server.objects["nodepools", "gpu"]["spec"]
    assert spec == {"limits": {"memory": "1Ti", "cpu": "12"}, "weight": 3}
    assert said.startswith("the NodePool gpu is limited to 12 cores; 3 placeholders")
    pod = server.objects["pods", "edl-placeholder-spot-0"]
    assert "karpenter.sh/nodepool" in str(pod["spec"]["affinity"]["nodeAffinity"])


def test_a_nodepool_that_there_is_not_is_said(server, api):
    with pytest.raises(UsageError, match="There is no NodePool 'x'"):
        NodePool(api, "x").ask(POOL, wish(), NOW)


def test_all_but_masters_leave_a_node_that_has_a_notice_and_nobody_else_does(server, api):
    def pod(name, role, on, app="edl"):
        labels = {"app.kubernetes.io/name": app, "edl.dev/role": role}
        about = {"labels": labels, "namespace": "default"}
        server.add("pods", name, metadata=about, spec={"nodeName": on}, status={"phase": "Running"})

    server.add("nodes", "n", **node("n"))
    for name, role in (("w", "worker"), ("s", "ps"), ("m", "master"), ("t", "teacher")):
        pod(name, role, "n")
    pod("other", "worker", "n2")
    pod("stranger", "worker", "n", app="web")
    pod("over", "worker", "n")  # a sidecar of it runs on: its master has read its end
    states = [("edl", "terminated"), ("proxy", "running")]
    about = [{"name": name, "state": {state: {}}} for name, state in states]
    server.set_status("over", phase="Running", containerStatuses=about)
    said = Queue()
    watch = Notices(api, said.put)

    server.fail("POST", "/pods/w/eviction", 429)
    watch.start()
    api.patch("Node", "n", {"spec": {"taints": [{"key": "karpenter.sh/disrupted"}]}})
    told_ = [said.get(timeout=20.0) for _ in range(3)]  # of w at the second try
    watch.close()

    going = [p["metadata"]["name"] for p in server.pods() if "deletionTimestamp" in p["metadata"]]
    assert sorted(going) == ["s", "t", "w"]
    assert [f"{name} leaves n, which has karpenter.sh/disrupted" for name in "stw"] == told_
    assert told.notice_of(server.objects["nodes", "n"])

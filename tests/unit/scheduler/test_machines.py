"""Nodes are seen with what is free on them, and with who may be put there."""

from dataclasses import replace

import pytest

from edl.common.errors import UsageError
from edl.k8s.nodes import is_ready as is_usable
from edl.k8s.nodes import kind_of
from edl.scheduler.cluster import Node, Resources
from edl.scheduler.jobs import Job, Shape
from edl.scheduler.machines import expected, machines, may_be_on
from edl.scheduler.quotas import read_quotas


def node(name="n", cpu="4", labels=None, taints=(), ready="True", **spec):
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": list(taints), **spec},
        "status": {
            "allocatable": {"cpu": cpu, "memory": "8Gi", "nvidia.com/gpu": "2", "pods": "110"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def pod(on="n", phase="Running", cpu="500m", **more):
    requests = {"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    return {
        "metadata": {},
        "spec": {"nodeName": on, "containers": [requests], **more},
        "status": {"phase": phase},
    }


def test_free_is_what_pods_of_others_leave():
    before = {"resources": {"limits": {"cpu": "3"}}}  # it runs before: the most counts
    pods = [pod(), pod(on="m"), pod(phase="Succeeded"), pod(cpu="1", initContainers=[before])]

    found, _ = machines([node()], pods, {})

    assert found == [Node("n", Resources(0.5, 6 * 2**30, 2.0, pods=108.0))]


def test_pods_that_no_node_has_taken_yet_are_expected_where_most_is_free():
    one = Resources(cpu=1.0)
    nodes = [Node("a", Resources(cpu=2.0)), Node("b", Resources(cpu=3.0))]
    begins = Job("begins", len, one, 0.0, server=one, held=Shape(3, 1))
    there = Job("there", len, one, 0.0, held=Shape(1), workers_on={"b": 1})

    first, second = expected([begins, there], nodes, {"": {"begins", "there"}})

    assert (first.workers_on, first.servers_on) == ({"a": 2, "b": 1}, {"b": 1})
    assert second.workers_on == {"b": 1}
    (more,) = expected([replace(begins, held=Shape(9))], nodes, {"": {"begins"}})
    assert sum(more.workers_on.values()) == 5  # there is no room for the others
    (barred,) = expected([begins], nodes, {"": set()})
    assert barred.workers_on == {}


def test_nodes_that_take_no_pods_are_none():
    nodes = [node("a", ready="False"), node("b", unschedulable=True), node("c", ready="Unknown")]

    assert [is_usable(each) for each in nodes] == [False] * 3
    assert machines(nodes, [], {}) == ([], {})


def test_nodes_of_one_kind_are_those_of_the_same_jobs():
    gpu = {"nodeSelector": {"gpu": "yes"}}
    taint = {"key": "only", "effect": "NoSchedule"}
    nodes = [node("a"), node("b", labels={"gpu": "yes"}), node("c"), node("d", taints=[taint])]

    found, welcome = machines(nodes, [], {"any": {}, "gpu": gpu})

    assert [(each.name, each.kind) for each in found] == [
        ("a", "as a"),
        ("b", "as b"),
        ("c", "as a"),
    ]
    assert welcome == {"as a": {"any"}, "as b": {"any", "gpu"}}


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ({}, "on-demand"),
        ({"karpenter.sh/capacity-type": "spot"}, "spot"),
        ({"karpenter.sh/capacity-type": "on-demand"}, "on-demand"),
        ({"cloud.google.com/gke-spot": "true"}, "spot"),
    ],
)
def test_a_market_is_told_by_the_labels_of_clouds(labels, found):
    assert kind_of(node(labels=labels))[1] == found


@pytest.mark.parametrize(
    ("tolerations", "is_so"),
    [
        ([], False),
        ([{"operator": "Exists"}], True),
        ([{"key": "only", "operator": "Exists"}], True),
        ([{"key": "only", "value": "us"}], True),
        ([{"key": "only", "value": "them"}], False),
        ([{"key": "only", "value": "us", "effect": "NoExecute"}], False),
        ([{"key": "other", "operator": "Exists"}], False),
    ],
)
def test_a_taint_keeps_away_who_does_not_bear_it(tolerations, is_so):
    taints = [{"key": "only", "value": "us", "effect": "NoSchedule"}]
    taints.append({"key": "soft", "effect": "PreferNoSchedule"})

    assert may_be_on({"tolerations": tolerations}, node(taints=taints)) is is_so


@pytest.mark.parametrize(
    ("expression", "is_so"),
    [
        ({"operator": "In", "values": ["a", "b"]}, True),
        ({"operator": "In", "values": ["b"]}, False),
        ({"operator": "NotIn", "values": ["b"]}, True),
        ({"operator": "Exists"}, True),
        ({"operator": "DoesNotExist"}, False),
    ],
)
def test_an_affinity_that_is_required_holds(expression, is_so):
    term = {"matchExpressions": [{"key": "zone", **expression}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}

    spec = {"affinity": {"nodeAffinity": required}}
    assert may_be_on(spec, node(labels={"zone": "a"})) is is_so


def test_quotas_are_read_and_what_is_not_said_has_no_limit(tmp_path):
    path = tmp_path / "quotas.yaml"
    path.write_text(
        "- {namespace: a, cpu: 16, memory: 1Gi}\n- {user: anna, gpu: 2}\n- {priority: 1e+06}\n"
        "- {namespace: b, priority: -3}\n"
    )

    a, anna, every, b = read_quotas(str(path))

    assert (a.namespace, a.user, a.most.cpu, a.most.memory) == ("a", None, 16.0, 2.0**30)
    assert (anna.namespace, anna.user, anna.most.gpu) == (None, "anna", 2.0)
    assert a.most.gpu == anna.most.cpu == every.most.cpu == float("inf")
    assert [a.priority, every.priority, b.priority] == [None, 10**6, -3]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1", "is no list of quotas"),
        ("- 1", "quota 1 is 1: write"),
        ("- {cpus: 1}", "quota 1 has no field 'cpus'"),
        ("- {user: anna}", "quota 1 limits nothing"),
        ("- {cpu: many}", "quota 1: cpu: 'many' is no quantity"),
        ("- {priority: high}", "quota 1: priority: 'high' is no whole number"),
        ("- {priority: 1.5}", "quota 1: priority: 1.5 is no whole number"),
        ("- {priority: true}", "quota 1: priority: True is no whole number"),
        ("- {user: [anna, bob], cpu: 1}", r"quota 1: user: \['anna', 'bob'\] is no name"),
        ("- {namespace: '', cpu: 1}", "quota 1: namespace: '' is no name"),
        ("- {user: true, cpu: 1}", "quota 1: user: True is no name"),
        ("- [", "cannot be read"),
        ("- {user: anna, cpu: 1, cpu: 2}", "'cpu' is given twice"),
    ],
)
def test_quotas_that_are_none_name_the_entry_and_the_field(tmp_path, text, says):
    path = tmp_path / "quotas.yaml"
    path.write_text(text)

    with pytest.raises(UsageError, match=says):
        read_quotas(str(path))

"""Kind, market and notice of a node, in the words of several clouds."""

import pytest

from edl.k8s import nodes
from edl.k8s.outside.job import ClusterJob


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ({"node.kubernetes.io/instance-type": "m5.xlarge"}, ("m5.xlarge", "on-demand")),
        ({"beta.kubernetes.io/instance-type": "a"}, ("a", "on-demand")),
        ({"karpenter.sh/capacity-type": "spot"}, ("unknown", "spot")),
        ({"karpenter.sh/capacity-type": "reserved"}, ("unknown", "on-demand")),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, ("unknown", "spot")),
        ({"cloud.google.com/gke-spot": "true"}, ("unknown", "spot")),
        ({"kubernetes.azure.com/scalesetpriority": "spot"}, ("unknown", "spot")),
        ({}, ("unknown", "on-demand")),
    ],
)
def test_labels_tell_kind_and_market(labels, kind):
    assert kind == nodes.kind_of({"metadata": {"labels": labels}})


def test_a_notice_is_told_by_its_taint_and_other_taints_are_none():
    def tainted(*keys):
        return {"spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in keys]}}

    assert nodes.notice_of(tainted("gpu", "karpenter.sh/disrupted")) == "karpenter.sh/disrupted"
    assert nodes.notice_of(tainted("node.kubernetes.io/unreachable", "team")) == ""
    assert nodes.notice_of({}) == ""


def test_what_is_noted_is_read_and_what_is_not_of_ours_is_left():
    kinds = {"n1": ("m5.xlarge", "spot"), "n0": ("unknown", "on-demand")}

    assert nodes.read_noted(nodes.noted(kinds)) == kinds
    assert nodes.read_noted('{"a": ["b"], "c": ["d", "e"]}') == {"c": ("d", "e")}
    assert [{}, {}, {}] == [nodes.read_noted(text) for text in (None, "{", "[1]")]


def test_a_job_knows_the_kinds_of_its_nodes_by_what_was_noted_and_by_those_that_are_there(
    server, api
):
    noted = {nodes.NOTED: nodes.noted({"gone": ("m5", "spot")})}
    server.add("edljobs", "a", spec={}, metadata={"generation": 1, "annotations": noted})
    labels = {"node.kubernetes.io/instance-type": "p3"}
    server.add("nodes", "here", metadata={"labels": labels})

    found = ClusterJob(api, "a").kinds(["gone", "here", "nobody"])
    server.forbidden.add(("get", "nodes"))
    blind = ClusterJob(api, "a").kinds(["gone", "here"])

    assert found == {"gone": ("m5", "spot"), "here": ("p3", "on-demand")}
    assert blind == {"gone": ("m5", "spot")}

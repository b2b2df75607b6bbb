"""What a pod asks for, by the rules of Kubernetes. tests/k8s/test_counting.py asks a real one."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.k8s import names, pods
from edl.k8s.counting import requested


def container(name="c", sidecar=False, **requests):
    more = {"restartPolicy": "Always"} if sidecar else {}
    return {"name": name, "resources": {"requests": requests}, **more}


@pytest.mark.parametrize(
    ("before", "cpu"),
    [
        ([], 0.5),
        ([container(sidecar=True, cpu="250m")], 0.75),
        ([container(cpu="2")], 2.0),
        # one that runs before counts with the sidecars that have begun by then, and no other
        ([container(sidecar=True, cpu="1"), container(cpu="2")], 3.0),
        ([container(cpu="2"), container(sidecar=True, cpu="1")], 2.0),
        ([container(cpu="700m"), container(sidecar=True, cpu="1")], 1.5),
        ([container(sidecar=True, cpu="1"), container(cpu="400m")], 1.5),
    ],
)
def test_sidecars_count_with_the_containers(before, cpu):
    """Broken once: the most of all that stands in initContainers."""
    spec = {"containers": [container(cpu="500m")], "initContainers": before}

    assert {"cpu": pytest.approx(cpu)} == requested(spec)


def test_what_a_pod_says_as_a_whole_goes_before_its_containers_and_overhead_comes_on_top():
    spec = {
        "containers": [container(cpu="500m", memory="1Gi", **{"nvidia.com/gpu": "1"})],
        "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "4", "memory": "8Gi"}},
        "overhead": {"cpu": "100m"},
    }

    assert {"cpu": 2.1, "memory": 2.0**30, "nvidia.com/gpu": 1.0} == requested(spec)
    whole = {"containers": [{}], "resources": {"limits": {"cpu": "4"}}}
    assert {"cpu": 4.0} == requested(whole)


def test_quantities_with_any_exponent_are_read():
    """A foreign pod may say them. Broken once: the scheduler ends at it."""
    assert [Decimal("0.001"), Decimal(2000)] == [names.quantity(t, "") for t in ("1e-3", "2E+3")]


def test_more_memory_is_for_the_containers_that_run_edl_and_the_pod_as_a_whole():
    """Broken once: sidecars get it too, and a container more than its pod."""
    spec = {
        "containers": [container("proxy", memory="1Gi"), container("edl", memory="2Gi")],
        "initContainers": [container("mesh", sidecar=True, memory="1Gi"), container("check")],
        "resources": {"limits": {"memory": "6Gi"}},
    }
    spec["containers"][1]["resources"]["limits"] = {"memory": "2Gi"}

    pods.give_memory({"spec": spec}, "4Gi")

    def asked(kind):
        return [each["resources"]["requests"].get("memory") for each in spec[kind]]

    assert (["1Gi", "4Gi"], ["1Gi", "4Gi"]) == (asked("containers"), asked("initContainers"))
    assert {"limits": {"memory": "8Gi"}} == spec["resources"]


NAMES = ("cpu", "ephemeral-storage", "hugepages-2Mi", "example.com/fpga")
AMOUNTS = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 5), max_size=3)
BEFORE = st.lists(st.tuples(st.booleans(), AMOUNTS), max_size=4)


@settings(max_examples=60)
@given(BEFORE, st.lists(AMOUNTS, min_size=1, max_size=3), AMOUNTS)
def test_a_pod_asks_for_the_most_that_it_needs_at_any_moment(before, containers, overhead):
    """The oracle plays the pod's life, as Kubernetes' documentation tells it: one container before
    the others after another, each beside the sidecars that have begun; then all others at once.
    """
    moments, sidecars = [], []
    for is_sidecar, asks in before:
        moments.append([*sidecars, asks])
        sidecars += [asks] if is_sidecar else []
    moments.append([*sidecars, *containers])
    most = {
        name: max(sum(each.get(name, 0) for each in moment) for moment in moments)
        + overhead.get(name, 0)
        for name in NAMES
    }
    spec = {
        "containers": [container(**each) for each in containers],
        "initContainers": [container(sidecar=is_so, **each) for is_so, each in before],
        "overhead": overhead,
    }

    found = requested(spec)

    assert {name: found.get(name, 0) for name in NAMES} == most

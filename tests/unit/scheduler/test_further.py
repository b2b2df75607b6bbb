"""What of a node counts beside cores, memory and GPUs: how many pods it takes, other devices."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tools.scheduled import NOW, edljob, node

from edl.scheduler.cluster import Resources
from edl.scheduler.edljobs import Copy, Looker
from edl.scheduler.machines import further_of, machines, resources
from edl.scheduler.options import amounts, rooms
from edl.scheduler.policy import make_policy

FPGA, PAGES = "example.com/fpga", "hugepages-2Mi"
NAMES = ("cpu", "memory", "pods", FPGA, PAGES, "ephemeral-storage")


def has(name: str = "n1", **amounts: str) -> dict[str, Any]:
    made = node(name)
    made["status"]["allocatable"] |= {key.replace("_", "-"): it for key, it in amounts.items()}
    return made


def stranger(on: str = "n1", **requests: str) -> dict[str, Any]:
    asked = {"resources": {"requests": requests}}
    about = {"namespace": "kube-system", "labels": {}}
    return {"metadata": about, "spec": {"nodeName": on, "containers": [asked]}, "status": {}}


def planned(it: dict[str, Any], *nodes: dict[str, Any], pods: Any = ()) -> int:
    """Return how many workers a job that waits is given on these nodes."""
    seen = Looker(False).look(Copy([it], nodes, pods), NOW)
    return make_policy("finish").plan(seen.jobs, seen.nodes, NOW)["a"].shape.workers


def waiting(**resources: str) -> dict[str, Any]:
    worker: dict[str, Any] = {"minReplicas": 1, "maxReplicas": 8}
    if resources:
        worker["resources"] = {"requests": {"cpu": "100m", **resources}, "limits": resources}
    return edljob(
        status={}, suspend=True, worker=worker, ps={"replicas": 1, "resources": SMALL}, master=BOSS
    )


SMALL = {"requests": {"cpu": "100m", "memory": "1Mi"}}
BOSS = {"resources": SMALL}


def test_a_node_takes_so_many_pods_whatever_they_ask_for() -> None:
    """A master, a server and 2 of 3 strangers that live. Broken once: as many as have cores."""
    over = {**stranger(), "status": {"phase": "Succeeded"}}
    pods = [stranger(), stranger(cpu="1m"), over]

    assert planned(waiting(memory="1Mi"), has(pods="7"), pods=pods) == 3
    assert planned(waiting(memory="1Mi"), has(pods="110"), pods=pods) == 8


def test_other_devices_disks_and_huge_pages_are_shared_out_as_cores_are() -> None:
    rich = has(**{FPGA: "5", PAGES: "8Mi", "ephemeral_storage": "10Gi"})

    assert planned(waiting(**{FPGA: "2"}), rich, has("n2")) == 2
    assert planned(waiting(**{FPGA: "2"}), rich, pods=[stranger(**{FPGA: "2"})]) == 1
    assert planned(waiting(**{FPGA: "1", PAGES: "2Mi"}), rich) == 4
    assert planned(waiting(**{"ephemeral-storage": "3Gi"}), rich) == 3
    assert planned(waiting(**{FPGA: "2"}), has("n2")) == 0


AMOUNTS = st.fixed_dictionaries({name: st.integers(0, 6) for name in NAMES})


@settings(max_examples=60)
@given(AMOUNTS, st.lists(AMOUNTS, max_size=3), AMOUNTS)
def test_as_many_pods_fit_as_kube_scheduler_would_take(
    allocatable: dict[str, int], others: list[dict[str, int]], asked: dict[str, int]
) -> None:
    """The oracle puts one pod after another there, as the filter NodeResourcesFit does."""
    asked = {**asked, "pods": 1}
    taken = {name: sum(each[name] for each in others) for name in NAMES} | {"pods": len(others)}
    fit = 0
    while all(not asked[name] or taken[name] + asked[name] <= allocatable[name] for name in asked):
        taken = {name: taken[name] + asked[name] for name in NAMES}
        fit += 1
    made = has(**{name: str(amount) for name, amount in allocatable.items()})
    there = [stranger(**{k: str(v) for k, v in each.items() if k != "pods"}) for each in others]

    further = further_of([{name: float(amount) for name, amount in asked.items()}])
    ((found,), _) = machines([made], there, {}, further)
    pod = resources({name: float(amount) for name, amount in asked.items()}, further)

    assert int(rooms(amounts(found.free)[None], pod)[0]) == fit


def test_amounts_of_resources_add_up_whichever_of_them_somebody_counts() -> None:
    one, two = Resources(1.0, 2.0, pods=1.0, others=(1.0,)), Resources(3.0, others=(2.0, 3.0))

    assert one + two == Resources(4.0, 2.0, 0.0, 1.0, (3.0, 3.0))
    assert one.less(two) == Resources(0.0, 2.0, 0.0, 1.0, (0.0, 0.0))
    assert (two * 2).share_of(Resources(12.0, others=(8.0, 8.0))) == 0.75

"""The scheduler holds EdlJobs to queues of Kueue on a real control plane, as its role lets it.

Kueue's own controller and webhooks run there. In each story they are killed at each step, right
after what an administrator did: the next controller finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tools.jobs import ZOO, write_records
from tools.kube_api import Object
from tools.kube_namespace import Namespace
from tools.kube_objects import IMAGE, condition, phase, volumes
from tools.kueue_itself import cluster_queue, flavor, local_queue, workload
from tools.kueue_lockstep import Itself, Played, play
from tools.kueue_world import queued
from tools.schedulers import install, running
from tools.servers import assert_exact

from edl.scheduler.workloads import QUEUE_LABEL

RECORDS, EPOCHS = 4096, 4
BASE, PIECE = 1.5, 0.5  # CPUs: a master, a server and a worker; a worker


@pytest.fixture
def said(namespace, folder, kueue) -> Iterator[Path]:
    """Run a controller and a scheduler with the rights of the manifests; return what it says."""
    install(namespace)
    namespace.claims(folder)
    namespace.cluster.wait(
        "customresourcedefinitions",
        lambda found: condition(found.get("edljobs.edl.dev", {}), "Established") == "True",
    )
    flags = ("--runtime", "kubernetes", "--every", "1")
    with running(namespace, folder, *flags) as log:
        yield log


def job(folder: Path, name: str = "one") -> Object:
    """Return a job that goes on until the file `go` is there, and then comes to its end."""
    small = {"requests": {"cpu": "500m", "memory": "512Mi"}}
    about = {"name": name, "labels": {QUEUE_LABEL: "team"}}
    spec = {
        "image": IMAGE,
        "suspend": True,
        "scheduling": {},
        "settings": {
            "model_zoo": str(ZOO),
            "model_def": "counting",
            "model_params": {"delay_s": 1.0, "until": str(folder / "go")},
            "training_data": str(write_records(folder / f"{name}.npz", RECORDS)),
            "minibatch_size": 16,
            "num_minibatches_per_task": 4,
            "num_epochs": EPOCHS,
            "use_async": True,
            "checkpoint_dir": str(folder / name),
        },
        **volumes(folder),
        "master": {"resources": small},
        "ps": {"replicas": 1, "resources": small},
        "worker": {"replicas": 1, "minReplicas": 1, "maxReplicas": 3, "resources": small},
    }
    return {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "metadata": about, "spec": spec}


class Life:
    """What becomes of the job `one`."""

    def __init__(self, here: Namespace) -> None:
        self._here = here

    def status(self, until: Callable[[Object], object], within_s: float = 120.0) -> Object:
        def look(jobs: dict[str, Object]) -> Object | None:
            found = jobs["one"].get("status") or {}
            assert phase(jobs["one"]) != "Failed", found
            return found if until(found) else None

        return self._here.wait("edljobs", look, within_s=within_s)

    def runs(self, workers: int) -> Object:
        wanted = f"{workers}/{workers}"
        return self.status(
            lambda s: s.get("phase") == "Running" and s.get("workersReady") == wanted
        )

    def is_held(self, why: str) -> Object:
        """Wait until no pod of it lives, and its status says this."""
        found = self.status(
            lambda s: s.get("phase") == "Suspended" and why in s.get("message", "")
        )
        assert self.pods() == []
        return found

    def pods(self) -> list[str]:
        found = self._here.objects("pods", "edl.dev/job-name=one")
        return [name for name, each in found.items() if phase(each) in ("Pending", "Running")]

    def workloads(self, until: Callable[[dict[str, Object]], object]) -> dict[str, Object]:
        return self._here.wait(
            "workloads", lambda found: [found] if until(found) else None, within_s=60.0
        )[0]

    def is_admitted(self, name: str) -> None:
        self.workloads(lambda found: condition(found.get(name, {}), "Admitted") == "True")

    def pieces(self) -> dict[str, bool]:
        """Return whether each piece is admitted, by number."""
        found = self._here.objects("workloads")
        return {
            name.rpartition("-")[2]: condition(each, "Admitted") == "True"
            for name, each in sorted(found.items())
            if "-piece-" in name
        }


def test_kueue_takes_pieces_first_then_all_and_gives_it_back_and_the_job_is_exact(
    namespace, kueue, said, folder
):
    """One job's life under cohorts, quotas, stopped queues, deactivation and higher priorities.

    Kueue's controller is killed right after each of these.
    """
    one, team, others = Life(namespace), f"team-{namespace.name}", f"others-{namespace.name}"
    cohort, f = {"cohortName": f"cohort-{namespace.name}"}, f"f-{namespace.name}"
    reclaim = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}

    def make(name: str, queue: str, cpu: str, priority: int = 0) -> None:
        kueue.make("workloads", workload(name, queue, cpu, priority), namespace.name)

    def quota(cpu: float) -> None:
        kueue.patch("clusterqueues", team, cluster_queue(team, {f: cpu}))

    def delete(*names: str) -> None:
        namespace.kubectl("delete", "workloads", *names, "--wait=false")

    def active(name: str, is_active: bool) -> None:
        kueue.patch("workloads", name, {"spec": {"active": is_active}}, namespace.name)

    kueue.make("resourceflavors", flavor(f))
    kueue.make("clusterqueues", cluster_queue(team, {f: BASE}, **cohort))
    lends = cluster_queue(others, {f: 2 * PIECE}, **cohort, preemption=reclaim)
    kueue.make("clusterqueues", lends)
    kueue.make("localqueues", local_queue("team", team), namespace.name)
    kueue.make("localqueues", local_queue("others", others), namespace.name)
    namespace.apply(job(folder))
    one.runs(3)

    # A cohort takes back what it has lent: pieces, one by one.
    make("first", "others", "400m")
    kueue.die()
    one.runs(2)
    one.is_admitted("first")

    # The quota falls below what is used: nothing is taken, until another asks for its own.
    quota(BASE - PIECE)
    kueue.die()
    make("second", "others", "100m")
    one.runs(1)
    one.is_admitted("second")
    quota(BASE)
    delete("first", "second")
    one.runs(3)

    # A piece that is deactivated costs one worker, and no other piece comes for it.
    active("edl-one-piece-1", False)
    kueue.die()
    fewer = one.runs(2)
    held_up = one.pieces()
    active("edl-one-piece-1", True)
    one.is_admitted("edl-one-piece-1")

    # A ClusterQueue that is held and drained holds up the job; so does a LocalQueue.
    kueue.hold("clusterqueues", team, policy="HoldAndDrain")
    kueue.die()
    drained = one.is_held("waits for the queue team of Kueue")
    kueue.hold("clusterqueues", team)
    one.status(lambda s: s.get("phase") == "Running")
    kueue.hold("localqueues", "team", namespace.name, "HoldAndDrain")
    kueue.die()
    one.is_held("waits for the queue team of Kueue")
    kueue.hold("localqueues", "team", namespace.name)
    one.status(lambda s: s.get("phase") == "Running")

    # So does a base that is deactivated.
    active("edl-one-base", False)
    kueue.die()
    one.is_held("it is deactivated (spec.active of the Workload is false)")
    active("edl-one-base", True)
    one.status(lambda s: s.get("phase") == "Running")

    # A higher priority takes all of it, once its pods are gone.
    make("large", "team", "1200m", 9)
    kueue.die()
    one.is_admitted("large")
    left = one.pods()
    namespace.wait("edljobs", lambda jobs: jobs["one"]["spec"]["suspend"])
    delete("large")
    one.status(lambda s: s.get("phase") == "Running")

    (folder / "go").touch()
    done = one.status(lambda s: s.get("phase") == "Succeeded", within_s=240.0)
    one.workloads(lambda found: not found)

    assert held_up == {"1": False, "2": True}
    assert left == []
    assert (fewer["restarts"], fewer["masters"]) == (0, 1)
    assert (done["restarts"], done["masters"]) == (0, 5)
    assert_exact(folder / "one", RECORDS, EPOCHS)
    assert "evicted (ClusterQueueStopped)" in drained["message"]
    assert "edl-one-base gives its quota back" in said.read_text()


def test_the_stand_in_of_the_other_tests_does_as_kueue_itself(namespace, kueue):
    """One story is played to both, turn by turn: all turns end alike, and so does the scheduler."""
    cq, f = f"team-{namespace.name}", f"f-{namespace.name}"
    jobs = [queued() for _ in range(2)]  # a base of 3.1 CPUs, and pieces of 1
    stand_in, itself = Played(jobs[:1], 5.2), Itself(jobs[1:], 5.2, kueue, namespace)
    kueue.make("resourceflavors", flavor(f))
    kueue.make("clusterqueues", cluster_queue(cq, {f: 5.2}))
    kueue.make("localqueues", local_queue("q", cq), namespace.name)
    told = {}

    def step(name: str, act: Callable[[Played], object]) -> None:
        for world in (stand_in, itself):
            act(world)
        told[name] = play(stand_in, itself, lambda _: 3)

    step("it begins", lambda world: None)
    step("others take a piece", lambda world: world.other("small", 0.9, 0))
    step("they leave", lambda world: world.leave("small"))
    step("others take all", lambda world: world.other("large", 3.0, 9))
    kueue.die()
    step("they leave, too", lambda world: world.leave("large"))
    step("a piece is deactivated", lambda world: world.activate("edl-a-piece-1", False))
    step("it is activated", lambda world: world.activate("edl-a-piece-1", True))
    step("the base is deactivated", lambda world: world.activate("edl-a-base", False))
    step("the base is activated", lambda world: world.activate("edl-a-base", True))
    step("it ends", lambda world: world.end("a"))

    assert told == {}

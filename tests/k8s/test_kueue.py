"""The scheduler holds EdlJobs to queues of Kueue on a real control plane, as its role lets it.

Kueue's own controller and webhooks run there. In each story they are killed at each step, right
after what an administrator did: the next controller finds it.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from tools.kube import ROOT
from tools.kube_objects import condition
from tools.kueue_held import EPOCHS, RECORDS, Life, job
from tools.kueue_itself import admission_check, cluster_queue, flavor, local_queue, workload
from tools.kueue_lockstep import Itself, Played, play
from tools.kueue_world import queued
from tools.servers import assert_exact
from tools.turns import in_turn

from edl.scheduler.workloads import QUEUE_LABEL

BASE, PIECE = 1.5, 0.5  # CPUs: a master, a server and a worker; a worker
NOWHERE = {"image": "edl:unheard-of"}  # only the master's pod has another image, and begins
SPOT = {"key": "spot", "value": "true", "effect": "NoSchedule"}


@in_turn(0)
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

    def label(queue: str) -> None:
        namespace.kubectl("label", "edljob", "one", f"{QUEUE_LABEL}={queue}", "--overwrite")

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
    fewer = one.runs(1)
    one.is_admitted("second")

    # The label of a running job is changed: its pieces come back to the queue of its base.
    label("others")
    relabelled = one.says("stays in the queue team")
    quota(BASE)
    delete("first", "second")
    one.runs(3)
    asked = {each["spec"]["queueName"] for each in namespace.objects("workloads").values()}
    label("team")

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
    kueue.answers()
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
    done = one.status(lambda s: s.get("phase") == "Succeeded", within_s=500.0)
    one.workloads(lambda found: not found)

    assert left == []
    assert (fewer["restarts"], fewer["masters"]) == (0, 1)
    assert asked == {"team"}
    assert "was changed, and others counts after that" in relabelled["message"]
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

    assert told["a piece is deactivated"] == ["2 workers"]
    assert told["others take all"][:2] == ["suspend", "drop piece"]
    assert itself.workloads == {}


@in_turn(1)
def test_a_job_waits_for_admission_checks_and_each_piece_for_its_own(
    namespace, kueue, said, folder
):
    """A check is pending, rejected, asked again, told to retry, and ready; the test plays it.

    Kueue's controller is killed while checks are pending, and after one was rejected.
    """
    one, name, f = Life(namespace), f"nodes-{namespace.name}", f"f-{namespace.name}"
    team = f"team-{namespace.name}"

    def tell(of: str, state: str, message: str = "") -> None:
        """Say that the check of a Workload is so, as soon as it has quota."""
        found = one.workloads(lambda w: (w.get(of, {}).get("status") or {}).get("admissionChecks"))
        (check,) = found[of]["status"]["admissionChecks"]
        check |= {"state": state, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}
        kueue.patch(
            "workloads", f"{of}/status", {"status": {"admissionChecks": [check]}}, namespace.name
        )

    kueue.make("admissionchecks", admission_check(name))
    active = {"type": "Active", "status": "True", "reason": "Active", "message": ""}
    active["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    kueue.patch("admissionchecks", f"{name}/status", {"status": {"conditions": [active]}})
    kueue.make("resourceflavors", flavor(f))
    checks = {"admissionChecks": [{"name": name}]}
    kueue.make("clusterqueues", cluster_queue(team, {f: 2.5}, admissionChecksStrategy=checks))
    kueue.make("localqueues", local_queue("team", team), namespace.name)
    namespace.apply(job(folder))

    one.is_held(f"the check {name} is Pending")
    kueue.die()
    tell("edl-one-base", "Rejected", "no machines")
    kueue.die()
    rejected = one.says(f"Admission check(s): {name}, were rejected")  # it is evicted by then
    kueue.patch("workloads", "edl-one-base", {"spec": {"active": True}}, namespace.name)
    first = one.workloads(lambda found: is_pending(found.get("edl-one-base")))
    tell("edl-one-base", "Retry")
    again = first["edl-one-base"]["metadata"]["uid"]
    one.workloads(
        lambda found: is_pending(it := found.get("edl-one-base")) and it["metadata"]["uid"] != again
    )
    tell("edl-one-base", "Ready")
    one.runs(1)
    before = one.workloads(
        lambda found: all(is_pending(found.get(f"edl-one-piece-{k}")) for k in (1, 2))
    )
    tell("edl-one-piece-1", "Ready")
    one.runs(2)
    after = namespace.objects("workloads")

    # A piece that is deactivated costs one worker, and no other piece comes for it.
    kueue.patch("workloads", "edl-one-piece-1", {"spec": {"active": False}}, namespace.name)
    kueue.die()
    fewer = one.runs(1)
    held_up = one.pieces()
    tell("edl-one-piece-2", "Ready")
    one.is_admitted("edl-one-piece-2")
    kueue.patch("workloads", "edl-one-piece-1", {"spec": {"active": True}}, namespace.name)
    one.workloads(  # it asks again, or is given back where no more workers are planned by then
        lambda found: "edl-one-piece-1" not in found or is_pending(found["edl-one-piece-1"])
    )
    (folder / "go").touch()
    one.status(lambda s: s.get("phase") == "Succeeded")
    one.workloads(lambda found: not found)

    uids = [{n: each["metadata"]["uid"] for n, each in found.items()} for found in (before, after)]
    assert uids[0] == uids[1]  # none was begun anew
    assert "it is deactivated (spec.active of the Workload is false)" in rejected["message"]
    assert held_up == ["edl-one-piece-1", "edl-one-piece-2"]
    assert (fewer["restarts"], fewer["masters"]) == (0, 1)
    assert_exact(folder / "one", RECORDS, EPOCHS)


def is_pending(found):
    """Tell whether a Workload has quota, and waits for its checks."""
    checks = ((found or {}).get("status") or {}).get("admissionChecks") or []
    return [each["state"] for each in checks] == ["Pending"] and (
        condition(found, "QuotaReserved") == "True" and condition(found, "Evicted") != "True"
    )


# -- what Kueue is told to do: no job trains from here on, each is held, or its pods are


def queue(kueue, here, name="team", **flavors):
    """Make a queue of 9 CPUs of each of these flavors, or of a plain one."""
    spec = {f"{each}-{here.name}": found for each, found in (flavors or {"f": {}}).items()}
    for each, found in spec.items():
        kueue.make("resourceflavors", flavor(each, **found))
    kueue.make("clusterqueues", cluster_queue(f"all-{here.name}", dict.fromkeys(spec, 9.0)))
    kueue.make("localqueues", local_queue(name, f"all-{here.name}"), here.name)


def gates(pods):
    return {name: each["spec"].get("schedulingGates") or [] for name, each in pods.items()}


@in_turn(0)
def test_what_pods_lack_for_a_flavors_labels_and_taints_is_told(
    cluster, namespace, kueue, said, folder
):
    one = Life(namespace)
    spot = {
        "nodeLabels": {"pool": f"spot-{namespace.name}"},
        "tolerations": [{**SPOT, "operator": "Equal"}],
    }
    queue(kueue, namespace, spot=spot)
    (node, *_) = sorted(cluster.nodes())
    label = f"pool=spot-{namespace.name}"
    cluster.kubectl("label", "node", node, label)
    cluster.kubectl("taint", "node", node, "spot=true:NoSchedule")
    try:
        made = job(folder, **NOWHERE)
        made["spec"]["worker"]["nodeSelector"] = dict([label.split("=")])
        namespace.apply(made)
        tainted = one.says("spec.worker.tolerations")
        kueue.die()
        taint = [{**SPOT, "operator": "Equal"}]
        namespace.kubectl(
            "patch",
            "edljob",
            "one",
            "--type=merge",
            "-p",
            json.dumps({"spec": {"worker": {"tolerations": taint}}}),
        )
        labels = one.says("spec.master.nodeSelector")
    finally:
        cluster.kubectl("taint", "node", node, "spot-")
        cluster.kubectl("label", "node", node, "pool-")
    namespace.kubectl("delete", "edljob", "one")
    one.workloads(lambda found: not found)

    wanted = "add {key: spot, value: true, effect: NoSchedule, operator: Equal}"
    assert wanted in tainted["message"]
    assert f"write {{pool: spot-{namespace.name}}}" in labels["message"]


@in_turn(3)
def test_a_taint_of_a_flavor_is_told_in_kueues_words_until_all_pods_bear_it(
    namespace, kueue, said, folder
):
    one = Life(namespace)
    queue(kueue, namespace, spot={"nodeTaints": [SPOT]})
    namespace.apply(job(folder, **NOWHERE))

    told = one.says("untolerated taint")
    kueue.die()
    bears = {"tolerations": [{**SPOT, "operator": "Equal"}]}
    change = json.dumps({"spec": dict.fromkeys(("master", "ps", "worker"), bears)})
    namespace.kubectl("patch", "edljob", "one", "--type=merge", "-p", change)
    one.is_admitted("edl-one-base")
    namespace.kubectl("delete", "edljob", "one")
    one.workloads(lambda found: not found)

    assert f"in flavor spot-{namespace.name}" in told["message"]


@in_turn(3)
def test_a_job_that_kueue_evicts_for_pods_that_are_not_ready_is_held_after_three_times(
    namespace, kueue, said, folder
):
    kueue.configure(waitForPodsReady={"timeout": "3s"})
    one = Life(namespace)
    queue(kueue, namespace)
    namespace.apply(job(folder, **NOWHERE))

    one.status(lambda s: s.get("masters"))
    kueue.die()
    held = one.is_held("is held: Kueue has evicted it 3 times")
    left = namespace.objects("workloads")
    kueue.configure()
    namespace.kubectl("annotate", "edljob", "one", "edl.dev/kueue-evictions-")
    one.is_admitted("edl-one-base")
    namespace.kubectl("delete", "edljob", "one")
    one.workloads(lambda found: not found)

    assert left == {}
    assert "leave waitForPodsReady out of Kueue's configuration" in held["message"]


@in_turn(2)
def test_kueues_own_integrations_hold_pods_which_is_told_and_its_configuration_lets_them_go(
    namespace, kueue, said, folder
):
    one, here = Life(namespace), namespace.name
    usual = ["kube-system", "kueue-system"]
    mine = "edl.dev/job-name=one,edl.dev/role=master"

    def others(*names):
        rule = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(names)}
        return {"matchExpressions": [rule]}

    def delete_master():
        for name in namespace.objects("pods", mine):
            namespace.kubectl("delete", "pod", name, "--grace-period=0", "--force", "--wait=false")

    def master_without_gates():
        delete_master()
        return namespace.wait(
            "pods", lambda pods: pods and not any(gates(pods).values()), labels=mine
        )

    queue(kueue, namespace)
    kueue.make("localqueues", local_queue("default", f"all-{here}"), here)
    namespace.apply(job(folder, **NOWHERE))
    by_default = one.says("is held by Kueue (the scheduling gate")
    namespace.kubectl("delete", "localqueue", "default")
    kueue.configure(manageJobsWithoutQueueName=True, managedJobsNamespaceSelector=others(*usual))
    namespace.kubectl("delete", "pod", "-l", mine, "--grace-period=0", "--force", "--wait=false")
    kueue.die()
    by_all = one.says("is held by Kueue (the scheduling gate")
    kueue.configure(
        manageJobsWithoutQueueName=True, managedJobsNamespaceSelector=others(*usual, here)
    )
    assert master_without_gates()
    external = {**kueue.plain["integrations"], "externalFrameworks": ["EdlJob.v1alpha1.edl.dev"]}
    role = ROOT / "k8s/manifests/kueue/role.yaml"
    kueue.configure(
        manageJobsWithoutQueueName=True,
        managedJobsNamespaceSelector=others(*usual),
        integrations=external,
    )
    delete_master()
    one.says("the webhook mpod.kb.io cannot be asked")
    namespace.cluster.apply(role)
    assert master_without_gates()
    namespace.kubectl("delete", "edljob", "one")
    namespace.cluster.kubectl("delete", "-f", str(role))
    one.workloads(lambda found: not found)

    assert "leave the namespace out of managedJobsNamespaceSelector" in by_default["message"]
    assert "leave the namespace out of managedJobsNamespaceSelector" in by_all["message"]

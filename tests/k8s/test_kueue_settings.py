"""EdlJobs' status tells what Kueue's flavors and its configuration do to them, with a cure.

No job trains here: each is held, or its pods are.
"""

from __future__ import annotations

import json

from tools.kube import ROOT
from tools.kueue_held import Life, job
from tools.kueue_itself import cluster_queue, flavor, local_queue

NOWHERE = {"image": "edl:unheard-of"}  # only the master's pod has another image, and begins
SPOT = {"key": "spot", "value": "true", "effect": "NoSchedule"}


def queue(kueue, here, name="team", **flavors):
    """Make a queue of 9 CPUs of each of these flavors, or of a plain one."""
    spec = {f"{each}-{here.name}": found for each, found in (flavors or {"f": {}}).items()}
    for each, found in spec.items():
        kueue.make("resourceflavors", flavor(each, **found))
    kueue.make("clusterqueues", cluster_queue(f"all-{here.name}", dict.fromkeys(spec, 9.0)))
    kueue.make("localqueues", local_queue(name, f"all-{here.name}"), here.name)


def gates(pods):
    return {name: each["spec"].get("schedulingGates") or [] for name, each in pods.items()}


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


def test_kueues_own_integrations_hold_pods_which_is_told_and_its_configuration_lets_them_go(
    namespace, kueue, said, folder
):
    one, here = Life(namespace), namespace.name
    usual = ["kube-system", "kueue-system"]
    mine = "edl.dev/job-name=one,edl.dev/role=master"

    def others(*names):
        rule = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(names)}
        return {"matchExpressions": [rule]}

    def master_without_gates():
        for name in namespace.objects("pods", mine):
            namespace.kubectl("delete", "pod", name, "--grace-period=0", "--force", "--wait=false")
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
    namespace.cluster.apply(role)
    kueue.configure(
        manageJobsWithoutQueueName=True,
        managedJobsNamespaceSelector=others(*usual),
        integrations=external,
    )
    assert master_without_gates()
    namespace.kubectl("delete", "edljob", "one")
    namespace.cluster.kubectl("delete", "-f", str(role))
    one.workloads(lambda found: not found)

    assert "leave the namespace out of managedJobsNamespaceSelector" in by_default["message"]
    assert "leave the namespace out of managedJobsNamespaceSelector" in by_all["message"]

"""The settings of a job that say where its processes run, and what their pods are given."""

from __future__ import annotations

from dataclasses import dataclass

from .knobs import knob

POD_USER = "1000"  # that of the image


@dataclass(frozen=True)
class ClusterSettings:
    """The part of a job's settings that is about its runtime: this machine, or a cluster's pods."""

    runtime: str = knob(
        "local",
        "Where processes run: on this machine, or as pods of the cluster of the kubeconfig.",
        "Cluster",
        choices=("local", "kubernetes"),
    )
    namespace: str = knob("", "Namespace of the pods; default: the kubeconfig's.", "Cluster")
    image_name: str = knob(
        "", "Image of all pods, with edl and the definition in it.", "Cluster", "image"
    )
    image_pull_policy: str = knob(
        "IfNotPresent",
        "When the image is pulled.",
        "Cluster",
        choices=("Always", "IfNotPresent", "Never"),
    )
    image_pull_secret: str = knob("", "Secret with the registry's login.", "Cluster")
    master_resource_request: str = knob(
        "cpu=0.1,memory=1024Mi", "What a master's pod asks for.", "Cluster"
    )
    master_resource_limit: str = knob("", "Its limit; default: the memory asked for.", "Cluster")
    worker_resource_request: str = knob(
        "cpu=1,memory=4096Mi", "What a worker's pod asks for (gpu=1 as well).", "Cluster"
    )
    worker_resource_limit: str = knob("", "Its limit; default: the memory asked for.", "Cluster")
    ps_resource_request: str = knob("cpu=1,memory=4096Mi", "What a server's pod asks.", "Cluster")
    ps_resource_limit: str = knob("", "Its limit; default: the memory asked for.", "Cluster")
    teacher_resource_request: str = knob(
        "cpu=1,memory=4096Mi", "What a teacher's pod asks for.", "Cluster"
    )
    teacher_resource_limit: str = knob("", "Its limit; default: the memory asked for.", "Cluster")
    oom_memory_cap: str = knob(
        "",
        "Most memory of a pod that ran out of it: each time it gets twice as much; default: four "
        "times its limit.",
        "Cluster",
    )
    master_pod_priority: str = knob("", "Priority class of the master: high, low, NAME.", "Cluster")
    ps_pod_priority: str = knob("", "Priority class of the servers: high, low, NAME.", "Cluster")
    teacher_pod_priority: str = knob("", "Priority class of teachers: high, low, NAME.", "Cluster")
    worker_pod_priority: str = knob(
        "",
        "Priority class of the workers: high, low, NAME; or a fraction of them (0.5) that is high, "
        "the first ones, and the others low.",
        "Cluster",
    )
    preemptible: bool = knob(
        True,
        "false: once it runs it keeps the workers and servers that it has, whoever waits: the "
        "scheduler only adds some, and autoscalers are told to leave its pods where they are.",
        "Cluster",
    )
    min_workers: int = knob(
        0, "No task is leased while fewer workers are there.", "Cluster", maximum=10_000
    )
    volume: str = knob(
        "",
        "Volumes of pods: claim_name=C,mount_path=/P;host_path=/H,mount_path=/Q;config_map=M,"
        "mount_path=/R.",
        "Cluster",
    )
    job_volume: str = knob(
        "",
        "Volume of the journal and the snapshots: claim_name=C, or host_path=/H; default: none "
        "that outlives the master's pod.",
        "Cluster",
    )
    cluster_spec: str = knob(
        "",
        "What is laid over the pods: YAML of the parts pod, master, ps, worker, worker_high, "
        "worker_low, teacher (node selectors, tolerations, labels), serve (`edl serve --yaml`); or "
        "a .py file with_pod(pod) of "
        "which, or of its object `cluster`, gets each pod's template as a dict (metadata, spec; "
        "label edl.dev/role says whose), changes or returns it; with_service(service) likewise.",
        "Cluster",
        path=True,
    )
    restart_policy: str = knob(
        "Never",
        "Of the master's container: Never starts it in a new pod.",
        "Cluster",
        choices=("Never", "OnFailure"),
    )
    pod_user: str = knob(
        POD_USER,
        "User id of pods, and their group; any: whichever the namespace gives (OpenShift).",
        "Cluster",
    )
    service_account: str = knob(
        "edl-master", "Service account of the master, which makes the pods.", "Cluster"
    )

"""One job in pods of a real kubelet, out of an image that the Dockerfile and `edl zoo build` made.

Nothing of this machine is in those pods but two folders: user, capabilities, system calls, probes,
mounts of ConfigMaps and Secrets, and the end of a deleted pod are containerd's and the kubelet's.
Slow, and a gigabyte of packages: run by hand,

    python -m pytest -m slow -s tests/k8s/test_image.py
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import yaml
from tools import kube
from tools.jobs import NO_RESTARTS, ZOO
from tools.kube_objects import condition

from .images import Store, told
from .test_jobs import Run
from .test_jobs import _done as ended

DOCKERFILE = Path(kube.ROOT) / "k8s" / "manifests" / "Dockerfile"
BASE = Path(kube.ROOT) / "k8s" / "manifests" / "base"
SYSTEM, EDL, IMAGE = "localhost/system:test", "localhost/edl:test", "localhost/edl-zoo:test"
USER = 1000
TIMEOUT_S = 5400  # the first test's includes the image
# What a process of a pod may: asked in the pod itself.
ASK = (
    "import os, re, shutil\n"
    "status = open('/proc/self/status').read()\n"
    "found = dict(re.findall(r'^(CapEff|Seccomp|NoNewPrivs):\\s*(\\S+)', status, re.M))\n"
    "print(os.getuid(), os.getgid(), int(found['CapEff'], 16), found['Seccomp'],"
    " found['NoNewPrivs'], shutil.disk_usage('/dev/shm').total > 1 << 28)\n"
)


class Times:
    """The times of the steps, said at the end (`-s`), held against nothing."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._said: list[str] = []

    def step(self, what: str) -> None:
        now = time.monotonic()
        self._said.append(f"{what} {now - self._last:.0f} s")
        self._last = now

    def __str__(self) -> str:
        return f"{', '.join(self._said)}; in all {time.monotonic() - self._began:.0f} s"


@pytest.fixture(scope="module")
def times() -> Times:
    return Times()


@pytest.fixture(scope="module")
def real_node(cluster: kube.Cluster, times: Times) -> Iterator[None]:
    try:
        cluster.add_real_node()
        times.step("cluster and node")
        yield
    finally:
        cluster.remove_real_node()


@pytest.fixture(scope="module")
def image(cluster: kube.Cluster, real_node: None, times: Times) -> str:
    """Bring the image onto the node; it is nowhere else when a job begins."""
    store = Store(kube.CLUSTERS / "data" / f"store-{time.time_ns()}")
    try:
        system = store.run("pull", "--quiet", f"docker-archive:{cluster.smallest_system()}")
        store.run("tag", system.split()[-1], SYSTEM)
        arguments = {"BASE": SYSTEM, "TORCH": f"torch=={torch.__version__}"}
        options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        store.run("build", *options, f"--file={DOCKERFILE}", f"--tag={EDL}", kube.ROOT)
        times.step("the Dockerfile's image")
        command = [sys.executable, "-m", "edl", "zoo", "build", str(ZOO)]
        told([*command, f"--image={IMAGE}", f"--base_image={EDL}"], store.env)
        times.step("`edl zoo build`")
        archive = store.folder / "image.tar"
        store.run("push", "--quiet", IMAGE, f"docker-archive:{archive}:{IMAGE}")
        times.step(f"archive of {archive.stat().st_size / 1e9:.2f} GB")
        cluster.import_image(archive)
        times.step("import")
    finally:
        store.remove()
    return IMAGE


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder on the node's disk, with one for the books that the pods' group may write."""
    found = kube.CLUSTERS / "data" / f"image-{time.time_ns()}"
    (found / "job").mkdir(parents=True)
    os.chown(found, USER, USER)
    os.chown(found / "job", 0, USER)
    (found / "job").chmod(0o2775)
    yield found
    shutil.rmtree(found, ignore_errors=True)


@pytest.fixture
def submitted(cluster, image, namespace, folder) -> Callable[..., Run]:
    """Submit a job for the real node only."""
    namespace.apply(BASE / "service-accounts.yaml", BASE / "role-master.yaml")
    cluster.apply(BASE / "priority-classes.yaml")
    overlay = folder / "cluster.yaml"
    overlay.write_text(yaml.safe_dump({"pod": {"nodeSelector": {"type": "real"}}}))

    def submitted(name: str, epochs: int) -> Run:
        return Run(
            cluster,
            namespace,
            folder,
            name,
            epochs,
            image_name=image,
            image_pull_policy="Never",
            model_zoo="/model_zoo",
            cluster_spec=overlay,
            ps_pod_priority="high",
            worker_pod_priority="low",
            master_resource_request="cpu=0.1,memory=1024Mi",
            worker_resource_request="cpu=0.2,memory=1024Mi",
            ps_resource_request="cpu=0.2,memory=1024Mi",
        )

    return submitted


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_a_job_of_a_built_image_on_a_real_kubelet_is_exact(submitted, image, namespace, times):
    """Delete one of 2 servers and one of 2 workers as kubectl does: with SIGTERM and its grace."""
    job = submitted("image", epochs=4)
    job.wait(lambda status: status["records_done"], within_s=600.0)
    times.step("from submit to the first records")
    job.under_way(0.1)
    pods = [pod for role in ("master", "ps", "worker") for pod in job.pods(role)]
    may = {
        namespace.kubectl("exec", pod["metadata"]["name"], "--", "python", "-c", ASK).strip()
        for pod in pods
    }
    worker = job.delete("worker")
    job.wait(lambda status: status["restarts"]["preemptions"] == 1)
    job.under_way(0.2)
    server = job.delete("ps")
    job.wait(lambda status: status["restarts"]["server_preemptions"] == 1)
    times.step("until both have been deleted")
    job.under_way(0.2)
    times.step("until all are there again")
    status = job.ends_exact(within_s=600.0)
    times.step("to the end")
    print(f"\n{times}")

    assert {f"{USER} {USER} 0 2 1 True"} == may
    assert list((job.folder / "job").rglob("kernels/**/*.nbi"))  # for the server's successor
    assert [("node1", image, True)] * 5 == [
        (pod["spec"]["nodeName"], each["image"], each["started"])
        for pod in pods
        for each in pod["status"]["containerStatuses"]
    ]
    left = {pod["metadata"]["name"] for role in ("ps", "worker") for pod in job.pods(role)}
    assert not {worker, server} & left
    assert {**NO_RESTARTS, "preemptions": 1, "server_preemptions": 1} == status["restarts"]


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_a_job_that_may_not_write_its_volume_says_so_and_is_not_tried_again(
    submitted, namespace, folder
):
    """The folder that a kubelet makes of a sub path in a host's folder is root's."""
    (folder / "job").chmod(0o755)

    status = submitted("forbidden", epochs=1).wait(ended)
    namespace.wait("jobs", lambda jobs: condition(jobs["edl-forbidden"], "Failed") == "True")

    assert "failed" == status["state"]
    assert f"--job_volume: user {USER} may not write there" in status["message"]

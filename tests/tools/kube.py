"""A real Kubernetes control plane for tests: started, acted upon, watched, and asked what is in it.

The scripts of tests/k8s/cluster start etcd, the API server, the controllers, the scheduler and N
process nodes, on which a pod is a process of this machine; image `edl:test` there is this very
environment and checkout. A keeper process brings all of it down when this process ends, however it
ends: the keeper reads a pipe that only this process holds open. A lock held by both says whose the
cluster is.

    python tests/tools/kube.py     starts one, says its KUBECONFIG, and stops it on Ctrl-C
    K8S_ATTACH=1             uses that one instead of starting another
    K8S_CLUSTER, K8S_PORT    name and port, so that two can run side by side (k8s, 6443):
                             a process of pytest -n has k8s0 and 6443, the next k8s1 and 6444
    KUBERNETES_CACHE         where the programs are kept, and a kit that was made (make kubernetes)
    KUBERNETES_KITS          a folder that may have a kit, too
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self, TypeVar

import yaml

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]
from tools.kube_api import RETRY_S, UNREACHABLE, Api, ApiError, Object, path_of
from tools.kube_objects import IMAGE, condition, is_usable, summary

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parents[1] / "k8s" / "cluster"
CLUSTERS = Path("/var/tmp/edl-clusters")  # /tmp may be an overlay or a tmpfs; this lasts a reboot
START_S = 120.0  # about 20 on two idle cores
PATIENCE_S = 500.0  # tells what never comes from a machine that others use, too
OTHERS_END_S = 90  # how long the keeper of an earlier run may take to bring its cluster down


class Cluster:
    """A control plane on this machine: `with Cluster() as cluster: ...`."""

    def __init__(
        self,
        *,
        nodes: int = 4,
        cpu: str = "4",
        memory: str = "8Gi",
        node_grace_s: int = 12,
        evict_s: int = 3,
    ) -> None:
        number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        self.name = os.environ.get("K8S_CLUSTER", "k8s") + str(number)
        self.port = int(os.environ.get("K8S_PORT", "6443")) + number
        self.state = CLUSTERS / self.name
        self.kubeconfig = self.state / "kubeconfig"
        self._capacity = ["--nodes", str(nodes), "--cpu", cpu, "--memory", memory]
        self._env = {
            **os.environ,
            "CLUSTER": self.name,
            "PORT": str(self.port),
            "STATE": str(self.state),
            "GRACE": f"{node_grace_s}s",
            "EVICT": str(evict_s),
        }
        self._nodes = nodes
        self._keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    # -- its life

    def start(self) -> None:
        if os.environ.get("K8S_ATTACH"):
            assert self.kubeconfig.exists(), f"no cluster {self.name} runs; see tests/tools/kube.py"
            self._tell_images()
            return
        self._script("build.sh", timeout_s=None)
        self._own()
        try:
            self._script("cluster.sh", "up", timeout_s=START_S)
            self._tell_images()
            self._script("cluster.sh", "nodes", *self._capacity, timeout_s=START_S)
            self.wait(
                "nodes",
                lambda nodes: len(nodes) == self._nodes and all(map(is_usable, nodes.values())),
                within_s=START_S,
            )
        except BaseException:  # Ctrl-C, too: the keeper would do it, but only at our end
            self.stop()
            raise

    def _own(self) -> None:
        """Take the lock, clear what a killed run left, and set the keeper up."""
        CLUSTERS.mkdir(parents=True, exist_ok=True)
        lock = os.open(CLUSTERS / f"{self.name}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            wait = ["flock", "--wait", str(OTHERS_END_S), str(lock)]
            if subprocess.run(wait, check=False, pass_fds=[lock]).returncode != 0:
                raise AssertionError(
                    f"another run uses cluster {self.name}: wait for its end, or choose another "
                    "with K8S_CLUSTER and K8S_PORT"
                )
            self._script("cluster.sh", "down", timeout_s=OTHERS_END_S)
            self._port_is_free()
            self._keeper = subprocess.Popen(
                ["bash", "-c", 'read -r _; exec "$0" down', str(SCRIPTS / "cluster.sh")],
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # out of a Ctrl-C's reach
                pass_fds=[lock],
            )
        finally:
            os.close(lock)  # the keeper holds it from here on

    def _port_is_free(self) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError as error:
                told = f"port {self.port} is taken: choose another with K8S_PORT ({error})"
                raise AssertionError(told) from error

    def _tell_images(self) -> None:
        file = self.state / "images.json"  # read at each pod's start, so never half of it
        part = file.with_suffix(".new")
        part.write_text(json.dumps(images()))
        part.rename(file)

    def stop(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            assert keeper.stdin is not None
            keeper.stdin.close()
            keeper.wait(OTHERS_END_S)

    def add_real_node(self) -> None:
        """Add `node1`, with the label type=real: containerd and kubelet, which run images."""
        self._script("build.sh", timeout_s=None, REAL="1")
        self._script("realnode.sh", "up", timeout_s=None)
        self.wait("nodes", lambda nodes: "node1" in nodes and is_usable(nodes["node1"]))

    def remove_real_node(self) -> None:
        """Remove the real node and its containers, so that nobody else's pod is put there."""
        self._script("realnode.sh", "down", timeout_s=OTHERS_END_S)
        self.api.call("DELETE", path_of("nodes", name="node1"))

    def smallest_system(self) -> Path:
        """Make a docker-archive of Debian with Python and little else, after add_real_node."""
        return Path(self._script("realnode.sh", "system", timeout_s=None).strip())

    def import_image(self, archive: Path) -> None:
        """Give the real node a docker-archive, as `docker save` and mkimage.py write it."""
        self._script("realnode.sh", "import", str(archive), timeout_s=600)

    def _script(self, name: str, *arguments: str, timeout_s: float | None, **variables: str) -> str:
        done = subprocess.run(
            [str(SCRIPTS / name), *arguments],
            env={**self._env, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
            timeout=timeout_s,
        )
        told = f"{name} {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, told
        return done.stdout

    # -- asking it

    @functools.cached_property
    def api(self) -> Api:
        """Return the administrator's API."""
        return self.api_as((self.state / "pki" / "admin.token").read_text().strip())

    def api_as(self, token: str) -> Api:
        ca = self.state / "pki" / "ca.crt"
        return Api(f"https://127.0.0.1:{self.port}", ca=ca, token=token)

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
        """Run the real kubectl; return what it prints. Raises AssertionError with its words.

        A warning of the API server's (an API that is deprecated, a pod that will be refused) is one
        of these.
        """
        cache = self.state / "kubectl-cache"  # its default would outlive this cluster
        done = subprocess.run(
            [
                str(kit() / "kubectl"),
                *(f"--kubeconfig={self.kubeconfig}", f"--cache-dir={cache}", *arguments),
            ],
            input=stdin or "",
            capture_output=True,
            check=False,
            text=True,
            timeout=timeout_s,
        )
        told = f"kubectl {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}{done.stdout}"
        assert done.returncode == 0, told
        warned = [line for line in done.stderr.splitlines() if line.startswith("Warning:")]
        # --force says the first, of what helm has made the second.
        said = ("Immediate deletion", "last-applied-configuration")
        assert all(any(word in line for word in said) for line in warned), told
        return done.stdout

    def apply(self, *manifests: Object | str | Path, namespace: str = "") -> None:
        """Run `kubectl apply` of objects, of YAML texts, and of files."""
        parts = [m.read_text() if isinstance(m, Path) else m for m in manifests]
        text = "\n---\n".join(m if isinstance(m, str) else yaml.safe_dump(m) for m in parts)
        where = [f"--namespace={namespace}"] if namespace else []
        self.kubectl(*where, "apply", "-f", "-", stdin=text)

    def wait(
        self,
        resource: str,
        until: Callable[[dict[str, Object]], T | None],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        within_s: float = PATIENCE_S,
    ) -> T:
        """Return what `until` says of the objects, by name, as soon as that is true.

        It is asked after each list and each event of a watch, over dropped watches and while the
        API server is away, too.
        """
        __tracebackhide__ = True  # pytest: the test's own line is where it failed
        path = path_of(resource, namespace, labelSelector=labels, fieldSelector=fields)
        deadline = time.monotonic() + within_s
        objects: dict[str, Object] = {}
        trouble: Exception | None = None
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                listing = self.api.call("GET", path, timeout_s=left_s)
                objects = {found["metadata"]["name"]: found for found in listing["items"]}
                if answer := until(objects):
                    return answer
                version = listing["metadata"]["resourceVersion"]
                left_s = max(RETRY_S, deadline - time.monotonic())
                for event in self.api.watch(path, version, within_s=left_s):
                    name = event["object"]["metadata"]["name"]
                    objects.pop(name, None)
                    if event["type"] != "DELETED":
                        objects[name] = event["object"]
                    if answer := until(objects):
                        return answer
            except TimeoutError:
                continue  # as told below
            except (*UNREACHABLE, ApiError) as error:
                trouble = error
                threading.Event().wait(RETRY_S)
        where = f"{resource} {labels} {fields}".strip()
        states = "\n".join(f"  {name}: {summary(found)}" for name, found in objects.items())
        raise AssertionError(f"{where}: not within {within_s:.0f} s\n{states}\n{trouble or ''}")

    def establish(self, *definitions: str) -> None:
        """Wait until these resource definitions, as edljobs.edl.dev, are served."""
        self.wait(
            "customresourcedefinitions",
            lambda found: all(
                condition(found.get(name, {}), "Established") == "True" for name in definitions
            ),
        )

    def deprecated(self) -> set[tuple[str, str, str]]:
        """Return what was asked for since the API server began and is deprecated.

        By group, version and resource. The endpoints of services are what its own parts still ask
        for.
        """
        found = set()
        for line in self.api.text("GET", "/metrics").splitlines():
            if line.startswith("apiserver_requested_deprecated_apis{"):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
                found.add((labels["group"], labels["version"], labels["resource"]))
        return found - {("", "v1", "endpoints")}

    # -- acting upon it

    def annotate(self, node: str, **annotations: str | None) -> None:
        """Annotate a node: `crashed` and `linger` of prockubelet/; None takes one away."""
        named = {f"prockubelet/{key}": value for key, value in annotations.items()}
        self._patch(node, {"metadata": {"annotations": named}})

    def _patch(self, node: str, change: Object) -> None:
        merge = "application/merge-patch+json"
        self.api.call("PATCH", path_of("nodes", name=node), change, content_type=merge)

    def crash(self, node: str, *, within_s: float = PATIENCE_S) -> None:
        """Lose the machine: its processes die, and nobody says so. Returns when it is missed."""
        self.annotate(node, crashed="true")
        self.wait("nodes", lambda n: condition(n[node], "Ready") == "Unknown", within_s=within_s)

    def restore(self, node: str, *, within_s: float = PATIENCE_S) -> None:
        self.annotate(node, crashed=None)
        self.wait("nodes", lambda nodes: is_usable(nodes[node]), within_s=within_s)

    def linger(self, seconds: float | None) -> None:
        """Let a deleted pod's object stay so long after its end from now on, as on a real node."""
        for node in self.nodes():
            self.annotate(node, linger=None if seconds is None else str(seconds))

    def nodes(self) -> dict[str, Object]:
        listing = self.api.call("GET", path_of("nodes"))
        return {found["metadata"]["name"]: found for found in listing["items"]}

    def stop_part(self, name: str, *, kill: bool = False) -> None:
        """Stop `apiserver`, `scheduler`, `controllers`, `etcd`, ... until `start_parts`."""
        self._script("cluster.sh", "stop", name, "KILL" if kill else "TERM", timeout_s=30)

    def start_parts(self) -> None:
        """Start whatever part does not run."""
        self._script("cluster.sh", "up", timeout_s=START_S)
        self._script("cluster.sh", "nodes", *self._capacity, timeout_s=START_S)

    @contextlib.contextmanager
    def outage(self, name: str = "apiserver", *, kill: bool = False) -> Iterator[None]:
        """Keep a part of the cluster away while the block runs."""
        self.stop_part(name, kill=kill)
        try:
            yield
        finally:
            self.start_parts()

    def mend(self) -> None:
        """Undo what a test did to the cluster: lost and cordoned nodes, lingering, parts away."""
        self.start_parts()
        for name, node in self.nodes().items():
            annotations = node["metadata"].get("annotations") or {}
            if {"prockubelet/crashed", "prockubelet/linger"} & set(annotations):
                self.annotate(name, crashed=None, linger=None)
            if node["spec"].get("unschedulable"):
                self._patch(name, {"spec": {"unschedulable": None}})
        self.wait("nodes", lambda nodes: all(map(is_usable, nodes.values())))


def kit() -> Path:
    """Return the folder of the programs of Kubernetes, etcd and Kueue, once they are unpacked."""
    return Path(_variable("BIN"))


def kit_file() -> Path:
    """Return the file that they are unpacked from, as tests/k8s/cluster/kit/make.sh makes it."""
    return Path(_variable("KIT"))


@functools.cache
def _variable(name: str) -> str:
    """Return a variable of the scripts."""
    script = f'. "$0/common.sh"; printf %s "${name}"'
    return subprocess.run(
        ["bash", "-c", script, str(SCRIPTS)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def images() -> dict[str, Object]:
    """Return the images that process nodes know: this environment and checkout, a pause, and Kueue.

    A pod's root holds this machine's root file system only: what lies on another is bound, and what
    lies in /tmp, where many a pod has a volume.
    """
    needed = {ROOT, Path(sys.prefix), Path(sys.base_prefix)}
    env = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
        ":/sbin:/bin",
        "PYTHONPATH": str(ROOT / ".pythonpath"),
        "OMP_NUM_THREADS": "1",  # many pods, few cores
    }
    return {
        IMAGE: {"env": env, "binds": _elsewhere(needed)},
        "registry.k8s.io/pause:3.10": {"env": {}, "entrypoint": ["sleep", "infinity"]},
        "kueue": {"env": {}, "binds": _elsewhere({kit()})},
    }


def _elsewhere(needed: set[Path]) -> list[str]:
    machine = Path("/").stat().st_dev
    return sorted(
        str(path) for path in needed if path.stat().st_dev != machine or path.is_relative_to("/tmp")
    )


def why_not() -> str:
    """Tell why no cluster can be started here; empty where one can."""
    if os.environ.get("K8S_ATTACH"):
        return ""
    if sys.platform != "linux":
        return "a Kubernetes cluster for tests needs Linux"
    if os.geteuid() != 0:
        return "a Kubernetes cluster for tests needs root, for network namespaces and mounts"
    if not Path("/etc/debian_version").exists() or shutil.which("apt-get") is None:
        return "a Kubernetes cluster for tests needs Debian, whose packages it is made of"
    if not (kit() / "kube-apiserver").exists() and not kit_file().exists():
        return f"there is no {kit_file().name}: `make kubernetes` builds it (Go 1.26)"
    namespaces = ["unshare", "--net", "--mount", "true"]
    allowed = subprocess.run(namespaces, capture_output=True, check=False)
    if allowed.returncode != 0:
        return "a Kubernetes cluster for tests needs the right to make namespaces"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python tests/tools/kube.py", description=__doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cpu", default="4", help="of each node")
    given = parser.parse_args()
    if reason := why_not():
        raise SystemExit(reason)
    began = time.monotonic()
    with (
        Cluster(nodes=given.nodes, cpu=given.cpu) as cluster,
        contextlib.suppress(KeyboardInterrupt),
    ):
        print(f"ready after {time.monotonic() - began:.0f} s; Ctrl-C stops it\n")
        print(f"export K8S_ATTACH=1 KUBECONFIG={cluster.kubeconfig}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()

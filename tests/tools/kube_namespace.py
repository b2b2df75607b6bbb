"""A namespace of a test's cluster: applied, waited for, read, reported, and deleted at the end."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tools.kube import PATIENCE_S, Cluster
from tools.kube_api import RETRY_S, Object, path_of
from tools.kube_objects import any_started, phase

T = TypeVar("T")

LOG_LINES = 60  # of a pod, in a report


class Namespace:
    """A test's own corner of the cluster, and what it does there."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name, self.api = cluster, name, cluster.api
        self._volumes: list[str] = []

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
        where = f"--namespace={self.name}"
        return self.cluster.kubectl(where, *arguments, stdin=stdin, timeout_s=timeout_s)

    def apply(self, *manifests: Object | str | Path) -> None:
        self.cluster.apply(*manifests, namespace=self.name)

    def wait(self, resource: str, until: Callable[[dict[str, Object]], T | None], **how: Any) -> T:
        return self.cluster.wait(resource, until, namespace=self.name, **how)

    def objects(self, resource: str, labels: str = "") -> dict[str, Object]:
        path = path_of(resource, self.name, labelSelector=labels)
        items = self.api.call("GET", path)["items"]
        return {found["metadata"]["name"]: found for found in items}

    def wait_phase(self, pod: str, wanted: str, *, within_s: float = PATIENCE_S) -> Object:
        """Return the pod, as soon as it is Running, Succeeded or Failed as wanted."""
        __tracebackhide__ = True

        def reached(pods: dict[str, Object]) -> Object | None:
            found = pods.get(pod, {})
            return found if phase(found) == wanted else None

        field = f"metadata.name={pod}"
        return self.wait("pods", reached, fields=field, within_s=within_s)

    def log(self, pod: str, *, timeout_s: float = 30.0) -> str:
        path = path_of("pods", self.name, f"{pod}/log")
        return self.api.text("GET", path, timeout_s=timeout_s)

    def wait_log(
        self, pod: str, text: str, *, container: str = "", within_s: float = PATIENCE_S
    ) -> str:
        """Return the first line of the pod's log that holds `text`."""
        __tracebackhide__ = True
        deadline = time.monotonic() + within_s
        field = f"metadata.name={pod}"
        self.wait("pods", any_started, fields=field, within_s=within_s)
        left_s = max(RETRY_S, deadline - time.monotonic())
        path = path_of("pods", self.name, f"{pod}/log", follow="true", container=container)
        seen, end = [], "ended without saying"
        try:
            for line in self.api.lines(path, within_s=left_s):
                seen.append(line.decode(errors="replace").rstrip("\n"))
                if text in seen[-1]:
                    return seen[-1]
        except TimeoutError:
            end = f"did not say within {within_s:.0f} s"
        said = "\n".join(seen[-LOG_LINES:])
        raise AssertionError(f"pod {pod} {end} {text!r}:\n{said}")

    def kubeconfig(self, account: str) -> Path:
        """Write the configuration of a client that is this service account and may do no more."""
        path = path_of("serviceaccounts", self.name, f"{account}/token")
        request = {"spec": {"audiences": [], "expirationSeconds": 3600}}
        token = self.api.call("POST", path, request)["status"]["token"]
        text = yaml.safe_load(self.cluster.kubeconfig.read_text())
        text["users"][0]["user"] = {"token": token}
        text["contexts"][0]["context"]["namespace"] = self.name
        file = self.cluster.state / f"{self.name}-{account}.kubeconfig"
        file.write_text(yaml.safe_dump(text))
        return file

    def claim(self, name: str, folder: Path) -> None:
        """Make a PersistentVolumeClaim whose volume is `folder` of this machine."""
        folder.mkdir(exist_ok=True)
        volume = f"{self.name}-{name}"
        self._volumes.append(volume)
        spec = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        size = {"storage": "1Gi"}
        link = self.cluster.state / "nodes" / "claims" / self.name / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder.resolve(), target_is_directory=True)
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": {**spec, "capacity": size, "hostPath": {"path": str(folder)}},
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name},
                "spec": {**spec, "volumeName": volume, "resources": {"requests": size}},
            },
        )
        self.wait("persistentvolumeclaims", lambda claims: phase(claims[name]) == "Bound")

    def claims(self, folder: Path) -> None:
        """Make the claims of kube_objects.volumes: `data` is this folder, `job` one in it."""
        self.claim("data", folder)
        self.claim("job", folder / "job")

    # -- telling

    def logs(self, lines: int = LOG_LINES) -> dict[str, str]:
        """Return the ends of all pods' logs, by pod and file.

        Of all that ever ran on process nodes here, the deleted ones too, and of those that a real
        node still knows.
        """
        places = [self.cluster.state / name for name in ("nodes/logs", "pod-logs")]
        pods = [pod for place in places for pod in place.glob(f"{self.name}_*")]
        files = [(file, pod) for pod in pods for file in pod.rglob("*.log")]
        found = {}
        for file, pod in sorted(files, key=lambda found: found[0].stat().st_mtime):
            _, name, _uid = pod.name.split("_")
            tail = file.read_text(errors="replace").splitlines()[-lines:]
            found[f"{name} {file.relative_to(pod).with_suffix('')}"] = "\n".join(tail)
        return found

    def report(self) -> str:
        """Return pods, events and logs, for a test that failed."""
        parts = []
        for words in (
            ("get", "all,configmaps", "--output=wide"),
            ("get", "events", "--sort-by=.metadata.creationTimestamp"),
        ):
            try:
                parts.append(self.kubectl(*words))
            except (AssertionError, subprocess.TimeoutExpired) as error:
                parts.append(str(error))  # the API server is away: the logs are still there
        parts += [f"---- {name}\n{text}" for name, text in self.logs().items()]
        node = self.cluster.state / "logs" / "prockubelet.log"
        if node.exists():
            tail = node.read_text(errors="replace").splitlines()[-20:]
            parts.append("---- the nodes\n" + "\n".join(tail))
        return "\n".join(parts)

    def delete(self, *, within_s: float = PATIENCE_S) -> None:
        """Delete the namespace, and wait until no pod is left: the next test has the room."""
        # None is created from here on.
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false")
        pods = path_of("pods", self.name, gracePeriodSeconds="0")
        self.api.call("DELETE", pods)
        self.wait("pods", lambda pods: not pods, within_s=within_s)
        for volume in self._volumes:
            self.api.call("DELETE", path_of("persistentvolumes", name=volume))


@contextlib.contextmanager
def fresh(cluster: Cluster, level: str = "restricted") -> Iterator[Namespace]:
    """Yield a new namespace; at the end its pods are gone, and the rest of it soon after.

    `level`: the Pod Security Standard that it enforces, and warns of where a pod is not made yet.
    """
    name = f"t-{secrets.token_hex(3)}"
    labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")}
    about = {"name": name, "labels": labels}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": about})
    here = Namespace(cluster, name)
    try:
        here.wait("serviceaccounts", lambda accounts: "default" in accounts)
        yield here
    finally:
        cluster.mend()
        here.delete()

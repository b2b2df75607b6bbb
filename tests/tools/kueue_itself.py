"""Kueue's own controller and webhooks on a test's cluster: installed, configured, killed, removed.

Its Deployment runs as a pod of a process node. While it is installed, its webhooks are asked of
each pod and each Workload of the cluster, so it stays for the tests of it alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import yaml

from tools.kube import Cluster, kit
from tools.kube_api import GROUPS, RETRY_S, UNREACHABLE, ApiError, Object, path_of
from tools.kube_objects import phase

VERSION = "v1beta2"
HOME = "kueue-system"
LABEL = "app.kubernetes.io/name=kueue"  # of all that is Kueue's
_API = f"kueue.x-k8s.io/{VERSION}"
_OWN = ("clusterqueues", "resourceflavors", "admissionchecks", "cohorts")  # of the whole cluster
_WHAT = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
GROUPS |= dict.fromkeys((*_OWN, "localqueues", "workloads"), f"apis/{_API}")
GROUPS |= dict.fromkeys(_WHAT, "apis/admissionregistration.k8s.io/v1")
_CONFIG, _FILE = "kueue-manager-config", "controller_manager_config.yaml"
_ANSWERS_S = 60.0  # 3 to 6 on two idle cores
# The lease of one that was killed would have to end first, and Kueue 0.17.0 counts for ever what is
# deleted while it waits for that (mended in 0.17.1).
_LEASE = {"leaderElect": False}


class Installed:
    """Kueue as it runs in a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        """Install it as its manifests have it, and wait until its webhooks answer."""
        self._cluster, self._api = cluster, cluster.api
        text = (kit() / "kueue.yaml").read_text().replace("@BIN@", str(kit()))
        found = {(each["kind"], each["metadata"]["name"]): each for each in _load(text)}
        self._config: Object = found.pop(("ConfigMap", _CONFIG))
        self.plain: Object = yaml.safe_load(self._config["data"][_FILE])
        self.plain["leaderElection"] = _LEASE
        self._changes: Mapping[str, Any] = {}
        self._apply(*found.values(), self._configured({}))
        self.answers()

    def configure(self, **changes: Any) -> None:
        """Let it run with these parts of its configuration, and else as its manifests have it."""
        if changes != self._changes:
            self._apply(self._configured(changes))
            self._changes = changes
            self.die()
            self.answers()

    def die(self) -> None:
        """Kill it, with no word to anybody. Its Deployment makes it anew, which takes seconds."""
        pods = path_of("pods", HOME, labelSelector=LABEL, gracePeriodSeconds="0")
        self._api.call("DELETE", pods)

    def answers(self) -> None:
        """Wait until one pod of it is there, and its webhooks have their certificate."""
        self._one_pod()
        probe = {"apiVersion": _API, "kind": "ResourceFlavor", "metadata": {"name": "probe"}}
        path = path_of("resourceflavors", dryRun="All")
        self._tried(lambda: self._api.call("POST", path, probe))

    def hold(self, resource: str, name: str, namespace: str = "", policy: str = "None") -> None:
        """Set the stopPolicy of a queue, such as HoldAndDrain."""
        self.patch(resource, name, {"spec": {"stopPolicy": policy}}, namespace)

    def patch(self, resource: str, name: str, change: Object, namespace: str = "") -> None:
        """Change an object, as soon as Kueue's webhooks answer."""
        merge, path = "application/merge-patch+json", path_of(resource, namespace, name)
        self._tried(lambda: self._api.call("PATCH", path, change, content_type=merge))

    def make(self, resource: str, it: Object, namespace: str = "") -> Object:
        """Make an object, as soon as Kueue's webhooks answer."""
        path = path_of(resource, namespace)
        made: Object = self._tried(lambda: self._api.call("POST", path, it))
        return made

    def clear(self) -> None:
        """Delete all queues, flavors, cohorts and checks, whatever is in them."""
        for resource in _OWN:
            path = path_of(resource)
            names = [each["metadata"]["name"] for each in self._api.call("GET", path)["items"]]
            self._tried(lambda path=path: self._api.call("DELETE", path))
            for name in names:  # those in use wait for their Workloads, which end with a namespace
                try:
                    self.patch(resource, name, {"metadata": {"finalizers": None}})
                except ApiError as error:
                    if error.code != 404:
                        raise

    def remove(self) -> None:
        """Delete what others would notice; its roles and its namespace stay."""
        self.clear()
        for resource in (*_WHAT, "customresourcedefinitions"):
            self._api.call("DELETE", path_of(resource, labelSelector=LABEL))
        self._api.call("DELETE", path_of("deployments", HOME, "kueue-controller-manager"))
        self._cluster.wait("pods", lambda pods: not pods, namespace=HOME)
        self._cluster.wait(
            "customresourcedefinitions",
            lambda found: not any(each.endswith("kueue.x-k8s.io") for each in found),
        )

    def _apply(self, *objects: Object) -> None:
        self._cluster.kubectl(  # its definitions are too large for what plain `apply` remembers
            *("apply", "--server-side", "--force-conflicts", "-f", "-"),
            stdin=yaml.dump_all(objects, Dumper=_Dumper),
        )

    def _configured(self, changes: Mapping[str, Any]) -> Object:
        text = yaml.safe_dump({**self.plain, **changes})
        return {**self._config, "data": {_FILE: text}}

    def _one_pod(self) -> list[str]:
        """Return the name of its one pod, as soon as that runs."""

        def look(pods: dict[str, Object]) -> list[str] | None:
            there = {name: phase(each) for name, each in pods.items()}
            lives = [name for name in there if there[name] not in ("Failed", "Succeeded")]
            return lives if [there[name] for name in lives] == ["Running"] else None

        return self._cluster.wait("pods", look, namespace=HOME, labels=LABEL)

    def _tried(self, call: Any) -> Any:
        """Do what a webhook is asked of, again while it does not answer."""
        deadline, pause = time.monotonic() + _ANSWERS_S, threading.Event()
        while True:
            try:
                return call()
            except (*UNREACHABLE, ApiError) as error:
                away = not isinstance(error, ApiError) or "failed calling webhook" in str(error)
                missing = (
                    isinstance(error, ApiError) and error.code == 404 and "page not" in str(error)
                )
                if time.monotonic() > deadline or not (away or missing):
                    raise
            pause.wait(RETRY_S)


def flavor(name: str, **spec: Any) -> Object:
    return _made("ResourceFlavor", name, spec)


def cluster_queue(name: str, quota: Mapping[str, float], **spec: Any) -> Object:
    """Return a queue with so many CPUs of each flavor, which lets pieces be taken first."""
    flavors = [
        {
            "name": each,
            "resources": [
                {"name": "cpu", "nominalQuota": str(cpu)},
                {"name": "memory", "nominalQuota": "1Ti"},
            ],
        }
        for each, cpu in quota.items()
    ]
    groups = [{"coveredResources": ["cpu", "memory"], "flavors": flavors}]
    usual = {"namespaceSelector": {}, "preemption": {"withinClusterQueue": "LowerPriority"}}
    return _made("ClusterQueue", name, {**usual, "resourceGroups": groups, **spec})


def local_queue(name: str, of: str) -> Object:
    return _made("LocalQueue", name, {"clusterQueue": of})


def admission_check(name: str) -> Object:
    """Return a check that no controller of Kueue's looks after."""
    return _made("AdmissionCheck", name, {"controllerName": "edl.dev/test"})


def workload(name: str, queue: str, cpu: str, priority: int = 0) -> Object:
    """Return a Workload of somebody else."""
    resources = {"requests": {"cpu": cpu}}
    spec = {"containers": [{"name": "main", "resources": resources}]}
    pods = {"name": "main", "count": 1, "template": {"spec": spec}}
    return _made("Workload", name, {"queueName": queue, "priority": priority, "podSets": [pods]})


def _made(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": name}, "spec": spec}


_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def _load(text: str) -> list[Object]:
    """Return the objects of 1.6 MB of YAML; by C it takes a second."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [each for each in yaml.load_all(text, Loader=loader) if each]

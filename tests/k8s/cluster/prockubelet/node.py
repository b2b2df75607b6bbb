"""The nodes: registered, heard of, lost and found again; and which pods are on them.

A node's annotations play its fate: `prockubelet/crashed=true` is the loss of the machine (its
processes die, and nobody says so), and `prockubelet/linger=10` leaves a deleted pod's object for
that many seconds after its end, as a real kubelet does. A node that somebody else makes with the
label `prockubelet/made=true` is served from the next heartbeat on; once it is deleted, the machine
is gone with all its pods.
"""

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from .api import MERGE, ApiError, log, now
from .pod import Pod

MADE = "/api/v1/nodes?labelSelector=prockubelet%2Fmade%3Dtrue"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID"),
    ("Ready", "True", "KubeletReady"),
)


class Nodes:
    def __init__(self, api, network, given):
        """Take the arguments of the program."""
        self.api, self.network, self.given = api, network, given
        self.names = frozenset(f"{given.prefix}{number}" for number in range(given.nodes))
        self.capacity = {name: getattr(given, name) for name in ("cpu", "memory", "pods")}
        self.capacity["ephemeral-storage"] = "20Gi"
        self.node_ip, self.dns, self.cgroup = given.node_ip, given.dns, given.cgroup
        self.pods_folder, self.logs_folder, self.claims_folder = (
            Path(given.root) / name for name in ("pods", "logs", "claims")
        )
        self.pods = {}  # uid -> Pod
        self.lock = threading.Lock()  # a pod is seen by the watch and by a node that comes back
        self.fresh = set(self.names)  # what they last said was said by an earlier daemon
        self.crashed = set()
        self.made = set()  # names of nodes that somebody else has made

    def prepare(self):
        for folder in (self.pods_folder, self.logs_folder, self.claims_folder):
            folder.mkdir(parents=True, exist_ok=True)
        if not self.pods_folder.is_mount():
            # An overlay's upper layer must not lie on its lower file system.
            mount = ["mount", "-t", "tmpfs", "-o", "mode=755", "pods", str(self.pods_folder)]
            subprocess.run(mount, check=True)

    def close(self):
        for pod in list(self.pods.values()):
            pod.lose()
        deadline = time.monotonic() + 3
        for pod in list(self.pods.values()):
            pod.join(max(0, deadline - time.monotonic()))
        subprocess.run(["umount", "-l", str(self.pods_folder)], check=False)

    def image(self, name):
        """Return env, entrypoint, cmd, cwd and binds of an image. None: there is none."""
        images = json.loads(Path(self.given.images).read_text())
        return images.get(name, images.get("*"))

    def linger_s(self, node):
        try:
            found = self.api.call("GET", f"/api/v1/nodes/{node}")
        except ApiError:
            return 0.0
        return float((found["metadata"].get("annotations") or {}).get("prockubelet/linger", 0))

    # -- heartbeats

    def heartbeat(self, every_s):
        while True:
            try:
                self._see_made()
            except ApiError as error:
                log("heartbeat", "made nodes", error)
            for name in sorted(self.names):
                try:
                    self._beat(name)
                except ApiError as error:
                    log("heartbeat", name, error)
            time.sleep(every_s)

    def _see_made(self):
        there = {found["metadata"]["name"] for found in self.api.call("GET", MADE)["items"]}
        for name in self.made - there:
            log("gone", name)
            with self.lock:
                self.names -= {name}
            for pod in self._on(name):
                pod.lose()
                self.pods.pop(pod.uid, None)
        with self.lock:
            self.names |= there
            self.fresh |= there - self.made
        self.made = there

    def _beat(self, name):
        node = self._registered(name)
        annotations = node["metadata"].get("annotations") or {}
        if annotations.get("prockubelet/crashed") == "true":
            if name not in self.crashed:
                log("crashed", name)
                self.crashed.add(name)
                for pod in self._on(name):
                    pod.lose()
            return  # no heartbeat, no status
        conditions = (node.get("status") or {}).get("conditions") or []
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        if name in self.crashed:
            self._come_back(name)
        if name in self.fresh or not ready:
            self.fresh.discard(name)
            status = {"status": self._object(name)["status"]}
            self.api.call("PATCH", f"/api/v1/nodes/{name}/status", status, MERGE)
        self._renew(name, node["metadata"]["uid"])

    def _registered(self, name):
        try:
            return self.api.call("GET", f"/api/v1/nodes/{name}")
        except ApiError as error:
            if error.code != 404 or name in self.made:  # a made one that is gone is gone
                raise
        log("registered", name)
        return self.api.call("POST", "/api/v1/nodes", self._object(name))

    def _come_back(self, name):
        log("back", name)
        for pod in self._on(name):
            self.pods.pop(pod.uid, None)
        self.crashed.discard(name)
        self.fresh.add(name)
        path = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}"
        for found in self.api.call("GET", path)["items"]:
            self._see(found)

    def _renew(self, name, uid):
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": 40,
            "renewTime": now("microseconds"),
        }
        try:
            self.api.call("PATCH", f"{LEASES}/{name}", {"spec": spec}, MERGE)
        except ApiError as error:
            if error.code != 404:
                raise
            owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
            meta = {"name": name, "namespace": "kube-node-lease", "ownerReferences": [owner]}
            self.api.call("POST", LEASES, {"metadata": meta, "spec": spec})

    def _object(self, name):
        time_ = now()
        conditions = [
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": reason,
                "lastHeartbeatTime": time_,
                "lastTransitionTime": time_,
            }
            for kind, status, reason in CONDITIONS
        ]
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "type": "prockubelet",
        }
        status = {
            "capacity": self.capacity,
            "allocatable": self.capacity,
            "conditions": conditions,
            "addresses": [
                {"type": "InternalIP", "address": self.node_ip},
                {"type": "Hostname", "address": name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.given.log_port}},
            "nodeInfo": {
                "kubeletVersion": f"{self.given.version}-prockubelet",
                "kernelVersion": os.uname().release,
                **dict.fromkeys(("machineID", "systemUUID", "bootID"), name),
                "osImage": "host",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        }
        meta = {"name": name, "labels": labels}
        return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status}

    # -- pods

    def follow_pods(self):
        path = "/api/v1/pods?fieldSelector=spec.nodeName%21%3D"
        self.api.follow(path, self._on_list, self._on_event)

    def follow_data(self, kind):
        """Keep mounted ConfigMaps or Secrets as they are."""

        def changed(found):
            meta = found["metadata"]
            for pod in list(self.pods.values()):
                if pod.namespace == meta["namespace"]:
                    pod.volumes.follow(kind, meta["name"])

        def on_list(items):
            for found in items:
                changed(found)

        def on_event(event, found):
            if event == "MODIFIED":
                changed(found)

        self.api.follow(f"/api/v1/{kind}", on_list, on_event)

    def _on_list(self, items):
        for found in items:
            self._see(found)
        there = {found["metadata"]["uid"] for found in items}
        for uid in [uid for uid in self.pods if uid not in there]:
            self.pods.pop(uid).forget()

    def _on_event(self, kind, found):
        if kind != "DELETED":
            self._see(found)
        elif pod := self.pods.pop(found["metadata"]["uid"], None):
            pod.forget()

    def _see(self, found):
        node, uid = found["spec"].get("nodeName"), found["metadata"]["uid"]
        ended = (found.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        with self.lock:
            if node not in self.names or node in self.crashed:
                return
            pod = self.pods.get(uid)
            if pod is not None:
                pod.see(found)
            if found["metadata"].get("deletionTimestamp"):
                self._see_deletion(pod, found)
            elif pod is None and not ended:
                self.pods[uid] = Pod(self, found)
                self.pods[uid].start()

    def _see_deletion(self, pod, found):
        if pod is None:  # deleted before it ran here, or while this machine was lost
            pod = self.pods[found["metadata"]["uid"]] = Pod(self, found)
            pod.terminating = True
            threading.Thread(target=pod.delete, daemon=True).start()
        elif not pod.terminating:
            pod.terminating = True
            grace_s = found["metadata"].get("deletionGracePeriodSeconds", 30)
            threading.Thread(target=pod.terminate, args=(grace_s,), daemon=True).start()

    def _on(self, name):
        return [pod for pod in list(self.pods.values()) if pod.node_name == name]


def on_signal(nodes):
    """Have SIGTERM and SIGINT end the daemon and all its pods."""

    def end(*_):
        nodes.close()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)

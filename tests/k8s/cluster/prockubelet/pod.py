"""One pod on a process node: a thread from its binding to its end."""

import re
import signal
import subprocess
import threading
import time
import traceback

from .api import MERGE, ApiError, log, now
from .container import Container
from .volumes import Volumes


class Pod(threading.Thread):
    def __init__(self, node, found):
        super().__init__(daemon=True)
        self.node, self.api, self.found = node, node.api, found
        meta, self.spec = found["metadata"], found["spec"]
        self.uid, self.namespace, self.pod_name = meta["uid"], meta["namespace"], meta["name"]
        self.node_name = self.spec["nodeName"]
        self.path = f"/api/v1/namespaces/{self.namespace}/pods/{self.pod_name}"
        self.host = (self.spec.get("hostname") or self.pod_name)[:63]
        self.folder = node.pods_folder / self.uid
        self.logs = node.logs_folder / f"{self.namespace}_{self.pod_name}_{self.uid}"
        self.netns, self.ip, self.phase, self.started = "", node.node_ip, "Pending", now()
        self.stopping = threading.Event()
        self.deadline = None  # of its end, on the monotonic clock
        self.terminating = False
        self.gone = False  # the object is deleted: nothing more is to be said
        self.lost = False  # the machine is lost: nothing more can be said
        self.lock = threading.Lock()
        self.volumes = Volumes(self)
        self.inits = self.spec.get("initContainers") or []
        self.init_containers = [Container(self, spec, init=True) for spec in self.inits]
        self.containers = [Container(self, spec) for spec in self.spec["containers"]]

    @property
    def all_containers(self):
        return self.init_containers + self.containers

    @property
    def sidecars(self):
        """Return the init containers that run beside all later ones, until these have ended."""
        return [container for container in self.init_containers if container.sidecar]

    def run(self):
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.logs.mkdir(parents=True, exist_ok=True)
            self._run(self.spec.get("restartPolicy", "Always"))
        except Exception:  # noqa: BLE001  whatever is wrong with it, the node goes on without it
            log("pod", self.namespace, self.pod_name, traceback.format_exc())
            self.phase = "Failed"
        finally:
            self.push()
            self._clean()

    def _run(self, policy):
        if before := (self.found.get("status") or {}).get("containerStatuses"):
            self._take_over(before)
            if policy == "Never":
                self.phase = "Failed"
                return
        self._network()
        self.push()
        once = "Never" if policy == "Never" else "OnFailure"
        if not any(self._begin(c, once) for c in self.init_containers):  # until one fails
            self.phase = "Running"
            for container in self.containers:
                container.start(policy)
            for container in self.containers:
                container.join()
        self._end_sidecars()
        codes = [c.exit_code for c in self.all_containers if not c.sidecar]
        if not (self.stopping.is_set() and policy == "Always"):
            self.phase = "Succeeded" if all(code == 0 for code in codes) else "Failed"

    def _begin(self, container, once):
        """Run an init container to its end, a sidecar to its start; return a code of failure."""
        if not container.sidecar:
            return container.run(once)
        container.start("Always")
        container.begun.wait()
        return 0

    def _end_sidecars(self):
        """End them in reverse order, within what is left of the grace."""
        grace_s = self.spec.get("terminationGracePeriodSeconds", 30)
        deadline = self.deadline or time.monotonic() + grace_s
        for container in reversed(self.sidecars):
            container.over.set()
            container.kill(signal.SIGTERM)
            container.join(max(0, deadline - time.monotonic()))
            container.kill(signal.SIGKILL)
            container.join()

    def see(self, found):
        """Take the pod as it is now: what somebody changed of it is told to be seen."""
        before, self.found = self.found, found
        if before["metadata"].get("generation") != found["metadata"].get("generation"):
            threading.Thread(target=self.push, daemon=True).start()

    def _take_over(self, before):
        """Take over a pod seen before this daemon was restarted: its processes are gone."""
        restarts = {status["name"]: status["restartCount"] for status in before}
        for container in self.containers:
            container.restarts = restarts.get(container.name, 0) + 1
            container.state = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}

    def _network(self):
        if self.spec.get("hostNetwork"):
            return
        self.ip = self.node.network.address()
        hosts = f"127.0.0.1 localhost\n::1 localhost\n{self.ip} {self.host}\n"
        (self.folder / "hosts").write_text(hosts)
        search = f"{self.namespace}.svc.cluster.local svc.cluster.local cluster.local"
        resolv = f"nameserver {self.node.dns}\nsearch {search}\noptions ndots:5\n"
        (self.folder / "resolv.conf").write_text(resolv)
        self.netns = self.node.network.join(self.uid, self.ip)

    def push(self):
        """Tell the API server how the pod stands."""
        with self.lock:
            if self.gone or self.lost:
                return
            body = {"metadata": {"uid": self.uid}, "status": self._status()}
            try:
                self.api.call("PATCH", f"{self.path}/status", body, MERGE)
            except ApiError as error:
                if error.code not in (404, 409):  # 409: another pod of this name
                    log("status", self.path, error)
                    return
                self.forget()

    def _status(self):
        running = all("running" in c.state for c in self.containers + self.sidecars)
        generation = self.found["metadata"].get("generation", 1)
        ready = self.phase == "Running" and running
        ended = self.phase in ("Succeeded", "Failed")
        conditions = {
            "PodReadyToStartContainers": bool(self.netns) and not ended,
            "Initialized": self.phase != "Pending" or not self.inits,
            "Ready": ready,
            "ContainersReady": ready,
            "PodScheduled": True,
        }
        why_not = "PodCompleted" if ended else "ContainersNotReady"
        status = {
            "phase": self.phase,
            "observedGeneration": generation,
            "conditions": [
                {
                    "type": kind,
                    "status": "True" if held else "False",
                    **({} if held else {"reason": why_not}),
                    "observedGeneration": generation,
                    "lastTransitionTime": now(),
                }
                for kind, held in conditions.items()
            ],
            "hostIP": self.node.node_ip,
            "hostIPs": [{"ip": self.node.node_ip}],
            "podIP": self.ip,
            "podIPs": [{"ip": self.ip}],
            "startTime": self.started,
            "qosClass": (self.found.get("status") or {}).get("qosClass"),
            "containerStatuses": [c.status() for c in self.containers],
        }
        if self.inits:
            status["initContainerStatuses"] = [c.status() for c in self.init_containers]
        return status

    # -- its end

    def terminate(self, grace_s):
        """Send SIGTERM, after the grace SIGKILL; after the final status delete the object."""
        self.deadline = time.monotonic() + max(grace_s, 1)
        self.stopping.set()
        for container in self.all_containers:
            if not container.sidecar:  # these end after all others
                container.kill(signal.SIGTERM)
        self.join(max(grace_s, 1))
        if self.is_alive():
            self.kill(signal.SIGKILL)
            self.join(10)
        # A real kubelet leaves the finished object for 10 to 14 s.
        time.sleep(self.node.linger_s(self.node_name))
        self.delete()

    def delete(self):
        if self.gone or self.lost:
            return
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": self.uid},
        }
        try:
            self.api.call("DELETE", self.path, options)
        except ApiError as error:
            if error.code not in (404, 409):
                log("delete", self.path, error)

    def forget(self):
        """End the processes at once: the object is gone."""
        self.gone = True
        self.stopping.set()
        self.kill(signal.SIGKILL)

    def lose(self):
        """End the processes and say nothing: the machine is gone."""
        self.lost = True
        self.stopping.set()
        self.kill(signal.SIGKILL)

    def kill(self, number):
        for container in self.all_containers:
            container.kill(number)

    def _clean(self):
        self.volumes.close()
        self.node.network.leave(self.netns)
        subprocess.run(["rm", "-rf", "--one-file-system", str(self.folder)], check=False)

    # -- what its containers ask for

    def field(self, path):
        meta = self.found["metadata"]
        if found := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
            return (meta.get(found[1]) or {}).get(found[2], "")
        return {
            "metadata.name": self.pod_name,
            "metadata.namespace": self.namespace,
            "metadata.uid": self.uid,
            "spec.nodeName": self.node_name,
            "spec.serviceAccountName": self.spec.get("serviceAccountName", ""),
            "status.podIP": self.ip,
            "status.hostIP": self.node.node_ip,
        }[path]

    def service_env(self):
        """Return NAME_SERVICE_HOST and NAME_SERVICE_PORT, of the API itself at least."""
        services = []
        linked = self.spec.get("enableServiceLinks", True)
        if linked:
            listing = self.api.call("GET", f"/api/v1/namespaces/{self.namespace}/services")
            services += listing["items"]
        if not (linked and self.namespace == "default"):
            services.append(self.api.call("GET", "/api/v1/namespaces/default/services/kubernetes"))
        env = {}
        for service in services:
            address = service["spec"].get("clusterIP")
            if address in (None, "", "None"):
                continue
            name = service["metadata"]["name"].upper().replace("-", "_")
            env[f"{name}_SERVICE_HOST"] = address
            env[f"{name}_SERVICE_PORT"] = str(service["spec"]["ports"][0]["port"])
        return env

"""Pods of a real cluster as every runtime: see tests/tools/conformance.py."""

from __future__ import annotations

import pytest
from tools.conformance import *
from tools.conformance import PROGRAMS, WAIT_S
from tools.kube_objects import make_pod, phase

from edl.k8s import names, pods, reflector
from edl.k8s.api import Api
from edl.k8s.runtime import KubernetesRuntime
from edl.runtime.base import Replica

JOB = "any"


class PodKit:
    def __init__(self, namespace, api: Api) -> None:
        self.namespace = namespace
        self.api = api

    def runtime(self, program, report):
        def make(role, index, incarnation, env, arguments, memory):
            about = {"labels": names.labels(JOB, names.COMPONENTS[role])}
            spec = make_pod("any", "python", "-c", PROGRAMS[program])["spec"]
            spec["containers"][0]["name"] = names.CONTAINER
            return pods.replica(
                {"metadata": about, "spec": spec},
                Replica(role, index, incarnation),
                job=JOB,
                arguments=arguments,
                env=env,
                owner=None,
            )

        return KubernetesRuntime(self.api, JOB, make=make, cap=lambda *_: "1Gi", report=report)

    def env(self, incarnation):
        return {"EDL_MARK": "/dev/stdout"}

    def started(self, replica) -> None:
        self.namespace.wait_log(self._name(replica), "ready", within_s=WAIT_S)

    def take_away(self, replica) -> None:
        self.namespace.kubectl("delete", "pod", self._name(replica), "--wait=false")

    def there(self, replica) -> bool:
        found = self.namespace.objects("pods").get(self._name(replica))
        return found is not None and phase(found) == "Running"

    def _name(self, replica) -> str:
        return names.pod_name(JOB, replica.role, replica.index, replica.incarnation)


@pytest.fixture
def kit(cluster, namespace, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setattr(reflector, "_WATCH_S", 5.0)  # a watch ends so long after its runtime
    api = Api.connect(namespace.name)
    yield PodKit(namespace, api)
    api.close()

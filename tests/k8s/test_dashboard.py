"""The dashboard's component in a real cluster: who has the token sees a job, and no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tools.kube import ROOT
from tools.kube_api import ApiError, path_of
from tools.kube_objects import IMAGE, make_pod

from edl.k8s import names, objects

COMPONENT = Path(ROOT) / "k8s" / "manifests" / "dashboard"
TOKEN = "of-the-dashboards-secret"
# In the dashboard's own pod, whose loopback is where `kubectl port-forward` comes out.
ASK = """
import json, sys, time, urllib.error, urllib.request

def ask(path, token="", body=None):
    told = {"authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"http://127.0.0.1:8080{path}", body, told)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()

deadline = time.monotonic() + 60
while True:
    try:
        nobody = ask("/api/jobs")[0]
        break
    except OSError:  # it has not begun to listen
        assert time.monotonic() < deadline
        time.sleep(0.1)
token = sys.argv[1]
stop = json.dumps({"action": "stop"}).encode()
found = {
    "nobody": nobody,
    "wrong": ask("/api/jobs", "x" + token)[0],
    "page": "edl-csrf" in ask("/", token)[1],
    "job": json.loads(ask("/api/jobs/demo", token)[1]),
    "stop": ask("/api/jobs/demo/actions", token, stop)[0],
}
print("found", json.dumps(found), flush=True)
time.sleep(600)
"""


def deployed():
    """Return the Deployment with this checkout's image, and beside it somebody who asks."""
    made = yaml.safe_load((COMPONENT / "deployment.yaml").read_text())
    (container,) = made["spec"]["template"]["spec"]["containers"]
    container["image"] = IMAGE
    (asker,) = make_pod("asker", "python", "-c", ASK, TOKEN)["spec"]["containers"]
    made["spec"]["template"]["spec"]["containers"].append({**asker, "name": "asker"})
    made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    return made


def a_job():
    """Return the objects of a job at work, as its master has left them."""
    master = make_pod("edl-demo-master-0", "python", "-c", "import time; time.sleep(600)")
    master["metadata"]["labels"] = names.labels("demo", "master")
    top = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": names.object_name("demo"), "labels": names.labels("demo")},
        "spec": {"parallelism": 0, "template": {"spec": make_pod("demo", "true")["spec"]}},
    }
    records = {"applied": 60, "leased": 8, "todo": 32, "quarantined": 0, "recomputed": 4}
    said = {"job_name": "demo", "state": "running", "records": {**records, "total": 100}}
    return master, top, objects.status("demo", json.dumps(said))


def test_the_dashboard_shows_a_job_to_whoever_has_its_token_and_changes_nothing(namespace):
    """Broken once: (1) its role lacked configmaps, (2) its role could patch them."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "edl-dashboard"}}
    namespace.apply(*a_job(), {**secret, "stringData": {"token": TOKEN}})
    files = (COMPONENT / "role.yaml", COMPONENT / "network-policy.yaml")
    namespace.apply(*files, deployed())
    pod = namespace.wait(
        "pods", lambda pods: next((n for n in pods if n.startswith("edl-dashboard")), None)
    )

    line = namespace.wait_log(pod, "found ", container="asker")

    found = json.loads(line.partition("found ")[2])
    assert (401, 401, True) == (found["nobody"], found["wrong"], found["page"])
    snapshot = found["job"]
    assert ("running", True) == (snapshot["status"]["state"], snapshot["live"])
    meter = snapshot["meter"]
    assert (60, 0, 0) == (meter["applied"], meter["lost"], meter["twice"])
    assert (403, []) == (found["stop"], snapshot["actions"])

    account = yaml.safe_load(namespace.kubeconfig("edl-dashboard").read_text())
    api = namespace.cluster.api_as(account["users"][0]["user"]["token"])
    assert api.call("GET", path_of("configmaps", namespace.name, "edl-demo-status"))
    for method, resource, name in (
        ("PATCH", "configmaps", "edl-demo-status"),
        ("DELETE", "jobs", "edl-demo"),
        ("DELETE", "pods", "edl-demo-master-0"),
        ("GET", "secrets", "edl-dashboard"),
    ):
        where, body = path_of(resource, namespace.name, name), {} if method == "PATCH" else None
        with pytest.raises(ApiError) as refused:
            api.call(method, where, body, content_type="application/merge-patch+json")
        assert 403 == refused.value.code

"""The limits of a person with the role edl-user: jobs of one's own, and nothing of others."""

from __future__ import annotations

import copy
import json

import pytest
from tools.jobs import write_records
from tools.kube_api import ApiError, path_of
from tools.kube_objects import IMAGE, volumes
from tools.turns import in_turn

PODS = {"hostPID": True, "hostIPC": True, "hostNetwork": True, "nodeName": "node0"}
PODS |= {"serviceAccountName": "edl-controller", "automountServiceAccountToken": True}
PODS |= {"securityContext": {"runAsUser": 0}, "priorityClassName": "system-node-critical"}
CONTAINER = {
    "securityContext": {"privileged": True, "capabilities": {"add": ["SYS_ADMIN"]}},
    "envFrom": [{"secretRef": {"name": "of-others"}}],
    "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "of-others", "key": "a"}}}],
    "ports": [{"containerPort": 80, "hostPort": 80}],
    "image": "another:1",
}
SOURCES = {
    "secret": {"secretName": "of-others"},
    "configMap": {"name": "of-others"},
    "hostPath": {"path": "/etc"},
    "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]},
    "csi": {"driver": "inline.example"},
    "downwardAPI": {"items": []},
    "nfs": {"server": "nfs", "path": "/"},
}
# By its import it looks for what only the master may have, wherever it is imported.
DEFINITION = """
import json, os, socket
found = {"token": os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token")}
with open(f"{FOLDER}/saw-{os.environ['EDL_POD']}-{os.getpid()}", "w") as file:
    json.dump(found, file)
from torch import nn, zeros
def model(): return nn.Linear(1, 1)
def loss(outputs, labels): return (outputs - labels).pow(2).mean()
def optimizer():
    from edl.nn.optimizers import SGD
    return SGD(lr=0.0)
def feed(records, mode):
    import time
    time.sleep(0.2)
    return zeros(len(records), 1), zeros(len(records), 1)
"""


@pytest.fixture
def anna(namespace, controller):
    """Return a function that makes requests as Anna, who has the role edl-user."""
    namespace.kubectl("create", "serviceaccount", "anna")
    namespace.kubectl(
        *("create", "rolebinding", "anna", "--role=edl-user"),
        f"--serviceaccount={namespace.name}:anna",
    )
    namespace.kubectl("create", "secret", "generic", "of-others", "--from-literal=a=hidden")
    path = path_of("serviceaccounts", namespace.name, "anna/token")
    asked = {"spec": {"audiences": [], "expirationSeconds": 3600}}
    api = namespace.cluster.api_as(namespace.api.call("POST", path, asked)["status"]["token"])

    def request(method, name="", body=None, resource="edljobs"):
        merge = "application/merge-patch+json" if method == "PATCH" else "application/json"
        where = path_of(resource, namespace.name, name)
        return api.call(method, where, body, content_type=merge)

    return request


def job(name, **spec):
    about = {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "metadata": {"name": name}}
    settings = {"model_def": "iris", "training_data": "/data/a.csv"}
    return {**about, "spec": {"image": IMAGE, "settings": settings, **spec}}


def ways():
    """Yield (name, spec): each would give more than an EdlJob."""
    roles = ("master", "ps", "worker")
    for kind, source in SOURCES.items():
        volume = {"name": "v", kind: source}
        yield f"volume-{kind}", {"volumes": [volume]}
        yield f"template-{kind}", {"worker": {"podTemplate": {"spec": {"volumes": [volume]}}}}
        if kind in ("secret", "hostPath"):
            yield f"jobvolume-{kind}", {"jobVolume": {kind: source}}
    for field, value in PODS.items():
        for role in roles:
            yield f"{role}-{field}", {role: {"podTemplate": {"spec": {field: value}}}}
    for field, value in CONTAINER.items():
        container = {"name": "edl", field: value}
        yield f"in-{field}", {"worker": {"podTemplate": {"spec": {"containers": [container]}}}}
    for kind in ("initContainers", "ephemeralContainers", "containers"):
        more = [{"name": "more", "image": IMAGE, "command": ["sh"]}]
        yield f"more-{kind}", {"master": {"podTemplate": {"spec": {kind: more}}}}
    env = [{"name": "PYTHONPATH", "value": "/data"}]
    container = {"name": "edl", "env": env}
    yield "master-env", {"master": {"podTemplate": {"spec": {"containers": [container]}}}}
    over = {"volumes": [{"name": "v", "emptyDir": {}}]}
    yield "over-edl", {**over, "volumeMounts": [{"name": "v", "mountPath": "/etc/edl"}]}
    yield "pull-secret", {"imagePullSecrets": [{"name": "of-others"}]}
    yield "class", {"worker": {"priorityClassName": "system-cluster-critical"}}
    yield "taints", {"worker": {"tolerations": [{"operator": "Exists"}]}}
    labels = {"metadata": {"labels": {"app": "shop"}}}
    yield "labels", {"ps": {"podTemplate": labels}}


def test_who_may_only_create_edljobs_gets_no_more_by_one(anna, namespace, folder):
    """No pod is made of any of them, at its creation and after it."""
    made = dict(ways())
    names = {name.lower(): name for name in made}
    for name, spec in names.items():
        anna("POST", body=job(name, **made[spec]))
    anna(
        "POST",
        body=job("account")
        | {
            "spec": {
                **job("a")["spec"],
                "settings": {
                    "model_def": "iris",
                    "training_data": "/data/a.csv",
                    "service_account": "edl-controller",
                },
            }
        },
    )

    def refused(jobs):
        said = {
            name: next(
                (
                    c
                    for c in found.get("status", {}).get("conditions", [])
                    if c["type"] == "Accepted"
                ),
                {},
            )
            for name, found in jobs.items()
        }
        return said if all(each.get("reason") for each in said.values()) else None

    said = namespace.wait("edljobs", refused)
    words = namespace.kubectl("describe", "edljob", "volume-secret")

    assert {each["reason"] for each in said.values()} == {"NotAllowed"}, said
    assert "of-others" in said["volume-secret"]["message"]
    assert namespace.objects("pods") == {}
    assert "(secrets: of-others)" in words
    assert "Events:  <none>" not in words
    for resource in ("pods", "secrets"):
        with pytest.raises(ApiError) as forbidden:
            anna("POST", body={"metadata": {"name": "x"}}, resource=resource)
        assert forbidden.value.code == 403
    with pytest.raises(ApiError) as forbidden:
        anna("GET", resource="secrets")
    assert forbidden.value.code == 403


@in_turn(0)
def test_a_users_code_meets_no_token_and_leaves_at_once(anna, namespace, folder):
    """Check, train and suspend a definition; then change the job to one that is not allowed.

    It gets no other master.
    """
    (folder / "spy.py").write_text(DEFINITION.replace("{FOLDER}", str(folder)))
    settings = {
        "model_zoo": str(folder),
        "model_def": "spy",
        "training_data": str(write_records(folder / "records.npz", 4096)),
        "minibatch_size": 16,
        "use_async": True,
    }
    small = {"resources": {"requests": {"cpu": "100m", "memory": "700Mi"}}}
    low = {"resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}
    anna(
        "POST",
        body=job(
            "spied",
            settings=settings,
            **volumes(folder),
            master=copy.deepcopy(low),
            ps=small,
            worker={**small, "replicas": 1},
        ),
    )

    def so(until, within_s=500.0):
        def look(jobs):
            status = jobs["spied"].get("status", {})
            assert status.get("phase") != "Failed", status
            return status if until(status) else None

        return namespace.wait("edljobs", look, within_s=within_s)

    so(lambda s: s.get("phase") == "Running")  # after the check ran out of memory, see below
    masters = namespace.objects("pods", "edl.dev/role=master")
    anna("PATCH", "spied", {"spec": {"suspend": True}})
    so(lambda s: s["phase"] == "Suspended")
    anna(
        "PATCH",
        "spied",
        {"spec": {"suspend": False, "worker": {"podTemplate": {"spec": {"hostNetwork": True}}}}},
    )
    told = so(lambda s: s["conditions"][0]["reason"] == "NotAllowed")
    words = namespace.kubectl("describe", "edljob", "spied")

    saw = {path.name: json.loads(path.read_text()) for path in folder.glob("saw-*")}
    roles = {name.split("-")[3] for name in saw}
    assert roles == {"master", "ps", "worker"} or roles == {"master", "worker"}, saw
    assert not any(each["token"] for each in saw.values())
    assert masters
    assert namespace.objects("pods", "edl.dev/role=master").keys() <= masters.keys()
    assert "hostNetwork" in told["message"]
    assert "ran out of memory (128Mi)" in words
    assert "Running" in words

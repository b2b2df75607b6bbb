"""Process nodes are kubelets of today: tokens, mounts that follow, sidecars, environments."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import pytest
from tools.kube import ROOT
from tools.kube_api import path_of
from tools.kube_objects import make_pod

TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
# Says what stands in a file, and again whenever it is another text, each with its number.
FOLLOW = (
    "import sys, time\n"
    "number, said = 0, None\n"
    "while True:\n"
    "    text = open(sys.argv[1]).read().strip()\n"
    "    if text != said:\n"
    "        number += 1\n"
    "        print(number, text, flush=True)\n"
    "    said = text\n"
    "    time.sleep(0.05)\n"
)


def config(name, **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def claims(token):
    part = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def test_a_token_is_the_pods_own_lives_600_s_and_is_renewed(namespace):
    pod = make_pod("asks", "python", "-c", FOLLOW, TOKEN)
    pod["metadata"]["annotations"] = {"prockubelet/renew-at": "0.003"}  # after 1.8 s, not 480
    namespace.apply(pod)

    first, second = (claims(namespace.wait_log("asks", f"{n} ").split()[1]) for n in (1, 2))

    uid = namespace.objects("pods")["asks"]["metadata"]["uid"]
    assert [600, 600] == [token["exp"] - token["iat"] for token in (first, second)]
    assert [uid, uid] == [token["kubernetes.io"]["pod"]["uid"] for token in (first, second)]
    assert first["iat"] < second["iat"]


def test_a_mounted_config_map_follows_its_object_and_a_path_in_it_does_not(namespace):
    pod = make_pod("reads", "python", "-c", FOLLOW, "/config/key")
    fixed = make_pod("fixed", "python", "-c", FOLLOW, "/config/key")
    for each in (pod, fixed):
        each["spec"]["volumes"] = [{"name": "config", "configMap": {"name": "told"}}]
    (container,) = pod["spec"]["containers"]
    container["volumeMounts"] = [{"name": "config", "mountPath": "/config"}]
    (container,) = fixed["spec"]["containers"]
    container["volumeMounts"] = [{"name": "config", "mountPath": "/config/key", "subPath": "key"}]
    namespace.apply(config("told", key="one"), pod, fixed)
    namespace.wait_log("reads", "1 one")
    namespace.wait_log("fixed", "1 one")

    namespace.apply(config("told", key="two"))
    namespace.wait_log("reads", "2 two")

    assert "1 one\n" == namespace.log("fixed")


def test_a_sidecar_runs_beside_its_pod_and_ends_after_it(namespace):
    pod = make_pod("beside", "sh", "-c", "sleep 1; echo done; exit 0")
    trapped = "trap 'echo told to end; exit 3' TERM; echo begins; while :; do sleep 0.1; done"
    sidecar = make_pod("any", "sh", "-c", trapped)["spec"]["containers"][0]
    pod["spec"]["initContainers"] = [
        {**sidecar, "name": "sidecar", "restartPolicy": "Always"},
        make_pod("any", "sh", "-c", "true")["spec"]["containers"][0] | {"name": "once"},
    ]
    namespace.apply(pod)

    ended = namespace.wait_phase("beside", "Succeeded")

    path = path_of("pods", namespace.name, "beside/log", container="sidecar")
    states = {
        each["name"]: each["state"]["terminated"]["exitCode"]
        for kind in ("initContainerStatuses", "containerStatuses")
        for each in ended["status"][kind]
    }
    assert "begins\ntold to end\n" == namespace.api.text("GET", path)
    assert {"main": 0, "once": 0, "sidecar": 3} == states


def test_a_change_of_a_pod_is_told_to_be_seen(namespace):
    namespace.apply(make_pod("stays", "sleep", "600"))
    before = namespace.wait_phase("stays", "Running")

    change = {"spec": {"activeDeadlineSeconds": 500}}
    path = path_of("pods", namespace.name, "stays")
    after = namespace.api.call("PATCH", path, change, content_type="application/merge-patch+json")

    seen = after["metadata"]["generation"]
    assert before["metadata"]["generation"] == before["status"]["observedGeneration"] < seen
    assert namespace.wait(
        "pods", lambda pods: pods["stays"]["status"]["observedGeneration"] == seen, within_s=30
    )


@pytest.mark.parametrize("image", [True, False], ids=["of-this-checkout", "of-nothing"])
def test_a_pods_environment_is_its_images_and_its_own_alone(namespace, image):
    pod = make_pod("tells", "/usr/bin/env")
    (container,) = pod["spec"]["containers"]
    container["env"] = [{"name": "OWN", "value": "x"}]
    if not image:
        container |= {"image": "registry.k8s.io/pause:3.10"}
    namespace.apply(pod)
    namespace.wait_phase("tells", "Succeeded")

    found = dict(line.split("=", 1) for line in namespace.log("tells").splitlines())
    usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    ours = {
        "PATH": f"{Path(sys.executable).parent}:{usual}",
        "PYTHONPATH": str(ROOT / ".pythonpath"),
        "OMP_NUM_THREADS": "1",
    }
    api = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert found == {
        "HOME": "/root",
        "HOSTNAME": "tells",
        "OWN": "x",
        **api,
        **(ours if image else {"PATH": usual}),
    }

"""Templates out of the settings, and replicas out of templates."""

from __future__ import annotations

import json
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.common.errors import UsageError
from edl.common.settings import JobSettings
from edl.k8s import names, objects, pods
from edl.k8s.confined import confined
from edl.k8s.job import wanted
from edl.k8s.outside.submit import plan
from edl.runtime.base import Replica


def settings(**more) -> JobSettings:
    return JobSettings(**{"job_name": "demo", "image_name": "edl:1", **more})


def spec(role="worker", overlays=None, **more):
    return pods.templates(settings(**more), overlays)[role]["spec"]


def test_pods_are_restricted_and_only_the_master_has_a_token():
    found = pods.templates(settings())

    tokens = {role: each["spec"]["automountServiceAccountToken"] for role, each in found.items()}
    assert tokens == {r: r == "master" for r in names.TEMPLATES}
    for each in found.values():
        container = pods.container_of(each)
        assert each["spec"]["securityContext"]["runAsNonRoot"]
        assert each["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }


def test_no_call_of_a_pod_takes_a_port_at_which_it_listens():
    """The system picks the port of a call: Linux from 32768 on, gVisor from 16000 on.

    Broken once: a call to the API server held 50002, and the master that found it taken failed.
    """
    for role, each in pods.templates(settings(max_teachers=1, num_teachers=1)).items():
        container = pods.container_of(each)
        named = {port["name"]: port["containerPort"] for port in container["ports"]}
        env = {said["name"]: said.get("value") for said in container["env"]}

        assert named.keys() == {"health", "metrics"} | ({"grpc"} if role == "master" else set())
        assert all(1024 <= port < 16000 for port in named.values())
        assert env["EDL_HEALTH_PORT"] == str(named["health"])
        assert env["EDL_METRICS_PORT"] == str(named["metrics"])
        assert container["livenessProbe"]["grpc"] == {"port": named["health"]}


def test_no_secret_stands_in_a_pod_or_the_config():
    """Tokens reach a pod by reference; the Secret alone holds them."""
    from edl.common.identity import Identity

    identity = Identity.create("the-token")
    made = pods.templates(settings())
    env = {"EDL_TOKEN": "the-token", "EDL_IDENTITY": identity.to_variable(), "A": "b"}

    pod = pods.replica(
        made["worker"],
        Replica("worker", 0, "a1"),
        job="demo",
        arguments=(),
        env=env,
        owner=None,
    )
    text = json.dumps(
        [pod, objects.config(settings(), made), objects.master_job("demo", made["master"])]
    )

    assert "the-token" not in text
    assert identity.to_variable() not in text
    assert "the-token" not in json.dumps(objects.secret("demo", identity))  # base64


def test_limits_are_the_memory_asked_for_unless_said():
    default = pods.container_of({"spec": spec()})["resources"]
    said = pods.container_of(
        {"spec": spec(worker_resource_request="cpu=1,gpu=1", worker_resource_limit="cpu=2,gpu=1")}
    )["resources"]

    assert default == {
        "requests": {"cpu": "1", "memory": "4096Mi"},
        "limits": {"memory": "4096Mi"},
    }
    assert said["limits"] == {"cpu": "2", "nvidia.com/gpu": "1"}


def test_a_limit_below_the_request_is_refused():
    with pytest.raises(UsageError, match="--worker_resource_limit: memory=1Gi is below"):
        spec(worker_resource_limit="memory=1Gi")


@given(st.integers(1, 200), st.integers(0, 100))
def test_a_fraction_of_the_workers_is_high(workers, percent):
    """The first workers are, at least that fraction: scaling down takes the last."""
    pools = [pods.worker_pool(str(percent / 100), workers, index) for index in range(workers)]

    high = pools.count("worker_high")
    assert percent * workers <= 100 * high < percent * workers + 100
    assert pools == sorted(pools, key=["worker_high", "worker_low"].index)


def test_priorities_by_word_name_and_fraction():
    words = pods.templates(settings(worker_pod_priority="low", ps_pod_priority="mine"))
    fraction = pods.templates(settings(worker_pod_priority="0.5"))

    def classes(found):
        return {role: each["spec"].get("priorityClassName") for role, each in found.items()}

    assert classes(words)["worker"] == "edl-low"
    assert classes(words)["ps"] == "mine"
    assert classes(fraction) == {
        "master": None,
        "ps": None,
        "worker": None,
        "worker_high": "edl-high",
        "worker_low": "edl-low",
        "teacher": None,
    }


def test_overlays_add_to_what_is_there_by_name():
    overlays = {
        "pod": {"nodeSelector": {"disk": "ssd"}, "labels": {"team": "a"}},
        "worker": {"spec": {"containers": [{"name": "edl", "env": [{"name": "X", "value": "1"}]}]}},
        "worker_low": {"nodeSelector": {"pool": "spot"}, "tolerations": [{"key": "spot"}]},
    }

    found = pods.templates(settings(), overlays)

    low, high = found["worker_low"], found["worker_high"]
    assert low["spec"]["nodeSelector"] == {"disk": "ssd", "pool": "spot"}
    assert high["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert {"key": "spot"} in low["spec"]["tolerations"]
    assert len(low["spec"]["tolerations"]) == 3
    assert low["metadata"]["labels"]["team"] == "a"
    env = [e["name"] for e in pods.container_of(low)["env"]]
    assert env[-1] == "X"
    assert "EDL_TOKEN" in env


@pytest.mark.parametrize("overlays", [{"workers": {}}, {"worker": []}])
def test_a_wrong_overlay_is_refused(overlays):
    with pytest.raises(UsageError, match="--cluster_spec"):
        pods.templates(settings(), overlays)


def test_the_job_volume_is_mounted_where_the_books_are():
    found = pods.templates(settings(job_volume="claim_name=books"))

    for role in ("master", "ps"):
        volumes = {v["name"]: v for v in found[role]["spec"]["volumes"]}
        mounts = {m["name"]: m for m in pods.container_of(found[role])["volumeMounts"]}
        assert volumes["job"]["persistentVolumeClaim"] == {"claimName": "books"}
        assert mounts["job"] == {"name": "job", "mountPath": pods.JOB_DIR, "subPath": "edl-demo"}
    assert "job" not in {v["name"] for v in found["worker"]["spec"]["volumes"]}


@pytest.mark.parametrize("strategy", ["ps", "allreduce", "hybrid"])
@pytest.mark.parametrize("more", [{}, {"job_volume": "claim_name=c"}])
def test_every_process_may_write_into_its_jobs_folder(strategy, more):
    """User 1000 of an image makes no folder in its root.

    Seen once, on a kubelet: workers keep there what they saw of the data, and all failed.
    """
    made = pods.templates(settings(strategy=strategy, **more))
    kept = confined(made, "uid", "edl:2", "Always", ())

    for role, each in [*made.items(), ("master", kept)]:
        volumes = {volume["name"] for volume in each["spec"]["volumes"]}
        for container in [*each["spec"].get("initContainers", []), *each["spec"]["containers"]]:
            mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            assert mounts.get(pods.JOB_DIR) in volumes, (role, container["name"])
            assert len(mounts) == len(container["volumeMounts"])


def test_a_servers_kernels_lie_in_the_job_volume():
    def cache(role):
        env = pods.container_of(pods.templates(settings())[role])["env"]
        return [each["value"] for each in env if each["name"] == "EDL_KERNEL_CACHE"]

    assert [f"{pods.JOB_DIR}/kernels"] == cache("ps")
    assert [] == cache("worker")


def test_names_of_variables_are_those_that_the_processes_read():
    from edl.common import rpc

    assert pods.TOKEN_VARIABLE == rpc.TOKEN_VARIABLE


def test_edl_help_imports_no_kubernetes():
    import subprocess

    code = (
        "import sys, edl.cli.main; edl.cli.main.run(['--help']); print('kubernetes' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True
    )

    assert done.stdout.splitlines()[-1] == "False"


def test_labels_find_what_they_label():
    found = names.labels("demo", "worker")

    assert found[names.JOB_LABEL] == "demo"
    assert found["app.kubernetes.io/component"] == "worker"
    assert names.selector("demo", "ps", "worker") == (
        "edl.dev/job-name=demo,edl.dev/role in (ps,worker)"
    )


def test_the_pods_of_a_job_that_nobody_preempts_ask_autoscalers_to_leave_them():
    firm = {"preemptible": False, "ps_pod_priority": "high"}

    usual, made = pods.templates(settings(ps_pod_priority="high")), pods.templates(settings(**firm))

    for role in names.TEMPLATES:
        assert made[role]["metadata"]["annotations"] == {
            **usual[role]["metadata"]["annotations"],
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
        }
        assert made[role]["spec"] == usual[role]["spec"]
    with pytest.raises(UsageError, match="--preemptible false and --worker_pod_priority 0.5: work"):
        pods.templates(settings(**firm, worker_pod_priority="0.5"))


def test_an_edljob_is_submitted_as_one_that_nobody_preempts():
    asked = settings(preemptible=False, model_def="iris", training_data="/d", runtime="kubernetes")
    (made,) = plan(asked, "edljob")

    assert made["spec"]["preemptible"] is False
    assert "podTemplate" not in made["spec"]["worker"]
    assert wanted(made).settings.preemptible is False
    with pytest.raises(UsageError, match=r"spec\.preemptible is a text, and must be true or false"):
        wanted({**made, "spec": {**made["spec"], "preemptible": "no"}})

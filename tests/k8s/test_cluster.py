"""The cluster that the other tests here need: real scheduling, preemption, node loss, outages."""

import threading

import pytest
from tools.kube_api import UNREACHABLE, ApiError, path_of
from tools.kube_objects import make_pod, phase

import edl


@pytest.fixture
def priorities(cluster):
    classes = [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        for name, value in (("low", 10), ("high", 1000))
    ]
    cluster.apply(*classes)


def test_a_pod_runs_this_checkout_and_its_log_is_read(namespace):
    namespace.apply(make_pod("hello", "python", "-c", "import edl; print(edl.__version__)"))

    namespace.wait_phase("hello", "Succeeded")

    assert f"{edl.__version__}\n" == namespace.log("hello")


def test_an_exit_code_and_an_image_that_is_not_there_are_told(namespace):
    missing = make_pod("missing", "true")
    missing["spec"]["containers"][0]["image"] = "edl:unheard-of"
    namespace.apply(make_pod("fails", "python", "-c", "raise SystemExit(7)"), missing)

    def state(pods, name):
        statuses = pods[name].get("status", {}).get("containerStatuses") or [{"state": {}}]
        return statuses[0]["state"]

    failed = namespace.wait_phase("fails", "Failed")
    reason = namespace.wait(
        "pods", lambda pods: state(pods, "missing").get("waiting", {}).get("message"), within_s=30
    )

    assert 7 == state({"fails": failed}, "fails")["terminated"]["exitCode"]
    assert 'no image "edl:unheard-of" on this node' == reason


def test_the_scheduler_preempts_low_priority_pods_for_a_high_one(namespace, priorities):
    low = [
        make_pod(f"low-{i}", "sleep", "600", cpu="1200m", priorityClassName="low")
        for i in range(12)  # 3 on each of 4 nodes of 4 cores
    ]
    namespace.apply(*low)
    namespace.wait("pods", lambda pods: [phase(pod) for pod in pods.values()] == ["Running"] * 12)

    namespace.apply(make_pod("high", "sleep", "600", cpu="2", priorityClassName="high"))
    high = namespace.wait_phase("high", "Running")

    assert 12 + 1 - 2 == len(
        namespace.objects("pods")
    )  # 0.4 cores were free and 2 asked for: 2 victims
    assert high["spec"]["nodeName"].startswith("pk-")
    assert "Preempted" in {event["reason"] for event in namespace.objects("events").values()}


def test_the_pods_of_a_crashed_node_are_evicted_and_gone_when_it_is_back(cluster, namespace):
    namespace.apply(make_pod("stays", "sleep", "600"))
    node = namespace.wait_phase("stays", "Running")["spec"]["nodeName"]

    cluster.crash(node)
    namespace.wait(
        "pods", lambda pods: pods["stays"]["metadata"].get("deletionTimestamp"), within_s=30
    )
    cluster.restore(node)

    assert namespace.wait("pods", lambda pods: "stays" not in pods)


def test_a_lingering_pod_is_failed_and_marked_as_deleted(cluster, namespace):
    cluster.linger(3)
    namespace.apply(make_pod("lingers", "sleep", "600"))
    namespace.wait_phase("lingers", "Running")

    namespace.kubectl("delete", "pod", "lingers", "--wait=false")
    pod = namespace.wait_phase("lingers", "Failed")

    assert "deletionTimestamp" in pod["metadata"]
    assert namespace.wait("pods", lambda pods: not pods)


def test_a_restarted_api_server_drops_watches_and_says_gone_to_an_old_version(cluster, namespace):
    path = path_of("pods", namespace.name)
    version = namespace.api.call("GET", path)["metadata"]["resourceVersion"]
    seen, ended = [], threading.Event()

    def watch():
        try:
            seen.extend(namespace.api.watch(path, version, within_s=60))
        except (*UNREACHABLE, ApiError):
            pass  # how it ends does not matter, only that it does
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    namespace.apply(make_pod("before", "true"))
    namespace.wait_phase("before", "Succeeded")
    with cluster.outage():
        assert ended.wait(30)
        with pytest.raises(UNREACHABLE):
            namespace.api.call("GET", path, timeout_s=2)
    with pytest.raises(ApiError) as gone:
        list(namespace.api.watch(path, version, within_s=10))

    assert 410 == gone.value.code
    assert ["before"] == list(namespace.objects("pods"))


def test_two_pods_speak_through_a_service_by_its_name(namespace):
    server = make_pod("server", "python", "-m", "http.server", "8000")
    server["metadata"]["labels"] = {"role": "server"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "pages"},
        "spec": {"selector": {"role": "server"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    fetch = (
        "import socket, sys, time, urllib.request\n"
        "for _ in range(100):\n"
        "    try:\n"
        "        print(urllib.request.urlopen('http://pages/', timeout=3).status)\n"
        "        sys.exit(0)\n"
        "    except OSError:\n"
        "        time.sleep(0.2)\n"
        "sys.exit(1)\n"
    )
    namespace.apply(server, service, make_pod("client", "python", "-c", fetch))

    namespace.wait_phase("client", "Succeeded")

    assert "200\n" == namespace.log("client")


def test_a_claim_outlives_its_pods(namespace, tmp_path):
    namespace.claim("job", tmp_path)
    mounted = {
        "volumes": [{"name": "job", "persistentVolumeClaim": {"claimName": "job"}}],
    }
    for name, command in (("writes", "echo kept >/job/file"), ("reads", "cat /job/file")):
        pod = make_pod(name, "sh", "-c", command, **mounted)
        pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "job", "mountPath": "/job"}]
        namespace.apply(pod)
        namespace.wait_phase(name, "Succeeded")

    assert "kept\n" == namespace.log("reads")


def test_a_service_account_may_do_what_its_role_says_and_nothing_else(namespace):
    namespace.kubectl("create", "serviceaccount", "reader")
    namespace.kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods")
    namespace.kubectl(
        "create",
        "rolebinding",
        "reader",
        "--role=reader",
        f"--serviceaccount={namespace.name}:reader",
    )
    kubeconfig = f"--kubeconfig={namespace.kubeconfig('reader')}"

    assert "" == namespace.kubectl(kubeconfig, "get", "pods", "--output=name")
    with pytest.raises(AssertionError, match="Forbidden"):
        namespace.kubectl(kubeconfig, "get", "secrets")

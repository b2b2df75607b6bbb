"""`edl doctor`, through the real entry."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tools.apiserver import ApiServer
from tools.clustered import FLAGS

from edl.k8s import holders

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def healthy(server: ApiServer, edljobs: None) -> ApiServer:
    """A cluster with all that a job needs, and a claim called journal."""
    server.add("namespaces", "lab")
    for name in ("edl-master", "edl-replica"):
        server.add("serviceaccounts", name)
    for name in ("edl-high", "edl-low"):
        server.add("priorityclasses", name)
    server.add("secrets", "login")
    claim(server, "data")
    claim(server, "journal")
    return server


def claim(server: ApiServer, name: str, phase: str = "Bound", mode: str = "ReadWriteOnce") -> None:
    spec = {"accessModes": [mode]}
    server.add("persistentvolumeclaims", name, spec=spec, status={"phase": phase})


@pytest.fixture
def doctor(run: Run) -> Callable[..., tuple[int, dict[str, list[tuple[str, str]]]]]:
    """Return a function that runs the doctor: its exit code, and (level, detail) by subject."""

    def call(*flags: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
        code, out, err = run("doctor", "-o", "json", *flags)
        assert "" == err
        found: dict[str, list[tuple[str, str]]] = {}
        for each in json.loads(out):
            found.setdefault(each["what"], []).append((each["level"], each["detail"]))
        return code, found

    return call


ALL = (
    *FLAGS,
    "--image_pull_secret=login",
    "--worker_pod_priority=0.5",
    "--volume=claim_name=data,mount_path=/data",
    "--job_volume=claim_name=journal",
)


def test_cluster_with_all_that_a_job_needs_is_ok(run: Run, healthy: ApiServer) -> None:
    code, out, err = run("doctor", *ALL)

    assert (0, "") == (code, err)
    assert out.splitlines() == [
        "ok      cluster: Kubernetes v1.37.2, namespace lab",
        "ok      clock: as the API server's",
        "ok      namespace: lab",
        "ok      EdlJob: known, and its controller runs (c-1)",
        "ok      rights: yours: all 14 that submitting an EdlJob needs",
        "ok      service account: edl-master",
        "ok      service account: edl-replica",
        "ok      priority class: edl-high",
        "ok      priority class: edl-low",
        "ok      master's rights: edl-master: all 15 that it needs",
        "ok      image: edl:1",
        "ok      pull secret: login",
        "ok      volume claim: data",
        "ok      volume claim: journal",
        "warning job volume: ReadWriteOnce: master and servers can only run on the node that has "
        + "it: say so by a node selector in --cluster_spec",
    ]


def test_empty_cluster_has_one_error_for_each_cause(doctor: Any, server: ApiServer) -> None:
    code, found = doctor(*ALL)

    errors = {what for what, told in found.items() if "error" in [level for level, _ in told]}
    assert 1 == code
    assert errors == {
        "namespace",
        "installation",
        "pull secret",
        "volume claim",
    }
    ((_, told),) = found["installation"]
    assert "service account edl-master" in told
    assert "priority class edl-high" in told
    assert "helm install edl k8s/manifests/chart -n lab" in told
    assert "kubectl create namespace lab" in found["namespace"][0][1]
    assert "create secret docker-registry login" in found["pull secret"][0][1]
    assert found["EdlJob"][0][0] == "warning"


def test_edljob_that_is_asked_for_and_lacks_is_an_error(doctor: Any, server: ApiServer) -> None:
    _, found = doctor("--as", "edljob")

    assert ("error", True) == (found["EdlJob"][0][0], "not known here" in found["EdlJob"][0][1])


def test_edljobs_without_a_controller_are_told(doctor: Any, healthy: ApiServer) -> None:
    healthy.remove("edl-controller", plural="leases")

    _, found = doctor()

    assert ("warning", True) == (
        found["EdlJob"][0][0],
        "no controller is seen to run" in found["EdlJob"][0][1],
    )
    assert "a batch Job" in found["rights"][0][1]


def test_right_that_lacks_is_told_with_the_command_that_gives_it(
    doctor: Any, healthy: ApiServer
) -> None:
    healthy.forbidden = {("create", "secrets"), ("get", "pods/log")}

    code, found = doctor("--as", "job", *FLAGS)

    details = [detail for _, detail in found["rights"]]
    assert (1, 2) == (code, len(details))
    assert "you may not get pods/log: the role edl-user gives it: kubectl -n lab" in details[0]
    assert "create secrets: the role edl-submitter gives it" in details[1]


def test_who_may_nothing_reads_one_line_for_each_role(doctor: Any, healthy: ApiServer) -> None:
    """Broken once: a line for each verb."""
    pods = {(verb, "pods") for verb in ("get", "list", "watch", "create", "delete")}
    healthy.forbidden = pods | {("create", "services"), ("create", "jobs"), ("get", "jobs")}
    healthy.of_others = pods

    code, found = doctor("--as", "job", *FLAGS)

    told = [detail for level, detail in found["rights"] + found["master's rights"]]
    assert (1, 3) == (code, len(told)), told
    assert "get, list and watch pods" in told[0] + told[1]
    assert "edl-master may not get, list, watch, create and delete pods" in told[2]


def test_right_that_the_master_lacks_is_an_error(doctor: Any, healthy: ApiServer) -> None:
    healthy.of_others = {("delete", "pods")}

    code, found = doctor(*FLAGS)

    ((level, detail),) = found["master's rights"]
    assert (1, "error", True) == (code, level, "edl-master may not delete pods" in detail)


def test_what_one_may_not_look_at_is_a_warning(doctor: Any, healthy: ApiServer) -> None:
    healthy.forbidden = {
        ("get", "namespaces"),
        ("get", "priorityclasses"),
        ("create", "localsubjectaccessreviews"),
    }

    code, found = doctor(*ALL)

    assert 0 == code
    for what in ("namespace", "priority class", "master's rights"):
        assert {"warning"} == {level for level, _ in found[what]}
    assert "you may not look" in found["namespace"][0][1]


@pytest.mark.parametrize(
    ("name", "level", "part"),
    [
        ("registry.example:5000/team/edl:1.0", "ok", "team/edl"),
        (f"edl@sha256:{'0' * 64}", "ok", "edl@sha256"),
        ("Edl:1", "error", "is no name of an image"),
        ("edl:1:2", "error", "is no name of an image"),
        ("edl", "warning", "give it a tag"),
        ("edl:latest", "warning", "give it a tag"),
    ],
)
def test_name_of_an_image_is_read(
    doctor: Any, healthy: ApiServer, name: str, level: str, part: str
) -> None:
    _, found = doctor(f"--image_name={name}")

    ((told, detail),) = found["image"]
    assert (level, True) == (told, part in detail)


@pytest.mark.parametrize(
    ("phase", "level", "part"),
    [("Pending", "warning", "not bound yet"), ("Lost", "error", "slow is Lost: kubectl")],
)
def test_claim_that_is_not_bound_is_told(
    doctor: Any, healthy: ApiServer, phase: str, level: str, part: str
) -> None:
    claim(healthy, "slow", phase)

    _, found = doctor("--job_volume=claim_name=slow")

    ((told, detail),) = found["volume claim"]
    assert (level, True) == (told, part in detail)


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ([], "begins anew; --job_volume"),
        (["--job_volume=host_path=/edl"], "a folder of one node"),
        (["--job_volume=claim_name=shared"], "the journal (SQLite with a WAL)"),
    ],
)
def test_job_volume_has_a_hint(
    doctor: Any, healthy: ApiServer, flags: list[str], part: str
) -> None:
    claim(healthy, "shared", mode="ReadWriteMany")

    code, found = doctor(*flags)

    ((level, detail),) = found["job volume"]
    assert (0, "warning", True) == (code, level, part in detail)


@pytest.mark.parametrize(("skew_s", "part"), [(100.0, "behind"), (-100.0, "ahead of")])
def test_clock_that_is_wrong_is_told(
    doctor: Any, healthy: ApiServer, skew_s: float, part: str
) -> None:
    healthy.skew_s = skew_s

    _, found = doctor()

    ((level, detail),) = found["clock"]
    assert ("warning", True) == (level, f"s {part} the API server" in detail)


def test_server_that_does_not_answer_is_the_only_line(run: Run, server: ApiServer) -> None:
    server.close()

    code, out, _ = run("doctor")

    assert (1, 1, True) == (
        code,
        len(out.splitlines()),
        out.startswith("ERROR   cluster: the Kube"),
    )


def test_credentials_that_are_refused_are_the_only_line(run: Run, server: ApiServer) -> None:
    server.fail("GET", "/version", 401, times=9, message="Unauthorized")

    _, out, _ = run("doctor")

    assert out.startswith("ERROR   cluster: the Kubernetes API takes your credentials for nobody's")
    assert out.endswith("or name another kubeconfig in KUBECONFIG.\n")


def test_no_kubeconfig_is_a_line(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = str(tmp_path / "none")
    monkeypatch.setenv("KUBECONFIG", path)

    code, out, _ = run("doctor")

    assert (1, True) == (code, out.startswith("ERROR   cluster: No Kubernetes cluster is known"))


def test_settings_come_from_a_job_file_too(doctor: Any, healthy: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("image_name: edl:7\nps_pod_priority: urgent\n")

    code, found = doctor("--config", str(tmp_path / "job.yaml"))

    assert (1, "edl:7") == (code, found["image"][0][1])
    assert "there is no urgent" in found["priority class"][0][1]


def test_namespace_is_said_in_both_ways(doctor: Any, healthy: ApiServer) -> None:
    _, short = doctor("-n", "other")
    _, long = doctor("--namespace", "other")

    assert "there is no other" in short["namespace"][0][1]
    assert short["namespace"] == long["namespace"]


def test_a_cluster_that_is_too_old_is_a_failed_check(doctor: Any, healthy: ApiServer) -> None:
    healthy.git_version = "v1.28.15"

    code, found = doctor()

    assert 1 == code
    assert found["cluster"] == [
        ("error", "This cluster is of Kubernetes v1.28.15, and edl needs 1.29 or newer: update it")
    ]


@pytest.fixture
def of_all(healthy: ApiServer) -> ApiServer:
    """Have one controller for all namespaces, in another one, and no job here yet."""
    lease = healthy.objects["leases", "edl-controller"]
    lease["metadata"] |= {"namespace": "edl", "labels": {holders.SERVES: holders.ALL}}
    for name in ("edl-master", "edl-replica"):
        healthy.remove(name, plural="serviceaccounts")
    return healthy


def test_a_controller_of_all_namespaces_brings_the_accounts(doctor: Any, of_all: ApiServer) -> None:
    code, found = doctor(*FLAGS)

    assert 0 == code
    said = "known, and the controller of all namespaces runs (c-1 in the namespace edl)"
    assert [("ok", said)] == found["EdlJob"]
    comes = "it comes with the first EdlJob of the namespace"
    both = [("ok", f"{name}: {comes}") for name in ("edl-master", "edl-replica")]
    assert both == found["service account"]
    assert "master's rights" not in found


def test_a_batch_job_there_needs_the_accounts_all_the_same(doctor: Any, of_all: ApiServer) -> None:
    code, found = doctor("--as", "job", *FLAGS)

    ((level, told),) = found["installation"]
    assert (1, "error") == (code, level)
    assert "service account edl-master" in told


def test_the_role_of_people_is_the_clusters_there(doctor: Any, of_all: ApiServer) -> None:
    of_all.forbidden = {("get", "pods/log")}

    _, found = doctor(*FLAGS)

    ((_, told),) = found["rights"]
    assert told.endswith("create rolebinding name-edl-user --clusterrole edl-user --user NAME")

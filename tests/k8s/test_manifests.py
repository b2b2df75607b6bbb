"""Base, overlays and chart, by the real kubectl and helm; no cluster is needed."""

from __future__ import annotations

import base64
import copy
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from edl.cli.dashboard import dashboard
from edl.dashboard.server import Place

from .tools import Unreachable, fetch

MANIFESTS = Path(__file__).parents[2] / "k8s" / "manifests"
CHART = MANIFESTS / "chart"
CLUSTER_WIDE = {"Namespace", "CustomResourceDefinition", "PriorityClass"}
CLUSTER_WIDE |= {"ClusterRole", "ClusterRoleBinding"}
OF_HELM = ("instance", "managed-by", "version")

Object = dict[str, Any]
Run = Callable[..., str]


@pytest.fixture(scope="session")
def tools() -> Path:
    try:
        return fetch()
    except Unreachable as why:
        pytest.skip(f"no kubectl and helm: {why}")


@pytest.fixture(scope="session")
def run(tools: Path) -> Run:
    def run(tool: str, *arguments: str, code: int = 0) -> str:
        command = [tools / tool, *arguments]
        ended = subprocess.run(command, check=False, capture_output=True, timeout=60)
        output = (ended.stdout + ended.stderr).decode()
        assert (ended.returncode != 0) == bool(code), output
        return output if code else ended.stdout.decode()

    return run


@pytest.fixture(scope="session")
def kustomize(run: Run) -> Callable[[str], list[Object]]:
    return lambda folder: objects(run("kubectl", "kustomize", str(MANIFESTS / folder)))


@pytest.fixture(scope="session")
def template(run: Run) -> Callable[..., list[Object]]:
    def template(*sets: str) -> list[Object]:
        flags = [word for each in sets for word in ("--set-json", each)]
        return objects(run("helm", "template", "edl", str(CHART), "--namespace", "edl", *flags))

    return template


def objects(text: str) -> list[Object]:
    return [each for each in yaml.safe_load_all(text) if each]


def by_name(found: list[Object]) -> dict[tuple[str, str], Object]:
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def plain(found: Object) -> Object:
    """Return an object without what only Helm says of it."""
    made = copy.deepcopy(found)
    for about in (made["metadata"], made.get("spec", {}).get("template", {}).get("metadata", {})):
        labels = about.get("labels", {})
        for name in ("helm.sh/chart", *(f"app.kubernetes.io/{each}" for each in OF_HELM)):
            labels.pop(name, None)
        if about.get("annotations", {}).pop("helm.sh/resource-policy", None) is not None:
            about.pop("annotations")
    return made


@pytest.mark.parametrize("everywhere", [False, True], ids=["one namespace", "all namespaces"])
def test_chart_and_base_with_the_scheduler_are_the_same_objects(
    run, tmp_path, template, everywhere
):
    overlay = {
        "namespace": "edl",
        "resources": [os.path.relpath(MANIFESTS / "base", tmp_path.resolve())],
        "components": [
            os.path.relpath(MANIFESTS / each, tmp_path.resolve())
            for each in ("scheduler", "nodes", "kueue", *["all-namespaces"] * everywhere)
        ],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    base = by_name(objects(run("kubectl", "kustomize", str(tmp_path))))
    del base["Namespace", "edl"]  # Helm makes it, or somebody before

    flags = ["scheduler.enabled=true", "scheduler.nodes=true", "kueue.enabled=true"]
    both = (f"{name}.allNamespaces=true" for name in ("controller", "scheduler"))
    made = template(*flags, *(both if everywhere else ()))
    chart = {name: plain(each) for name, each in by_name(made).items()}
    assert {name: plain(each) for name, each in base.items()} == chart


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("scheduler.enabled=true",), "scheduler.allNamespaces: say true too"),
        (("controller.enabled=false",), "say controller.enabled=true too"),
    ],
)
def test_all_namespaces_go_with_what_serves_all(run, flags, told):
    sets = [f"--set-json={each}" for each in ("controller.allNamespaces=true", *flags)]

    assert told in run("helm", "template", "edl", str(CHART), *sets, code=1)


def test_pods_of_all_namespaces_are_scraped_where_all_are_served(template):
    flags = ("podMonitor.enabled=true", "controller.allNamespaces=true")

    found = by_name(template(*flags))["PodMonitor", "edl"]["spec"]
    assert found["namespaceSelector"] == {"any": True}


@pytest.mark.parametrize(
    ("overlay", "namespace"), [("overlays/dev", "edl-dev"), ("overlays/prod", "edl")]
)
def test_everything_of_an_overlay_is_in_its_namespace(kustomize, overlay, namespace):
    found = kustomize(overlay)

    named = {each["metadata"]["name"] for each in found if each["kind"] == "Namespace"}
    inside = {e["metadata"].get("namespace") for e in found if e["kind"] not in CLUSTER_WIDE}
    subjects = {s["namespace"] for e in found if "subjects" in e for s in e["subjects"]}
    assert named == inside == subjects == {namespace}


def test_production_refuses_pods_that_are_not_restricted_and_traffic_that_nobody_allowed(kustomize):
    found = by_name(kustomize("overlays/prod"))

    labels = found["Namespace", "edl"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    policy = found["NetworkPolicy", "edl-deny-ingress"]["spec"]
    assert policy == {"podSelector": {}, "policyTypes": ["Ingress"]}


def test_the_chart_denies_traffic_as_production_does(kustomize, template):
    name = ("NetworkPolicy", "edl-deny-ingress")

    chart = by_name(template("networkPolicy.denyIngress=true"))[name]
    assert plain(by_name(kustomize("overlays/prod"))[name]) == plain(chart)


def test_helm_has_nothing_to_say_about_the_chart(run):
    told = run("helm", "lint", "--strict", "--quiet", str(CHART))

    assert "[" not in told, told


@pytest.mark.parametrize(
    ("flag", "kinds"),
    [
        ("crds.enabled=false", {"CustomResourceDefinition"}),
        ("priorityClasses.enabled=false", {"PriorityClass"}),
        ("networkPolicy.enabled=false", {"NetworkPolicy"}),
        ("controller.enabled=false", {"Deployment", "NetworkPolicy"}),
        ("rbac.create=false", {"Role", "RoleBinding", "ClusterRole"}),
        ("rbac.aggregate=false", {"ClusterRole"}),
    ],
)
def test_a_flag_of_the_chart_leaves_out_what_it_says(template, flag, kinds):
    every = {each["kind"] for each in template()}

    assert {each["kind"] for each in template(flag)} == every - kinds


def test_users_and_submitters_of_the_chart_are_bound_to_their_roles(template):
    anna = {"kind": "User", "name": "anna", "apiGroup": "rbac.authorization.k8s.io"}
    found = template(f"rbac.users=[{json.dumps(anna)}]", f"rbac.submitters=[{json.dumps(anna)}]")

    bound = {
        each["roleRef"]["name"]: each["subjects"]
        for each in found
        if each["kind"] == "RoleBinding" and each["subjects"] == [anna]
    }
    assert bound == {"edl-user": [anna], "edl-submitter": [anna]}


def test_the_policy_of_users_is_the_components_and_of_the_releases_namespace_alone(template):
    flags = ("scheduler.enabled=true", "scheduler.ownUsers=true")
    said = objects((MANIFESTS / "users/policy.yaml").read_text())

    everywhere, here = (
        [each for each in template(*flags, *more) if each["kind"].startswith("Validating")]
        for more in (("scheduler.allNamespaces=true",), ())
    )

    assert [each["spec"] for each in everywhere] == [each["spec"] for each in said]
    selector = {"matchLabels": {"kubernetes.io/metadata.name": "edl"}}
    assert here[0]["spec"] == said[0]["spec"]
    assert here[1]["spec"]["matchResources"] == {"namespaceSelector": selector}


def test_the_pod_monitor_selects_every_pod_of_edl(template):
    found = by_name(template("podMonitor.enabled=true"))["PodMonitor", "edl"]

    assert found["spec"]["selector"] == {"matchLabels": {"app.kubernetes.io/name": "edl"}}


def test_the_scheduler_of_the_chart_gets_its_quotas_and_the_rights_of_all_namespaces(template):
    quotas = [{"user": "anna", "gpu": 2}]
    flags = ("enabled=true", "allNamespaces=true", f"quotas={json.dumps(quotas)}")
    found = by_name(template(*(f"scheduler.{each}" for each in flags)))

    (container,) = found["Deployment", "edl-scheduler"]["spec"]["template"]["spec"]["containers"]
    assert {"--all-namespaces", "--quotas=/etc/edl/quotas.yaml"} <= set(container["args"])
    told = found["ConfigMap", "edl-scheduler-quotas"]["data"]["quotas.yaml"]
    assert yaml.safe_load(told) == quotas
    rules = found["ClusterRole", "edl-scheduler"]["rules"]
    assert [rule["resources"] for rule in rules] == [
        ["nodes", "pods"],
        ["resourceflavors"],
        ["edljobs"],
        ["workloads"],
    ]


@pytest.mark.parametrize("plain", [False, True], ids=["tls", "plain"])
def test_the_dashboard_of_the_chart_only_reads_and_listens_as_its_command_takes_it(
    template, kustomize, plain
):
    sets = ("dashboard.enabled=true", 'dashboard.hosts=["edl.example.com"]')
    found = by_name(template(*sets, f"dashboard.plain={json.dumps(plain)}"))

    pod = found["Deployment", "edl-dashboard"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = dashboard.make_context("edl dashboard", [*container["args"]]).params
    assert (plain, not plain) == (given["plain"], bool(given["tls_cert"] and given["tls_key"]))
    names = ("edl-dashboard", "edl-dashboard.edl", "edl-dashboard.edl.svc", "edl.example.com")
    assert (names, "edl", False) == (
        given["allow_host"],
        given["namespace"],
        given["allow_actions"],
    )
    data = found["Secret", "edl-dashboard"]["data"]
    token, certificate = (base64.b64decode(data[key]) for key in ("token", "tls.crt"))
    Place(token=token.decode())  # which refuses one that can be no token
    subject = x509.load_pem_x509_certificate(certificate)
    alternatives = subject.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {*names[:3], "localhost"} == set(alternatives.get_values_for_type(x509.DNSName))
    said = by_name(objects((MANIFESTS / "dashboard/role.yaml").read_text()))
    for kind in ("Role", "ServiceAccount"):
        assert said[kind, "edl-dashboard"].get("rules") == found[kind, "edl-dashboard"].get("rules")
    (component,) = objects((MANIFESTS / "dashboard/deployment.yaml").read_text())
    there = component["spec"]["template"]["spec"]
    assert there["securityContext"] == pod["securityContext"]
    assert there["containers"][0]["securityContext"] == container["securityContext"]
    (port,) = found["Service", "edl-dashboard"]["spec"]["ports"]
    assert ("web", 80 if plain else 443) == (port["targetPort"], port["port"])
    policy = found["NetworkPolicy", "edl-dashboard"]["spec"]
    assert policy["ingress"][0]["ports"][0]["port"] == container["ports"][0]["containerPort"]
    assert str(given["port"]) == str(container["ports"][0]["containerPort"])


@pytest.mark.parametrize(
    ("value", "told"),
    [('"any"', "any"), ("1000650000", "1000650000"), ("2147483647", "2147483647")],
)
def test_the_controller_is_told_whom_pods_run_as_and_no_pod_of_the_chart_names_a_user(
    template, value, told
):
    """Broken once: a large number was written with an exponent."""
    on = ("scheduler.enabled=true", "dashboard.enabled=true")
    found = [e for e in template(f"podUser={value}", *on) if e["kind"] == "Deployment"]

    pods = {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in found}
    (container,) = pods["edl-controller"]["containers"]
    assert {"name": "EDL_POD_USER", "value": told} in container["env"]
    assert len(pods) == 3
    assert "runAsUser" not in str(pods)
    assert "fsGroup" not in str(pods)


def test_a_secret_of_the_dashboard_that_is_named_is_not_made(template):
    found = by_name(template("dashboard.enabled=true", 'dashboard.secret="mine"'))

    assert ("Secret", "edl-dashboard") not in found
    pod = found["Deployment", "edl-dashboard"]["spec"]["template"]["spec"]
    (token,) = [e for e in pod["containers"][0]["env"] if e["name"] == "EDL_DASHBOARD_TOKEN"]
    (tls,) = [each["secret"] for each in pod["volumes"] if "secret" in each]
    assert ("mine", "mine") == (token["valueFrom"]["secretKeyRef"]["name"], tls["secretName"])


@pytest.mark.parametrize(
    "value",
    [
        "crds.enabled=7",
        'image.pullPolicy="Sometimes"',
        'image.repository=""',
        "priorityClasses.low=2000000000",
        "controller.replicas=2",
        'dashboard.host="everywhere"',
        'podUser="root"',
        "podUser=0",
        "podUser=2147483648",
        'dashboard.hosts=["a b"]',
        'scheduler.quotas=[{"cpus":1}]',
        'rbac.users=["anna"]',
        'podMonitor.interval="soon"',
        "nonsense=1",
    ],
)
def test_a_value_that_the_chart_does_not_know_is_refused(run, value):
    name = value.partition("=")[0].rpartition(".")[2]

    assert name in run("helm", "template", "edl", str(CHART), "--set-json", value, code=1)

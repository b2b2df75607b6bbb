"""The manifests as they can be read; tests/k8s/ has kubectl, helm and a cluster do it."""

from __future__ import annotations

import ast
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import edl
from edl.cli.dashboard import dashboard
from edl.common.settings import JobSettings, knobs
from edl.k8s import accounts, names
from edl.model_zoo.image import BASE_IMAGE
from edl.ps.books.slots import NUM_SLOTS

pytestmark = pytest.mark.fast

MANIFESTS = Path(edl.__file__).parent / "k8s" / "manifests"
(VERSION,) = yaml.safe_load((MANIFESTS / "chart/files/edljobs.yaml").read_text())["spec"][
    "versions"
]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
SPEC = SCHEMA["properties"]["spec"]["properties"]
STATUS = SCHEMA["properties"]["status"]["properties"]
EXAMPLES = sorted((MANIFESTS / "examples").glob("*.yaml"))


def objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / "base" / name).read_text()))


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (path, schema) of everything below a schema."""
    yield path, schema
    for name, each in schema.get("properties", {}).items():
        yield from schemas(each, f"{path}.{name}")
    if "items" in schema:
        yield from schemas(schema["items"], f"{path}[]")


def field(path: str) -> dict[str, Any] | None:
    """Return the schema of a field such as .status.workers; None where it is not described."""
    found: Any = SCHEMA
    for name in path.strip(".").split("."):
        found = found.get("properties", {}).get(name)
        if found is None:
            return None
    return typing.cast("dict[str, Any]", found)


def test_every_field_of_an_edljob_says_what_it_is():
    silent = [path for path, schema in schemas(SCHEMA) if not schema.get("description")]

    assert [path for path in silent if not path.startswith(".metadata")] == []


def test_no_rule_of_an_edljob_is_younger_than_the_oldest_server():
    text = (MANIFESTS / "chart/files/edljobs.yaml").read_text()
    keys = set(re.findall(r"^\s*(x-kubernetes-[a-z-]+):", text, re.MULTILINE))

    assert keys <= {
        f"x-kubernetes-{name}"
        for name in (
            "int-or-string",
            "list-map-keys",
            "list-type",
            "preserve-unknown-fields",
            "validations",  # since 1.29
        )
    }


def test_columns_and_scale_read_fields_that_there_are():
    columns = [column["jsonPath"] for column in VERSION["additionalPrinterColumns"]]
    paths = [*columns, *VERSION["subresources"]["scale"].values()]
    known = {".metadata.creationTimestamp", ".spec.settings.model_def"}  # settings are open

    assert [path for path in paths if path not in known and field(path) is None] == []


def test_a_column_has_the_type_of_its_field():
    typed = {
        column["name"]: (column["type"], described["type"])
        for column in VERSION["additionalPrinterColumns"]
        if (described := field(column["jsonPath"]))
    }

    assert typed
    assert {name: a for name, (a, b) in typed.items() if a != b} == {}


def test_defaults_are_those_of_the_command_line():
    settings = JobSettings()

    assert SPEC["command"]["default"] == settings.command
    assert SPEC["worker"]["properties"]["replicas"]["default"] == settings.num_workers
    assert SPEC["ps"]["properties"]["replicas"]["default"] == settings.num_ps
    assert SPEC["teacher"]["properties"]["replicas"]["default"] == settings.num_teachers


def test_there_are_no_more_replicas_than_the_command_line_takes():
    most = {knob.name: knob.most for knob in knobs()}
    found = [
        field["maximum"]
        for role in ("worker", "teacher")
        for name, field in SPEC[role]["properties"].items()
        if name in ("replicas", "minReplicas", "maxReplicas")
    ]

    assert found == [most["num_workers"]] * 5 == [most["num_teachers"]] * 5


def test_there_are_no_more_servers_than_slots():
    assert SPEC["ps"]["properties"]["replicas"]["maximum"] == NUM_SLOTS


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_names_only_fields_and_settings_that_there_are(path):
    job = yaml.safe_load(path.read_text())

    unknown = [name for name in job["spec"]["settings"] if not hasattr(JobSettings(), name)]
    assert unknown + list(undescribed(job["spec"], SCHEMA["properties"]["spec"])) == []


def undescribed(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the fields of a value that a schema does not know, and would drop."""
    if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    for name, each in value.items():
        known = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
        if known is None:
            yield f"{path}.{name}"
        else:
            yield from undescribed(each, known, f"{path}.{name}")


def rules(file: str, role: str) -> dict[str, set[str]]:
    """Return resource -> verbs of a role."""
    (found,) = [o for o in objects(file) if o["kind"] == "Role" and o["metadata"]["name"] == role]
    return {
        resource: set(rule["verbs"]) for rule in found["rules"] for resource in rule["resources"]
    }


def test_rights_are_of_one_namespace_and_none_is_everything():
    found = [
        each
        for path in sorted((MANIFESTS / "base").glob("role-*.yaml"))
        for each in objects(path.name)
    ]
    said = [
        word
        for each in found
        for rule in each.get("rules", [])
        for part in ("apiGroups", "resources", "verbs")
        for word in rule[part]
    ]

    assert {each["kind"] for each in found} == {"Role", "RoleBinding"}
    assert "*" not in said


def test_the_dashboard_only_reads_and_is_reached_by_port_forward_alone():
    found = objects("../dashboard/role.yaml")
    (rules,) = [each["rules"] for each in found if each["kind"] == "Role"]
    assert {"get", "list", "watch"} == {verb for rule in rules for verb in rule["verbs"]}
    assert "secrets" not in {resource for rule in rules for resource in rule["resources"]}

    (deployment,) = objects("../dashboard/deployment.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    words = [*container["command"][3:], *container["args"]]
    given = dashboard.make_context("edl dashboard", words[1:]).params
    assert ("127.0.0.1", 8080, False) == (given["host"], given["port"], given["allow_actions"])
    assert "secretKeyRef" in str(container["env"])
    (policy,) = objects("../dashboard/network-policy.yaml")
    assert (["Ingress", "Egress"], None) == (
        policy["spec"]["policyTypes"],
        policy["spec"].get("ingress"),
    )


def test_the_scheduler_makes_no_pod_and_writes_its_own_objects_alone():
    found = objects("../scheduler/role.yaml")
    rules = {each["kind"]: each["rules"] for each in found if "rules" in each}

    seen, flavors = rules["ClusterRole"]
    assert (flavors["resources"], flavors["verbs"]) == (["resourceflavors"], ["get"])
    assert (seen["resources"], set(seen["verbs"])) == (["nodes", "pods"], {"get", "list", "watch"})
    named = [rule for rule in rules["Role"] if "resourceNames" in rule]
    assert [rule["resourceNames"] for rule in named] == [["edl-scheduler"]] * 2
    rest = [rule for rule in rules["Role"] if rule not in named]
    assert [(r["resources"], r["verbs"]) for r in rest] == [
        (["edljobs"], ["get", "list", "watch", "patch"]),
        (["workloads"], ["list", "watch", "create", "delete"]),  # and not what Kueue says of them
        (["configmaps"], ["create"]),
        (["leases"], ["create"]),
    ]


def test_kueue_may_look_at_edljobs_as_its_webhook_does_and_at_nothing_else():
    role, binding = objects("../kueue/role.yaml")

    (rule,) = role["rules"]
    assert (rule["apiGroups"], rule["resources"]) == (["edl.dev"], ["edljobs"])
    assert rule["verbs"] == ["get", "list", "watch"]
    subject = {"kind": "ServiceAccount", "name": "kueue-controller-manager"}
    assert binding["subjects"] == [{**subject, "namespace": "kueue-system"}]


def test_a_master_makes_pods_and_reads_no_secret():
    rights = rules("role-master.yaml", "edl-master")

    assert rights["pods"] == {"get", "list", "watch", "create", "delete"}
    assert set(rights) == {"pods", "configmaps", "leases", "jobs", "events"}


def test_a_controller_of_all_namespaces_may_bind_the_masters_role_and_no_other():
    found = {(e["kind"], e["metadata"]["name"]): e for e in objects("../all-namespaces/roles.yaml")}
    kept = yaml.safe_load((MANIFESTS / "all-namespaces/kustomization.yaml").read_text())
    of_base = {each["source"]["name"] for each in kept["replacements"]}

    own = {name: e["rules"] for (kind, name), e in found.items() if kind == "ClusterRole"}
    assert {name for name, rules in own.items() if not rules} == of_base
    *makes, binds = own["edl-accounts"]
    assert [(r["resources"], r["verbs"]) for r in makes] == [
        (["serviceaccounts"], ["create"]),
        (["rolebindings"], ["create"]),
    ]
    assert (binds["verbs"], binds["resourceNames"]) == (["bind"], ["edl-master"])
    (finds,) = own["edl-find"]
    assert finds["resourceNames"] == [names.CONTROLLER]
    bound = {n: e["subjects"][0]["name"] for (k, n), e in found.items() if k != "ClusterRole"}
    mine = dict.fromkeys(("edl-controller", "edl-accounts"), "edl-controller")
    assert bound == {**mine, "edl-find": "system:authenticated"}


def test_accounts_that_a_controller_makes_are_those_of_the_manifests():
    made = {each["metadata"]["name"]: each for each in accounts.accounts("team")[:2]}
    kept = {each["metadata"]["name"]: each for each in objects("service-accounts.yaml")}

    assert kept.keys() - made.keys() == {"edl-controller"}
    for name, each in made.items():
        token = "automountServiceAccountToken"
        assert each.get(token, True) == kept[name].get(token, True)


def test_nobody_can_list_secrets():
    every = [
        rules("role-master.yaml", "edl-master"),
        rules("role-controller.yaml", "edl-controller"),
        rules("role-user.yaml", "edl-user"),
        rules("role-user.yaml", "edl-submitter"),
    ]

    assert [rights for rights in every if {"list", "watch"} & rights.get("secrets", set())] == []


def test_workers_and_servers_have_neither_a_token_nor_a_right():
    (replica,) = [
        each
        for each in objects("service-accounts.yaml")
        if each["metadata"]["name"] == "edl-replica"
    ]
    bound = [
        subject["name"]
        for path in (MANIFESTS / "base").glob("role-*.yaml")
        for each in objects(path.name)
        for subject in each.get("subjects", [])
    ]

    assert replica["automountServiceAccountToken"] is False
    assert sorted(bound) == ["edl-controller", "edl-master"]


def test_the_master_goes_last_and_low_workers_make_room_for_pods_without_a_class():
    value = {each["metadata"]["name"]: each["value"] for each in objects("priority-classes.yaml")}

    assert value["edl-low"] < 0 <= value["edl-high"] < value["edl-master"]


def test_the_controller_is_restricted():
    (found,) = objects("controller.yaml")
    pod = found["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", ["controller.yaml", "../scheduler/deployment.yaml"])
def test_no_call_of_a_component_takes_the_port_of_its_metrics(name):
    """See test_pods.py. Whoever scrapes is let in at the port that is listened at."""
    (found,) = objects(name)
    template = found["spec"]["template"]
    (container,) = template["spec"]["containers"]
    (port,) = container["ports"]
    (policy,) = objects(f"{name.rpartition('/')[0]}/network-policy.yaml".lstrip("/"))
    told = {said["name"]: said.get("value") for said in container["env"]}

    assert 1024 <= port["containerPort"] < 16000
    assert told["EDL_METRICS_PORT"] == str(port["containerPort"])
    assert template["metadata"]["annotations"]["prometheus.io/port"] == told["EDL_METRICS_PORT"]
    assert [each["port"] for each in policy["spec"]["ingress"][0]["ports"]] == [names.METRICS_PORT]
    assert port["containerPort"] == names.METRICS_PORT


def test_all_name_the_version_of_the_package():
    chart = yaml.safe_load((MANIFESTS / "chart/Chart.yaml").read_text())
    (controller,) = objects("controller.yaml")
    (scheduler,) = objects("../scheduler/deployment.yaml")
    (shown,) = objects("../dashboard/deployment.yaml")
    images = {
        container["image"]
        for each in (controller, scheduler, shown)
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    prod = yaml.safe_load((MANIFESTS / "overlays/prod/kustomization.yaml").read_text())

    assert {chart["version"], chart["appVersion"]} == {edl.__version__}
    assert images == {BASE_IMAGE} == {f"edl:{edl.__version__}"}
    assert prod["images"] == [{"name": "edl", "newTag": edl.__version__}]


def test_every_manifest_is_shipped_with_the_package():
    setup = ast.parse((MANIFESTS.parents[1] / "setup.py").read_text())
    (shipped,) = [
        ast.literal_eval(keyword.value)["edl.k8s"]
        for node in ast.walk(setup)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "package_data"
    ]
    found = {path for pattern in shipped for path in MANIFESTS.parent.glob(pattern)}

    assert [p for p in MANIFESTS.rglob("*") if p.is_file() and p not in found] == []

"""Argo CD's health check and kstatus judge the statuses that the controller writes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import edl
from edl.k8s import names
from edl.k8s.conditions import Problem
from edl.k8s.job_status import PHASES, Situation, status

from .edljobs import edljob, pod, told

MANIFESTS = Path(edl.__file__).parent / "k8s/manifests"
CONFIG = yaml.safe_load((MANIFESTS / "argocd/argocd-cm.yaml").read_text())["data"]
HEALTH = CONFIG[f"resource.customizations.health.{names.GROUP}_{names.KIND}"]
NOW = "2026-01-01T00:00:00Z"
Object = dict[str, Any]


def situations() -> dict[str, tuple[Situation, str, str, str]]:
    """Return by name: a situation, its phase, and what Argo CD and kstatus must make of it."""
    job = edljob()
    runs = [pod(job, "master"), *(pod(job, "worker", i) for i in range(4))]
    wrong = Problem("InvalidSpec", "mend it")
    fixed = Problem("Fixed", "put it back", fatal=False)

    def of(told: Object | None, pods: list[Object], **more: Any) -> Situation:
        said = {"job": job, "begun": True, **more}
        return Situation(pods=pods, told=told, masters=1, **said)

    return {
        "begins": (of(None, []), "Pending", "Progressing", "InProgress"),
        "runs": (of(told(), runs), "Running", "Healthy", "Current"),
        "stops": (of(told("stopping"), runs), "Stopping", "Progressing", "InProgress"),
        "suspended": (
            of(None, [], job=edljob(suspend=True)),
            "Suspended",
            "Suspended",
            "Current",
        ),
        "done": (of(told("done", exit_code=0), []), "Succeeded", "Healthy", "Current"),
        "failed": (of(told("failed", exit_code=1), []), "Failed", "Degraded", "Failed"),
        "stopped": (of(told("stopped", exit_code=130), []), "Failed", "Degraded", "Failed"),
        "wrong": (of(None, [], problem=wrong, begun=False), "Failed", "Degraded", "Failed"),
        "runs on as it was": (of(told(), runs, problem=fixed), "Running", "Degraded", "Failed"),
        "refused": (of(None, [], problem=fixed), "Pending", "Degraded", "Failed"),
    }


SITUATIONS = situations()


def seen(name: str) -> Object:
    """Return the EdlJob of a situation, with the status that the controller writes."""
    here = SITUATIONS[name][0]
    return {**here.job, "status": status(here, NOW)}


@pytest.fixture(scope="session")
def health() -> Callable[[Object], tuple[str, str]]:
    """Return what runs the script as Argo CD does: Lua 5.1 and its base library alone."""
    try:
        from lupa.lua51 import LuaRuntime
    except ImportError:
        return _by_command()

    def of(found: Object) -> tuple[str, str]:
        # Argo CD opens the base library, table and os.
        said = LuaRuntime().execute(f"string, io = nil, nil; {_program(found)}")
        return said.status, said.message

    return of


def _by_command() -> Callable[[Object], tuple[str, str]]:
    lua = next(filter(None, map(shutil.which, ("lua5.1", "lua"))), None)
    if lua is None:
        pytest.skip("no Lua: `pip install lupa` brings one, or `apt-get install lua5.1`")

    def of(found: Object) -> tuple[str, str]:
        text = f"h = (function() {_program(found)} end)() print(h.status) print(h.message)"
        ran = subprocess.run([lua, "-e", text], check=True, capture_output=True, text=True)
        state, _, message = ran.stdout.rstrip("\n").partition("\n")
        return state, message

    return of


def _program(found: Object) -> str:
    return f"obj = {_table(found)}\n{HEALTH}"


def _table(value: Any) -> str:
    """Write a JSON value in Lua."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[ {_table(k)} ] = {_table(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(_table, value)) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else f"[==[{value}]==]"


def kstatus(found: Object) -> str:
    """Return what kstatus computes of an object of no kind that it knows.

    As pkg/kstatus/README.md of kubernetes-sigs/cli-utils says: first the generation, then the
    conditions Reconciling and Stalled, then Ready.
    """
    about: Object = found.get("status", {})
    if (
        about.get("observedGeneration", found["metadata"]["generation"])
        != (found["metadata"]["generation"])
    ):
        return "InProgress"
    so = {each["type"]: each["status"] for each in about.get("conditions", ())}
    if so.get("Reconciling") == "True":
        return "InProgress"
    if so.get("Stalled") == "True":
        return "Failed"
    return "Current" if so.get("Ready", "True") == "True" else "InProgress"


def test_the_situations_have_every_phase() -> None:
    assert {phase for _, phase, _, _ in SITUATIONS.values()} == set(PHASES)
    assert {name: seen(name)["status"]["phase"] for name in SITUATIONS} == {
        name: phase for name, (_, phase, _, _) in SITUATIONS.items()
    }


@pytest.mark.parametrize("name", SITUATIONS)
def test_argo_cd_takes_an_edljob_for_what_it_is(
    name: str, health: Callable[[Object], tuple[str, str]]
) -> None:
    found = seen(name)

    state, message = health(found)

    assert state == SITUATIONS[name][2]
    assert message.startswith(found["status"]["phase"])
    assert message.endswith(found["status"].get("message", ""))


@pytest.mark.parametrize("status", [None, {"observedGeneration": -1}])
def test_argo_cd_waits_for_the_controller(
    status: Object | None, health: Callable[[Object], tuple[str, str]]
) -> None:
    new = {**edljob(), **({"status": status} if status else {})}

    assert health(new) == ("Progressing", "the controller has not looked at it yet")


def test_argo_cd_waits_until_the_newest_generation_was_looked_at(
    health: Callable[[Object], tuple[str, str]],
) -> None:
    found = seen("done")
    found["metadata"] = {**found["metadata"], "generation": 2}

    state, message = health(found)

    assert state == "Progressing"
    assert "generation" in message


@pytest.mark.parametrize("name", SITUATIONS)
def test_kstatus_takes_an_edljob_for_what_it_is(name: str) -> None:
    assert kstatus(seen(name)) == SITUATIONS[name][3]


def test_an_edljob_that_no_controller_has_looked_at_is_not_ready_by_the_resources_own_default() -> (
    None
):
    crd = yaml.safe_load((MANIFESTS / "chart/files/edljobs.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    default = version["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]

    assert kstatus({**edljob(), "status": default}) == "InProgress"


def test_stalled_and_ready_say_why_with_the_generation_that_they_are_about() -> None:
    conditions = {each["type"]: each for each in seen("runs on as it was")["status"]["conditions"]}

    stalled, ready = conditions["Stalled"], conditions["Ready"]
    assert (stalled["reason"], stalled["message"]) == ("Fixed", "put it back")
    assert (ready["status"], ready["reason"]) == ("True", "Running")
    assert {each["observedGeneration"] for each in conditions.values()} == {1}


def test_argo_cd_leaves_alone_what_edl_itself_writes() -> None:
    said = CONFIG[f"resource.customizations.ignoreDifferences.{names.GROUP}_{names.KIND}"]

    managers = yaml.safe_load(said)["managedFieldsManagers"]
    assert managers == [names.CONTROLLER, names.SCHEDULER]

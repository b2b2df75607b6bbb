"""The controller refuses in the words of the resource's rules, which refuse at `kubectl apply`.

That the rules mean what the controller means an API server shows (tests/k8s/test_edljob.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.edljob_rules import BROKEN, WHOLE

import edl
from edl.common.errors import UsageError
from edl.common.settings import JobSettings
from edl.k8s.job import wanted, workers
from edl.k8s.outside.submit import plan

from .edljobs import edljob

pytestmark = pytest.mark.fast

CRD = Path(edl.__file__).parent / "k8s/manifests/chart/files/edljobs.yaml"
(VERSION,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]


def made(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return edljob(name, **{"worker": {"replicas": 2}, "ps": {"replicas": 1}, **spec})


def rules(schema: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Yield the rules of a schema and of all that is in it."""
    yield from schema.get("x-kubernetes-validations", [])
    for each in schema.get("properties", {}).values():
        yield from rules(each)


def pattern(rule: dict[str, str]) -> str:
    """Return the sentences of a rule, as a regular expression."""
    if "message" in rule:
        return re.escape(rule["message"])
    parts = re.split(r'"([^"]*)"', rule["messageExpression"])
    found = [
        re.escape(each) if i % 2 else ".*" * bool(each.strip()) for i, each in enumerate(parts)
    ]
    return "".join(found)


@pytest.mark.parametrize(("name", "spec", "said"), BROKEN, ids=lambda each: str(each)[:40])
def test_what_a_rule_refuses_the_controller_refuses_in_its_words(name, spec, said):
    with pytest.raises(UsageError) as found:
        wanted(made(name, spec))

    every = [pattern(rule) for rule in rules(VERSION["schema"]["openAPIV3Schema"])]
    assert str(found.value) == said
    assert len([each for each in every if re.fullmatch(each, said)]) == 1


def test_each_rule_is_tried():
    every = [pattern(rule) for rule in rules(VERSION["schema"]["openAPIV3Schema"])]

    untried = [each for each in every if not any(re.fullmatch(each, said) for *_, said in BROKEN)]
    assert every
    assert untried == []


@pytest.mark.parametrize(("name", "spec"), WHOLE, ids=lambda each: str(each)[:40])
def test_what_no_rule_refuses_is_taken(name, spec):
    assert wanted(made(name, spec)).settings.job_name == name


def test_a_job_of_the_scheduler_wants_its_minimum_at_least():
    worker = {"replicas": 2, "minReplicas": 4, "maxReplicas": 8}

    assert workers({"worker": worker, "scheduling": {}}) == 4


def test_no_job_may_have_the_name_of_an_object_of_the_manifests():
    kinds = "ConfigMap|Lease|NetworkPolicy|PodDisruptionBudget|Secret|Service"
    text = "\n".join(path.read_text() for path in CRD.parents[2].rglob("*.yaml"))
    about = rf"^kind: (?:{kinds})\nmetadata:\n  name: edl-([a-z-]+)$"
    found = re.findall(about, text, re.MULTILINE)
    leases = {"controller", "scheduler"}

    own = {name for name, _, said in BROKEN if "is edl's own" in said}
    assert own == leases | set(found)


def test_no_batch_job_may_have_one_either():
    with pytest.raises(UsageError, match="--job_name: dashboard is edl's own: choose another one"):
        plan(JobSettings(job_name="dashboard"), "job")

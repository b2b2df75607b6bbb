"""Dashboard and alerts ask for what edl exposes, and docs/monitoring.md has all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.exposed import Labels, exposed, targets

import edl
from edl.common import launched
from edl.common.settings import JobSettings
from edl.k8s import names, pods

ROOT = Path(edl.__file__).parent
CHART = ROOT / "k8s/manifests/chart"
DASHBOARD = json.loads((CHART / "files/dashboard.json").read_text())
GROUPS = yaml.safe_load((CHART / "files/alerts.yaml").read_text())["groups"]
ALERTS: dict[str, dict[str, Any]] = {r["alert"]: r for group in GROUPS for r in group["rules"]}
STORIES = {
    s["name"]: s for s in yaml.safe_load((ROOT / "tests/k8s/alerts.yaml").read_text())["tests"]
}
PAGE = (ROOT / "docs/monitoring.md").read_text()
_GRAFANAS = re.compile(r"\$(\w+)")  # its variables, which stand within quotes
_OURS = re.compile(r"\bedl_[a-z_]+\b")
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    """Return those of all panels and alerts."""
    shown = [target["expr"] for panel in PANELS for target in panel["targets"]]
    return [*shown, *(alert["expr"] for alert in ALERTS.values())]


@pytest.fixture(scope="module")
def samples() -> Mapping[str, Labels]:
    """Return all that edl exposes, and `up`, with the labels that a scrape adds."""
    added = targets((CHART / "templates/pod-monitor.yaml").read_text())
    known = {
        name: {**dict.fromkeys(added, frozenset[str]()), **labels}
        for name, labels in exposed().items()
    }
    return {**known, "up": dict.fromkeys(added, frozenset[str]())}


@pytest.mark.parametrize("text", expressions())
def test_an_expression_names_metrics_labels_and_values_that_there_are(
    text: str, samples: Mapping[str, Labels]
) -> None:
    promql = pytest.importorskip(
        "promql_parser", reason="`pip install promql-parser` parses PromQL"
    )

    unknown, seen = [], []

    def visit(node: Any) -> None:
        if isinstance(node, promql.VectorSelector):
            seen.append(node.name)
            unknown.extend(_unknown(node, samples))
        elif isinstance(node, promql.AggregateExpr):
            labels = node.modifier.labels if node.modifier else []
            unknown.extend(set(labels) - _labels_of(node.expr, promql, samples))
        elif isinstance(node, promql.BinaryExpr) and node.modifier and node.modifier.matching:
            labels = node.modifier.matching.labels
            for side in (node.lhs, node.rhs):
                unknown.extend(set(labels) - _labels_of(side, promql, samples))

    promql.walk(promql.parse(text), visit)

    assert seen
    assert unknown == []


def _unknown(selector: Any, samples: Mapping[str, Labels]) -> Iterator[str]:
    """Yield what of a selector there is not: its metric, or a label, or one of a label's values."""
    if selector.name not in samples:
        yield str(selector.name)
        return
    known = samples[selector.name]
    for matcher in selector.matchers.matchers:
        if matcher.name not in known:
            yield f"{selector.name}{{{matcher.name}}}"
        elif known[matcher.name] and not _GRAFANAS.search(matcher.value):
            yield from set(matcher.value.split("|")) - known[matcher.name]


def _labels_of(node: Any, promql: Any, samples: Mapping[str, Labels]) -> set[str]:
    """Return the labels that some metric below a node has."""
    found: set[str] = set()

    def visit(each: Any) -> None:
        if isinstance(each, promql.VectorSelector):
            found.update(samples.get(each.name, {}))

    promql.walk(node, visit)
    return found


def test_every_metric_of_a_dashboard_is_exposed_also_where_no_parser_is_there(
    samples: Mapping[str, Labels],
) -> None:
    labels = {label for known in samples.values() for label in known}
    said = {word for text in expressions() for word in _OURS.findall(text)}

    assert said - set(samples) - labels == set()


def test_the_variables_of_the_dashboard_are_of_metrics_that_there_are(
    samples: Mapping[str, Labels],
) -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    said = {
        word
        for each in variables.values()
        if each["type"] == "query"
        for word in _OURS.findall(each["query"]["query"])
    }
    used = {name for text in expressions() for name in _GRAFANAS.findall(text)}

    assert said - set(samples) == {"edl_dev_job_name"}
    assert used == set(variables) - {"datasource"}


def test_each_panel_has_an_id_a_place_and_a_description_of_its_own() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in DASHBOARD["panels"]]

    assert len(set(ids)) == len(ids)
    assert len(set(places)) == len(places)
    assert [panel["title"] for panel in PANELS if not panel["description"]] == []
    assert max(p["gridPos"]["x"] + p["gridPos"]["w"] for p in DASHBOARD["panels"]) == 24


def test_roles_in_an_expression_are_those_of_pods() -> None:
    said = {
        role
        for text in expressions()
        for values in re.findall(r'edl_dev_role=~?"([^"$]*)"', text)
        for role in values.split("|")
    }

    assert said == set(names.ROLES)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_to_do_and_has_its_part_of_the_page_and_its_story(name: str) -> None:
    alert = ALERTS[name]
    about = alert["annotations"]

    assert alert["labels"]["severity"] in ("critical", "warning")
    assert set(about) == {"summary", "description", "runbook"}
    assert about["runbook"] == f"docs/monitoring.md#{name.lower()}"
    assert f"\n### {name}\n" in PAGE
    fired = STORIES[name]["promql_expr_test"]
    assert [bool(each.get("exp_samples")) for each in fired] == [False, True]
    labels = fired[1]["exp_samples"][0]["labels"]
    kept = set(re.findall(r"(\w+)=", labels))
    asked = {each for text in about.values() for each in re.findall(r"\$labels\.(\w+)", text)}
    assert asked <= kept
    assert f'alertname="{name}"' in labels


def test_the_page_has_all_metrics_and_no_other(samples: Mapping[str, Labels]) -> None:
    table = PAGE.partition("\n## The metrics\n")[2].partition("\n## ")[0]
    said = {
        cell
        for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for cell in _OURS.findall(row)
    }
    parts = ("_bucket", "_count", "_sum")
    exposed_ = {
        re.sub(f"({'|'.join(parts)})$", "", name)
        for name in samples
        if name.startswith("edl_") and not name.endswith("_created")
    }

    assert said == exposed_


@pytest.mark.parametrize(("command", "scraped"), [("train", True), (launched.COMMAND, False)])
def test_a_scrape_finds_jobs_by_what_their_pods_say_and_no_scripts(
    command: str, scraped: bool
) -> None:
    """The chart's PodMonitor keeps those with the annotation (tests/k8s/test_monitoring.py)."""
    made = pods.templates(JobSettings(job_name="demo", command=command, image_name="edl:1"))

    for template in made.values():
        about = template["metadata"]
        assert ("prometheus.io/scrape" in about["annotations"]) is scraped
        assert {names.JOB_LABEL, names.ROLE_LABEL} <= set(about["labels"])

"""The alerts by the real promtool, the chart's objects by the real helm; no cluster is needed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from .test_manifests import CHART, by_name, run, template, tools  # noqa: F401  fixtures
from .tools import Unreachable, promtool

Template = Callable[..., list[dict[str, Any]]]
ALERTS = CHART / "files" / "alerts.yaml"
STORIES = Path(__file__).parent / "alerts.yaml"


@pytest.fixture(scope="session")
def checked() -> Callable[..., str]:
    """Return what runs promtool: that of the PATH, or Debian's; `code`: that it must end with."""
    found = shutil.which("promtool")
    try:
        tool = Path(found) if found else promtool()
    except Unreachable as why:
        pytest.skip(f"no promtool ({why}): `apt-get install prometheus` brings it")

    def checked(*arguments: str | Path, code: int = 0) -> str:
        ended = subprocess.run(
            [tool, *arguments], check=False, capture_output=True, text=True, timeout=60
        )
        assert (ended.returncode != 0) == bool(code), ended.stdout + ended.stderr
        return ended.stdout

    return checked


def test_promtool_finds_nothing_wrong_with_the_alerts(checked: Callable[..., str]) -> None:
    checked("check", "rules", ALERTS)


def test_each_alert_fires_when_it_should_and_not_before(checked: Callable[..., str]) -> None:
    checked("test", "rules", STORIES)


def test_promtool_takes_the_pages_configuration_of_a_prometheus_without_the_operator(
    checked: Callable[..., str], tmp_path: Path
) -> None:
    page = (CHART.parents[2] / "docs/monitoring.md").read_text()
    (said,) = re.findall(r"^```yaml\n(scrape_configs:.*?)^```$", page, re.MULTILINE | re.DOTALL)
    discovery = "kubernetes_sd_configs: [{role: pod}]"
    assert discovery in said  # Debian's promtool is built without it
    said = said.replace(discovery, "static_configs: []")
    (tmp_path / "prometheus.yaml").write_text(f"{said}rule_files: [{ALERTS}]\n")

    checked("check", "config", tmp_path / "prometheus.yaml")


def test_no_story_is_true_of_alerts_that_never_fire_or_fire_at_once(
    checked: Callable[..., str], tmp_path: Path
) -> None:
    rules, stories = ALERTS.read_text(), yaml.safe_load(STORIES.read_text())
    broken = {
        "never": re.sub(r"for: \d+m", "for: 5h", rules).replace("> 6\n", "> 600\n"),
        "at once": re.sub(r"for: \d+m", "for: 0m", rules).replace("> 6\n", "> 0\n"),
    }

    for how, text in broken.items():
        (tmp_path / "rules.yaml").write_text(text)
        for story in stories["tests"]:
            alone = {**stories, "rule_files": ["rules.yaml"], "tests": [story]}
            told = tmp_path / f"{story['name']}-{how}.yaml"
            told.write_text(json.dumps(alone))
            checked("test", "rules", told, code=1)


def test_the_chart_wraps_dashboard_and_alerts_as_they_are_and_only_where_they_are_wanted(
    template: Template,  # noqa: F811
) -> None:
    labels = 'alerts.labels={"release":"prometheus"}'
    found = by_name(template("grafana.enabled=true", "alerts.enabled=true", labels))

    shown = found["ConfigMap", "edl-grafana"]
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"
    dashboard = json.loads((CHART / "files/dashboard.json").read_text())
    assert json.loads(shown["data"]["edl.json"]) == dashboard
    rules = found["PrometheusRule", "edl"]
    assert rules["metadata"]["labels"]["release"] == "prometheus"
    assert rules["spec"] == yaml.safe_load(ALERTS.read_text())
    assert not {("ConfigMap", "edl-grafana"), ("PrometheusRule", "edl")} & set(by_name(template()))


def test_pods_that_say_so_are_scraped_and_scripts_pods_are_not(
    template: Template,  # noqa: F811
) -> None:
    found = by_name(template("podMonitor.enabled=true"))

    (jobs,) = found["PodMonitor", "edl"]["spec"]["podMetricsEndpoints"]
    annotation = "__meta_kubernetes_pod_annotation_prometheus_io_scrape"
    assert jobs["relabelings"] == [
        {"sourceLabels": [annotation], "regex": "true", "action": "keep"}
    ]
    served = found["PodMonitor", "edl-serve"]["spec"]
    assert served["selector"]["matchLabels"] == {"app.kubernetes.io/name": "edl-serve"}
    assert [each["port"] for each in served["podMetricsEndpoints"]] == ["http"]

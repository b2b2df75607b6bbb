"""What a scheduler's plan and a file of prices say of a job, beside its master."""

import json

import pytest

from edl.dashboard.asides import Asides
from edl.dashboard.model import Model
from edl.jobs.local import LocalJob, LocalJobs

MACHINE = {"name": "m", "useful_s": 3600.0, "recompute_s": 0.0, "idle_s": 0.0, "start_s": 0.0}
STATUS = {"job_name": "demo", "usage": {"records": 1_000_000, "machines": [MACHINE]}}
ROW = {"name": "demo", "workers": 3, "held": 2, "why": "it gains more than others"}


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setenv("EDL_HOME", str(tmp_path))
    return LocalJob(tmp_path / "jobs" / "demo")


def plan(tmp_path, **values):
    (tmp_path / "schedule").mkdir(exist_ok=True)
    told = {"at": 1, "jobs": [], "ignored": {}, **values}
    (tmp_path / "schedule" / "plan.json").write_text(json.dumps(told))


def test_the_last_plan_says_what_a_job_gets_and_why(job, tmp_path):
    plan(tmp_path, jobs=[ROW])

    assert ({name: ROW[name] for name in ROW if name != "name"}, None) == Asides(LocalJobs()).of(
        job, STATUS
    )


def test_a_job_that_no_plan_knows_has_no_scheduler(job, tmp_path):
    assert (None, None) == Asides(LocalJobs()).of(job, STATUS)

    plan(tmp_path, jobs=[{**ROW, "name": "other"}])
    assert (None, None) == Asides(LocalJobs()).of(job, STATUS)
    plan(tmp_path, ignored={"demo": "tells nothing"})
    assert {"why": "demo tells nothing"} == Asides(LocalJobs()).of(job, STATUS)[0]


def test_prices_make_the_usage_a_cost(job, tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text("here: {on-demand: 2.5}\n")

    cost = Asides(LocalJobs(), str(prices)).of(job, STATUS)[1]
    assert (2.5, 2.5, 3600.0) == tuple(
        cost[name] for name in ("usd", "per_million_records_usd", "useful_s")
    )
    prices.write_text("there: {on-demand: 2.5}\n")
    assert "here" in Asides(LocalJobs(), str(prices)).of(job, STATUS)[1]["why"]
    assert Asides(LocalJobs(), str(prices)).of(job, {"job_name": "demo"})[1] is None


def test_both_are_looked_at_seldom_and_are_in_the_snapshot(job, tmp_path):
    now = [0.0]
    asides = Asides(LocalJobs(), now=lambda: now[0])
    assert (None, None) == asides.of(job, STATUS)
    plan(tmp_path, jobs=[ROW])
    assert (None, None) == asides.of(job, STATUS)
    now[0] = 5.0

    model = Model()
    model.hear({"job_name": "demo", "state": "running"}, 1.0, *asides.of(job, STATUS))
    assert ROW["why"] == model.snapshot(1.0)["schedule"]["why"]

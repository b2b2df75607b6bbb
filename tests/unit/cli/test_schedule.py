"""`edl schedule` shows what the scheduler thought, and says what is wrong in one line."""

import json

import pytest

from edl.cli.main import run
from edl.common import paths

PLAN = {
    "at": 1,
    "ignored": {"held": "waits for the queue Q of Kueue"},
    "jobs": [
        {
            "name": "a",
            "held": 1,
            "workers": 2,
            "minimum": 1,
            "maximum": 4,
            "records_left": 1200,
            "why": "1 -> 2 workers: twice as fast",
        }
    ],
}


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv(paths.HOME_VARIABLE, str(tmp_path))


@pytest.fixture
def planned(tmp_path):
    (tmp_path / "schedule").mkdir()
    (tmp_path / "schedule" / "plan.json").write_text(json.dumps(PLAN))


@pytest.mark.usefixtures("planned")
def test_the_last_plan_is_shown_with_its_reasons(capsys):
    assert 0 == run(["schedule", "status"])
    shown = capsys.readouterr().out
    assert "1,200" in shown
    assert "1 -> 2 workers: twice as fast" in shown
    assert "held waits for the queue Q of Kueue\n" in shown
    assert "does not run: `edl schedule serve`" in shown

    assert 0 == run(["schedule", "status", "-o", "json"])
    assert PLAN == json.loads(capsys.readouterr().out)

    assert 0 == run(["schedule", "why", "a"])
    assert "a: 1 -> 2 workers: twice as fast\n" == capsys.readouterr().out

    assert 0 == run(["schedule", "why", "held"])
    assert "held waits for the queue Q of Kueue\n" == capsys.readouterr().out


def test_nodes_that_come_and_go_are_told_in_a_line(planned, tmp_path, capsys):
    here, wanted = {"on-demand": 1, "spot": 0}, {"on-demand": 1, "spot": 2}
    nodes = {"here": here, "wanted": wanted, "why": "utility 0.75 is above", "asked": "2 pods"}
    path = tmp_path / "schedule" / "plan.json"

    path.write_text(json.dumps({**PLAN, "nodes": nodes}))
    assert 0 == run(["schedule", "status"])
    shown = capsys.readouterr().out
    path.write_text(json.dumps({**PLAN, "nodes": {"why": 7}}))
    assert 2 == run(["schedule", "status"])

    assert "Nodes: 1 on-demand and 0 spot here, 1 on-demand and 2 spot wanted: utility" in shown
    assert "what makes no sense: nodes has no 'here'" in capsys.readouterr().err


@pytest.mark.usefixtures("planned")
def test_a_job_that_the_plan_does_not_have_is_told_with_those_that_it_has(capsys):
    assert 2 == run(["schedule", "why", "b"])
    assert "has no job 'b'; it has a, held." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["serve", "--every", "0"], "--every 0.0: give a time above 0 s"),
        (["serve", "--objective", "best"], "'best' is no objective: choose one of finish"),
        (["plan", "--patience", "-1"], "the patience is -1.0 s"),
        (["plan", "--workers", "0"], "--workers"),
        (["plan", "--workers", "2", "-n", "edl"], "--workers is of this machine"),
        (["plan", "-A"], "--all-namespaces is of a cluster"),
        (["plan", "--quotas", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["status"], "No plan was made yet"),
    ],
)
def test_wrong_usage_is_one_line(flags, told, capsys):
    assert 2 == run(["schedule", *flags])
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error


def test_without_queued_jobs_it_says_how_to_queue_one(capsys):
    assert 0 == run(["schedule", "plan"])
    assert "`edl submit --queue` puts one there" in capsys.readouterr().out

"""The service looks, plans and acts, round after round, and writes down what it thought."""

import json
import os
import threading

import pytest

from edl.common import paths
from edl.common.errors import UsageError
from edl.scheduler import local, service
from edl.scheduler.cluster import Node, Resources
from edl.scheduler.jobs import Given, Job, Shape
from edl.scheduler.place import Seen


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv(paths.HOME_VARIABLE, str(tmp_path))
    local.folder().mkdir()


class Place:
    """A place with one job."""

    def __init__(self):
        self.ignored = {}
        self.acted = []

    def look(self):
        job = Job("a", lambda shape: shape.workers, Resources(cpu=1), 0.0, maximum=2)
        return Seen([job], [Node("here", Resources(cpu=2))], self.ignored)

    def act(self, plan, seen, tell):
        self.acted.append((plan, seen.jobs[0].name))
        tell("acted")

    def keep(self, plan, tell):
        local.LocalPlace(1).keep(plan, tell)


class Two:
    """A policy that gives two workers to whoever comes."""

    def plan(self, jobs, nodes, now):
        return {job.name: Given(Shape(2, 0, 1), f"so at {now:g}") for job in jobs}


@pytest.fixture
def place():
    return Place()


@pytest.fixture
def told():
    return []


@pytest.fixture
def made(place, told):
    return service.Service(place, Two(), lambda: 7.5, told.append)


def test_a_round_acts_and_leaves_its_plan(made, place):
    made.round()

    assert [name for _, name in place.acted] == ["a"]
    plan = local.last_plan()
    assert plan == made.plan()
    assert plan["at"] == 7
    assert [(row["name"], row["held"], row["workers"], row["why"]) for row in plan["jobs"]] == [
        ("a", 0, 2, "so at 7.5")
    ]


def test_a_plan_alone_changes_nothing(made, place):
    made.plan()

    assert place.acted == []
    with pytest.raises(UsageError, match="No plan was made yet"):
        local.last_plan()


def test_what_is_not_believed_is_told_once_for_each_reason(made, place, told):
    for why in ("x", "x", "y"):
        place.ignored = {"a": why}
        made.round()

    assert [line for line in told if line != "acted"] == ["a x", "a y"]


def test_it_serves_until_it_is_over_and_wakes_up_for_news(made, place):
    wake, act = threading.Event(), place.act

    def news(*given):
        act(*given)
        wake.set()  # while a round is made

    place.act = news
    made.serve(3600.0, wake, lambda: len(place.acted) == 3)

    assert len(place.acted) == 3


def test_only_one_serves_a_machine():
    assert not local.serves()
    lock = local.claim()
    try:
        assert local.serves()
        with pytest.raises(UsageError, match="Another `edl schedule serve`"):
            local.claim()
    finally:
        os.close(lock)
    assert not local.serves()


@pytest.mark.parametrize("text", ["", "[]", json.dumps({"at": 1, "jobs": [{"name": "a"}]})])
def test_a_plan_that_cannot_be_read_names_its_file(text):
    (local.folder() / "plan.json").write_text(text)

    with pytest.raises(UsageError, match=r"plan\.json is no plan"):
        local.last_plan()

"""The EdlJobs of a cluster are changed one after the other, and what stands in the way is told."""

import json
import threading

import pytest
from tools.apiserver import ApiServer, connect
from tools.scheduled import NOW, edljob, node, pod

from edl.common.errors import UsageError
from edl.k8s.api import Api
from edl.scheduler import in_cluster
from edl.scheduler.in_cluster import ClusterPlace, Watched
from edl.scheduler.jobs import Given, Shape

WAIT_S = 60.0


@pytest.fixture
def server():
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture
def api(server):
    api = Api(connect(server.address), "n")
    yield api
    api.close()


@pytest.fixture
def add(server):
    """Let the server hold an object that a test has made."""

    def add(plural, it):
        about = it["metadata"]
        rest = {name: part for name, part in it.items() if name != "metadata"}
        return server.add(plural, about.pop("name"), metadata=about, **rest)

    return add


@pytest.fixture
def two(add):
    """Run a job of three workers, and let another one wait."""
    add("nodes", node())
    add("edljobs", edljob("z"))
    add("edljobs", edljob("a", status={}, suspend=True))


def plan(**workers):
    return {name: Given(Shape(count, 2), f"{count} are so") for name, count in workers.items()}


def act(place, plan):
    told = []
    place.act(plan, place.look(), told.append)
    return told


def patched(server):
    return [path.rpartition("/")[2] for method, path in server.requests if method == "PATCH"]


def test_jobs_give_up_before_others_begin(server, api, two):
    told = act(ClusterPlace(api, False, lambda: NOW), plan(a=2, z=1))

    assert patched(server) == ["z", "a"]
    assert told == ["z: 1 are so", "a: 2 are so"]
    begun = server.objects["edljobs", "a"]["spec"]
    assert (begun["suspend"], begun["worker"]["replicas"]) == (False, 2)


def test_what_somebody_changed_meanwhile_is_left_to_the_next_round(server, api, two):
    place = ClusterPlace(api, False, lambda: NOW)
    seen, told = place.look(), []
    api.patch("EdlJob", "z", {"spec": {"worker": {"replicas": 7}}})

    place.act(plan(a=2, z=1), seen, told.append)

    assert told[0] == "z: not changed, it was changed meanwhile; it is looked at again"
    assert told[1] == "a: 2 are so"
    assert server.objects["edljobs", "z"]["spec"]["worker"]["replicas"] == 7


def test_a_plan_is_kept_for_whoever_asks_and_not_written_without_news(server, api):
    now, told = [NOW], []
    place = ClusterPlace(api, False, lambda: now[0])

    def keep(workers, at):
        now[0] = NOW + at
        row = {"name": "a", "workers": workers, "why": "so"}
        place.keep(json.dumps({"at": int(now[0]), "jobs": [row]}), told.append)

    with pytest.raises(UsageError, match="No plan was made yet in the namespace n"):
        in_cluster.last_plan(api)
    for workers, at in ((1, 0), (1, 5), (2, 10), (2, 41)):
        keep(workers, at)

    assert in_cluster.last_plan(api)["jobs"][0]["workers"] == 2
    assert in_cluster.last_plan(api)["at"] == NOW + 41
    assert patched(server) == ["edl-scheduler"] * 3  # the first one found none: it was created
    server.fail("PATCH", ".*", 403)
    keep(3, 99)
    assert ["the plan is not kept" in line for line in told] == [True]


def test_who_may_not_see_nodes_is_told(server, api, two):
    server.forbidden.add(("list", "nodes"))

    with pytest.raises(Exception, match="nodes"):
        ClusterPlace(api, False, lambda: NOW).look()


def test_copies_follow_and_news_is_what_a_plan_depends_on(server, api, two, add):
    news, told = threading.Event(), []
    watched = Watched(api, False, news.set, told.append)
    watched.start()
    try:
        assert [len(part) for part in vars(watched.copy()).values()] == [2, 1, 0]
        news.clear()
        add("pods", {**pod("worker"), "metadata": {**pod("worker")["metadata"], "name": "w"}})
        assert news.wait(WAIT_S)
        news.clear()
        report = {"status": {"report": {"records_left": 5}}}
        api.patch("EdlJob", "z", report, "status")  # figures: the next round sees them
        api.patch("EdlJob", "a", {"spec": {"worker": {"maxReplicas": 4}}})
        assert news.wait(WAIT_S)
        jobs = {each["metadata"]["name"]: each for each in watched.copy().jobs}
        assert jobs["a"]["spec"]["worker"]["maxReplicas"] == 4
        assert jobs["z"]["status"]["report"] == {"records_left": 5}
    finally:
        watched.close()
    assert told == []

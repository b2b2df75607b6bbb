"""The EdlJobs of a cluster are changed one after the other, and what stands in the way is told."""

import threading

import pytest
from tools.apiserver import ApiServer, connect
from tools.scheduled import NOW, edljob, node, pod

from edl.common.errors import UsageError
from edl.k8s import names
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
    api.patch("EdlJob", "a", {"spec": {"worker": {"maxReplicas": 1}}})

    place.act(plan(a=2, z=1), seen, told.append)

    assert told[0] == "z: 1 are so"
    assert told[1] == "a: not changed, it was changed meanwhile; it is looked at again"
    assert server.objects["edljobs", "a"]["spec"]["suspend"]


def test_why_a_job_waits_is_written_into_it_where_it_changed(server, api, two):
    place = ClusterPlace(api, False, lambda: NOW)

    nothing = {**plan(z=3), "a": Given(Shape(0, 0), "waits for others")}

    act(place, nothing)
    act(place, nothing)

    assert patched(server) == ["a"]
    said = server.objects["edljobs", "a"]["metadata"]["annotations"][names.SAYS]
    assert said == "WaitingForRoom: it waits for others"
    server.fail("PATCH", ".*", 403)
    told = act(place, {**nothing, "a": Given(Shape(0, 0), "waits: no room")})
    assert ["why it waits is not written into it" in line for line in told] == [True]


def test_a_plan_is_kept_for_whoever_asks_and_not_written_without_news(server, api):
    now, told = [NOW], []
    place = ClusterPlace(api, False, lambda: now[0])

    def keep(workers, at):
        now[0] = NOW + at
        row = {"name": "a", "workers": workers, "why": "so"}
        place.keep({"at": int(now[0]), "jobs": [row], "ignored": {}}, told.append)

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


@pytest.mark.parametrize("versions", [["v1beta1", "v1beta2"], ["v1beta1"]])
def test_kueue_is_asked_in_the_best_version_that_it_serves(server, api, add, versions):
    server.kueue_versions = versions
    add("nodes", node())
    it = edljob("a", status={}, suspend=True)
    it["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    add("edljobs", it)
    place = ClusterPlace(api, False, lambda: NOW)

    first = act(place, {})
    made = api.get("Workload", "edl-a-base")
    server.add("resourceflavors", "spot", spec={"nodeLabels": {"pool": "spot"}})
    sets = [{"name": name, "flavors": {"cpu": "spot"}} for name in ("master", "ps", "worker")]
    yes = [{"type": "Admitted", "status": "True"}]
    status = {"conditions": yes, "admission": {"podSetAssignments": sets}}
    api.patch("Workload", "edl-a-base", {"status": status}, "status")
    second = act(place, plan(a=5))

    assert first == ["a: the Workload edl-a-base asks Kueue for quota"]
    assert made["apiVersion"] == f"kueue.x-k8s.io/{versions[-1]}"
    paths = [path for _, path in server.requests if "workloads" in path]
    assert all(f"/apis/kueue.x-k8s.io/{versions[-1]}/namespaces/n/" in path for path in paths)
    begun = server.objects["edljobs", "a"]["spec"]
    assert (begun["suspend"], begun["worker"]["replicas"]) == (False, 1)
    assert second[0] == "a: 5 are so; 1 of 5 workers are admitted by Kueue"
    assert "write {pool: spot} into spec.master.nodeSelector" in place.look().ignored["a"]
    assert [line for line in act(place, plan(a=5)) if "gives" not in line] == [
        f"a: the Workload edl-a-piece-{k} asks Kueue for quota" for k in (1, 2, 3, 4)
    ]


def test_who_runs_without_kueues_leave_is_suspended_and_what_fails_is_told(server, api, add):
    server.kueue_versions = ["v1beta2"]
    add("nodes", node())
    it = edljob("a", jobVolume=None)
    it["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    add("edljobs", it)
    place = ClusterPlace(api, False, lambda: NOW)

    told = act(place, {})
    suspended = server.objects["edljobs", "a"]
    server.fail("POST", "workloads", 403, times=2)
    failed = act(place, {})
    again = act(place, {})

    assert told[0].startswith("a: is suspended, it waits for the queue q of Kueue; it begins anew")
    assert suspended["spec"]["suspend"]
    assert suspended["metadata"]["annotations"]["edl.dev/queued"] == "2027-01-15T08:00:00Z"
    assert "Kueue: a: the Workload edl-a-base asks Kueue for quota: not done" in failed[0]
    assert again == []
    assert act(place, {}) == ["a: the Workload edl-a-base asks Kueue for quota"]


def test_who_may_not_see_nodes_is_told(server, api, two):
    server.forbidden.add(("list", "nodes"))

    with pytest.raises(Exception, match="nodes"):
        ClusterPlace(api, False, lambda: NOW).look()


def test_copies_follow_and_news_is_what_a_plan_depends_on(server, api, two, add):
    news, told = threading.Event(), []
    watched = Watched(api, False, news.set, told.append)
    watched.start()
    try:
        copy = watched.copy()
        assert [len(part) for part in (copy.jobs, copy.nodes, copy.pods)] == [2, 1, 0]
        assert copy.workloads is None  # this cluster has no Kueue
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

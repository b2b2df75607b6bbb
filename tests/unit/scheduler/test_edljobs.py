"""EdlJobs are seen by their specs, statuses and pods, and changed by their specs alone."""

import copy

import pytest
from tools.reports import make_report
from tools.scheduled import LATER, NOW, RUNS, edljob, node, pod

from edl.common import report
from edl.k8s import names
from edl.scheduler.cluster import Resources
from edl.scheduler.edljobs import Copy, Looker, change
from edl.scheduler.jobs import Given, Shape


def look(*jobs, pods=(), nodes=None, looker=None, now=NOW):
    looker = looker or Looker(False)
    return looker.look(Copy(list(jobs), nodes or [node()], list(pods)), now)


def test_a_job_that_runs_has_what_its_spec_says_where_its_pods_are():
    pods = [pod("worker"), pod("worker", "n2", index=1), pod("worker", "", index=2)]
    pods += [pod("worker", index=3), pod("ps"), pod("master")]  # worker 3 goes: 3 are wanted

    seen = look(edljob(), pods=pods)

    (job,) = seen.jobs
    assert job.held == Shape(3, 2)
    # one worker and one server are not there yet, and are expected where there is room
    assert (job.workers_on, job.servers_on) == ({"n1": 2, "n2": 1}, {"n1": 2})
    assert (job.minimum, job.maximum, job.servers) == (1, 8, (2,))
    assert job.worker == Resources(1.0, 4096 * 2**20, pods=1.0)
    assert job.master == Resources()  # it is on a node already
    assert (job.may_be_suspended, job.is_pinned, job.waits_since) == (True, False, None)
    assert seen.nodes[0].free.cpu == 7.0  # less the master


def test_a_job_that_waits_has_nothing_and_its_master_needs_room():
    (job,) = look(edljob(status={}, suspend=True)).jobs

    assert job.held == Shape()
    assert job.master.cpu == 0.1
    assert job.waits_since == NOW - 60


@pytest.mark.parametrize(
    "job",
    [
        edljob(suspend=True),  # by somebody else, after it had begun
        {**edljob(), "spec": {k: v for k, v in edljob()["spec"].items() if k != "scheduling"}},
        edljob(status={**RUNS, "phase": "Succeeded"}),
        edljob(status={**RUNS, "phase": "Failed"}),
    ],
)
def test_jobs_that_are_none_of_the_scheduler(job):
    seen = look(job, pods=[pod("worker")])

    assert seen.jobs == []
    assert seen.nodes[0].free.cpu == 7.0  # their pods take room all the same


def test_a_job_that_the_scheduler_suspended_waits_since_then():
    (job,) = look(edljob(suspend=True, annotations={names.QUEUED: LATER})).jobs

    assert (job.held, job.waits_since, job.is_pinned) == (Shape(), NOW - 30, False)


def test_a_job_whose_workers_come_is_left_alone_for_a_while():
    looker, ready = Looker(False), {**RUNS, "workersReady": "1/3"}
    look(
        edljob(status={**RUNS, "workersReady": "1/1"}, worker={"replicas": 1, "maxReplicas": 8}),
        looker=looker,
    )

    pinned = [
        look(edljob(status=ready), looker=looker, now=NOW + at).jobs[0].is_pinned for at in (5, 36)
    ]
    there = look(edljob(status={**RUNS, "workersReady": "3/3"}), looker=looker, now=NOW + 6)

    assert pinned == [True, False]
    assert not there.jobs[0].is_pinned


def test_a_job_whose_pods_still_end_is_left_alone_and_they_take_room():
    job = edljob(suspend=True, annotations={names.QUEUED: LATER})

    seen = look(job, pods=[pod("worker")])

    assert seen.jobs[0].is_pinned
    assert seen.nodes[0].free.cpu == 7.0


def test_a_job_that_begins_is_left_alone_for_a_while():
    status = {"phase": "Pending"}

    assert look(edljob(status=status)).jobs[0].is_pinned
    assert not look(edljob(status=status), now=NOW + 120).jobs[0].is_pinned


def test_wishes_are_read():
    said = {"priority": 3, "deadline": LATER, "user": "anna"}

    (job,) = look(edljob(scheduling=said)).jobs

    assert (job.priority, job.deadline, job.user, job.namespace) == (3, NOW - 30, "anna", "n")


def test_a_taint_that_keeps_all_workers_away_is_named_with_the_toleration():
    tainted = node()
    tainted["spec"] = {"taints": [{"key": "spot", "value": "yes", "effect": "NoSchedule"}]}

    seen = Looker(False).look(Copy([edljob("a")], [tainted], []), NOW)

    said = "add {key: spot, value: yes, effect: NoSchedule, operator: Equal} to "
    assert said + "spec.worker.tolerations" in seen.ignored["a"]
    assert "such as n1" in seen.ignored["a"]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"worker": {"replicas": 2}}, "spec.worker.maxReplicas is missing"),
        ({"worker": {"minReplicas": 3, "maxReplicas": 2}}, "minReplicas is more than"),
        ({"settings": {"model_deff": "x"}}, "model_deff"),
        ({"scheduling": {"deadline": "soon"}}, "'soon' is no time"),
        (
            {"worker": {"maxReplicas": 2, "nodeSelector": {"gpu": "yes"}}},
            "no node has the labels that its workers ask for",
        ),
    ],
)
def test_a_bad_job_is_told_and_stops_no_others(spec, says):
    seen = look(edljob("bad", **spec), edljob("good"))

    assert [job.name for job in seen.jobs] == ["good"]
    assert says in seen.ignored["bad"]


def test_a_job_of_one_kind_of_nodes_stays_there_and_gets_nothing_of_others():
    gpu = {"replicas": 1, "maxReplicas": 2, "nodeSelector": {"gpu": "yes"}}
    labelled = node("n2")
    labelled["metadata"]["labels"] = {"gpu": "yes"}

    seen = look(edljob(), edljob("b", worker=gpu), pods=[pod("worker")], nodes=[node(), labelled])

    a, b = seen.jobs
    kind, other = (each.kind for each in seen.nodes)
    assert (a.held.kind, b.held.kind) == (kind, other)
    assert [job.speed(Shape(1, 2, 1, each)) > 0 for job in (a, b) for each in (kind, other)] == [
        True,
        True,
        False,
        True,
    ]


def test_nodes_of_a_script_are_counted_and_its_processes_told():
    sample = report.Sample(0, 8, 2, 0, 100.0, 60.0, 3)  # 2 nodes of 4 processes
    told = report.compact(report.write(make_report(samples=(sample,))))
    settings = {"script": "train.py", "nproc_per_node": 4}

    (job,) = look(
        edljob(command="launch", settings=settings, ps={}, status={**RUNS, "report": told})
    ).jobs

    assert (job.servers, job.speed(Shape(1)), job.speed(Shape(2))) == ((0,), 50.0, 100.0)


def test_a_report_of_another_version_is_ignored_and_the_job_is_not():
    told = report.compact(report.write(make_report()))
    good = edljob("good", status={**RUNS, "report": told})
    bad = edljob("bad", status={**RUNS, "report": {**told, "version": 99}})

    seen = look(good, bad)

    assert [(job.name, job.left) for job in seen.jobs] == [("good", 900), ("bad", None)]
    assert "has a report that is ignored" in seen.ignored["bad"]


def test_no_more_are_believed_to_fit_than_do_while_no_node_takes_a_worker():
    looker = Looker(False)
    since = {"type": "PodScheduled", "status": "False", "lastTransitionTime": LATER}
    stuck = [pod("worker"), pod("worker"), pod("worker", "", conditions=[since])]

    fits = [
        look(edljob(), pods=stuck, looker=looker, now=now).jobs[0].maximum
        for now in (NOW - 20, NOW)
    ]
    again = [
        look(edljob(), pods=stuck[:2], looker=looker, now=now).jobs[0].maximum
        for now in (NOW + 60, NOW + 301)
    ]

    assert (fits, again) == ([8, 2], [2, 8])


def test_jobs_of_all_namespaces_are_told_apart():
    other = edljob()
    other["metadata"] |= {"namespace": "m", "uid": "other"}

    seen = look(edljob(), other, looker=Looker(True))

    assert [job.name for job in seen.jobs] == ["n/a", "m/a"]


def changed(it, workers, servers=2):
    looker = Looker(False)
    (job,) = look(it, looker=looker).jobs
    return change(it, job, Given(Shape(workers, servers if workers else 0), "so"), "NOW")


def test_workers_are_changed_alone():
    assert changed(edljob(), 5) == {"spec": {"worker": {"replicas": 5}}}
    assert changed(edljob(), 3) is None


def test_a_job_begins_with_all_that_it_is_given():
    it = edljob(suspend=True, annotations={names.QUEUED: LATER})

    patch = changed(it, 4)

    assert patch["spec"] == {"suspend": False, "worker": {"replicas": 4}}
    # which holds for what was seen alone: its user may have suspended it meanwhile
    assert patch["metadata"] == {"resourceVersion": "7", "annotations": {names.QUEUED: None}}


def test_servers_are_changed_while_the_job_runs():
    assert changed(edljob(), 3, 4)["spec"] == {"worker": {"replicas": 3}, "ps": {"replicas": 4}}


def test_other_servers_are_offered_once_what_there_is_was_measured():
    sample = report.Sample(2, 3, 1, 64, 100.0, 60.0, 3)

    def told(**values):
        return report.compact(report.write(make_report(**values)))

    ps = {"replicas": 2, "maxReplicas": 3}
    measured = edljob("a", ps=ps, status={**RUNS, "report": told(samples=(sample,))})
    not_yet = edljob("b", ps=ps, status={**RUNS, "report": told()})
    fixed = edljob("c", status={**RUNS, "report": told(samples=(sample,))})

    seen = look(measured, not_yet, fixed)

    assert [(job.servers, job.maximum) for job in seen.jobs] == [
        ((1, 2, 3), 8),
        ((2,), 3),
        ((2,), 8),
    ]


def test_a_job_that_loses_all_waits():
    patch = changed(edljob(), 0)

    assert patch["spec"] == {"suspend": True}
    assert patch["metadata"]["annotations"] == {names.QUEUED: "NOW"}


def test_what_may_not_be_changed_is_not():
    assert changed(edljob(status={"phase": "Pending"}), 5) is None


def test_looking_changes_nothing():
    it = edljob()
    before = copy.deepcopy(it)
    look(it, pods=[pod("worker")])

    assert it == before


def test_workers_of_which_a_fraction_is_elsewhere_may_be_on_both_kinds_of_nodes():
    nodes = [node("s"), node("d"), node("x")]
    for each, market in zip(nodes, ("spot", "dear", "else"), strict=True):
        each["metadata"]["labels"] = {"market": market}
    low = {"nodeSelector": {"market": "spot"}}
    worker = {"nodeSelector": {"market": "dear"}, "highFraction": 0.5, "low": low}
    worker |= {"replicas": 1, "maxReplicas": 8}

    seen = look(edljob(status={}, suspend=True, worker=worker), nodes=nodes)

    assert [node.name for node in seen.nodes] == ["d", "s"]  # kube-scheduler says which of them


def test_servers_and_master_that_ask_for_other_nodes_take_no_room_of_the_workers():
    def at(where, **more):
        return {"nodeSelector": {"market": where}, **more}

    spot, dear = node("s"), node("d")
    spot["metadata"]["labels"], dear["metadata"]["labels"] = {"market": "spot"}, {"market": "dear"}
    parts = {"ps": at("dear", replicas=2), "master": at("dear")}
    worker = at("spot", replicas=1, minReplicas=1, maxReplicas=8)

    (job,) = look(edljob(status={}, suspend=True, worker=worker, **parts), nodes=[spot, dear]).jobs
    (mixed,) = look(edljob(status={}, suspend=True, **parts), nodes=[spot, dear]).jobs

    assert (job.server, job.master, job.servers) == (Resources(), Resources(), (2,))
    assert mixed.server.cpu == 1.0


def test_a_job_that_somebody_else_has_suspended_is_told_of_with_who_it_was():
    """A manifest was applied again. Broken once: `why` says that the plan has no such job."""
    job = edljob(suspend=True)
    spec = {"f:spec": {"f:suspend": {}}}
    job["metadata"]["managedFields"] = [{"manager": "kubectl", "fieldsV1": spec}]

    seen = look(job)

    assert seen.jobs == []
    assert seen.ignored["a"].startswith("is left alone: kubectl has suspended it (spec.suspend)")

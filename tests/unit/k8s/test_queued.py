"""Why a job waits is told by its status, in the words of whoever holds it."""

import pytest

from edl.common.identity import Identity
from edl.k8s import names, observe
from edl.k8s.decide import OTHERS, decide
from edl.k8s.masters import Memory
from edl.k8s.outside import state
from edl.k8s.plans import Seen

from .edljobs import edljob, pod

TIME = "2026-01-01T00:00:00Z"
SAYS = "it waits for the queue team of Kueue: 3 more cpu are needed"


def job(says=f"WaitingForQuota: {SAYS}", status=None, **spec):
    worker = {"replicas": 4, "minReplicas": 1, "maxReplicas": 8}
    it = edljob(**{"suspend": True, "scheduling": {}, "worker": worker, **spec})
    it["metadata"]["annotations"] = {names.SAYS: says} if says else {}
    return {**it, **({"status": status} if status else {})}


def decided(it, *pods):
    seen = Seen(it, list(pods), None, None, dict.fromkeys(OTHERS))
    plan = decide(seen, Memory(), 0.0, TIME, lambda token: Identity.create(token or "t"))
    bodies = [each.body for each in plan.actions if each.subresource == "status"]
    events = [each.body for each in plan.actions if each.kind == "Event"]
    return (bodies[0]["status"] if bodies else {}), events


def condition(status):
    return {
        each["type"]: (each["status"], each["reason"], each.get("message"))
        for each in status["conditions"]
    }.get("Queued")


def test_a_job_that_waits_says_for_whom_and_why_in_its_status_and_an_event():
    status, events = decided(job())

    assert (status["phase"], status["message"]) == ("Suspended", SAYS)
    assert condition(status) == ("True", "WaitingForQuota", SAYS)
    told = [(each["type"], each["reason"], each["message"]) for each in events]
    assert ("Normal", "WaitingForQuota", SAYS) in told
    assert sum(message == SAYS for _, _, message in told) == 1


def test_figures_that_go_up_and_down_are_no_events():
    before, _ = decided(job())

    more, events = decided(job(f"WaitingForQuota: {SAYS.replace('3', '12')}", before))
    _, others = decided(job("WaitingForRoom: it waits: others come before it", before))

    assert "12 more cpu" in more["message"]
    assert events == []
    assert [each["reason"] for each in others] == ["WaitingForRoom"]


def test_the_scheduler_that_has_not_come_yet_is_named():
    status, _ = decided(job(""))

    assert "waits for the scheduler" in status["message"]
    assert condition(status)[:2] == ("True", "WaitingForScheduler")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"scheduling": None}, "no pod runs; it goes on when spec.suspend is false"),
        ({"scheduling": {}}, "no pod runs: suspended by somebody and not by the scheduler"),
    ],
    ids=["unscheduled", "suspended by a user"],
)
def test_a_job_that_somebody_suspended_waits_for_nobody(spec, message):
    status, _ = decided(job(status={"startTime": TIME, "phase": "Running"}, **spec))

    assert status["message"].startswith(message)
    assert (condition(status) or ("False",))[0] == "False"


def test_a_job_that_runs_with_less_says_so_where_nothing_else_is_said():
    words = "Limited: it stays in the queue team of Kueue until it is suspended"
    it = job(words, {"startTime": TIME, "phase": "Running"}, suspend=False)

    status, events = decided(it)

    assert status["message"] == "it stays in the queue team of Kueue until it is suspended"
    assert condition(status)[:2] == ("False", "Limited")
    assert [each["type"] for each in events if each["reason"] == "Limited"] == ["Normal"]


def test_escapes_of_others_and_pages_of_text_stay_out():
    status, events = decided(job(f"WaitingForQuota: it waits: \x1b[31mred\n{'x' * 5000}"))

    assert all(each.isprintable() for each in status["message"])
    assert len(status["message"]) <= 1000
    assert all(each["message"].isprintable() for each in events)


def test_what_is_no_word_of_the_scheduler_is_not_taken():
    status, _ = decided(job("no reason"))

    assert condition(status)[1] == "WaitingForScheduler"


def test_edl_status_tells_it_too():
    assert state.status_of("demo", job(), None, [])["message"] == SAYS


def test_edl_status_says_that_no_controller_has_looked_at_a_job():
    assert "no controller" in state.status_of("demo", edljob(), None, [])["message"]


@pytest.mark.parametrize(
    ("gate", "says"),
    [
        ("kueue.x-k8s.io/admission", "leave the namespace out of managedJobsNamespaceSelector"),
        ("kueue.x-k8s.io/topology", "is held by Kueue"),
        ("example.com/wait", "is held by example.com/wait (spec.schedulingGates)"),
    ],
)
def test_a_pod_that_a_scheduling_gate_holds_is_told_by_the_name_of_the_gate(gate, says):
    it = edljob()
    held = pod(it, "master", phase="Pending")
    held["spec"] = {"schedulingGates": [{"name": gate}]}
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    held["status"]["conditions"] = [{**gated, "message": "Scheduling is blocked due to gates"}]

    status, _ = decided(it, held)

    assert status["message"].startswith("the master is held by ")
    assert says in status["message"]
    assert observe.observe(held).word == "SchedulingGated"
    assert gate in state.status_of("demo", it, None, [held])["message"]

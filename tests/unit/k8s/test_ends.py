"""An EdlJob ends at its deadline, and goes when it was kept long enough after its end."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from edl.common.identity import Identity
from edl.k8s import ends, names, objects
from edl.k8s.controller import Controller
from edl.k8s.decide import decide
from edl.k8s.job import wanted
from edl.k8s.masters import Memory
from edl.k8s.plans import Plan, Seen

from .edljobs import edljob, pod, told
from .test_controller import JOB, phase_is, run, says, submit

Object = dict[str, Any]
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SAYS = "spec.activeDeadlineSeconds: 100 s are over"


def at(seconds: float) -> str:
    return (START + datetime.timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def begun(status: Object | None = None, **spec: Any) -> Object:
    """Return an EdlJob that was begun, or resumed, at START."""
    job = edljob(**spec)
    runs = {"type": "Suspended", "status": "False", "lastTransitionTime": at(0)}
    return {**job, "status": {"phase": "Running", "conditions": [runs], **(status or {})}}


def look(
    job: Object,
    *pods: Object,
    now: float,
    said: Object | None = None,
    stop: str = "",
    memory: Memory | None = None,
) -> Plan:
    """Decide at so many seconds, by the controller's clock and the world's."""
    memory = memory or Memory(job["metadata"]["uid"])
    owner = {"kind": names.KIND, "name": "demo", "uid": job["metadata"]["uid"]}
    config = objects.config(wanted(job).settings, wanted(job).templates)
    config["data"][objects.WANTED] = json.dumps(objects.wanted(wanted(job).settings, stop))
    status = objects.status("demo", json.dumps(said or told()))
    for each in (config, status):
        each["metadata"] |= {"ownerReferences": [owner], "uid": "c", "resourceVersion": "1"}
    seen = Seen(job, pods, config, status)
    return decide(seen, memory, now, at(now), lambda _: Identity("t"))


def told_to_stop(plan: Plan) -> str:
    (found,) = [each for each in plan.actions if (each.verb, each.kind) == ("patch", "ConfigMap")]
    return str(json.loads(found.body["data"][objects.WANTED])["stop"])


def deleted(plan: Plan) -> list[str]:
    return [each.name for each in plan.actions if each.verb == "delete"]


def shown(plan: Plan) -> Object:
    (found,) = [each.body["status"] for each in plan.actions if each.subresource == "status"]
    return found


def failed(status: Object) -> tuple[str, str]:
    (found,) = [each for each in status["conditions"] if each["type"] == "Failed"]
    return found["status"], found["reason"]


def test_until_its_deadline_a_job_goes_on_and_is_looked_at_again_then():
    job = begun(activeDeadlineSeconds=100)

    plan = look(job, pod(job, "master"), now=70)

    assert plan.again_s == 30
    assert deleted(plan) == []
    assert [each for each in plan.actions if each.kind == "ConfigMap"] == []


def test_at_its_deadline_a_job_stops_in_order_and_is_failed_by_it():
    job = begun(activeDeadlineSeconds=100)
    there = pod(job, "master")

    late = look(job, there, now=100)
    stopped = told("failed", exit_code=130, message=f"stopped ({SAYS}) at record 7")
    over = look(job, pod(job, "master", phase="Failed"), now=103, said=stopped, stop=SAYS)

    assert (told_to_stop(late), deleted(late)) == (SAYS, [])
    assert 0 < (late.again_s or 0) <= ends.GIVES_S
    assert failed(shown(over)) == ("True", ends.DEADLINE)
    assert shown(over)["message"] == f"stopped ({SAYS}) at record 7"


def test_one_that_does_not_stop_is_ended_and_never_goes_on():
    job = begun(activeDeadlineSeconds=100)
    there = [pod(job, "master"), pod(job, "worker")]

    first = look(job, *there, now=500)  # the controller was away
    late = look(job, *there, now=500 + ends.GIVES_S, stop=SAYS, memory=first.memory)
    gone = shown(look(job, now=630))
    after = {**job, "status": {**job["status"], **gone}}
    after["spec"] = {**job["spec"], "activeDeadlineSeconds": 10**6}

    assert (deleted(first), deleted(late)) == ([], ["edl-demo-master-0"])
    assert (gone["phase"], gone["message"], failed(gone)) == (
        "Failed",
        SAYS,
        ("True", ends.DEADLINE),
    )
    assert gone["completionTime"] == at(630)
    assert [each for each in look(after, now=700).actions if each.kind == "Pod"] == []


def test_one_that_waits_for_room_is_ended_at_once_and_a_suspended_one_is_not():
    job = begun(activeDeadlineSeconds=100)
    waits = pod(job, "master", phase="Pending")
    suspended = begun(activeDeadlineSeconds=100, suspend=True)

    assert deleted(look(job, waits, now=101)) == ["edl-demo-master-0"]
    assert shown(look(suspended, now=101))["phase"] == "Suspended"


@pytest.mark.parametrize(("now", "pods", "goes", "again_s"), [
    (20, (), [], 40),
    (60, (), ["demo"], None),
    (60, ("worker",), ["edl-demo-worker-0"], None),  # which its master could not dismiss
])  # fmt: skip
def test_a_job_that_is_over_goes_when_it_was_kept_so_long(now, pods, goes, again_s):
    ended = {"phase": "Succeeded", "completionTime": at(0)}
    job = begun(ended, ttlSecondsAfterFinished=60)
    done = told("done", exit_code=0)

    plan = look(job, *(pod(job, role) for role in pods), now=now, said=done)

    assert (deleted(plan), plan.again_s) == (goes, again_s)


def test_the_controller_deletes_it(api, server):
    controller = Controller(api)
    controller.start()
    try:
        job = submit(api, ttlSecondsAfterFinished=0)
        master, *_ = run(api, server, job)
        says(api, job, "done", exit_code=0)
        for name in [key[1] for key in list(server.objects) if key[0] == "pods"]:
            server.set_status(name, phase="Succeeded")

        server.wait_until(lambda: JOB not in server.objects)
        assert master
    finally:
        controller.close()


def test_one_without_a_ttl_stays(api, server):
    controller = Controller(api)
    controller.start()
    try:
        job = submit(api)
        name, *_ = run(api, server, job)
        says(api, job, "done", exit_code=0)
        server.set_status(name, phase="Succeeded")
        phase_is(server, "Succeeded")

        assert JOB in server.objects
    finally:
        controller.close()

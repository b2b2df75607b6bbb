"""Decisions about one job in a small model of a cluster: anything happens, anybody is killed."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.common.identity import Identity
from edl.k8s import decide as module
from edl.k8s import job_status, names, objects, observe
from edl.k8s.decide import OTHERS, decide
from edl.k8s.masters import IDLE_S, IMAGE_S, PAUSES, SOON_S, Memory
from edl.k8s.plans import Action, Plan, Seen

from .edljobs import edljob, pod, told

pytestmark = pytest.mark.fast

TIME = "2026-01-01T00:00:00Z"


class Conflict(Exception):
    """A refusal by the API server: the object has changed since (409)."""


class World:
    """One namespace with one EdlJob."""

    def __init__(self) -> None:
        self.job = edljob()
        self.objects: dict[tuple[str, str], Any] = {}
        self.made: list[str] = []  # names of masters
        self.now = 0.0
        self._uids = itertools.count()

    def see(self) -> Seen:
        found = copy.deepcopy(self.objects)
        name = names.object_name("demo")
        return Seen(
            job=copy.deepcopy(self.job),
            pods=[each for (kind, _), each in found.items() if kind == "Pod"],
            config=found.get(("ConfigMap", name)),
            status=found.get(("ConfigMap", f"{name}-status")),
            others={
                kind: found.get((kind, f"{name}-ps" if kind == "PodDisruptionBudget" else name))
                for kind in OTHERS
            },
        )

    def do(self, action: Action) -> None:
        key = (action.kind, action.name)
        if action.kind == "Event":  # nothing hangs on them
            return
        if action.verb == "create":
            if key in self.objects:
                raise Conflict(key)
            if action.kind == "Pod":
                self.made.append(action.name)
            self.put(action.kind, copy.deepcopy(action.body))
        elif action.verb == "delete":
            self.delete(action.name)
        elif action.kind == names.KIND:
            self._check(self.job, action.body)
            status = self.job.setdefault("status", {})
            for field, value in action.body["status"].items():
                if value is None:
                    del status[field]
                else:
                    status[field] = value
        else:
            self._check(self.objects[key], action.body)
            self.objects[key]["data"] |= action.body["data"]

    def put(self, kind: str, body: Any) -> None:
        body["metadata"] |= {"uid": f"uid-of-{next(self._uids)}", "resourceVersion": "1"}
        body.setdefault("status", {"phase": "Running"})
        self.objects[kind, body["metadata"]["name"]] = body

    def delete(self, name: str) -> None:
        """Tell a pod to end."""
        if ("Pod", name) in self.objects:
            self.objects["Pod", name]["metadata"]["deletionTimestamp"] = TIME

    def change(self, **spec: Any) -> None:
        self.job["spec"] |= spec
        self._bump(self.job)

    def _check(self, found: Any, body: Any) -> None:
        version = body.get("metadata", {}).get("resourceVersion")
        if version not in (None, found["metadata"]["resourceVersion"]):
            raise Conflict(found["metadata"]["name"])
        self._bump(found)

    def _bump(self, found: Any) -> None:
        about = found["metadata"]
        about["resourceVersion"] = str(int(about["resourceVersion"]) + 1)

    # -- what a test asks

    def pods(self, *roles: str) -> list[Any]:
        found = [each for (kind, _), each in self.objects.items() if kind == "Pod"]
        return job_status.of_role(found, *(roles or ("master", "ps", "worker")))

    def serving(self) -> list[str]:
        return [
            each["metadata"]["name"]
            for each in self.pods("master")
            if job_status.lives(each) and observe.deletion(each) is None
        ]


class Looker:
    """A controller: it looks, and does, unless it is killed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.memory = Memory()

    def look(self, seen: Seen | None = None, killed_after: int | None = None) -> int:
        """Look, do what is decided, and return how many actions that took."""
        seen = seen or self.world.see()
        plan = decide(seen, self.memory, self.world.now, TIME, lambda token: Identity(token or "t"))
        try:
            for done, action in enumerate(plan.actions):
                if done == killed_after:
                    self.memory = Memory()
                    return done
                self.world.do(action)
        except Conflict:
            return len(plan.actions)
        self.memory = plan.memory
        return len(plan.actions)

    def settle(self) -> None:
        for _ in range(20):
            if not self.look():
                return
            self.world.now += PAUSES.longest_s
        raise AssertionError("there is always something to do")


def settled() -> tuple[World, Looker]:
    world = World()
    looker = Looker(world)
    looker.settle()
    return world, looker


def test_it_comes_to_rest_with_one_master():
    world, _ = settled()

    assert world.made == ["edl-demo-master-0"] == world.serving()
    assert {kind for kind, _ in world.objects} == {"ConfigMap", "Pod", *OTHERS}


def test_a_controller_may_be_killed_after_any_action():
    for killed_after in range(9):
        world = World()
        Looker(world).look(killed_after=killed_after)
        Looker(world).settle()

        assert len(world.serving()) == 1, killed_after
        assert len(set(world.made)) == len(world.made)


def test_a_controller_that_has_slept_does_not_make_a_second_master():
    world, first = settled()
    world.objects.pop(("Pod", "edl-demo-master-0"))
    old = world.see()

    first.settle()
    Looker(world).look(old)

    assert world.serving() == ["edl-demo-master-1"]


def test_no_name_of_a_master_comes_twice_not_even_after_a_long_sleep():
    """A name holds the Lease. Broken once: the pod is made before its number is written."""
    world, first = settled()
    world.objects.pop(("Pod", "edl-demo-master-0"))
    old = world.see()
    first.settle()
    world.objects.pop(("Pod", "edl-demo-master-1"))

    Looker(world).look(old)

    assert world.made == ["edl-demo-master-0", "edl-demo-master-1"]


def test_of_two_masters_that_two_controllers_made_the_older_one_ends():
    """The other controller looks between the number and the pod."""
    world, first = settled()
    world.objects.pop(("Pod", "edl-demo-master-0"))
    plan = decide(world.see(), first.memory, world.now, TIME, lambda token: Identity(token))
    for action in plan.actions:
        if action.verb == "create":
            Looker(world).settle()
        world.do(action)
    both = world.serving()

    Looker(world).settle()

    assert both == ["edl-demo-master-1", "edl-demo-master-2"]
    assert world.serving() == ["edl-demo-master-2"]


def test_a_master_that_lives_long_enough_is_forgiven():
    world, looker = settled()
    pauses = []
    for lifetime_s in (SOON_S, 1.0, 1.0, 1.0, SOON_S, 1.0):
        looker.look()
        world.now += lifetime_s
        looker.look()
        world.objects.pop(("Pod", world.serving()[0]))
        began = world.now
        while not world.serving():
            world.now += 1.0
            looker.look()
        pauses.append(world.now - began - 1.0)

    assert pauses == [0.0, 0.0, 2.0, 4.0, 0.0, 0.0]


def test_the_pods_of_a_decided_job_end_with_their_master():
    world, looker = settled()
    worker = pod(world.job, "worker")
    world.put("Pod", worker)
    say(world, "done", 0)

    looker.look()
    before = [observe.deletion(each) for each in world.pods("worker")]
    world.objects.pop(("Pod", "edl-demo-master-0"))
    looker.look()

    assert before == [None]
    assert [observe.deletion(each) for each in world.pods("worker")] == [0]
    assert world.serving() == []


def say(world: World, state: str, code: int | None = None) -> None:
    body = objects.status("demo", json.dumps(told(state, exit_code=code)))
    body["metadata"]["ownerReferences"] = [{"uid": "uid-1"}]
    world.objects.pop(("ConfigMap", "edl-demo-status"), None)
    world.put("ConfigMap", body)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("look"), st.integers(0, 1), st.none() | st.integers(0, 8)),
        st.tuples(st.just("remember"), st.integers(0, 1)),
        st.tuples(st.just("look_at_old"), st.integers(0, 1)),
        st.tuples(st.sampled_from(["kill_master", "fail_master", "delete_master", "reap"])),
        st.tuples(st.just("suspend"), st.booleans()),
        st.tuples(st.just("scale"), st.integers(1, 6)),
        st.tuples(st.just("spoil"), st.booleans()),
        st.tuples(st.just("worker")),
        st.tuples(st.just("say"), st.sampled_from(["running", "stopping"])),
        st.tuples(st.just("wait"), st.integers(1, 400)),
    ),
    max_size=25,
)


@settings(max_examples=examples(150), deadline=None)
@given(STEPS, st.booleans())
def test_whatever_happens_there_is_never_a_second_master_and_in_the_end_there_is_one(
    steps, decided
):
    world = World()
    lookers = [Looker(world), Looker(world)]
    old = [world.see(), world.see()]
    for kind, *more in steps:
        masters = world.serving()
        if kind == "look":
            lookers[more[0]].look(killed_after=more[1])
        elif kind == "remember":
            old[more[0]] = world.see()
        elif kind == "look_at_old":
            lookers[more[0]].look(old[more[0]])
        elif kind == "suspend":
            world.change(suspend=more[0])
        elif kind == "scale":
            world.change(worker={"replicas": more[0]})
        elif kind == "spoil":
            world.change(image="" if more[0] else "edl:1")
        elif kind == "worker" and ("Pod", "edl-demo-worker-0") not in world.objects:
            world.put("Pod", pod(world.job, "worker"))
        elif kind == "say":
            say(world, more[0])
        elif kind == "wait":
            world.now += more[0]
        elif kind == "reap":
            for each in world.pods():
                if observe.deletion(each) is not None:
                    world.objects.pop(("Pod", each["metadata"]["name"]))
        elif masters and kind == "kill_master":
            world.objects.pop(("Pod", masters[0]))
        elif masters and kind == "fail_master":
            world.objects["Pod", masters[0]]["status"] = {"phase": "Failed"}
        elif masters and kind == "delete_master":
            world.delete(masters[0])

        assert len(world.serving()) <= 1
        assert len(set(world.made)) == len(world.made)

    world.change(image="edl:1", suspend=False)
    if decided:
        say(world, "done", 0)
        count = len(world.made)
    lookers[0].settle()
    if decided:
        assert len(world.made) == count
        assert world.job["status"]["phase"] == "Succeeded"
        return
    assert len(world.serving()) == 1
    data = world.objects["ConfigMap", "edl-demo"]["data"]
    assert (
        json.loads(data[objects.WANTED])["num_workers"] == world.job["spec"]["worker"]["replicas"]
    )
    world.change(suspend=True)
    lookers[1].settle()
    world.now += module.GOES_S
    lookers[1].settle()
    assert all(
        observe.deletion(each) is not None for each in world.pods() if job_status.lives(each)
    )


# -- a master that does not come, or runs out of memory


def look(world: World, memory: Memory) -> tuple[Memory, list[Action]]:
    plan = decide(world.see(), memory, world.now, TIME, lambda token: Identity(token))
    for action in plan.actions:
        world.do(action)
    return plan.memory, plan.actions


def test_a_new_job_waits_for_the_scheduler_although_its_manifest_says_no_suspend():
    """Applied again, such a manifest changes nothing. Broken once: it begins at once."""
    world = World()
    world.job["spec"] |= {"scheduling": {}, "suspend": False}
    world.job["spec"]["worker"]["maxReplicas"] = 8

    def step() -> None:
        plan = decide(world.see(), Memory(), world.now, TIME, lambda token: Identity(token))
        for action in plan.actions:
            if action.kind == names.KIND and not action.subresource:
                world._check(world.job, action.body)
                world.change(**action.body["spec"])
            else:
                world.do(action)

    step()
    queued = copy.deepcopy(world.job["spec"]["suspend"]), world.pods()
    step()
    waits = copy.deepcopy(world.job["status"])
    world.change(suspend=False)  # by the scheduler
    for _ in range(3):
        step()

    assert queued == (True, [])
    assert waits["phase"] == "Suspended"
    assert "it waits for the scheduler" in waits["message"]
    assert world.serving() == ["edl-demo-master-0"]
    assert world.job["spec"]["suspend"] is False


@pytest.mark.parametrize("is_told", [True, False])
def test_a_master_beside_whose_container_others_run_on_is_deleted_once_it_was_read(is_told):
    """A proxy that a webhook puts in never ends. `is_told`: the master could write its last status.

    Broken once: the pods stay 1/2 for ever, where it could not; and: another master is made."""
    world, looker = settled()
    proxy = {"name": "proxy", "state": {"running": {}}}

    def ends(number: int, code: int) -> None:
        ended = {"name": "edl", "state": {"terminated": {"exitCode": code, "reason": "Error"}}}
        pod = world.objects["Pod", f"edl-demo-master-{number}"]
        pod["status"] = {"phase": "Running", "containerStatuses": [proxy, ended]}

    def going() -> list[str]:
        return [
            each["metadata"]["name"]
            for each in world.pods()
            if observe.deletion(each) is not None and "-master-" in each["metadata"]["name"]
        ]

    ends(0, 1)
    world.now += 1000.0
    memory, _ = look(world, looker.memory)
    died = world.serving(), going()
    ends(1, 0)
    if is_told:
        say(world, "done", 0)
    memory, _ = look(world, memory)
    first = going()
    memory, _ = look(world, memory)
    read = going()
    for name in read:
        del world.objects["Pod", name]
    memory, _ = look(world, memory)

    assert died == (["edl-demo-master-1"], ["edl-demo-master-0"])
    # its exit code is all that is known of the end, until the EdlJob's status says it
    assert first == ["edl-demo-master-0", *(["edl-demo-master-1"] if is_told else [])]
    assert read == ["edl-demo-master-0", "edl-demo-master-1"]
    assert world.job["status"]["phase"] == "Succeeded"
    assert world.made == read  # nobody comes after them


def no_image(world: World, name: str, reason: str = "ImagePullBackOff") -> None:
    waiting = {"state": {"waiting": {"reason": reason, "message": "no such"}}, "image": "edl:9"}
    world.objects["Pod", name]["status"] = {"phase": "Pending", "containerStatuses": [waiting]}


def condition(world: World, kind: str) -> Any:
    return next(each for each in world.job["status"]["conditions"] if each["type"] == kind)


def test_a_master_whose_image_cannot_be_pulled_is_told_of_and_fails_after_the_documented_time():
    """The job is tried again at once when the spec is mended. Broken once: it waits for ever."""
    world, looker = settled()
    name = "edl-demo-master-0"
    no_image(world, name)
    memory, _ = look(world, looker.memory)
    waits = copy.deepcopy(world.job["status"])

    world.now += IMAGE_S
    memory, actions = look(world, memory)
    failed = copy.deepcopy(world.job["status"])
    del world.objects["Pod", name]
    memory, still = look(world, memory)
    world.job["metadata"]["generation"] += 1
    memory, _ = look(world, memory)

    assert waits["phase"] == "Pending"
    assert "image edl:9: ImagePullBackOff" in waits["message"]
    assert failed["phase"] == "Failed"
    assert "image edl:9" in failed["message"]
    events = [each.body for each in actions if each.kind == "Event"]
    assert [(each["type"], each["reason"]) for each in events] == [("Warning", "ImageNotPulled")]
    assert [each for each in actions if each.verb == "delete"]
    assert not [each for each in still if (each.verb, each.kind) == ("create", "Pod")]
    assert world.serving() == ["edl-demo-master-1"]


def test_a_name_that_is_no_image_fails_at_once():
    world, looker = settled()
    no_image(world, "edl-demo-master-0", "InvalidImageName")

    look(world, looker.memory)

    assert condition(world, "Failed")["reason"] == "ImageNotPulled"


def unschedulable(world: World, name: str) -> None:
    scheduled = {"type": "PodScheduled", "status": "False", "message": "0/4 nodes"}
    world.objects["Pod", name]["status"] = {"phase": "Pending", "conditions": [scheduled]}


def mend(world: World, **spec: Any) -> None:
    world.change(**spec)
    world.job["metadata"]["generation"] += 1


MENDS: list[dict[str, Any]] = [
    {"image": "edl:2"},
    {"master": {"resources": {"requests": {"cpu": "1"}}}},
    {"jobVolume": {"persistentVolumeClaim": {"claimName": "mended"}}},
]


@pytest.mark.parametrize("spec", MENDS, ids=["image", "requests", "claim"])
@pytest.mark.parametrize("spoil", [no_image, unschedulable])
def test_a_master_that_waits_is_made_anew_at_once_when_the_spec_is_mended(spec, spoil):
    """Broken once: the old pod waits on, with what the spec has no more."""
    world, looker = settled()
    spoil(world, "edl-demo-master-0")
    memory, _ = look(world, looker.memory)
    uid = world.objects["Pod", "edl-demo-master-0"]["metadata"]["uid"]
    mend(world, **spec)

    memory, actions = look(world, memory)
    _, after = look(world, memory)

    gone = [(each.name, each.uid, each.grace_s) for each in actions if each.verb == "delete"]
    assert gone == [("edl-demo-master-0", uid, None)]
    assert world.serving() == ["edl-demo-master-1"]
    config = json.loads(world.objects["ConfigMap", "edl-demo"]["data"][objects.TEMPLATES])
    made = world.objects["Pod", "edl-demo-master-1"]
    assert made["spec"] == config["master"]["spec"]
    assert not [each for each in after if each.kind == "Pod"]
    assert world.job["status"].get("message") is None


def assert_no_pod_is_touched(world, looker):
    _, actions = look(world, looker.memory)
    assert not [each for each in actions if each.kind == "Pod"]


@pytest.mark.parametrize(
    "state",
    [
        {"phase": "Running"},
        {
            "phase": "Pending",
            "initContainerStatuses": [{"name": "check", "state": {"running": {}}}],
        },
        {
            "phase": "Pending",
            "initContainerStatuses": [{"name": "check", "state": {"terminated": {"exitCode": 0}}}],
        },
    ],
    ids=["runs", "is checked", "was checked"],
)
def test_a_master_that_has_begun_is_left_alone_when_the_spec_changes(state):
    world, looker = settled()
    world.objects["Pod", "edl-demo-master-0"]["status"] = state
    mend(world, image="edl:2")

    assert_no_pod_is_touched(world, looker)


def test_a_master_that_waits_goes_on_where_what_changed_is_not_of_its_pod():
    world, looker = settled()
    unschedulable(world, "edl-demo-master-0")
    mend(world, worker={"replicas": 2, "minReplicas": 1})

    assert_no_pod_is_touched(world, looker)


def test_a_master_that_waits_and_is_of_an_earlier_edl_is_left_alone():
    world, looker = settled()
    unschedulable(world, "edl-demo-master-0")
    del world.objects["Pod", "edl-demo-master-0"]["metadata"]["annotations"]
    mend(world, image="edl:2")

    assert_no_pod_is_touched(world, looker)


def test_an_injected_container_that_has_run_does_not_keep_a_master_that_has_not_begun():
    world, looker = settled()
    no_image(world, "edl-demo-master-0")
    injected = {"name": "istio-init", "state": {"terminated": {"exitCode": 0}}}
    world.objects["Pod", "edl-demo-master-0"]["status"]["initContainerStatuses"] = [injected]
    mend(world, image="edl:2")

    look(world, looker.memory)

    assert world.serving() == ["edl-demo-master-1"]


def test_a_master_with_more_memory_than_the_spec_says_is_no_other_one_while_it_waits():
    """The memory that a pod has grown by is not of the spec. Broken once: anew at each look."""
    world = World()
    world.job["spec"]["master"] = {"resources": {"limits": {"memory": "256Mi"}}}
    looker = Looker(world)
    looker.settle()
    out_of_memory(world, "edl-demo-master-0", "containerStatuses")
    memory, _ = look(world, looker.memory)
    memory, _ = look(world, memory)
    unschedulable(world, "edl-demo-master-1")

    _, actions = look(world, memory)

    assert limit(world, 1) == ["512Mi"] * 2
    assert not [each for each in actions if each.kind == "Pod"]


def test_a_change_made_before_a_master_is_given_up_for_its_image_is_tried_at_once():
    """The pod says no template. Broken once: the next try comes five minutes later."""
    world, looker = settled()
    no_image(world, "edl-demo-master-0")
    del world.objects["Pod", "edl-demo-master-0"]["metadata"]["annotations"]
    memory, _ = look(world, looker.memory)
    mend(world, image="edl:2")
    memory, _ = look(world, memory)
    waits = world.serving()

    world.now += IMAGE_S
    look(world, memory)

    assert waits == ["edl-demo-master-0"]
    assert world.serving() == ["edl-demo-master-1"]
    assert world.job["status"]["phase"] == "Pending"


def test_news_are_events_and_are_told_once():
    world, looker = settled()
    scheduled = {"type": "PodScheduled", "status": "False", "message": "0/4 nodes"}
    status = {"phase": "Pending", "conditions": [scheduled]}
    world.objects["Pod", "edl-demo-master-0"]["status"] = status

    memory, first = look(world, looker.memory)
    _, second = look(world, memory)

    (event,) = [each.body for each in first if each.kind == "Event"]
    assert (event["reason"], event["message"]) == (
        "Unschedulable",
        "the master cannot be scheduled: 0/4 nodes",
    )
    assert event["involvedObject"]["uid"] == world.job["metadata"]["uid"]
    assert not [each for each in second if each.kind == "Event"]


def test_a_master_whose_node_lacks_its_volumes_is_looked_at_again_when_that_is_news():
    """Broken once: up to two minutes later, since nothing changes meanwhile."""
    world, looker = settled()
    lacks = {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": TIME}
    master = world.objects["Pod", "edl-demo-master-0"]
    master["status"] = {"phase": "Pending", "conditions": [lacks]}
    master["spec"]["nodeName"] = "n1"

    def plan(time: str) -> Plan:
        return decide(world.see(), looker.memory, world.now, time, lambda token: Identity(token))

    late = plan("2026-01-01T00:00:20Z")

    assert plan("2026-01-01T00:00:05Z").again_s == 15.0
    assert late.again_s is None
    (event,) = [each.body for each in late.actions if each.kind == "Event"]
    assert (event["type"], event["reason"]) == ("Warning", "Waiting")
    assert "the master's pod waits on node n1 for its volumes" in event["message"]


def test_that_no_worker_is_ready_is_an_event_only_where_it_lasts():
    """Between epochs and at both ends it is usual. Broken once: a Warning each time."""
    world, looker = settled()
    status = names.object_name("demo", "status")
    owner = [{"uid": world.job["metadata"]["uid"]}]

    def says(*workers: dict[str, Any]) -> None:
        data = {objects.STATUS: json.dumps({**told("running"), "workers": list(workers)})}
        world.put(
            "ConfigMap", {"metadata": {"name": status, "ownerReferences": owner}, "data": data}
        )

    def events(actions: list[Action]) -> list[tuple[str, str]]:
        return [
            (each.body["type"], each.body["message"]) for each in actions if each.kind == "Event"
        ]

    says()
    memory, first = look(world, looker.memory)
    waits = decide(world.see(), memory, world.now, TIME, lambda token: Identity(token)).again_s
    world.now += IDLE_S - 1
    memory, second = look(world, memory)
    message = world.job["status"]["message"]
    world.now += 1
    memory, third = look(world, memory)
    _, fourth = look(world, memory)

    assert (events(first), events(second), events(fourth)) == ([], [], [])
    assert events(third) == [("Warning", "no worker is ready, for 60 s")]
    assert (waits, message) == (IDLE_S, "no worker is ready")


def out_of_memory(world: World, name: str, which: str) -> None:
    ended = [{"name": "edl", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]
    world.objects["Pod", name]["status"] = {"phase": "Failed", which: ended}


def limit(world: World, number: int) -> list[str]:
    spec = world.objects["Pod", f"edl-demo-master-{number}"]["spec"]
    both = [*spec["containers"], *spec["initContainers"]]
    return [each["resources"]["limits"]["memory"] for each in both]


def test_a_master_out_of_memory_is_replaced_with_twice_as_much_up_to_the_cap():
    """The check of the definition may be what ran out, too. Broken once: as much as before."""
    world = World()
    world.job["spec"]["master"] = {"resources": {"limits": {"memory": "256Mi"}}}
    looker = Looker(world)
    looker.settle()
    memory, seen = looker.memory, []
    for number, which in enumerate(["initContainerStatuses", "containerStatuses"] * 2):
        out_of_memory(world, f"edl-demo-master-{number}", which)
        world.now += 1000.0
        memory, _ = look(world, memory)
        memory, _ = look(world, memory)
        seen.append(limit(world, number + 1))
    told = world.job["status"]["message"]

    world.job["spec"]["master"] = {"resources": {"limits": {"memory": "300Mi"}}}
    del world.objects["Pod", "edl-demo-master-4"]
    world.now += 1000.0
    look(world, memory)

    assert seen == [["512Mi"] * 2, ["1Gi"] * 2, ["1Gi"] * 2, ["1Gi"] * 2]
    assert "ran out of memory (1Gi" in told
    assert limit(world, 5) == ["300Mi"] * 2  # the spec was mended


BOOKS = {"persistentVolumeClaim": {"claimName": "jobs"}}
ELSEWHERE = {"persistentVolumeClaim": {"claimName": "elsewhere"}}


def volumes_of_job(world: World, name: str) -> list[Any]:
    found = world.objects["Pod", name]["spec"]["volumes"]
    return [
        {k: v for k, v in each.items() if k != "name"} for each in found if each["name"] == "job"
    ]


@pytest.mark.parametrize("suspended", [False, True])
@pytest.mark.parametrize(
    ("begun", "volume"),
    [
        (BOOKS, ELSEWHERE),
        (BOOKS, {"persistentVolumeClaim": {"claimName": "jobs", "readOnly": True}}),
        (BOOKS, {"emptyDir": {}}),
        (BOOKS, {"nfs": None}),
        (BOOKS, None),
        ({"emptyDir": {}}, BOOKS),
        (None, BOOKS),
    ],
)
def test_a_job_that_has_begun_keeps_its_volume_until_the_old_one_is_put_back(
    begun, volume, suspended
):
    """Broken once: its next master begins at record 0, in an empty folder, without a word."""
    world = World()
    world.change(jobVolume=begun)
    looker = Looker(world)
    looker.settle()
    before = volumes_of_job(world, "edl-demo-master-0")
    mend(world, jobVolume=volume, image="edl:2", suspend=suspended)

    memory, _ = look(world, looker.memory)
    said = condition(world, "Accepted")
    world.objects.pop(("Pod", "edl-demo-master-0"))
    say(world, "running")
    world.change(suspend=False)
    memory, _ = look(world, memory)
    data = world.objects["ConfigMap", "edl-demo"]["data"]
    mend(world, jobVolume=begun)
    look(world, memory)

    assert (said["status"], said["reason"]) == ("False", "Fixed")
    assert said["message"].startswith("spec.jobVolume: cannot be changed in a job that has begun")
    assert world.serving() == ["edl-demo-master-1"]
    assert volumes_of_job(world, "edl-demo-master-1") == before
    made = json.loads(data[objects.SETTINGS])
    assert made["job_volume"] == ("claim_name=jobs" if begun is BOOKS else "")
    assert made["image_name"] == "edl:2"  # what may change does
    assert condition(world, "Accepted")["status"] == "True"


def test_a_job_of_which_a_master_was_there_keeps_its_volume_though_the_next_one_waits():
    world, looker = settled()
    world.objects.pop(("Pod", "edl-demo-master-0"))
    say(world, "running")
    memory, _ = look(world, looker.memory)
    unschedulable(world, "edl-demo-master-1")
    mend(world, jobVolume=ELSEWHERE)

    _, actions = look(world, memory)

    assert not [each for each in actions if each.kind == "Pod"]
    assert condition(world, "Accepted")["reason"] == "Fixed"


def test_what_ends_with_its_pod_may_be_another_volume_of_the_kind():
    world = World()
    world.change(jobVolume={"emptyDir": {"sizeLimit": "1Gi"}})
    looker = Looker(world)
    looker.settle()
    mend(world, jobVolume={"emptyDir": {"sizeLimit": "2Gi"}})
    world.objects.pop(("Pod", "edl-demo-master-0"))

    look(world, looker.memory)

    assert volumes_of_job(world, "edl-demo-master-1") == [{"emptyDir": {"sizeLimit": "2Gi"}}]
    assert condition(world, "Accepted")["status"] == "True"


@pytest.mark.parametrize(
    "spec",
    [
        {"ps": {"replicas": None}, "worker": {"replicas": None, "low": None}},
        {"scheduling": None, "suspend": None, "command": None, "envs": None},
        {"jobVolume": {"emptyDir": None}, "volumes": None, "teacher": None},
        {"worker": {"podTemplate": {"spec": {"containers": [{"name": "edl", "env": None}]}}}},
        {"master": {"podTemplate": {"spec": {"restartPolicy": None, "containers": None}}}},
    ],
    ids=lambda each: "+".join(each),
)
def test_a_null_in_a_spec_is_as_if_it_were_not_there(spec):
    world = World()
    world.change(**spec)

    Looker(world).settle()

    assert world.serving() == ["edl-demo-master-0"]
    assert condition(world, "Accepted")["status"] == "True"
    durable = condition(world, "Durable")["status"]
    assert durable == ("False" if "jobVolume" in spec else "True")


def test_a_null_in_a_list_is_told_of_as_any_bad_spec():
    world = World()
    world.change(worker={"tolerations": [None], "podTemplate": {"spec": {"a": [None]}}})

    Looker(world).settle()

    assert condition(world, "Failed")["reason"] == "InvalidSpec"
    assert "is null" in condition(world, "Failed")["message"]


def test_what_is_not_allowed_gets_no_other_master():
    """A spec that an older controller has let through, or that was changed after its admission."""
    world, looker = settled()
    world.job["spec"]["worker"] = {"podTemplate": {"spec": {"hostNetwork": True}}}
    world.objects.pop(("Pod", "edl-demo-master-0"))

    look(world, looker.memory)

    assert world.serving() == []
    assert condition(world, "Accepted")["reason"] == "NotAllowed"
    assert "hostNetwork" in condition(world, "Accepted")["message"]


def test_workers_of_a_suspended_job_get_a_second_and_servers_their_own_time():
    world, looker = settled()
    for role in ("ps", "worker"):
        world.put("Pod", pod(world.job, role))
    world.objects.pop(("Pod", "edl-demo-master-0"))
    world.job["spec"]["suspend"] = True

    _, actions = look(world, looker.memory)

    ends = {each.name: each.grace_s for each in actions if each.verb == "delete"}
    assert ends == {"edl-demo-ps-0": None, "edl-demo-worker-0": 1}

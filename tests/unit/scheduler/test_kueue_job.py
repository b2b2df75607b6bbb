"""What administrators and users do to a job that Kueue holds, and what Kueue waits for itself."""

import pytest
from tools.kueue import evict, holds
from tools.kueue_world import LABEL, World, pieces, queued, replicas, uids
from tools.scheduled import NOW

from edl.k8s import names
from edl.scheduler import workloads

OTHER = {workloads.QUEUE_LABEL: "other"}
FULL = 20.0  # more than all may want
TAINT = {"key": "spot", "value": "yes", "effect": "NoSchedule"}


def queues(world):
    return {each["spec"]["queueName"] for each in world.workloads.values()}


def running(wish=4, quota=FULL):
    world = World([queued()], quota=quota)
    world.settle(lambda _: wish)
    return world


def says(world):
    return world.seen().ignored.get("a", "")


# -- the label of a job that runs


def test_pieces_go_to_the_queue_of_the_base_and_a_changed_label_is_told_and_taken_after_that():
    world = running()

    world.jobs["a"]["metadata"]["labels"] = dict(OTHER)
    world.settle(lambda _: 6)
    before = queues(world), replicas(world), list(world.suspended), says(world)
    evict(world.workloads["edl-a-base"], "Preempted", "so", world.now)
    world.settle(lambda _: 6, is_exact=False)

    assert before[:3] == ({"q"}, 6, [])
    assert before[3].startswith("stays in the queue q of Kueue until it is suspended")
    assert before[3].endswith("was changed, and other counts after that")
    assert (queues(world), world.suspended) == ({"other"}, ["a"])


def test_a_job_whose_label_was_removed_is_held_until_it_is_suspended():
    world = running()

    world.jobs["a"]["metadata"]["labels"] = {}
    world.settle(lambda _: 6)

    assert (queues(world), replicas(world), world.suspended) == ({"q"}, 6, [])
    assert says(world).endswith("was removed, and no queue holds it after that")


@pytest.mark.parametrize(("labels", "then"), [({}, set()), (OTHER, {"other"}), (LABEL, {"q"})])
def test_a_job_that_loses_its_base_is_suspended_whatever_its_label_says(labels, then):
    world = running()

    world.jobs["a"]["metadata"]["labels"] = dict(labels)
    for name in list(world.workloads):
        del world.workloads[name]  # an administrator has, while the scheduler was away
    why = says(world)
    world.round()
    suspended = list(world.suspended)
    world.settle(is_exact=False)

    assert suspended == ["a"]
    assert ("has lost its base in the queue q" in why) == (labels == {})
    assert queues(world) == then


def test_a_job_that_somebody_suspends_is_marked_by_no_queue_when_it_goes_on():
    world = running()
    assert world.jobs["a"]["metadata"]["annotations"][names.ADMITTED] == "q"

    world.jobs["a"]["spec"]["suspend"] = True
    world.jobs["a"]["metadata"]["labels"] = {}

    assert workloads.held_to(world.jobs["a"]) == ""


def test_quota_is_held_when_scheduling_goes_out_of_the_spec_of_a_job_that_runs():
    world = running()

    del world.jobs["a"]["spec"]["scheduling"]
    evict(world.workloads["edl-a-base"], "Preempted", "so", world.now)
    world.settle(is_exact=False)

    assert (world.suspended, world.workloads) == (["a"], {})


# -- what is deactivated


@pytest.mark.parametrize(
    "wishes", [{4: 3}, {2: 2, 6: 5, 3: 3}, {1: 1, 8: 7, 2: 2}, {8: 7}, {3: 3, 4: 3, 5: 4}]
)
def test_a_piece_that_is_deactivated_stays_so_and_none_is_asked_for_in_its_place(wishes):
    world = running(4)
    world.workloads["edl-a-piece-2"]["spec"]["active"] = False
    uid = uids(world)["edl-a-piece-2"]

    for wish, workers in wishes.items():
        world.settle(lambda _, wish=wish: wish, is_exact=False)

        assert uids(world)["edl-a-piece-2"] == uid
        assert world.workloads["edl-a-piece-2"]["spec"]["active"] is False
        assert world.pods["a"]["worker"] == workers
    assert "deactivated" in says(world)
    world.workloads["edl-a-piece-2"]["spec"]["active"] = True
    world.settle(lambda _: 8)
    assert world.pods["a"]["worker"] == 8


def test_what_is_deactivated_outlives_a_suspension_but_not_the_job():
    world = running(4)
    for name in ("edl-a-base", "edl-a-piece-2"):
        world.workloads[name]["spec"]["active"] = False

    world.settle(lambda _: 4, is_exact=False)
    assert set(world.workloads) == {"edl-a-base", "edl-a-piece-2"}
    world.jobs["a"]["metadata"]["annotations"] = {}
    world.jobs["a"]["spec"]["suspend"] = True  # by somebody, who begins it again
    world.settle(lambda _: 4, is_exact=False)
    assert set(world.workloads) == {"edl-a-base", "edl-a-piece-2"}
    world.end("a")
    world.settle(lambda _: 4, is_exact=False)

    assert world.workloads == {}


# -- what waits


def test_a_piece_that_waits_is_not_made_anew_by_plans_that_change():
    world = running(3)
    world.kueue.quota["cpu"] = 4.1 + 1.0  # of 2.1 + 3 are used
    made = world.made

    for turn in range(60):  # 300 s
        world.settle(lambda _, turn=turn: 5 if turn % 3 else 2, rounds=1)

    waiting = [name for name, each in world.workloads.items() if not holds(each)]
    assert waiting
    assert world.made - made <= 3


def test_a_piece_that_waits_stays_where_as_many_are_planned_as_are_admitted():
    world = running(5, quota=4.1)
    assert replicas(world) == 2
    before = uids(world)

    world.settle(lambda _: 5, rounds=40)  # no more than two are planned by then

    assert uids(world) == before
    assert len(before) == 5


def test_a_piece_that_waits_goes_where_fewer_than_are_admitted_are_planned_for_long():
    world = running(4)
    world.kueue.quota["cpu"] = 6.1
    world.settle(lambda _: 5)
    assert pieces(world) == [1, 2, 3, 4]
    world.move_pods = lambda chosen=None: None  # none of its workers ends
    seen = []

    for _ in range(40):
        world.round(lambda _: 2)
        seen.append(len(pieces(world)))

    assert seen[:20] == [4] * 20
    assert seen[-1] == 3


def test_no_piece_is_made_or_dropped_while_nothing_is_planned_for_the_job():
    world = running(4)
    world.seen()
    before = world.looker.gates.steps({}, "v1beta2")

    assert before == []


# -- Kueue's own words


def check(state, message):
    return {"name": "nodes", "state": state, "message": message}


def test_the_words_of_a_rejected_check_come_first():
    world = World([queued()], quota=FULL)
    world.round()
    base = world.workloads["edl-a-base"]
    base["spec"]["active"] = False
    base["status"] = {"admissionChecks": [check("Rejected", "no such class\x1b[31m of nodes")]}
    evict(base, "DeactivatedDueToAdmissionCheck", "Admission check(s): [nodes] are rejected", NOW)

    said = says(world)

    assert said == (
        "waits for the queue q of Kueue: evicted (DeactivatedDueToAdmissionCheck): Admission "
        "check(s): [nodes] are rejected; the check nodes is Rejected no such class [31m of nodes; "
        "it is deactivated (spec.active of the Workload is false)"
    )


def test_a_check_that_goes_on_is_told_with_its_message():
    world = World([queued()], quota=FULL)
    world.round()
    world.workloads["edl-a-base"]["status"] = {
        "conditions": [{"type": "QuotaReserved", "status": "True"}],
        "admissionChecks": [check("Pending", "12 nodes are made"), {**check("Ready", "")}],
    }

    assert says(world) == (
        "waits for the queue q of Kueue: the check nodes is Pending 12 nodes are made"
    )


# -- waitForPodsReady


def test_a_job_that_kueue_evicts_again_and_again_for_its_pods_is_held_with_the_reason():
    world = World([queued()], quota=FULL)

    for _ in range(9):
        world.settle(lambda _: 3, is_exact=False)
        if "edl-a-base" in world.workloads and not world.jobs["a"]["spec"]["suspend"]:
            evict(world.workloads["edl-a-base"], "PodsReadyTimeout", "Exceeded", world.now)

    assert (world.suspended, world.workloads) == (["a"] * 3, {})
    assert "Kueue has evicted it 3 times" in says(world)
    assert "kubectl annotate edljob a edl.dev/kueue-evictions-" in says(world)
    del world.jobs["a"]["metadata"]["annotations"][names.EVICTIONS]
    world.settle(lambda _: 3)
    assert world.pods["a"]["worker"] == 3


def test_other_evictions_hold_no_job():
    world = World([queued()], quota=FULL)

    for _ in range(9):
        world.settle(lambda _: 3, is_exact=False)
        if "edl-a-base" in world.workloads:
            evict(world.workloads["edl-a-base"], "Preempted", "so", world.now)
    world.settle(lambda _: 3)

    assert world.suspended == ["a"] * 9
    assert world.pods["a"]["worker"] == 3


# -- taints of flavors


@pytest.mark.parametrize(
    ("spec", "lacks"),
    [
        ({"nodeTaints": [TAINT]}, "{key: spot, value: yes, effect: NoSchedule, operator: Equal}"),
        ({"nodeTaints": [{**TAINT, "effect": "PreferNoSchedule"}]}, ""),
        (
            {"tolerations": [{"key": "spot", "operator": "Exists"}]},
            "{key: spot, operator: Exists}",
        ),
        (
            {"nodeTaints": [TAINT], "tolerations": [{"key": "spot", "operator": "Exists"}]},
            "{key: spot, value: yes, effect: NoSchedule, operator: Equal}",
        ),
    ],
)
def test_a_taint_of_a_flavor_that_pods_do_not_bear_is_told_with_its_toleration(spec, lacks):
    world = running()

    world.looker.gates.specs["f"] = spec

    assert bool(says(world)) == bool(lacks)
    if lacks:
        assert says(world).endswith(f"add {lacks} to spec.master.tolerations")


# -- what Kueue never looks at


def test_a_base_and_a_piece_of_which_kueue_says_nothing_are_made_anew():
    """Kueue 0.17 passes by what was made under the name of another while it began."""
    world = World([queued()], quota=FULL)
    world.round()
    base = uids(world)
    world.round()
    assert uids(world) == base
    world.now += 30.0
    world.round()
    world.round()
    assert (uids(world).keys(), uids(world) == base) == (base.keys(), False)

    world.settle(lambda _: 3)
    world.round(lambda _: 4)
    (late,) = uids(world).keys() - {"edl-a-base", "edl-a-piece-1", "edl-a-piece-2"}
    before = uids(world)
    world.now += 30.0
    world.round(lambda _: 4)
    world.round(lambda _: 4)

    assert uids(world).keys() == before.keys()
    assert {name for name, uid in uids(world).items() if uid != before[name]} == {late}

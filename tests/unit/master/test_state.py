"""A restarted master knows what the one before it knew."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from tools.turns import examples
from unit.master.test_books_machine import Storm

from edl.durable.journal import Journal
from edl.durable.schema import dump, load
from edl.master.books import decisions
from edl.master.books.plan import Kind, Plan
from edl.master.books.task import Failure
from edl.master.books.task_queue import TaskQueue
from edl.master.evaluation import Evaluations, EvaluationsState
from edl.master.membership import SERVER, WORKER, Member, Membership
from edl.master.replicas import Replicas, ReplicasState
from edl.master.state import dump_queue, load_queue, replay

pytestmark = pytest.mark.fast

DECISIONS = {"open_epoch", "add", "lease", "done", "hand_back", "failed", "lost", "fenced"}
DECISIONS |= {"lease_some", "durable", "recovered", "cancel", "prove"}


def name_of(kind):
    """Return the method that a decision calls: OpenEpoch, open_epoch."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind).removeprefix("_")


KINDS = {name_of(name): kind for name, kind in decisions.DECISIONS.items()}


def fields(queue):
    """Return all that decides what the queue does from now on."""
    kept = {**vars(queue), "low": queue.low_water}  # which both have found out by now
    parts = ("_table", "leases", "_epochs", "_failures")
    for part in parts:
        names = set(kept[part].__slots__) - {"redone", "recomputed"}  # which are for the eye
        kept[part] = {name: getattr(kept[part], name) for name in names}
    ordered = [list(kept["_table"][name]) for name in ("fencing", "done", "begun")]
    ordered.append(list(kept["leases"]["leased"]))
    return {**kept, "_todo": sorted(queue._todo.heap), "ordered": ordered}


def through_json(values):
    return json.loads(json.dumps(values))


class Recorded:
    """A queue whose decisions are noted, as the journal has them."""

    def __init__(self, queue):
        self.queue = queue
        self.state = through_json(dump_queue(queue))
        self.decisions = []

    def __getattr__(self, name):
        value = getattr(self.queue, name)
        if name not in DECISIONS:
            return value

        def decide(*positional, **named):
            names = value.__code__.co_varnames[1:]
            arguments = {**dict(zip(names, positional, strict=False)), **named}
            if name == "durable":  # of which a storm gives any iterable, and the master a list
                arguments["tasks"] = list(arguments["tasks"])
            decision = KINDS[name](**arguments)
            result = self.queue.decide(decision)
            self.decisions.append(through_json(decisions.written(decision)))
            return result

        return decide


class StormWithRestarts(Storm):
    restarts = 0

    def begin_recording(self):
        if hasattr(self, "queue") and not isinstance(self.queue, Recorded):
            self.queue = Recorded(self.queue)

    @rule(compact=st.booleans())
    def restart(self, compact):
        self.begin_recording()
        live = self.queue.queue
        for number, task in live.tasks.items():  # progress is for the eye and is not journaled
            assert number == task.id
            task.heard = 0
        queue = TaskQueue(live.plan, tolerance=live.tolerance)
        load_queue(queue, self.queue.state)
        replay(queue, self.queue.decisions)
        assert fields(live) == fields(queue)
        if compact:
            self.queue = Recorded(queue)
        else:
            self.queue.queue = queue
        type(self).restarts += 1

    def teardown(self):
        if isinstance(getattr(self, "queue", None), Recorded):
            self.queue = self.queue.queue
        super().teardown()


def test_a_restart_at_any_moment_of_any_storm_changes_nothing():
    StormWithRestarts.restarts = 0
    run_state_machine_as_test(
        StormWithRestarts,
        settings=settings(
            max_examples=examples(60),
            stateful_step_count=80,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert StormWithRestarts.restarts > 0  # by chance some 50 to 600


def queue_of(records=40, **more):
    sources = (("a", records),)
    return TaskQueue(Plan(Kind.TRAIN, sources, 2, 2, **{"num_epochs": 3, "shuffle": False, **more}))


def reloaded(queue):
    made = TaskQueue(queue.plan, tolerance=queue.tolerance)
    load_queue(made, through_json(dump_queue(queue)))
    return made


def test_untouched_and_retired_tasks_cost_nothing():
    queue = queue_of(80_000)
    queue.open_epoch()
    for number in range(100):
        task = queue.lease("w", str(number))
        queue.done("w", task.id, 1)
    queue.durable(queue.done_tasks)

    values = through_json(dump_queue(queue))

    assert [[101, 20_001, ""]] == values["untouched"]
    assert len(json.dumps(values)) < 10_000
    assert fields(queue) == fields(reloaded(queue))


def test_payloads_results_quarantine_and_proofs_are_kept():
    queue = queue_of(4, num_epochs=1)
    queue.open_epoch()
    (end,) = queue.add(Kind.EVALUATE_END, [("", 0, 0)], payload=b"\x00\xff", group="g")
    assert end == queue.lease("w", "r0").id
    queue.done("w", end, 1, result=b"\xfe")
    queue.proven.add(Kind.TRAIN)
    for number in range(3):
        task = queue.lease("w", f"r{number + 1}")
        told = Failure(0, 2, "bad", record=1)
        queue.failed("w", task.id, task.attempt, told)
        queue.fenced(task.id, task.attempt, [0, 2] if number else [0, 0])

    again = reloaded(queue)

    assert fields(queue) == fields(again)
    assert (b"\x00\xff", b"\xfe") == (again.tasks[end].payload, again.tasks[end].result)
    assert ((1,), {1}) == (again.quarantined[0].records, again.tasks[1].skips)


def test_tasks_of_an_epoch_that_max_steps_cuts_are_made_again():
    queue = queue_of(40, num_epochs=3, max_steps=23, seed=4, shuffle=True)
    queue.open_epoch()
    for number in range(10):
        queue.done("w", queue.lease("w", str(number)).id, 1)
    queue.open_epoch()

    assert fields(queue) == fields(reloaded(queue))


def test_a_group_of_the_plan_is_kept():
    queue = TaskQueue(Plan(Kind.EVALUATE, (("a", 40),), 2, 2))
    queue.open_epoch(group="round")
    queue.lease("w", "r")

    again = reloaded(queue)

    assert fields(queue) == fields(again)
    assert not again.group_done("round")


def test_members_and_replicas_and_rounds_are_kept():
    members = Membership(10.0)
    members.register(Member(WORKER, 1, "w1", 5.0, "a:1", "m:1", 7, "host", 3, "training", {"x": 1}))
    members.register(Member(SERVER, 0, "s0", 5.0))
    members.lose("gone")
    names = iter("abcdef")
    replicas = Replicas(2, 1, relaunches=3, name=lambda: next(names))
    replicas.starts(1.0)
    replicas.exited(WORKER, 0, "b", -9, 2.0)
    replicas.exited(WORKER, 1, "c", 1, 2.0)
    replicas.scale(3)
    evaluations = Evaluations()
    evaluations.begin(4, 0, "cut-1")
    evaluations.end(evaluations.begin(5, 1, "").name, b'{"auc": 0.5}')

    made = Membership(10.0), Replicas(2, 1, relaunches=3, name=lambda: next(names)), Evaluations()
    there = through_json(dump(list[Member], members.all))
    made[0].restore(load(list[Member], there), members.gone)
    for old, new, kind in zip(
        (replicas, evaluations), made[1:], (ReplicasState, EvaluationsState), strict=True
    ):
        new.restore(load(kind, through_json(dump(kind, old.state()))))

    for old, new in zip((members, replicas, evaluations), made, strict=True):
        kept = {name: value for name, value in vars(old).items() if not callable(value)}
        assert kept == {name: getattr(new, name) for name in kept}


def test_a_class_that_is_not_known_is_refused():
    with pytest.raises(TypeError, match="object cannot stand in what is kept"):
        dump(list[object], [object()])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (dict[int, tuple[int, set[int]]], {1: (2, {3})}),
        (dict[str, int | None], {"a": None}),
        (tuple[bytes, float], (b"\xff", 1.5)),
        (dict[str, str], {}),
        (list[list[int]], [[]]),
        (dict[str, dict[str, int]], {"": {}}),
    ],
)
def test_values_come_back_as_they_were(kind, value):
    assert value == load(kind, through_json(dump(kind, value)))


def test_the_state_goes_through_the_journal(tmp_path):
    queue = queue_of()
    queue.open_epoch()
    queue.add(Kind.EVALUATE, [("v", 0, 3)], payload=b"\x01", group="g")
    journal = Journal(tmp_path / "j.sqlite")
    journal.compact({"queue": dump_queue(queue)})

    state, _ = journal.replay()

    made = TaskQueue(queue.plan)
    load_queue(made, state["queue"])
    assert fields(queue) == fields(made)

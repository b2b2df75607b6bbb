from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.common.errors import UsageError
from edl.common.order import TaskOrder
from edl.common.settings import JobSettings
from edl.master.books.plan import Kind, Piece, Plan, check_same_plan, plan_of, split
from edl.worker.batches import split as spans_of

pytestmark = pytest.mark.fast

PLAN = Plan(Kind.TRAIN, (("a", 10), ("b", 3)), 2, 2, num_epochs=3, seed=7, shuffle=True)


def tasks(plan: Plan, epoch: int) -> list[Piece]:
    """Return all tasks of an epoch, in the order of leasing."""
    first = plan.first_id_of(epoch)
    made = [plan.task(number) for number in range(first, first + plan.tasks_of(epoch))]
    assert {epoch} >= {each for each, _ in made}
    return [piece for _, piece in made]


def pieces(plan: Plan) -> list[Piece]:
    return split(plan.sources, plan.task_size)


def minibatches(plan: Plan, epoch: int) -> int:
    return sum(
        len(list(spans_of(start, end, plan.minibatch_size, ())))
        for _, start, end in tasks(plan, epoch)
    )


def walked(plan: Plan, epoch: int, most: int) -> list[Piece]:
    """Return an epoch of at most so many minibatches, task by task; `Plan` computes it at once."""
    ranks = TaskOrder(plan.seed, epoch, len(pieces(plan)), plan.shuffle)
    planned = []
    for source, start, end in (pieces(plan)[ranks.at(p)] for p in range(len(pieces(plan)))):
        here = list(spans_of(start, end, plan.minibatch_size, ()))[:most]
        if here:
            planned.append((source, start, here[-1][1]))
        most -= len(here)
    return planned


@pytest.fixture(params=["listed", "by position"], autouse=True)
def order_of_many(request, monkeypatch):
    """Have plans order their tasks in each of two ways: all holds for both."""
    if request.param == "by position":
        monkeypatch.setattr(TaskOrder, "LISTED", 0)


@given(
    sources=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    minibatch=st.integers(1, 5),
    of_task=st.integers(1, 4),
    epochs=st.integers(0, 3),
    steps=st.integers(0, 60),
    pushes=st.integers(1, 3),
    overlap=st.booleans(),
    shuffle=st.booleans(),
    seed=st.integers(0, 5),
    first_id=st.sampled_from([1, 1000]),
)
@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_computed_is_what_is_found_by_walking(
    sources, minibatch, of_task, epochs, steps, pushes, overlap, shuffle, seed, first_id
):
    plan = Plan(
        Kind.TRAIN,
        tuple((f"s{number}", records) for number, records in enumerate(sources)),
        minibatch,
        of_task,
        num_epochs=epochs,
        seed=seed,
        shuffle=shuffle,
        overlap_epochs=overlap,
        max_steps=steps,
        pushes_per_step=pushes,
        first_id=first_id,
    )
    full = sum(len(list(spans_of(a, b, minibatch, ()))) for _, a, b in pieces(plan))
    epochs = 4 if plan.epochs is None else plan.epochs
    done = records = 0
    for epoch in range(epochs):
        left = full
        if steps:
            per = full if overlap else -(-full // pushes)
            left = steps * pushes - epoch * full if overlap else (steps - epoch * per) * pushes
        expected = walked(plan, epoch, left)
        done += len(expected)

        assert expected == tasks(plan, epoch)
        first = plan.first_id_of(epoch)
        assert plan.tasks_per_epoch == len(pieces(plan))
        for at in range(len(expected) + 1):
            before = sum(b - a for _, a, b in expected[:at])
            assert before == plan.records_between(first, first + at)
        records += before
        assert (done, records) == plan.of_first(epoch + 1)
        with pytest.raises(ValueError, match="there is no task"):
            plan.task(first + len(expected) if len(expected) < len(pieces(plan)) else first_id - 1)
    assert plan.records == (None if plan.epochs is None else records)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 1000, 4097])
def test_an_order_by_position_is_a_permutation_with_an_inverse(size):
    orders = [TaskOrder(seed, epoch, size, True) for seed, epoch in ((0, 0), (0, 1), (3, 0))]

    listed = [[order.at(position) for position in range(size)] for order in orders]

    assert all(sorted(each) == list(range(size)) for each in listed)
    for order, each in zip(orders, listed, strict=True):
        assert [order.position_of(task) for task in each] == list(range(size))
    if size > 5:
        assert len({tuple(each) for each in listed}) == 3


def test_an_order_by_position_is_as_even_as_chance():
    """Chi-squared of places, and of what follows what, in 16 bins is 255 +- 6 * 22.6."""
    size, bins = 40_000, 16
    order = TaskOrder(1, 0, size, True)
    at = np.array([order.at(position) for position in range(size)])

    for a, b in ((np.arange(size), at), (at[:-1], at[1:]), (at[:-2], at[2:])):
        found, _, _ = np.histogram2d(a, b, bins, [[0, size]] * 2)
        expected = len(a) / bins**2
        assert abs(((found - expected) ** 2 / expected).sum() - 255) < 6 * (2 * 255) ** 0.5


def test_ten_million_tasks_cost_what_is_asked_of_them():
    plan = Plan(Kind.TRAIN, (("a", 640_000_000),), 64, 1, num_epochs=3, seed=1, shuffle=True)
    plan = dataclasses.replace(plan, max_steps=plan.minibatches_per_epoch + 7, overlap_epochs=True)

    assert 10_000_000 == plan.tasks_per_epoch
    assert (10_000_007, 640_000_448) == (plan.of_first(2)[0], plan.records)
    assert (1, 64) == (plan.task(10_000_007)[0], plan.records_between(10_000_007, 10_000_008))


@pytest.mark.parametrize("seed", [0, 7])
def test_orders_of_up_to_131072_tasks_stay_what_they_were(seed, monkeypatch):
    """Checkpoints and journals count on these orders."""
    monkeypatch.setattr(TaskOrder, "LISTED", 1 << 17)
    expected = np.random.Generator(
        np.random.Philox(np.random.SeedSequence([seed, 2, 0]))
    ).permutation(TaskOrder.LISTED)
    order = TaskOrder(seed, 2, TaskOrder.LISTED, True)

    assert [order.at(position) for position in range(50)] == expected[:50].tolist()


def test_sources_are_cut_into_tasks_and_no_task_crosses_two():
    expected = [("a", 0, 4), ("a", 4, 8), ("a", 8, 10), ("b", 0, 3)]
    assert expected == pieces(PLAN) == [PLAN.piece(index) for index in range(4)]


def test_no_task_has_one_record_where_it_can_have_more():
    assert [("a", 0, 4), ("a", 4, 9), ("b", 0, 1)] == split((("a", 9), ("b", 1), ("c", 0)), 4)
    assert [("a", 0, 1), ("a", 1, 2)] == split((("a", 2),), 1)


def test_a_checkpoint_of_a_version_that_cut_the_same_data_otherwise_is_not_resumed():
    plan = dataclasses.replace(PLAN, sources=(("a", 9),))
    before = plan.fingerprint()
    del before["last_records"]

    with pytest.raises(UsageError, match="a version that cut these data otherwise"):
        check_same_plan(before, plan.fingerprint())
    assert "last_records" not in PLAN.fingerprint()


def test_each_epoch_has_every_piece_once_in_an_order_of_its_own():
    endless = dataclasses.replace(PLAN, num_epochs=0)
    epochs = [tasks(endless, epoch) for epoch in range(20)]

    assert all(sorted(each) == pieces(PLAN) for each in epochs)
    assert len({tuple(each) for each in epochs}) > 5


def test_the_order_is_a_pure_function_of_seed_and_epoch():
    same, other = dataclasses.replace(PLAN), dataclasses.replace(PLAN, seed=8)

    assert [tasks(PLAN, e) for e in range(9)] == [tasks(same, e) for e in range(9)]
    assert [tasks(PLAN, e) for e in range(9)] != [tasks(other, e) for e in range(9)]


def test_without_shuffling_the_order_is_that_of_the_data():
    assert pieces(PLAN) == tasks(dataclasses.replace(PLAN, shuffle=False), 2)


def test_ids_are_monotone_over_epochs():
    assert [1, 5, 9] == [PLAN.first_id_of(epoch) for epoch in range(3)]


def test_all_records_of_all_epochs_are_counted():
    assert (3, 39) == (PLAN.epochs, PLAN.records)


@pytest.mark.parametrize("max_steps", range(1, 25))
@pytest.mark.parametrize("pushes_per_step", [1, 2, 3, 4])
@pytest.mark.parametrize("overlap", [False, True])
def test_max_steps_cuts_the_plan_exactly(max_steps, pushes_per_step, overlap):
    plan = dataclasses.replace(
        PLAN,
        num_epochs=0,
        max_steps=max_steps,
        pushes_per_step=pushes_per_step,
        overlap_epochs=overlap,
    )
    counts = [minibatches(plan, epoch) for epoch in range(plan.epochs)]

    assert all(counts)
    if overlap:
        assert max_steps * pushes_per_step == sum(counts)
    else:  # what is left at the end of an epoch is flushed: one version
        assert max_steps == sum(-(-count // pushes_per_step) for count in counts)
    assert 0 == plan.tasks_of(plan.epochs)


def test_epochs_end_the_plan_before_max_steps_does():
    plan = dataclasses.replace(PLAN, max_steps=1000)

    assert (3, 39) == (plan.epochs, plan.records)


def test_a_plan_without_epochs_and_steps_has_no_end():
    plan = dataclasses.replace(PLAN, num_epochs=0)

    assert (None, None) == (plan.epochs, plan.records)


@pytest.mark.parametrize(
    ("command", "kind", "records"),
    [("train", Kind.TRAIN, 10), ("evaluate", Kind.EVALUATE, 5), ("predict", Kind.PREDICT, 6)],
)
def test_the_command_chooses_the_data(command, kind, records):
    described = {"training": [["a", 10]], "validation": [["b", 5]], "prediction": [["c", 6]]}

    plan = plan_of(JobSettings(command=command), described)

    assert (kind, records) == (plan.kind, plan.records)


def test_steps_are_pushes_in_async_mode():
    settings = JobSettings(use_async=True, grads_to_wait=4)

    assert 1 == plan_of(settings, {"training": [["a", 10]]}).pushes_per_step


def test_a_plan_of_more_epochs_goes_on_with_the_books_of_one_with_less():
    more = dataclasses.replace(PLAN, num_epochs=9, pushes_per_step=4)

    assert PLAN.fingerprint() == more.fingerprint()


@pytest.mark.parametrize("other", [{"max_steps": 0}, {"max_steps": 9}, {"pushes_per_step": 3}])
def test_a_plan_whose_epochs_are_cut_elsewhere_does_not(other):
    """Such a plan would take the records behind the first cut for done, and never train on them."""
    plan = dataclasses.replace(PLAN, num_epochs=0, max_steps=5)

    assert plan.fingerprint() != dataclasses.replace(plan, **other).fingerprint()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"minibatch_size": 8}, "--minibatch_size is not .* with --minibatch_size 2, not 8"),
        ({"seed": 1}, "--seed is not .* with --seed 0, not 1"),
        ({"max_steps": 9}, "--max_steps"),
        ({"sources": (("a", 8), ("b", 5))}, "--training_data.*b was not there"),
    ],
)
def test_plan_that_is_gone_on_with_must_be_the_same(change, sentence):
    plan = Plan(Kind.TRAIN, (("a", 8),), 2, 2)
    other = dataclasses.replace(plan, **change)

    check_same_plan(plan.fingerprint(), dataclasses.replace(plan, num_epochs=7).fingerprint())
    with pytest.raises(UsageError, match=sentence):
        check_same_plan(plan.fingerprint(), other.fingerprint())

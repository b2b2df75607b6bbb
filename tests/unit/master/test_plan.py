from __future__ import annotations

import dataclasses

import pytest

from edl.common.errors import UsageError
from edl.common.settings import JobSettings
from edl.master.plan import Kind, Plan, check_same_plan, cut, plan_of
from edl.worker.batches import cuts

PLAN = Plan(Kind.TRAIN, (("a", 10), ("b", 3)), 2, 2, num_epochs=3, seed=7, shuffle=True)


def minibatches(plan: Plan, epoch: int) -> int:
    return sum(
        len(list(cuts(start, end, plan.minibatch_size, ()))) for _, start, end in plan.epoch(epoch)
    )


def test_sources_are_cut_into_tasks_and_no_task_crosses_two():
    expected = [("a", 0, 4), ("a", 4, 8), ("a", 8, 10), ("b", 0, 3)]
    assert expected == PLAN.pieces


def test_no_task_has_one_record_where_it_can_have_more():
    assert [("a", 0, 4), ("a", 4, 9), ("b", 0, 1)] == cut((("a", 9), ("b", 1), ("c", 0)), 4)
    assert [("a", 0, 1), ("a", 1, 2)] == cut((("a", 2),), 1)


def test_a_checkpoint_of_a_version_that_cut_the_same_data_otherwise_is_not_resumed():
    plan = dataclasses.replace(PLAN, sources=(("a", 9),))
    before = plan.fingerprint()
    del before["last_records"]

    with pytest.raises(UsageError, match="a version that cut these data otherwise"):
        check_same_plan(before, plan.fingerprint())
    assert "last_records" not in PLAN.fingerprint()


def test_each_epoch_has_every_piece_once_in_an_order_of_its_own():
    epochs = [PLAN.epoch(epoch) for epoch in range(20)]

    assert all(sorted(pieces) == PLAN.pieces for pieces in epochs)
    assert len({tuple(pieces) for pieces in epochs}) > 5


def test_the_order_is_a_pure_function_of_seed_and_epoch():
    same, other = dataclasses.replace(PLAN), dataclasses.replace(PLAN, seed=8)

    assert [PLAN.epoch(e) for e in range(9)] == [same.epoch(e) for e in range(9)]
    assert [PLAN.epoch(e) for e in range(9)] != [other.epoch(e) for e in range(9)]


def test_without_shuffling_the_order_is_that_of_the_data():
    assert PLAN.pieces == dataclasses.replace(PLAN, shuffle=False).epoch(2)


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
    assert [] == plan.epoch(plan.epochs)


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
    """It would take the records behind the cut of the first for done, and never train on them."""
    plan = dataclasses.replace(PLAN, num_epochs=0, max_steps=5)

    assert plan.fingerprint() != dataclasses.replace(plan, **other).fingerprint()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"minibatch_size": 8}, "--minibatch_size is not .* with --minibatch_size 2, not 8"),
        ({"seed": 1}, "--seed is not .* with --seed 0, not 1"),
        ({"max_steps": 9}, "--max_steps"),
        ({"sources": (("a", 8), ("b", 5))}, "--training_data.*b had 0 records, and has 5"),
    ],
)
def test_plan_that_is_gone_on_with_must_be_the_same(change, sentence):
    plan = Plan(Kind.TRAIN, (("a", 8),), 2, 2)
    other = dataclasses.replace(plan, **change)

    check_same_plan(plan.fingerprint(), dataclasses.replace(plan, num_epochs=7).fingerprint())
    with pytest.raises(UsageError, match=sentence):
        check_same_plan(plan.fingerprint(), other.fingerprint())

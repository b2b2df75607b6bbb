from __future__ import annotations

import numpy as np
import pytest

from edl.common.errors import UsageError
from edl.integrations.passes import Batches, Passes

pytestmark = pytest.mark.fast

WORLDS = [1, 2, 3, 5]
SHAPES = [(54, 8, 2), (54, 8, 8), (55, 9, 2), (8, 8, 3), (5, 8, 1), (31, 6, 1)]


def shares(passes, replicas):
    """Return all shares that have records, by step and micro-batch."""
    return [
        (number, micro, step.share(micro, rank, replicas))
        for number in range(passes.steps)
        for step in [passes.step(number, replicas)]
        for micro in range(step.micros)
        for rank in range(replicas)
        if step.share(micro, rank, replicas).weight
    ]


@pytest.mark.parametrize("replicas", WORLDS)
@pytest.mark.parametrize(("records", "total", "most"), SHAPES)
def test_each_record_is_in_one_share_and_steps_do_not_depend_on_replicas(
    records, total, most, replicas
):
    passes = Passes(records, Batches(total, most))
    steps = [[] for _ in range(passes.steps)]
    for number, _, share in shares(passes, replicas):
        assert len(share.positions) <= most
        steps[number] += share.positions

    starts = range(0, records, total)
    assert [[*range(s, min(s + total, records))] for s in starts] == [sorted(s) for s in steps]


@pytest.mark.parametrize("replicas", WORLDS)
@pytest.mark.parametrize(("records", "total", "most"), SHAPES)
def test_all_steps_but_the_last_accumulate_equally_often(records, total, most, replicas):
    passes = Passes(records, Batches(total, most))
    micros = [passes.step(number, replicas).micros for number in range(passes.steps)]

    assert sum(micros) == passes.micro_batches(replicas)
    assert {passes.batches.accumulation(replicas)} >= set(micros[:-1])
    assert 1 <= micros[-1] <= passes.batches.accumulation(replicas)


@pytest.mark.parametrize("replicas", WORLDS)
def test_weighed_means_of_shares_are_the_mean_over_the_step(replicas):
    passes = Passes(54, Batches(8, 2))
    values = np.random.default_rng(0).normal(size=54)
    means = np.zeros(passes.steps)
    for number, _, share in shares(passes, replicas):
        micros = passes.step(number, replicas).micros
        means[number] += share.weight * values[share.positions].mean() / micros / replicas

    assert means == pytest.approx([values[s : s + 8].mean() for s in range(0, 54, 8)])


def test_without_the_last_step_each_has_a_whole_batch():
    passes = Passes(54, Batches(8, 2), drop_last=True)

    assert (6, 24) == (passes.steps, passes.micro_batches(1))


def test_epochs_have_orders_of_their_own_unless_nothing_is_shuffled():
    shuffled, plain = Passes(20, Batches(4, 4)), Passes(20, Batches(4, 4), shuffle=False)

    assert sorted(shuffled.order(1)) == list(range(20))
    assert shuffled.order(0).tolist() != shuffled.order(1).tolist()
    assert plain.order(1).tolist() == list(range(20))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Batches(0, 1), "at least 1 of each"),
        (lambda: Batches(4, 0), "at least 1 of each"),
        (lambda: Batches(4, 4).accumulation(5), "none for some of 5 replicas"),
        (lambda: Passes(0, Batches(4, 4)), "there are 0 records"),
        (lambda: Passes(3, Batches(4, 4), drop_last=True), "leave out drop_last"),
    ],
)
def test_what_leaves_a_replica_or_a_pass_without_records_is_refused(make, words):
    with pytest.raises(UsageError, match=words):
        make()

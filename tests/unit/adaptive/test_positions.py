"""The shares of a pass: every position once, the same steps for all, no share above its size."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.adaptive.positions import Share, Step, steps

pytestmark = pytest.mark.fast


@st.composite
def passes(draw):
    """Draw (start, end, replicas, batch size, micro-batches)."""
    replicas, micros = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    size = draw(st.integers(replicas * micros, 60))
    end = draw(st.integers(0, 200))
    return draw(st.integers(0, end)), end, replicas, size, micros


def read(step, replicas):
    return [
        [step.share(micro, rank, replicas) for rank in range(replicas)]
        for micro in range(step.micros)
    ]


@given(passes())
def test_every_position_is_read_exactly_once_whatever_does_not_divide(case):
    start, end, replicas, size, micros = case

    taken = [
        position
        for step in steps(start, end, replicas=replicas, batch_size=size, micros=micros)
        for shares in read(step, replicas)
        for share in shares
        if share.weight
        for position in share.positions
    ]

    assert list(range(start, end)) == taken


@given(passes())
def test_no_share_is_larger_than_the_atomic_batch(case):
    start, end, replicas, size, micros = case
    atomic = max(math.ceil(size / micros / replicas), 2)

    largest = max(
        (
            len(share.positions)
            for step in steps(start, end, replicas=replicas, batch_size=size, micros=micros)
            for shares in read(step, replicas)
            for share in shares
        ),
        default=0,
    )

    assert largest <= atomic


@given(passes())
def test_weighted_means_of_shares_are_the_mean_of_the_step(case):
    start, end, replicas, size, micros = case
    for step in steps(start, end, replicas=replicas, batch_size=size, micros=micros):
        shares = [share for row in read(step, replicas) for share in row]
        means = [sum(share.positions) / len(share.positions) * share.weight for share in shares]

        expected = sum(range(step.start, step.stop)) / (step.stop - step.start)

        assert expected == pytest.approx(sum(means) / len(means))


@given(passes())
def test_a_replica_repeats_a_record_only_where_there_are_fewer_than_replicas(case):
    start, end, replicas, size, micros = case
    for step in steps(start, end, replicas=replicas, batch_size=size, micros=micros):
        idle = [share for row in read(step, replicas) for share in row if not share.weight]

        assert bool(idle) == (step.stop - step.start < replicas)


def test_the_last_two_steps_share_what_is_left():
    sizes = [s.stop - s.start for s in steps(0, 201, replicas=2, batch_size=64, micros=1)]

    assert [64, 64, 37, 36] == sizes


def test_a_last_step_of_few_records_keeps_its_micro_batches_while_it_can():
    (step,) = steps(90, 97, replicas=2, batch_size=32, micros=3)

    assert Step(90, 97, 3) == step
    assert [Share(range(90, 91), 6 / 7), Share(range(91, 92), 6 / 7)] == read(step, 2)[0]
    assert [Share(range(94, 95), 6 / 7), Share(range(95, 97), 12 / 7)] == read(step, 2)[2]

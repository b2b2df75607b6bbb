from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.common.errors import UsageError
from edl.launch import Linear, Share, batch

pytestmark = pytest.mark.fast


@given(st.integers(1, 300), st.integers(0, 10_000))
def test_the_shares_of_all_ranks_are_the_batch_exactly(world_size, more):
    total = world_size + more

    shares = [batch(total, rank=rank, world_size=world_size) for rank in range(world_size)]

    assert [i for share in shares for i in range(share.start, share.stop)] == list(range(total))
    assert max(s.size for s in shares) - min(s.size for s in shares) <= 1


def test_the_mean_over_ranks_of_weighted_means_is_the_mean_over_all_records():
    losses = [float(i * i) for i in range(10)]
    shares = [batch(10, rank=rank, world_size=4) for rank in range(4)]

    means = [sum(losses[s.start : s.stop]) / s.size * s.weight for s in shares]

    assert sum(losses) / 10 == pytest.approx(sum(means) / 4, abs=1e-12)


def test_the_rank_and_the_world_are_those_of_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    assert Share(5, 10, 1.0) == batch(10)


def test_a_batch_that_leaves_a_rank_nothing_is_refused():
    with pytest.raises(UsageError, match="a batch of 3 records has none for some of 4 workers"):
        batch(3, rank=0, world_size=4)


def test_a_share_in_parts_for_accumulation():
    assert [(4, 7), (7, 10), (10, 12)] == Share(4, 12, 1.0).parts(3)


def test_the_learning_rate_grows_with_the_world(monkeypatch):
    """Goyal et al. 2017, 2.1: "When the minibatch size is multiplied by k, multiply the learning
    rate by k"."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    policy = Linear(per_rank=32, base_world=2)

    assert (256, 4.0) == (policy.total, policy.factor(0))


def test_after_a_change_the_factor_goes_evenly_from_the_former_world_to_the_new(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    policy = Linear(per_rank=32, base_world=2, warmup_steps=3, before=4)

    assert [2.5, 3.0, 3.5, 4.0, 4.0] == [policy.factor(step) for step in range(5)]


def test_without_a_former_world_the_warm_up_begins_at_the_base(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")

    assert 1.0 + 3.0 / 2 == Linear(per_rank=32, base_world=2, warmup_steps=1).factor(0)

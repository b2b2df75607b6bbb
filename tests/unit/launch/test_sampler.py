"""The sampler of launched scripts, against the order of the records cut by hand."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.turns import examples
from torch.utils.data import DataLoader

from edl.common.errors import UsageError
from edl.common.order import order
from edl.launch import Sampler, load, save


@contextlib.contextmanager
def rank_of(rank, world, known=True):
    """Make this process a rank of several, which know each other."""
    told = {"RANK": str(rank), "WORLD_SIZE": str(world)}
    with (
        mock.patch.dict(os.environ, told),
        mock.patch("edl.launch.together._is_initialized", return_value=known),
    ):
        yield


def read(sampler, number=None):
    """Return (records that count, weight) of each of so many batches; None: of all."""
    found = []
    for batch in sampler.count(DataLoader(range(sampler._records), batch_sampler=sampler)):
        found.append((batch.tolist() if sampler.weight else [], sampler.weight))
        if len(found) == number:
            break
    return found


worlds = st.tuples(st.integers(1, 5), st.integers(5, 12), st.integers(1, 4))


@settings(max_examples=examples(100))
@given(
    records=st.integers(1, 70),
    seed=st.integers(0, 9),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
    generations=st.lists(worlds, max_size=4),
    last=worlds,
)
def test_whoever_goes_on_each_record_is_read_once_in_the_order_of_the_epoch(
    records, seed, shuffle, epoch, generations, last
):
    state, taken = None, []
    for world, batch, number in [*generations, (*last[:2], None)]:
        by_rank, states = [], []
        for rank in range(world):
            with rank_of(rank, world):
                sampler = Sampler(records, batch, seed=seed, shuffle=shuffle)
                if state is not None:
                    sampler.load_state_dict(state)
                sampler.set_epoch(epoch)
                by_rank.append(read(sampler, number))
                states.append(sampler.state_dict())
        state = states[0]
        assert [state] * world == states
        for shares in zip(*by_rank, strict=True):
            step = [record for share, _ in shares for record in share]
            weights = [weight for _, weight in shares]
            assert weights == pytest.approx([len(s) * world / len(step) for s, _ in shares])
            assert max(len(share) for share, _ in shares) <= max(2, -(-batch // world))
            taken.append(step)

    expected = order(seed, epoch, 0, records, shuffle).tolist()
    assert expected == [record for step in taken for record in step]


def test_the_next_epoch_has_another_order_from_its_start():
    sampler = Sampler(20, 20)
    first = read(sampler)
    sampler.set_epoch(1)
    second = read(sampler)

    assert first != second
    assert [Counter(range(20))] * 2 == [Counter(found[0][0]) for found in (first, second)]


def test_an_epoch_that_is_over_is_not_begun_again():
    sampler = Sampler(20, 8)
    read(sampler)
    again = Sampler(20, 8)
    again.load_state_dict(sampler.state_dict())
    again.set_epoch(0)

    assert (0, []) == (len(again), read(again))


def test_batches_that_were_drawn_ahead_are_not_done():
    sampler = Sampler(20, 4, shuffle=False)
    ahead = iter(list(sampler))  # as a loader's workers do

    for number, _ in enumerate(sampler.count(ahead), 1):
        assert 4 * number == sampler.state_dict()["position"]


def test_it_is_saved_with_the_rest_of_a_state(tmp_path, monkeypatch):
    monkeypatch.setenv("EDL_CHECKPOINT_PATH", str(tmp_path))
    sampler = Sampler(20, 4)
    read(sampler, 2)
    save({"sampler": sampler})
    again = Sampler(20, 4)
    again.load_state_dict(load().state["sampler"])

    assert (0, 8) == (again.epoch, again.position)
    assert 3 == len(again)


def test_batches_that_nobody_counts_are_no_position():
    sampler = Sampler(20, 4)
    next(iter(DataLoader(range(20), batch_sampler=sampler)))

    with pytest.raises(UsageError, match=r"iterate over sampler\.count\(loader\)"):
        sampler.state_dict()


def test_a_loader_of_other_batches_is_refused():
    sampler = Sampler(20, 4)

    with pytest.raises(UsageError, match="does not draw from this sampler"):
        next(sampler.count(DataLoader(torch.arange(20), batch_size=4)))
    with pytest.raises(UsageError, match="gave 2 batches or more where this rank has 5"):
        list(sampler.count([[0], [1]]))


@pytest.mark.parametrize("other", [{"records": 21}, {"seed": 1}, {"shuffle": False}])
def test_a_position_of_another_order_is_refused(other):
    state = Sampler(20, 4).state_dict()
    about = {"records": 20, "batch": 4, **other}
    sampler = Sampler(**about)

    with pytest.raises(UsageError, match=f"the saved position is of {next(iter(other))}="):
        sampler.load_state_dict(state)


def test_a_batch_that_leaves_a_rank_nothing_is_refused():
    with rank_of(0, 4), pytest.raises(UsageError, match="3 records has none for some of 4 workers"):
        Sampler(20, 3)


def test_ranks_of_which_each_trains_alone_are_refused():
    sampler = Sampler(20, 4)

    with (
        rank_of(1, 2, known=False),
        pytest.raises(UsageError, match="rank 1 of 2, and they do not"),
    ):
        next(sampler.count(DataLoader(range(20), batch_sampler=sampler)))

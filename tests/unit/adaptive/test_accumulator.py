"""Sums over replicas and restarts."""

import pytest
import torch

from edl.adaptive import collective
from edl.adaptive.accumulator import Accumulator
from edl.adaptive.data import AdaptiveDataLoader
from edl.adaptive.epoch import remaining_epochs_until


def totals(accumulator):
    with accumulator.synchronized():
        return dict(accumulator)


def test_what_is_added_is_seen_when_synchronized_only(process):
    sums = Accumulator(a=1)
    sums["a"] += 2
    sums["b"] -= 0.5
    sums.update({"a": 3, 7: 1})
    sums.subtract(a=1)

    assert {} == dict(sums)
    assert {"a": 5, "b": -0.5, 7: 1} == totals(sums)


def test_replicas_are_added_up(restart):
    restart(0, 3)  # whose replicas all say what rank 0 says
    sums = Accumulator()
    sums["a"] += torch.tensor(2.0)

    assert {"a": 6.0} == totals(sums)
    assert {"a": 6.0} == totals(sums)  # and once


def test_totals_can_be_changed_within_a_block(process):
    sums = Accumulator(a=6, n=2)
    with sums.synchronized():
        sums["mean"] = sums["a"] / sums["n"]
        del sums["a"]
    sums["n"] += 1

    assert {"n": 3, "mean": 3.0} == totals(sums)
    with sums.synchronized():
        sums.clear()
    assert {} == totals(sums)


def test_outside_of_a_block_it_can_only_be_added_to(process):
    sums = Accumulator()

    with pytest.raises(TypeError, match="only be added to"):
        sums["a"] = 3
    with pytest.raises(TypeError, match="within synchronized"):
        sums.clear()
    with pytest.raises(TypeError, match="adds numbers"):
        sums["a"] += "3"


def test_it_is_not_made_within_a_loop(process):
    for _ in AdaptiveDataLoader(range(1)):
        with pytest.raises(RuntimeError, match="before the loop"):
            Accumulator()


def epoch(stop_in, stop_after):
    """Two loops and three blocks of one epoch. Gives what the blocks saw."""
    seen = []
    for _ in remaining_epochs_until(1):
        loaders = {"train": AdaptiveDataLoader(range(6)), "test": AdaptiveDataLoader(range(4))}
        sums = Accumulator(blocks=1)
        for name, loader in loaders.items():
            for number, batch in enumerate(loader, 1):
                sums[name] += int(batch) + 1
                collective.preemption().requested |= (name, number) == (stop_in, stop_after)
            with sums.synchronized():
                seen.append(dict(sums))
                sums["blocks"] += 1
        seen.append(totals(sums))
    return seen


@pytest.mark.parametrize("stop", [("train", 2), ("train", 6), ("test", 1), ("test", 4)])
def test_a_restart_changes_nothing_that_the_blocks_see(restart, checkpoints, stop):
    restart()
    expected = epoch(None, None)
    restart()
    with pytest.raises(SystemExit):
        epoch(*stop)

    restart()

    assert expected == epoch(None, None)
    assert {"train": 21, "test": 10, "blocks": 3} == expected[-1]

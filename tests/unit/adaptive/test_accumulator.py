"""Sums over replicas and restarts."""

import numpy as np
import pytest
import torch

from edl.adaptive import collective
from edl.adaptive.accumulator import Accumulator
from edl.adaptive.data import AdaptiveDataLoader
from edl.adaptive.epoch import remaining_epochs_until
from edl.common.errors import UsageError


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


def test_whole_mappings_are_added_and_taken_away(process):
    sums = same = Accumulator({"a": 1})
    sums += {"a": 2, "b": 1}
    sums -= [("b", 3)]
    sums["a"] = sums["a"] + 1
    sums["a"] = 1 + sums["a"] - 2

    assert sums is same
    assert {"a": 3, "b": -2} == totals(sums)


def test_within_a_block_the_same_operators_add_to_the_totals(process):
    sums = Accumulator(a=1)
    with sums.synchronized():
        sums += {"a": 2, "new": 1}
        sums.update(a=1)
        sums -= {"a": 3}
        sums.subtract(new=4)
        sums["a"] += 5

    assert {"a": 6, "new": -3} == totals(sums)


def test_arrays_and_tensors_are_added_up(restart):
    restart(0, 2)
    counted = np.array([[1, 0], [2, 1]])
    sums = Accumulator()
    sums["confusion"] += counted
    counted[0, 0] = 9
    sums["confusion"] -= np.eye(2, dtype=int)
    sums["mean"] += torch.tensor([0.5, 1.0], requires_grad=True)
    sums[("loss", 1)] += np.float32(2)

    with sums.synchronized():
        assert [[0, 0], [4, 0]] == sums["confusion"].tolist()
        assert [1.0, 2.0] == sums["mean"].tolist()
        assert 4.0 == sums[("loss", 1)]
        sums["confusion"] //= 4
    with sums.synchronized():
        assert [[0, 0], [1, 0]] == sums["confusion"].tolist()


def test_a_value_of_another_key_or_accumulator_is_refused(process):
    sums, others = Accumulator(), Accumulator()

    with pytest.raises(ValueError, match="'a' cannot be given to 'b'"):
        sums["b"] = sums["a"] + 1
    with pytest.raises(ValueError, match="can only be added to"):
        sums["a"] = others["a"] + 1
    with pytest.raises(UsageError, match="object"):
        sums[object()] += 1


def test_blocks_within_a_loop_see_what_there_is_after_a_restart_too(restart, checkpoints):
    """The passes of a loop do not run again, and so neither do blocks in it."""

    def run(stop):
        seen = []
        for _ in remaining_epochs_until(1):
            loader, sums = AdaptiveDataLoader(range(6)), Accumulator()
            for batch in loader:
                sums["n"] += int(batch) + 1
                with sums.synchronized():
                    seen.append(dict(sums)["n"])
                collective.preemption().requested |= len(seen) == stop
            seen.append(totals(sums)["n"])
        return seen

    restart()
    expected = run(None)
    restart()
    with pytest.raises(SystemExit):
        run(2)
    restart()

    assert [1, 3, 6, 10, 15, 21, 21] == expected
    again = run(None)
    assert 2 <= len(again) < len(expected)
    assert expected[-len(again) :] == again


def test_what_is_added_before_a_block_that_runs_again_counts_once(restart, checkpoints):
    def run(stop):
        for _ in remaining_epochs_until(1):
            first, second, sums = (
                AdaptiveDataLoader(range(2)),
                AdaptiveDataLoader(range(4)),
                Accumulator(),
            )
            list(first)
            sums["loops"] += 1
            seen = [totals(sums)]
            for number, _ in enumerate(second):
                collective.preemption().requested |= number == stop
            sums["loops"] += 1
            seen.append(totals(sums))
        return seen

    restart()
    with pytest.raises(SystemExit):
        run(1)
    restart()

    assert [{"loops": 1}, {"loops": 2}] == run(None)


def test_an_array_that_a_block_changes_in_place_is_seen_again_as_it_was(restart, checkpoints):
    def run(stop):
        for _ in remaining_epochs_until(1):
            loader, sums = AdaptiveDataLoader(range(4)), Accumulator(counts=np.array([2, 4]))
            with sums.synchronized():
                seen = sums["counts"].tolist()
                sums["counts"] //= 2
            for number, _ in enumerate(loader):
                collective.preemption().requested |= number == stop
        return seen, totals(sums)["counts"].tolist()

    restart()
    with pytest.raises(SystemExit):
        run(1)
    restart()

    assert ([2, 4], [1, 2]) == run(None)


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
    """Run two loops and three blocks of one epoch. Gives what the blocks saw."""
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

"""Epochs across restarts."""

import pytest

from edl.adaptive import checkpoint
from edl.adaptive.accumulator import Accumulator
from edl.adaptive.epoch import current_epoch, finished_epochs, remaining_epochs_until

pytestmark = pytest.mark.fast


def test_the_current_epoch_is_known_within_the_loop_only(process):
    seen = [(epoch, current_epoch(), finished_epochs()) for epoch in remaining_epochs_until(2)]

    assert [(0, 0, 0), (1, 1, 1)] == seen
    assert (None, 2) == (current_epoch(), finished_epochs())


def test_finished_epochs_are_not_run_again_and_the_running_one_is(restart, checkpoints):
    restart()
    for epoch in remaining_epochs_until(5):
        if epoch == 2:
            checkpoint.save_all_states()
            break

    restart()

    assert [2, 3, 4] == list(remaining_epochs_until(5))


def test_an_epoch_is_finished_by_a_break_and_by_an_error(process):
    for _ in remaining_epochs_until(3):
        break

    def fail():
        for _ in remaining_epochs_until(3):
            1 / 0  # noqa: B018

    with pytest.raises(ZeroDivisionError):
        fail()

    assert [2] == list(remaining_epochs_until(3))


def test_loops_over_epochs_do_not_overlap(process):
    for _ in remaining_epochs_until(1):
        with pytest.raises(RuntimeError, match="epoch 0 is running"):
            next(iter(remaining_epochs_until(2)))


def test_what_was_made_within_an_epoch_is_not_kept_after_it(restart, checkpoints):
    restart()
    outside = Accumulator()
    for _ in remaining_epochs_until(2):
        inside = Accumulator()
    checkpoint.save_all_states()

    (saved,) = checkpoints.iterdir()
    names = checkpoint.newest(checkpoints).books["states"]
    assert inside._state.name not in names
    assert outside._state.name in names
    assert "checkpoint-000000" == saved.name

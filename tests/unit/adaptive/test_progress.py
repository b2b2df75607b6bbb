"""Epochs that end by the progress of the model that their loop trains."""

import contextlib
from collections import Counter

import pytest

from edl.adaptive import checkpoint, collective, pace, profile
from edl.adaptive.data import AdaptiveDataLoader
from edl.adaptive.epoch import remaining_epochs_until
from edl.adaptive.newest import models


class Model:
    """A model of this name that was made just now, as far as loops know of it."""

    def __init__(self, name="model", progress=0.0):
        self.name = name
        self.progress = progress
        models().add(name, self)

    def step(self, loader, gain):
        self.progress += gain
        loader._elastic.models.stepped(self.name)


@pytest.fixture(autouse=True)
def no_goodput(monkeypatch):
    monkeypatch.setattr(profile.Profile, "goodput", lambda self: None)


def autoscaled(size, bounds=(4, 32)):
    loader = AdaptiveDataLoader(range(size), batch_size=8)
    loader.autoscale_batch_size(64, bounds, gradient_accumulation=True)
    return loader


def train(loader, *trained, gain):
    """Return the records of the loop, in each batch of which these models make a step."""
    taken = []
    for batch in loader:
        taken += batch.tolist()
        assert len(taken) < 10_000, "the epoch does not end"
        for model in trained:
            model.step(loader, gain)
    return taken


def test_an_autoscaled_epoch_ends_with_its_progress_and_the_next_goes_on_there(restart):
    restart()
    loader, model = autoscaled(size=72), Model()  # an epoch is 9 steps of the initial batch
    epochs = [train(loader, model, gain=0.75) for _ in remaining_epochs_until(2)]

    # Progress 9 at step 12, 18 at step 24.
    assert [*range(72), *range(24)] == epochs[0]
    assert [*range(24, 72), *range(48)] == epochs[1]


def test_an_autoscaled_epoch_goes_on_from_1_to_2_to_4_replicas_where_it_was(restart, checkpoints):
    taken, progress = [], 0.0
    for replicas, steps in [(1, 3), (2, 4), (4, None)]:
        for rank in range(replicas):
            restart(rank, replicas)
            profile.current()  # as init_process_group does
            model = Model(progress=progress)  # its checkpoint brings it back
            loader = autoscaled(size=40, bounds=(1, 32))
            with contextlib.suppress(SystemExit):
                for _ in remaining_epochs_until(1):
                    for number, batch in enumerate(loader, 1):
                        taken += batch.tolist()
                        model.step(loader, 0.5)
                        collective.preemption().requested |= number == steps
        progress = model.progress

    # An epoch is 5 initial batches: progress 5 at step 10, at the end of the 2nd pass.
    assert dict.fromkeys(range(40), 2) == Counter(taken)


@pytest.mark.parametrize("pace_s", [0.0, 1e9])
@pytest.mark.parametrize(
    ("size", "gain", "steps"), [(640, 1.0, [80, 80]), (640, 8.0, [10, 10]), (64, 8.0, [1, 1])]
)
def test_no_epoch_has_a_step_too_many_however_rare_exchanges_are(
    restart, monkeypatch, pace_s, size, gain, steps
):
    monkeypatch.setattr(pace, "PACE_S", pace_s)
    restart()
    loader, model = autoscaled(size), Model()

    found = [len(train(loader, model, gain=gain)) // 8 for _ in remaining_epochs_until(2)]

    assert steps == found


def test_an_epoch_ends_by_the_model_that_is_stepped_and_not_by_the_one_made_last(restart):
    restart()
    loader, trained, other = autoscaled(size=64), Model("trained"), Model("made last")

    epochs = [len(train(loader, trained, gain=1.0)) // 8 for _ in remaining_epochs_until(2)]

    assert [8, 8] == epochs
    assert 0.0 == other.progress


def test_of_several_models_that_a_loop_trains_the_newest_ends_the_epoch(restart):
    restart()
    loader, discriminator, generator = autoscaled(size=64), Model("D"), Model("G")
    taken = []
    for _ in remaining_epochs_until(1):
        for batch in loader:
            taken += batch.tolist()
            discriminator.step(loader, 1.0)
            generator.step(loader, 0.5)

    assert 2 * 64 == len(taken)


def test_two_loops_of_an_epoch_each_end_by_their_own_model(restart):
    restart()
    loader, one, two = autoscaled(size=64), Model("one"), Model("two")

    epochs = [
        (len(train(loader, one, gain=1.0)) // 8, len(train(loader, two, gain=0.5)) // 8)
        for _ in remaining_epochs_until(3)
    ]

    assert [(8, 16)] * 3 == epochs


def test_a_restart_where_the_epoch_has_just_ended_makes_no_step_more(restart, checkpoints):
    restart()
    loader, model = autoscaled(size=64), Model()
    for _ in remaining_epochs_until(1):
        for number, _ in enumerate(loader, 1):
            model.step(loader, 1.0)
            if number == 8:
                loader._elastic.current_index += 8  # as after the step
                checkpoint.save_all_states()
                break
        break

    restart()
    loader, model = autoscaled(size=64), Model(progress=8.0)

    assert [[]] == [train(loader, model, gain=1.0) for _ in remaining_epochs_until(1)]


def test_an_epoch_whose_progress_is_there_already_is_empty(restart):
    restart()
    loader, model = autoscaled(size=64), Model()
    epochs = [len(train(loader, model, gain=20.0)) for _ in remaining_epochs_until(4)]

    assert [8, 0, 8, 0] == epochs


def test_a_loop_that_does_not_train_is_one_pass(restart):
    restart()
    loader, _ = autoscaled(size=64), Model(progress=1e9)

    assert [64] == [sum(map(len, loader)) for _ in remaining_epochs_until(1)]

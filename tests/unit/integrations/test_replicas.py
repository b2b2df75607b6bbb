from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from edl import launch
from edl.adaptive import collective, rng, session
from edl.common.errors import CheckpointError, UsageError
from edl.integrations.replicas import Replicas, check
from edl.nn import Embedding


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A replica that nobody else is with."""
    for name in ("EDL_ROUND", "EDL_CHECKPOINT_VERSION", "RANK", "WORLD_SIZE", "EDL_REPLICA_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EDL_CHECKPOINT_PATH", str(tmp_path))
    session.reset()
    yield Replicas()
    session.reset()


def draws():
    return random.random(), float(np.random.normal()), float(torch.rand(1))


def test_what_it_saves_comes_back_with_the_random_states(alone):
    alone.save({"weights": torch.ones(2)}, step=7)
    expected = draws()

    state, progress = launch.load()
    alone.go_on_randomly(state["random"], 7)
    assert expected == draws()
    assert [1, 1] == state["weights"].tolist()
    assert 7 == progress["step"]


def test_earlier_random_states_may_be_saved(alone):
    earlier = rng.state()
    expected = draws()
    alone.save({}, earlier)

    alone.go_on_randomly(launch.load().state["random"], 0)
    assert expected == draws()


def test_random_states_of_other_replicas_are_not_taken_over_but_the_step_decides(alone):
    alone.save({})
    two = launch.load().state["random"] * 2
    seen = []
    for step in (5, 5, 6):
        alone.go_on_randomly(two, step)
        seen.append(draws())

    assert seen[0] == seen[1] != seen[2]


def test_it_makes_room_one_step_after_it_was_told_to(alone):
    rooms = [alone.stepped(8, 80)]
    collective.preemption().requested = True
    rooms += [alone.stepped(8, 72), alone.stepped(8, 64)]

    assert [False, False, True] == rooms


def test_it_leaves_with_the_exit_code_of_whoever_makes_room(alone):
    with pytest.raises(SystemExit) as left:
        alone.leave()

    assert launch.DRAINED == left.value.code


def test_what_cannot_be_saved_is_one_sentence(alone):
    with pytest.raises(CheckpointError, match=r"cannot save: state\.what is a object"):
        alone.save({"what": object()})


def test_it_tells_the_speed_and_what_is_left(alone, tmp_path, monkeypatch):
    monkeypatch.setenv("EDL_REPORT_FILE", str(tmp_path / "report"))
    monkeypatch.setattr("edl.adaptive.speed.TELL_S", 0.0)
    for left in (300, 200, 100):
        alone.stepped(100, left)

    told = json.loads((tmp_path / "report").read_text())
    assert pytest.approx(100) == told["throughput"] * told["remaining_s"]


def test_who_was_not_launched_is_told_how_and_that_servers_make_no_sense(monkeypatch):
    monkeypatch.delenv("EDL_CHECKPOINT_PATH", raising=False)

    with pytest.raises(UsageError, match=r"edl launch.*Parameter servers .* make no sense"):
        check("ElasticTrainer")


def test_a_model_with_tables_on_servers_is_refused(alone):
    table = Embedding("users", 4)

    with pytest.raises(UsageError, match=r"tables of edl\.nn\.Embedding live on parameter servers"):
        check("ElasticTrainer", torch.nn.Sequential(table))

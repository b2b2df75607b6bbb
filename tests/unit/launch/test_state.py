from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tools.stores import world

from edl.common import storage
from edl.common.errors import CheckpointError, UsageError
from edl.common.places import Place
from edl.launch import load, save
from edl.launch.report import report
from edl.launch.state import newest_round, newest_whole

pytestmark = pytest.mark.fast


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EDL_CHECKPOINT_PATH", str(tmp_path))
    for name in ("EDL_ROUND", "EDL_CHECKPOINT_VERSION", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_before_anything_is_saved_there_is_nothing(folder):
    assert ({}, {}) == load()


def test_a_model_and_its_optimizer_come_back_as_they_were(folder):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()

    save({"model": model, "optimizer": optimizer}, epoch=3)

    state, progress = load()
    assert {"epoch": 3, "world_size": 1} == progress
    other = torch.nn.Linear(3, 2)
    other.load_state_dict(state["model"])
    assert torch.equal(model.weight, other.weight)
    again = torch.optim.Adam(other.parameters(), lr=0.5)
    again.load_state_dict(state["optimizer"])
    assert optimizer.state_dict()["param_groups"] == again.state_dict()["param_groups"]
    assert torch.equal(
        optimizer.state_dict()["state"][0]["exp_avg"], again.state_dict()["state"][0]["exp_avg"]
    )


def test_values_keep_their_kinds(folder):
    shared = torch.arange(3, dtype=torch.bfloat16)
    given = {
        "nested": {1: [None, True, 2, 2.5, "x", ("a", 1)]},
        "array": np.arange(4, dtype=np.int16).reshape(2, 2),
        "tied": [shared, shared],
        "slice": torch.arange(6).reshape(2, 3).t(),
        "scalar": np.float64(0.5),
    }

    save(given)

    state = load().state
    assert given["nested"] == state["nested"]
    assert (np.int16, [[0, 1], [2, 3]]) == (state["array"].dtype, state["array"].tolist())
    assert [torch.bfloat16] * 2 == [each.dtype for each in state["tied"]]
    assert given["slice"].tolist() == state["slice"].tolist()
    assert 0.5 == state["scalar"]


def itself() -> dict:
    state = {"a": [1]}
    state["a"].append(state)
    return state


def nested(levels: int) -> dict:
    state = {}
    for _ in range(levels):
        state = {"a": state}
    return state


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (itself(), r"^state\.a\.1 is the dict that holds it: leave it out"),
        (nested(100), r"state(\.a){100} is nested in more than 100 others: flatten it"),
    ],
)
def test_a_state_without_an_end_is_one_sentence(folder, state, says):
    with pytest.raises(UsageError, match=says):
        save(state)


def test_the_same_list_twice_is_no_state_without_an_end(folder):
    twice = [1, 2]

    save({"a": twice, "b": [twice, nested(97)]})

    assert {"a": twice, "b": [twice, nested(97)]} == load().state


def test_what_cannot_be_saved_is_named(folder):
    with pytest.raises(UsageError, match=r"state\.a\.1 is a set, which cannot be saved"):
        save({"a": [1, {2}]})


def test_only_rank_0_writes(folder, monkeypatch):
    monkeypatch.setenv("RANK", "1")

    save({"x": 1})

    assert [] == list(folder.iterdir())


def test_a_torn_newest_state_is_passed_over(folder):
    save({"x": 1})
    save({"x": 2})
    newest = storage.find_checkpoints(folder)[-1]
    (newest.path / "state.json").write_text("{}")

    assert {"x": 1} == load().state


def test_the_newest_states_are_kept(folder, monkeypatch):
    monkeypatch.setenv("EDL_CHECKPOINT_KEEP", "2")

    for x in range(5):
        save({"x": x})

    assert (2, {"x": 4}) == (len(storage.find_checkpoints(folder)), load().state)


def test_what_a_writer_of_an_earlier_round_still_writes_sorts_behind(folder, monkeypatch):
    monkeypatch.setenv("EDL_ROUND", "4")
    save({"x": "of round 4"})
    monkeypatch.setenv("EDL_ROUND", "3")
    save({"x": "of a writer that was cut off"})

    assert (4, {"x": "of round 4"}) == (newest_round(folder), load().state)


def test_all_ranks_of_a_round_load_the_version_that_was_agreed(folder, monkeypatch):
    save({"x": "agreed"})
    monkeypatch.setenv("EDL_CHECKPOINT_VERSION", str(newest_whole(folder)))
    save({"x": "of a rank that was quicker"})

    assert {"x": "agreed"} == load().state


def test_a_machine_that_does_not_see_the_agreed_version_says_so(folder, monkeypatch):
    monkeypatch.setenv("EDL_CHECKPOINT_VERSION", "1000000007")

    with pytest.raises(CheckpointError, match="is --checkpoint_dir the same place on all machines"):
        load()


def test_without_a_folder_the_error_says_how_to_name_one(monkeypatch):
    monkeypatch.delenv("EDL_CHECKPOINT_PATH", raising=False)

    with pytest.raises(UsageError, match="set EDL_CHECKPOINT_PATH"):
        load()


def test_a_report_is_what_rank_0_said_last(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    monkeypatch.setenv("EDL_REPORT_FILE", str(path))
    monkeypatch.setenv("RANK", "0")
    report(throughput=5)
    monkeypatch.setenv("RANK", "1")
    report(throughput=7)

    assert {"throughput": 5.0} == json.loads(path.read_text())


def test_a_state_at_a_store_is_saved_pinned_and_loaded(monkeypatch):
    world("launch", new=True)
    where = "flaky://launch/c"
    monkeypatch.setenv("EDL_CHECKPOINT_PATH", where)
    monkeypatch.setenv("EDL_ROUND", "2")
    save({"x": 1}, epoch=1)
    (Place(where) / "version-000002000000002").write("state.json", b"late")
    monkeypatch.setenv("EDL_CHECKPOINT_VERSION", str(newest_whole(where)))

    assert ({"x": 1}, 1) == (load().state, load().progress["epoch"])
    save({"x": 2})
    monkeypatch.setenv("EDL_CHECKPOINT_VERSION", str(newest_whole(where)))
    assert {"x": 2} == load().state
    assert 2 == newest_round(where)

"""Which GPUs the workers of a node see, and what else their environment has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from edl.launch import agent, devices
from edl.launch.settings import LaunchSettings


def test_nodes_of_one_machine_count_their_workers_one_after_the_other():
    store = HashStore()

    assert [0, 2, 3] == [devices.place(store, nproc) for nproc in (2, 1, 4)]


@pytest.mark.parametrize(
    ("visible", "before", "nproc", "seen"),
    [
        ("0123", 0, 1, "0123"),
        ("0123", 1, 1, "1"),
        ("4567", 2, 2, "67"),
        ("01", 1, 2, "10"),
        ("", 1, 1, ""),
    ],
)
def test_those_who_come_later_see_what_the_earlier_ones_leave(visible, before, nproc, seen):
    assert list(seen) == devices.seen(list(visible), before, nproc)


def test_too_few_gpus_are_told_of(caplog):
    devices.seen(["0"], 1, 1)

    assert "2 workers are on this machine, which has 1 GPUs" in caplog.text


@pytest.mark.parametrize(("given", "found"), [("2, 3", ["2", "3"]), ("", []), ("-1", [])])
def test_gpus_are_those_that_the_environment_leaves(monkeypatch, given, found):
    monkeypatch.setenv(devices.VISIBLE, given)

    assert found == devices.visible()


def environment(tmp_path, before):
    settings = LaunchSettings("j", 1, 2, str(tmp_path))
    handler = SimpleNamespace(
        settings=settings, restarts=1, num_nodes=2, round=2, checkpoint=0, before=before
    )
    logs = agent._Logs(handler, tmp_path, Path("report"), tee=False)
    return logs._environment({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"})


def test_workers_of_the_second_node_of_a_machine_see_the_second_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv(devices.VISIBLE, "0,1")
    first, second = environment(tmp_path, before=0), environment(tmp_path, before=1)

    assert devices.VISIBLE not in first
    assert "1" == second[devices.VISIBLE]


def test_scripts_save_now_and_then_unless_somebody_says_how_often(tmp_path, monkeypatch):
    monkeypatch.delenv("EDL_CHECKPOINT_INTERVAL_S", raising=False)
    by_default = environment(tmp_path, before=0)
    monkeypatch.setenv("EDL_CHECKPOINT_INTERVAL_S", "0")

    assert "120" == by_default["EDL_CHECKPOINT_INTERVAL_S"]
    assert "EDL_CHECKPOINT_INTERVAL_S" not in environment(tmp_path, before=0)


def test_accelerate_is_told_where_there_are_only_cpus(tmp_path, monkeypatch):
    name = "ACCELERATE_USE_CPU"
    monkeypatch.delenv(name, raising=False)
    found = []
    for there, given in (False, None), (True, None), (False, "no"):
        monkeypatch.setattr(devices, "are_there", lambda there=there: there)
        if given:
            monkeypatch.setenv(name, given)
        found.append(environment(tmp_path, before=0).get(name))

    assert ["true", None, None] == found

"""Sharded tensors in files at a place, written and read by one rank: what is there, and what fails.

Several ranks: tests/integration/adaptive/test_sharded_state.py.
"""

from __future__ import annotations

import json

import pytest
import torch
from tools.stores import world
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from edl import launch
from edl.common import storage
from edl.common.errors import CheckpointError
from edl.common.places import Place
from edl.launch import shards, together

NAMES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def mesh():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()
    together._ranks = None


@pytest.fixture(params=["here", "store"])
def folder(request, tmp_path, monkeypatch):
    """Return a place for states: a folder, and a store."""
    world("shards", new=True)
    where = "flaky://shards/c" if request.param == "store" else str(tmp_path / "c")
    monkeypatch.setenv("EDL_CHECKPOINT_PATH", where)
    for name in ("EDL_ROUND", "EDL_CHECKPOINT_VERSION", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return Place(where)


def state_of(mesh, scale=1.0):
    """Return three tensors of 96 bytes."""
    return {
        name: distribute_tensor(torch.arange(24.0).reshape(6, 4) * scale * number, mesh, [Shard(0)])
        for number, name in enumerate(NAMES, 1)
    }


def whole(state):
    return {
        name: getattr(value, "full_tensor", lambda value=value: value)().tolist()
        for name, value in state.items()
    }


def files(folder):
    """Return the files with parts of the newest version."""
    (*_, newest) = storage.find_checkpoints(folder)
    return newest, sorted(name for name in newest.names() if name.startswith("shard-"))


@pytest.mark.parametrize(("nbytes", "number"), [(1, 3), (192, 2), (1 << 20, 1)])
def test_a_rank_writes_files_of_bounded_size(folder, mesh, monkeypatch, nbytes, number):
    monkeypatch.setattr(shards, "_FILE_NBYTES", nbytes)
    given = state_of(mesh)

    launch.save(given)

    assert number == len(files(folder)[1])
    assert whole(given) == whole(launch.load().state)
    assert whole(given) == whole(launch.load(like=state_of(mesh, 0)).state)


def test_a_file_that_is_another_than_was_written_is_named(folder, mesh, monkeypatch):
    launch.save(state_of(mesh))
    monkeypatch.setenv("EDL_CHECKPOINT_VERSION", "1")  # as all ranks were told
    version, (name,) = files(folder)
    data = bytearray(version.read(name))
    data[-1] ^= 1
    version.write(name, bytes(data))

    with pytest.raises(CheckpointError, match=rf"cannot load the parts in .*{name} is damaged"):
        launch.load(like=state_of(mesh))


def test_parts_that_do_not_make_up_a_tensor_are_no_state(folder, mesh):
    launch.save(state_of(mesh))
    version, (name,) = files(folder)
    tree = json.loads(version.read("state.json"))
    tree["parts"][name] = [part for part in tree["parts"][name] if part[0] != "state.b"]
    records = [each for each in storage.load(version).files if each.name != "state.json"]
    records.append(version.write("state.json", json.dumps(tree).encode()))
    storage.write_manifest(version, version=1, num_shards=1, num_slots=0, files=records, model={})

    with pytest.raises(CheckpointError, match=r"has 0 of the 24 values of state\.b: not all ranks"):
        launch.load()


def test_a_state_whose_parts_cannot_be_written_leaves_the_earlier_one(mesh, monkeypatch):
    there = world("shards", new=True)
    monkeypatch.setenv("EDL_CHECKPOINT_PATH", "flaky://shards/c")
    earlier = state_of(mesh)
    launch.save(earlier)

    def refuse(what, path):
        if what == "put" and "shard-" in path:
            raise PermissionError("no more room is paid for")

    there.before = refuse
    with pytest.raises(
        CheckpointError, match=r"rank 0: CheckpointError: .*no more room is paid for"
    ):
        launch.save(state_of(mesh, 2))
    there.before = lambda _what, _path: None

    assert whole(earlier) == whole(launch.load().state)

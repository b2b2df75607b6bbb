"""A state that is sharded over the ranks, at S3: saved by two, loaded by two and by one."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from tools import elastic, s3
from tools.turns import in_turn
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from edl import launch
from edl.common.errors import CheckpointError
from edl.common.places import Place
from edl.launch import shards

pytest.importorskip("s3fs")
WHERE = "s3://bucket/job"
ROWS = 5  # which no two ranks share evenly


def tensors(mesh, number):
    """Return two tensors, of each of which a rank writes one file; the first save has number 1."""
    grid = torch.arange(3.0 * ROWS).reshape(ROWS, 3) * number
    return {name: distribute_tensor(grid * sign, mesh, [Shard(0)]) for name, sign in SIGNS.items()}


SIGNS = {"a": 1, "b": -1}


def die_after_one_part(place, name, *data, write=Place.write):
    write(place, name, *data)
    os.kill(os.getpid(), signal.SIGKILL)


def work(say):
    """Load, but in the first round, and save; in the second rank 1 dies after its first part."""
    rank, world = os.environ["EDL_REPLICA_RANK"], os.environ["EDL_NUM_REPLICAS"]
    round = int(os.environ["EDL_NUM_RESTARTS"]) + 1
    os.environ.update(RANK=rank, WORLD_SIZE=world, EDL_ROUND=str(round))
    distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (int(world),))
    shards._FILE_NBYTES = 1
    if round > 1:
        found, progress = launch.load(like=tensors(mesh, 0))
        held = {name: tuple(value.to_local().shape) for name, value in found.items()}
        whole = {name: value.full_tensor().tolist() for name, value in found.items()}
        say((progress, held, whole))
    if (round, rank) == (2, "1"):
        Place.write = die_after_one_part
    try:
        launch.save(tensors(mesh, round), round=round)
    except (CheckpointError, RuntimeError) as error:
        say(str(error))
    return 0


def files(variables):
    """Return the names of all objects, by version."""
    found = {}
    with s3.client(variables) as client:
        for each in client.list_objects_v2(Bucket="bucket")["Contents"]:
            version, _, name = each["Key"].removeprefix("job/").partition("/")
            found.setdefault(version, []).append(name)
    return found


@in_turn(1)
def test_two_ranks_save_and_two_and_one_go_on_from_what_all_parts_are_of():
    with s3.server("bucket") as variables:
        ends = [
            elastic.generation(work, WHERE, replicas, restarts, **variables)
            for restarts, replicas in enumerate([2, 2, 1])
        ]
        there = files(variables)

    assert [[0, 0], [0, -9], [0]] == [[each.code for each in end] for end in ends]
    grid = torch.arange(3.0 * ROWS).reshape(ROWS, 3)
    expected = {name: (grid * sign).tolist() for name, sign in SIGNS.items()}
    progress = {"round": 1, "world_size": 2}
    two = [dict.fromkeys(SIGNS, shape) for shape in [(3, 3), (2, 3)]]
    assert [] == ends[0][0].said
    assert [(progress, held, expected) for held in two] == [each.said[0] for each in ends[1]]
    assert [(progress, dict.fromkeys(SIGNS, (ROWS, 3)), expected)] == ends[2][0].said
    assert 2 == len(ends[1][0].said)  # rank 0 was told that rank 1 is gone
    first, torn, last = (f"version-{round * 10**9 + 1:012d}" for round in (1, 2, 3))
    assert {first, torn, last, "LATEST"} == {*there}
    assert 4 + 3 == len(there[first])  # parts, and what rank 0 writes
    assert "MANIFEST.json" in there[last]
    assert "MANIFEST.json" not in there[torn]
    assert any(name.startswith("shard-00002") for name in there[torn])

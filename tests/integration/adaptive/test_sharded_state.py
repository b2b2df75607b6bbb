"""States whose tensors are sharded over the ranks: real processes, gloo, FSDP2 and DTensors."""

from __future__ import annotations

import os

import pytest
import torch
from tools import elastic
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from edl import launch
from edl.common.errors import CheckpointError

WORLDS = [2, 2, 3]  # of the generations


def make(mesh):
    """Return a model and its optimizer, with parameters that do not divide by the ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    fully_shard(model, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def step(model, optimizer, number):
    """Make a step of the same batch on all ranks, whose mean is that of any number of them."""
    batch = torch.randn(8, 3, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def whole(model):
    return {name: value.full_tensor().tolist() for name, value in model.state_dict().items()}


def error_of(call):
    try:
        call()
    except CheckpointError as error:
        return str(error)
    return ""


def work(say):
    """Save in the first generation, go on in the others, which are sharded otherwise."""
    rank, world = os.environ["EDL_REPLICA_RANK"], os.environ["EDL_NUM_REPLICAS"]
    os.environ.update(RANK=rank, WORLD_SIZE=world)
    restarts = int(os.environ["EDL_NUM_RESTARTS"])
    distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (int(world),))
    model, optimizer = make(mesh)
    grid = torch.arange(12.0).reshape(3, 4)
    column = distribute_tensor(grid * (restarts == 0), mesh, [Shard(1 - restarts % 2)])
    plain = distribute_tensor(torch.zeros(5), mesh, [Shard(0)])
    torch.manual_seed(100 * restarts + int(rank))
    state = {"model": model, "optimizer": optimizer, "column": column}
    if restarts == 0:
        for number in range(2):
            step(model, optimizer, number)
        saved = {**state, "random": launch.random_states(), "plain": torch.arange(5.0)}
        launch.save(saved, step=2)
    else:
        found, progress = launch.load(like={**state, "plain": plain})
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        launch.go_on_randomly(found["random"], progress["step"])
        column, plain = found["column"], found["plain"]
    everything = launch.load().state
    step(model, optimizer, 2)
    wrong = distribute_tensor(torch.zeros(3, 5), mesh, [Shard(0)])
    shape = error_of(lambda: launch.load(like={"column": wrong}))
    say(
        {
            "weights": whole(model),
            "column": column.full_tensor().tolist(),
            "held": tuple(column.to_local().shape),
            "plain": plain.full_tensor().tolist(),
            "everything": everything["column"].tolist(),
            "random": torch.rand(1).item(),
            "shape": shape,
        }
    )
    distributed.barrier()
    return dict(enumerate(WORLDS)).get(restarts + 1, 0)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Return what each rank had to say, by generation, and the folder."""
    folder = tmp_path_factory.mktemp("checkpoints")
    generations = elastic.elastic(work, folder, replicas=WORLDS[0])
    return [[replica.said[0] for replica in replicas] for replicas in generations], folder


def test_a_sharded_model_and_its_optimizer_go_on_in_another_world(said):
    generations, _ = said
    expected = generations[0][0]["weights"]

    for generation in generations:
        for one in generation:
            for name, values in expected.items():
                torch.testing.assert_close(torch.tensor(one["weights"][name]), torch.tensor(values))


def test_a_tensor_is_held_as_it_is_asked_for_and_is_the_same_as_a_whole(said):
    generations, _ = said
    grid = torch.arange(12.0).reshape(3, 4).tolist()

    held = [[one["held"] for one in generation] for generation in generations]
    assert [[(3, 2)] * 2, [(2, 4), (1, 4)], [(3, 2), (3, 2), (3, 0)]] == held
    found = [one for generation in generations for one in generation]
    assert [grid] * 7 == [one["column"] for one in found]
    assert [grid] * 7 == [one["everything"] for one in found]
    assert [[0.0, 1.0, 2.0, 3.0, 4.0]] * 5 == [one["plain"] for one in found[2:]]


def test_each_rank_goes_on_with_its_own_random_numbers(said):
    first, again, more = ([one["random"] for one in generation] for generation in said[0])

    assert first == again
    assert 5 == len({*first, *more})


def test_nothing_that_was_saved_is_a_pickle(said):
    _, folder = said
    (version,) = folder.iterdir()

    assert {".json", ".safetensors"} == {path.suffix for path in version.iterdir()}
    assert 3 == len(list(version.glob("*.safetensors")))  # of two ranks, and what all have


def test_what_does_not_fit_is_a_sentence_on_all_ranks(said):
    for one in (one for generation in said[0] for one in generation):
        assert "state.column was saved with the shape (3, 4) and is (3, 5) here" in one["shape"]

"""The state of an all-reduce member: for another member, and as a checkpoint of any strategy."""

import numpy as np
import pytest
import torch
from tools.servers import restored
from tools.stores import world
from torch import nn

from edl.common import storage
from edl.common.errors import CheckpointError
from edl.common.places import Place
from edl.nn import (
    FTRL,
    LAMB,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    GroupAdam,
    Lion,
    NAdam,
    RAdam,
    RMSprop,
    RowWiseAdagrad,
)
from edl.nn.model_spec import CHUNK_ELEMENTS
from edl.nn.optimizers import learning_rate
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.snapshots import cut as snapshot
from edl.worker.group.state import GroupState
from edl.worker.model import model_spec

OPTIMIZERS = {
    "sgd": SGD(lr=0.1),
    "momentum": SGD(lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adagrad": Adagrad(lr=0.05, initial_accumulator_value=0.1),
    "adam": Adam(lr=5e-3),
    "amsgrad": Adam(lr=3e-3, amsgrad=True),
    "adamw": AdamW(lr=3e-3, weight_decay=0.05),
    "ftrl": FTRL(lr=0.1, l1=1e-4, l2=1e-3, initial_accumulator_value=0.1),
    "rmsprop": RMSprop(lr=3e-3, momentum=0.9, centered=True, eps=1e-3),
    "adadelta": Adadelta(lr=0.1, eps=1e-3),
    "adamax": Adamax(lr=3e-3, maximize=True),
    "nadam": NAdam(lr=3e-3),
    "radam": RAdam(lr=3e-3, betas=(0.8, 0.9)),
    "lion": Lion(lr=1e-3, weight_decay=0.1),
    "row-wise": RowWiseAdagrad(lr=0.05, initial_accumulator_value=0.1, lr_decay=0.1),
    "lamb": LAMB(lr=3e-3, weight_decay=0.1),
    "group-adam": GroupAdam(lr=3e-3, l1=1e-3, l21=1.0),
}
by_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.hidden = nn.Linear(6, width, bias=False)  # of which the norm leaves no gradient
        self.norm = nn.BatchNorm1d(width)
        self.out = nn.Linear(width, 1)
        self.never = nn.Parameter(torch.ones(3))

    def forward(self, inputs):
        return self.out(torch.tanh(self.norm(self.hidden(inputs)))).sum()


def member(optimizer, seed=0, width=5):
    torch.manual_seed(seed)
    model = Model(width)
    state = GroupState(model, model_spec(model, optimizer, seed))
    state.begin()
    return state


def step(state, number):
    """Make one step on inputs that are a function of its number."""
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(number))
    state.optimizer.zero_grad(set_to_none=True)
    state.model(inputs).backward()
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(state.spec.optimizer, state.version)
    state.optimizer.step()
    state.version += 1
    state.applied[number] = 8


def values(state):
    return {name: tensor.clone() for name, tensor in state.model.state_dict().items()}


def assert_same(expected, found):
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


def checkpoint(state, folder):
    files = state.write(folder)
    storage.write_manifest(folder, version=state.version, num_shards=1, num_slots=1024, files=files)
    return folder


@by_optimizer
def test_a_latecomer_steps_on_as_the_one_it_got_the_state_from(optimizer):
    one, other = member(optimizer), member(optimizer, seed=1)
    for number in range(3):
        step(one, number)

    other.unpack(one.pack())
    step(one, 3), step(other, 3)

    assert (one.version, one.applied) == (other.version, other.applied)
    assert_same(values(one), values(other))


@by_optimizer
def test_a_copy_is_not_touched_by_the_steps_that_follow(optimizer):
    state = member(optimizer)
    step(state, 0)
    before = values(state)

    twin = state.copy()
    step(state, 1)

    assert_same(before, values(twin))
    step(twin, 1)
    assert_same(values(state), values(twin))


@by_optimizer
def test_a_checkpoint_brings_back_what_the_next_step_depends_on(optimizer, tmp_path):
    state, other = member(optimizer), member(optimizer, seed=1)
    for number in range(3):
        step(state, number)

    other.read(str(checkpoint(state, tmp_path / "c")), ledger=True)
    step(state, 3), step(other, 3)

    assert (state.version, state.applied) == (other.version, other.applied)
    counters = {"norm.num_batches_tracked"}  # which no value depends on, and servers do not keep
    there = {n: t for n, t in values(state).items() if n not in counters}
    assert_same(there, {n: t for n, t in values(other).items() if n not in counters})


@by_optimizer
def test_servers_go_on_with_a_checkpoint_of_all_reduce_and_back(optimizer, tmp_path):
    """A step on the servers' kernels is torch's, from the same checkpoint; so is one more, back."""
    state = member(optimizer)
    for number in range(3):
        step(state, number)
    store = restored(checkpoint(state, tmp_path / "c"))
    assert 3 == store.version

    step(state, 3)
    gradients = {
        (name, 0): parameter.grad.numpy().reshape(-1).copy()
        for name, parameter in state.model.named_parameters()
        if parameter.grad is not None
    }
    store.push(Span(9, 1, 0, 1), store.version, Update(gradients, {}))
    there = {name: chunk.value for (name, _), chunk in store.pins.chunks("")}
    for name, _ in gradients:
        ours = dict(state.model.named_parameters())[name].detach().numpy().reshape(-1)
        np.testing.assert_allclose(there[name], ours, rtol=2e-5, atol=2e-6, err_msg=name)

    store.pins.freeze("d", 1.0)
    assert store.pins.pin("d", {}, 1.0)[0]
    files, version = snapshot.write(store, "d", tmp_path / "d")
    storage.write_manifest(
        tmp_path / "d", version=version, num_shards=1, num_slots=1024, files=files
    )
    back = member(optimizer, seed=1)
    back.read(str(tmp_path / "d"), ledger=True)
    step(state, 4), step(back, 4)
    for name, parameter in back.model.named_parameters():
        ours = dict(state.model.named_parameters())[name]
        torch.testing.assert_close(parameter, ours, rtol=1e-4, atol=1e-5)


def test_large_tensors_are_written_in_chunks(tmp_path):
    width = CHUNK_ELEMENTS // 6 + 7
    state, other = member(SGD(lr=0.1), width=width), member(SGD(lr=0.1), seed=1, width=width)

    other.read(str(checkpoint(state, tmp_path / "c")), ledger=False)

    assert torch.equal(state.model.hidden.weight, other.model.hidden.weight)
    store = restored(tmp_path / "c")
    assert {0, 1} == {n for (name, n), _ in store.pins.chunks("") if name == "hidden.weight"}


def test_a_checkpoint_at_a_store_is_read_as_one_of_a_folder():
    world("group", new=True)
    state, other = member(Adam()), member(Adam(), seed=1)
    step(state, 0)

    other.read(str(checkpoint(state, Place("flaky://group/c"))), ledger=True)

    step(state, 1), step(other, 1)
    assert (state.version, state.applied) == (other.version, other.applied)
    assert torch.equal(state.model.hidden.weight, other.model.hidden.weight)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    folder = checkpoint(member(SGD()), tmp_path / "c")

    with pytest.raises(CheckpointError, match="another model"):
        member(SGD(), width=7).read(str(folder), ledger=True)


def test_a_state_of_another_model_is_refused():
    with pytest.raises(CheckpointError, match="not of this model"):
        member(SGD(), width=7).unpack(member(SGD()).pack())


def test_another_optimizer_begins_with_its_own_state(tmp_path):
    state = member(Adam())
    step(state, 0)
    other = member(Adagrad(), seed=1)

    other.read(str(checkpoint(state, tmp_path / "c")), ledger=False)
    step(other, 1)

    assert other.version == 1
    assert other.applied == {1: 8}


def test_retired_tasks_are_forgotten():
    state = member(SGD())
    state.applied = {3: 8, 4: 8, 6: 2}

    state.retire(4)

    assert {4: 8, 6: 2} == state.applied


def test_servers_of_another_number_take_it_over_as_well(tmp_path):
    state = member(Adam())
    step(state, 0)
    manifest = storage.load(checkpoint(state, tmp_path / "c"))

    stores = [Store(index=i, slot_map=SlotMap(2), policy=Policy()) for i in range(2)]
    for store in stores:
        snapshot.restore(store, manifest, new_job=False)

    held = [{name for (name, _), _ in store.pins.chunks("")} for store in stores]
    expected = {n for n in state.model.state_dict() if n != "norm.num_batches_tracked"}
    assert held[0] | held[1] == expected
    assert not held[0] & held[1]

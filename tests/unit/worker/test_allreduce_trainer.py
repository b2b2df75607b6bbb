"""A member's steps, in a group of one: the oracle is torch's own loop on the whole minibatch."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from edl.common.errors import DefinitionError
from edl.nn import SGD, Adam, Embedding
from edl.nn.buffers import NonFinite
from edl.nn.device import seed_of
from edl.nn.local import torch_optimizer
from edl.proto import master_pb2 as pb
from edl.worker.group.allreduce import AllReduceTrainer
from edl.worker.group.slices import Slice
from edl.worker.model import model_spec
from edl.worker.task_reader import Lease


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(5, 1)
        self.never = nn.Parameter(torch.ones(3))

    def forward(self, inputs):
        return self.out(self.drop(torch.tanh(self.norm(self.hidden(inputs))))).squeeze(1)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 1)

    def forward(self, inputs):
        return self.out(inputs).squeeze(1)


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def made(kind):
    def make():
        torch.manual_seed(7)
        return kind()

    return make


def trainer(kind, optimizer):
    make = made(kind)
    found = AllReduceTrainer(
        make,
        functional.mse_loss,
        model_spec(make(), optimizer, 7),
        device=torch.device("cpu"),
    )
    found.state.begin()
    found.enter(1)
    return found


def minibatch(number, count=12):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(count, 6, generator=generator), torch.randn(count, generator=generator)


def piece(number, *sizes):
    inputs, labels = minibatch(number)
    total = sum(sizes)
    parts, at = [], 0
    for size in sizes:
        parts.append((inputs[at : at + size], labels[at : at + size], size, None))
        at += size
    lease = Lease(pb.Task(id=number, kind=pb.TRAIN, end=12))
    return Slice(lease, 0, total, total, total=total, parts=parts)


def test_steps_are_those_of_plain_torch():
    ours = trainer(Model, Adam(lr=0.01))
    plain = made(Model)()
    optimizer = torch_optimizer(Adam(lr=0.01), plain.parameters())

    for number in range(20):
        step = ours.reduce(piece(number, 12), False)
        ours.commit(step)
        torch.manual_seed(seed_of(7, 0, number, 0, 12))
        optimizer.zero_grad()
        loss = functional.mse_loss(plain(minibatch(number)[0]), minibatch(number)[1])
        loss.backward()
        optimizer.step()
        assert step.loss == pytest.approx(loss.item(), rel=1e-6)

    assert (ours.state.version, ours.state.applied[19]) == (20, 12)
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], tensor, rtol=1e-6, atol=1e-6)


def test_a_slice_in_parts_adds_up_to_the_whole():
    whole, parts = trainer(Plain, SGD(lr=0.1)), trainer(Plain, SGD(lr=0.1))

    for number in range(5):
        whole.commit(whole.reduce(piece(number, 12), False))
        parts.commit(parts.reduce(piece(number, 5, 5, 2), False))

    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_nothing_changes_before_the_commit():
    ours = trainer(Model, Adam(lr=0.01))
    before = ours.state_dict()

    ours.reduce(piece(0, 12), False)

    for name, tensor in before.items():
        assert torch.equal(tensor, ours.state_dict()[name]), name
    assert (ours.state.version, ours.state.applied) == (0, {})


def test_steps_that_were_kept_are_applied_later_as_they_were():
    at_once, later = trainer(Model, Adam(lr=0.01)), trainer(Model, Adam(lr=0.01))
    blob = later.state.pack()
    kept = []
    for number in range(3):
        step = at_once.reduce(piece(number, 12), False)
        kept.append(later.keep(step))
        at_once.commit(step)

    later.state.unpack(blob)
    for step in kept:
        later.commit(step)

    for name, tensor in at_once.state_dict().items():
        assert torch.equal(tensor, later.state_dict()[name]), name


def test_the_wish_to_end_the_round_travels_with_the_gradients():
    ours = trainer(Plain, SGD(lr=0.1))

    assert [False, True] == [ours.reduce(piece(0, 12), wish).ends_round for wish in (False, True)]


@pytest.mark.parametrize("poison", [float("nan"), 1e38])
def test_what_is_not_finite_is_refused(poison):
    ours = trainer(Plain, SGD(lr=0.1))
    bad = piece(0, 12)
    bad.parts[0][0][3] = poison

    with pytest.raises(NonFinite):
        ours.reduce(bad, False)
    assert all(np.isfinite(t.numpy()).all() for t in ours.state_dict().values())


def test_a_model_with_tables_is_refused_by_name():
    class Tables(nn.Module):
        def __init__(self):
            super().__init__()
            self.users = Embedding("users", 4)
            self.out = nn.Linear(4, 1)

    with pytest.raises(DefinitionError, match=r"tables \(users\).*--strategy hybrid"):
        trainer(Tables, SGD(lr=0.1))

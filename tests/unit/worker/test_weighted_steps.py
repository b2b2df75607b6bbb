"""Steps on records that have weights: the oracle is torch's loop on the whole minibatch."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from edl.common.errors import DefinitionError
from edl.nn import Adam, Embedding
from edl.nn.local import torch_optimizer
from edl.nn.weights import Weighted, weighted
from edl.proto import master_pb2 as pb
from edl.ps.worker_client import Pulled, PushOutcome, PushResult
from edl.worker.group.allreduce import AllReduceTrainer
from edl.worker.group.hybrid import HybridTrainer
from edl.worker.group.sharded import ShardedTrainer
from edl.worker.group.slices import Slice
from edl.worker.model import model_spec
from edl.worker.servers.trainer import PsTrainer
from edl.worker.task_reader import Lease

CPU = torch.device("cpu")
OPTIMIZER = Adam(lr=0.05)
MEMBERS, RECORDS, STEPS = 2, 12, 4
FIRST = 7  # records of the first member's slice, which it has in two passes


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 1)

    def forward(self, inputs):
        return self.out(inputs).squeeze(1)


def made():
    torch.manual_seed(7)
    return Model()


@weighted
def loss(outputs, labels):
    return functional.mse_loss(outputs, labels, reduction="none")


def minibatch(number):
    """Return inputs, labels and weights; of the last but one a whole slice weighs nothing."""
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(RECORDS, 6, generator=generator)
    labels = torch.randn(RECORDS, generator=generator)
    weight = torch.rand(RECORDS, generator=generator, dtype=torch.float64) * 10**number
    if number == STEPS - 2:
        weight[:FIRST] = 0
    if number == STEPS - 1:
        weight[:] = 0
    return inputs, labels, weight


def piece(number, rank):
    bounds = [(0, 3), (3, FIRST)] if rank == 0 else [(FIRST, RECORDS)]
    inputs, labels, weight = minibatch(number)
    parts = [
        (inputs[a:b], Weighted(labels[a:b], weight[a:b].numpy()), b - a, None) for a, b in bounds
    ]
    lease = Lease(pb.Task(id=number, kind=pb.TRAIN, end=RECORDS))
    own = sum(count for _, _, count, _ in parts)
    return Slice(lease, 0, RECORDS, own, total=RECORDS, parts=parts)


def trainer(kind):
    spec = model_spec(made(), OPTIMIZER, 7)
    if kind == "sharded":
        return ShardedTrainer(made, loss, spec, device=CPU, most=4)
    return AllReduceTrainer(made, loss, spec, device=CPU)


def plain():
    """Return the losses and the values that torch's loop comes to."""
    model, losses = made(), []
    optimizer = torch_optimizer(OPTIMIZER, model.parameters())
    for number in range(STEPS):
        inputs, labels, weight = minibatch(number)
        optimizer.zero_grad()
        each = functional.mse_loss(model(inputs), labels, reduction="none")
        mean = (each * weight).sum() / (weight.sum() or 1.0)
        mean.backward()
        optimizer.step()
        losses.append(float(mean.detach()))
    return losses, model.state_dict()


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("members")
    script = Path(__file__).with_name("weighted_members.py")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, script, folder], env=env, timeout=300, check=True)
    return lambda kind, rank: torch.load(folder / f"told-{kind}-{rank}.pt")


@pytest.mark.parametrize("kind", ["allreduce", "sharded"])
def test_the_mean_is_over_the_weights_of_all_members(told, kind):
    losses, values = plain()

    for rank in range(MEMBERS):
        found = told(kind, rank)
        assert found["losses"] == pytest.approx(losses, rel=1e-5, abs=1e-7)
        torch.testing.assert_close(found["values"], values, rtol=1e-5, atol=1e-6)


# -- on servers, and with tables on them


class Servers:
    """One shard, whose rows are ones, and which remembers what it is pushed."""

    num_shards = 1
    servers_version = 1

    def __init__(self):
        self.pushed = []

    def agree(self, spec, *, rows_given, timeout_s):
        """Agree on any model."""

    def pull(self, tables, *, dense=None, timeout_s, **_more):
        for values in (dense or {}).values():
            values[...] = 0.5
        rows = {name: np.ones((len(ids), 2), np.float32) for name, ids in tables.items()}
        return Pulled(True, (1,), rows, frozenset(dense or ()))

    def push(self, span, versions, *, tables, **_more):
        self.pushed.append(tables)
        return PushResult(PushOutcome.APPLIED, (1,))


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = Embedding("rows", 2, feature="ids")
        self.out = nn.Linear(2, 1)

    def forward(self, features):
        return self.out(self.rows(features["ids"])).squeeze(1)


IDS, LABELS = torch.tensor([1, 2, 3]), torch.tensor([0.0, 1.0, 2.0])
WEIGHT = np.array([1.0, 0.0, 3.0])


def gradients(out):
    """Return what torch says of rows of ones and this layer."""
    rows = torch.ones(3, 2, requires_grad=True)
    each = functional.mse_loss(out(rows).squeeze(1), LABELS, reduction="none")
    ((each * torch.from_numpy(WEIGHT)).sum() / WEIGHT.sum()).backward()
    return rows.grad.numpy()


def test_a_push_has_the_gradients_of_the_weighted_mean():
    spec = model_spec(Rows(), OPTIMIZER, 0)
    trainer = PsTrainer(Rows, loss, Servers(), spec, device=CPU)
    features = {"ids": IDS}
    prepared = trainer.prepare(features)

    pull = trainer.begin(prepared, None)
    found = trainer.gradients(features, Weighted(LABELS, WEIGHT), prepared, pull, (0,))

    ids, values = found.rows["rows"]
    assert [1, 2, 3] == ids.tolist()
    np.testing.assert_allclose(values, gradients(trainer.model.out), rtol=1e-6)
    assert 0 == np.abs(values[1]).max()


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_rows_of_a_hybrid_step_are_of_the_weighted_mean_too():
    servers = Servers()
    spec = model_spec(Rows(), OPTIMIZER, 7)
    trainer = HybridTrainer(Rows, loss, servers, spec, device=CPU, staleness=0, patience_s=10.0)
    trainer.state.begin()
    trainer.enter(1)
    expected = gradients(trainer.model.out)
    parts = []
    for a, b in ((0, 2), (2, 3)):
        features = {"ids": IDS[a:b]}
        weights = Weighted(LABELS[a:b], WEIGHT[a:b])
        parts.append((features, weights, b - a, trainer.prepare(features)))
    lease = Lease(pb.Task(id=1, attempt=1, kind=pb.TRAIN, end=3))

    trainer.reduce(Slice(lease, 0, 3, 3, total=3, parts=parts), False)
    trainer.finish()
    trainer.leave()

    (tables,) = servers.pushed
    ids, values = tables["rows"]
    assert [1, 2, 3] == ids.tolist()
    np.testing.assert_allclose(values, expected, rtol=1e-6)


@pytest.mark.usefixtures("group")
def test_an_adaptive_minibatch_takes_no_weights():
    found = trainer("allreduce")
    found.state.begin()
    found.enter(1)
    found.meter = object()

    with pytest.raises(DefinitionError, match="--batch_rule adaptive.*leave out one of them"):
        found.reduce(piece(0, 1), False)
    found.leave()

"""A group of processes that shards the model: the oracle is torch's loop on the whole minibatch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from edl.nn import SGD, Adagrad, Adam
from edl.nn.local import torch_optimizer
from edl.worker.group.sharded import units

OPTIMIZERS = {
    "adam": Adam(lr=0.01),
    "momentum": SGD(lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adagrad": Adagrad(lr=0.05, initial_accumulator_value=0.1),
}
STEPS, RECORDS = 6, 13
# members, optimizer, records of a pass: of 13 records two members have one pass of 4, the third two
CASES = [(1, "adam", 13), (2, "momentum", 13), (3, "adam", 4), (3, "adagrad", 13)]


class Model(nn.Module):
    """Rows that no number of members divides, fewer than members, frozen ones, unused, a buffer."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(6, 7), nn.Linear(7, 7)])
        self.out = nn.Linear(7, 1)
        self.scale = nn.Parameter(torch.ones(1))
        self.frozen = nn.Parameter(torch.full((2,), 0.5), requires_grad=False)
        self.never = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("table", torch.arange(6.0), persistent=False)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf, torch.nan]))
        self.register_buffer("wave", torch.tensor([1j, 2 + 1j]))
        self.register_buffer("begun", torch.tensor([False, True]))
        self.register_buffer("steps", torch.tensor(3, dtype=torch.uint8))

    def forward(self, inputs):
        if self.training:
            self.seen += 1
            self.steps += 1
            self.begun = torch.tensor([True, True])
        hidden = inputs + 0.01 * self.table
        for block in self.blocks:
            hidden = torch.tanh(block(hidden))
        return (self.out(hidden) * self.scale * self.frozen[0]).squeeze(1)


def make_model():
    torch.manual_seed(7)
    return Model()


def minibatch(number):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(RECORDS, 6, generator=generator), torch.randn(RECORDS, generator=generator)


def plain(optimizer):
    """Return the values that torch's loop comes to."""
    model = make_model()
    steps = torch_optimizer(optimizer, [p for p in model.parameters() if p.requires_grad])
    for number in range(STEPS):
        inputs, labels = minibatch(number)
        steps.zero_grad()
        functional.mse_loss(model(inputs), labels).backward()
        steps.step()
    return model.state_dict()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return what the members of each case tell, by rank."""
    folder = tmp_path_factory.mktemp("members")
    script = Path(__file__).with_name("sharded_members.py")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, script, folder], env=env, timeout=300, check=True)
    return {
        case: [
            torch.load(folder / f"told-{number}-{rank}.pt", weights_only=False)
            for rank in range(case[0])
        ]
        for number, case in enumerate(CASES)
    }


@pytest.mark.parametrize("case", CASES)
def test_members_come_to_what_one_process_comes_to(found, case):
    _, optimizer, most = case
    expected = plain(OPTIMIZERS[optimizer])

    if most < RECORDS:  # each pass counts
        del expected["seen"], expected["steps"]
    for member in found[case]:
        values = {name: member["values"][name] for name in expected}
        # float32: the members' sums are of another order than the oracle's
        torch.testing.assert_close(values, expected, rtol=2e-5, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("case", CASES)
def test_each_has_its_rows_and_an_equal_mirror_of_its_neighbours(found, case):
    world = case[0]
    parameters = [p for p in make_model().parameters() if p.requires_grad]

    members = found[case]
    assert sum(p.numel() for p in parameters) == sum(member["own"] for member in members)
    rows = sum(-(-len(p) // world) * p[0].numel() for p in parameters)
    assert all(member["own"] <= rows for member in members)
    for rank, member in enumerate(members):
        assert list(dict.fromkeys([(world, rank), (world, (rank - 1) % world)])) == member["held"]
        assert member["mirrors_are_equal"]


def test_units_are_the_children_and_the_entries_of_lists():
    model = make_model()

    assert [*model.blocks, model.out] == units(model)


def test_what_shares_a_parameter_is_no_unit():
    model = make_model()
    model.out.weight = model.blocks[1].weight

    assert [model.blocks[0]] == units(model)

"""Members of whose steps each uses other parameters: the oracle is torch's loop on all slices."""

import subprocess
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from edl.nn import SGD
from edl.nn.local import torch_optimizer

OPTIMIZER = SGD(lr=0.1, momentum=0.9, weight_decay=0.01)  # zeros are not the same as no gradient
RECORDS = 12
# Which branch the three passes of a step take: the first member's one, and the second's two.
TAKEN = ["LLL", "LRR", "RRR", "RLR", "RRL", "LLR", "RRR", "LLL", "RLL"]
STEPS = len(TAKEN)
FREEZES_AT = 6


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.left, self.right = nn.Linear(6, 1), nn.Linear(6, 1)
        self.never = nn.Parameter(torch.ones(3))

    def forward(self, inputs):
        if inputs[0, 1] >= FREEZES_AT:
            self.left.bias.requires_grad_(False)
        branch = self.left if inputs[0, 0] < 0 else self.right
        return branch(inputs).squeeze(1)


def slices(number):
    """Return, by member, the inputs and labels of its passes."""
    generator = torch.Generator().manual_seed(number)
    passes = []
    for taken, count in zip(TAKEN[number], (6, 3, 3), strict=True):
        inputs = torch.randn(count, 6, generator=generator)
        inputs[0, 0], inputs[0, 1] = -1.0 if taken == "L" else 1.0, number
        passes.append((inputs, torch.randn(count, generator=generator)))
    return [passes[:1], passes[1:]]


def test_each_parameter_gets_the_gradient_of_those_members_that_used_it(tmp_path):
    script = Path(__file__).with_name("allreduce_members.py")
    ended = subprocess.run([sys.executable, script, tmp_path], check=False, timeout=120)
    assert ended.returncode == 0

    model = Branches()
    optimizer = torch_optimizer(OPTIMIZER, model.parameters())
    for number in range(STEPS):
        optimizer.zero_grad()
        for x, y in (each for passes in slices(number) for each in passes):
            (functional.mse_loss(model(x), y) * len(x) / RECORDS).backward()
        optimizer.step()
    for rank in range(2):
        values = torch.load(tmp_path / f"values-{rank}.pt")
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(values[name], tensor, msg=lambda m, n=name: f"{n}: {m}")

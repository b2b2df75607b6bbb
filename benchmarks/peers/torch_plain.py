"""Plain torch in one process: a sparse nn.Embedding and torch's Adagrad."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers import work as w
from benchmarks.peers.torch_model import DeepFM


def main(file: str) -> None:
    work = w.load(file)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.sparse.check_sparse_tensor_invariants.disable()  # the default, said aloud: no warning
    model = DeepFM(work)
    table = nn.Embedding(w.ROWS, w.DIM, sparse=True)
    nn.init.uniform_(table.weight, -w.SCALE, w.SCALE)
    parameters = [*model.parameters(), *table.parameters()]
    optimizer = torch.optim.Adagrad(parameters, w.LR, initial_accumulator_value=w.ACCUMULATOR)
    meter, losses = w.Meter(work.steps), []
    for ids, x, y in zip(*map(torch.from_numpy, (work.ids, work.x, work.y)), strict=True):
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model(table(ids), x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        meter.step()
    meter.report(losses)


if __name__ == "__main__":
    main(sys.argv[1])

"""The DeepFM in torch, its parameters on a server, and a worker's loop around any server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peers.work import ACCUMULATOR, DIM, FEATURES, FIELDS, LR, ROWS, SCALE, Meter, Work


class DeepFM(nn.Module):
    """A factorization machine, a linear part (a row's first component is its weight) and an MLP."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(FEATURES + FIELDS * DIM, 256),
            nn.ReLU(),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Linear(128, 1),
        )
        self.linear = nn.Linear(FEATURES, 1)
        self.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in work.dense.items()})

    def forward(self, rows_BFD: Tensor, x: Tensor) -> Tensor:
        total = rows_BFD.sum(1)
        pairs = (total * total - (rows_BFD * rows_BFD).sum(1)).sum(1) / 2
        deep = self.mlp(torch.cat([x, rows_BFD.flatten(1)], 1)) + self.linear(x)
        return deep.squeeze(1) + pairs + rows_BFD[:, :, 0].sum(1)


class Parameters:
    """A hand-written server's parameters: all rows and a flat dense vector, with Adagrad."""

    def __init__(self, work: Work) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._rows = torch.empty(ROWS, DIM).uniform_(-SCALE, SCALE)
        self._squares = torch.full((ROWS, DIM), ACCUMULATOR)
        self._dense = flat(DeepFM(work))
        self._dense_squares = torch.full_like(self._dense, ACCUMULATOR)
        self._lock = threading.Lock()

    def pull(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows [n, DIM] and a copy of the dense values."""
        with self._lock:
            return self._rows[ids], self._dense.clone()

    def push(self, ids: Tensor, grads: Tensor, dense: Tensor) -> None:
        with self._lock:
            squares = self._squares[ids].addcmul_(grads, grads)
            self._squares[ids] = squares
            self._rows.index_add_(0, ids, grads / squares.sqrt_(), alpha=-LR)
            self._dense_squares.addcmul_(dense, dense)
            self._dense.addcdiv_(dense, self._dense_squares.sqrt(), value=-LR)


def flat(model: nn.Module) -> Tensor:
    """Return the parameters, copied end to end."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def train(
    work: Work,
    pull: Callable[[Tensor], tuple[Tensor, Tensor]],
    push: Callable[[Tensor, Tensor, Tensor], Callable[[], Any]],
) -> None:
    """Pull, compute, push, minibatch by minibatch; reports.

    `push` only sends; what it returns waits for the answer, before the next push is sent.
    """
    torch.set_num_threads(1)
    model = DeepFM(work)
    values = flat(model)
    gradient = torch.zeros_like(values)
    start = 0
    for parameter in model.parameters():
        end = start + parameter.numel()
        parameter.data = values[start:end].view_as(parameter)
        parameter.grad = gradient[start:end].view_as(parameter)
        start = end
    meter, losses = Meter(work.steps), []
    acknowledged: Callable[[], Any] = lambda: None
    for ids, x, y in zip(work.ids, work.x, work.y, strict=True):
        ids_U, inverse = np.unique(ids.reshape(-1), return_inverse=True)
        unique = torch.from_numpy(ids_U)
        rows_UD, dense = pull(unique)
        values.copy_(dense)
        gradient.zero_()
        rows_UD.requires_grad_()
        rows = functional.embedding(torch.from_numpy(inverse.reshape(ids.shape)), rows_UD)
        outputs = model(rows, torch.from_numpy(x))
        loss = functional.binary_cross_entropy_with_logits(outputs, torch.from_numpy(y))
        loss.backward()
        losses.append(loss.item())
        acknowledged()
        assert rows_UD.grad is not None
        acknowledged = push(unique, rows_UD.grad, gradient.clone())
        meter.step()
    acknowledged()
    meter.report(losses)

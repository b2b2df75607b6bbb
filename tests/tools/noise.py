"""A loop that says what it is told, and noise in float64, for tests of the adaptive model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from edl.adaptive.newest import LoopModels

_numbers = itertools.count(1)

Array = np.ndarray | torch.Tensor
Gradient = Iterable[Array]  # of each parameter


@dataclass
class Loop:
    """A loop over micro-batches of `current_local_bsz` records, with so many records `missing`.

    `accumulation_steps` + 1 of them make a step.
    """

    current_local_bsz: int = 8
    accumulation_steps: int = 0
    replicas: int = 1
    batch_size: int = 8
    training: bool = False
    weight: float = 1.0
    micro: int = 0
    missing: int = 0
    number: int = 0

    @property
    def current_batch_size(self) -> int:
        return self.current_local_bsz * self.replicas * (self.accumulation_steps + 1)

    @property
    def step_records(self) -> int:
        return self.current_batch_size - self.missing

    def is_sync_step(self) -> bool:
        return self.micro == self.accumulation_steps

    def train(self) -> None:
        self.training = True

    @property
    def models(self) -> LoopModels:
        """Nobody asks whom it trains."""
        return LoopModels()

    def micro_batches(self) -> Iterator[int]:
        """Yield the micro-batches of one optimizer step, by number."""
        for micro in range(self.accumulation_steps + 1):
            self.micro, self.number = micro, next(_numbers)
            yield micro


def squared(vector: Gradient) -> float:
    """Return the squared length of a gradient, given as one or several arrays."""
    return sum(float(np.sum(np.square(np.asarray(part, np.float64)))) for part in vector)


def mean(gradients: Iterable[Gradient]) -> list[np.ndarray]:
    return [
        np.mean([np.asarray(part, np.float64) for part in parts], 0)
        for parts in zip(*gradients, strict=True)
    ]


def multi_sample(gradients: Sequence[Gradient], scale: float) -> tuple[float, float]:
    """Return (sqr, var) of n micro-gradients, each a list of arrays.

    By McCandlish et al. 2018, appendix A.1:

        |G|^2     = 1 / (B_big - B_small)     (B_big |G_big|^2 - B_small |G_small|^2)
        tr(Sigma) = 1 / (1/B_small - 1/B_big) (|G_small|^2 - |G_big|^2)

    with B_small one micro-batch, B_big n of them, tr(Sigma) then brought to the initial batch.
    """
    n = len(gradients)
    small = float(np.mean([squared(g) for g in gradients]))
    big = squared(mean(gradients))
    sqr = (n * big - 1 * small) / (n - 1)
    noise = (small - big) / (1 / 1 - 1 / n)  # of a micro-batch, of scale / n initial batches
    return sqr, noise * scale / n


def smoothed(values: Iterable[float], thetas: Iterable[float]) -> float:
    """Return the exponential average of each, without the bias of its beginning."""
    sums = weights = 0.0
    for value, theta in zip(values, thetas, strict=True):
        sums, weights = theta * sums + (1 - theta) * value, theta * weights + (1 - theta)
    return sums / weights

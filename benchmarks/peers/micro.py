"""Pull and push alone: the rows and the dense tensors that every peer moves."""

from __future__ import annotations

import numpy as np

from benchmarks.peers.work import Floats, Ids

ROWS, BATCH, DIM = 2_000_000, 100_000, 16
TENSORS, ELEMENTS = 25, 1_000_000  # 100 MB
LR = 0.05
CYCLES = 3  # pulls and pushes of one sample


class Rows:
    """The rows of a table and batches of them.

    `everything`: all ids once, in batches; `batches`: BATCH unique ids each; `grads` of any.
    """

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.everything: list[Ids] = list(rng.permutation(ROWS).reshape(-1, BATCH))
        self.batches: list[Ids] = [rng.permutation(ROWS)[:BATCH] for _ in range(2 * CYCLES)]
        self.grads: Floats = rng.standard_normal((BATCH, DIM), np.float32)


def tensors() -> dict[str, Floats]:
    rng = np.random.default_rng(0)
    return {f"w{i}": rng.standard_normal(ELEMENTS, np.float32) for i in range(TENSORS)}

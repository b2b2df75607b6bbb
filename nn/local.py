"""Tables in one process, row by row: the oracle that the servers are held against.

Every row is a torch Parameter of its own, made at first touch. So torch.optim sees grad None where
a step does not touch a row, and its state and Adam's step count are per row, as on the servers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..common.errors import DefinitionError
from . import optimizers, own_optimizers
from .embedding import Embedding


class LocalRows:
    """A RowSource of one process.

    A plain training loop: `attach(model, rows)`; forward, backward; give `new_parameters()` to the
    optimizer's group; step; `zero_grad(set_to_none=True)`.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._tables: dict[str, dict[int, nn.Parameter]] = {}
        self._new: list[nn.Parameter] = []

    def rows(self, table: Embedding, ids: Tensor) -> Tensor:
        unique, inverse = torch.unique(ids, return_inverse=True)
        if not len(unique):
            return torch.zeros(*ids.shape, table.dim, device=ids.device)
        rows = self._ensure(table, unique.tolist())
        return torch.stack([rows[i] for i in unique.tolist()]).to(ids.device)[inverse]

    def _ensure(self, table: Embedding, ids: list[int]) -> dict[int, nn.Parameter]:
        rows = self._tables.setdefault(table.name, {})
        missing = np.array([i for i in ids if i not in rows], np.int64)
        values = table.first_rows(self.seed, missing)
        for i, value in zip(missing.tolist(), values, strict=True):
            row = nn.Parameter(torch.from_numpy(np.array(value, dtype=np.float32)))
            rows[i] = own_optimizers.as_row(row)
            self._new.append(rows[i])
        return rows

    def table(self, name: str) -> dict[int, nn.Parameter]:
        """Return the rows that have been touched so far, by id."""
        return self._tables.get(name, {})

    def parameters(self) -> list[nn.Parameter]:
        """Return all rows of all tables, in the order in which each table made them."""
        return [row for rows in self._tables.values() for row in rows.values()]

    def new_parameters(self) -> list[nn.Parameter]:
        """Return the rows made since the last call."""
        new, self._new = self._new, []
        return new


def torch_optimizer(
    spec: optimizers.Optimizer, parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """Return the torch.optim that a spec means, at the learning rate of version 0.

    For a schedule, set `group["lr"] = learning_rate(spec, version)` before each step.
    """
    if not isinstance(spec, optimizers.Optimizer):
        raise DefinitionError(f"{spec!r} is no optimizer of edl.nn; of ByName take of(name).")
    fields = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)}
    fields["lr"] = optimizers.learning_rate(spec, 0)
    name = type(spec).__name__
    kind: Any = getattr(own_optimizers, name, None) or getattr(torch.optim, name)
    clips = [fields.pop(name) for name in ("clip_norm", "clip_value", "clip_row_norm")]
    made: torch.optim.Optimizer = kind(list(parameters), **fields)
    if any(clips):
        made.register_step_pre_hook(lambda *_: own_optimizers.clip(made, *clips))
    return made

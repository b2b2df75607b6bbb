"""An embedding table that lives on the parameter servers.

The module holds no parameters: a forward asks its `source`, which the trainer sets, for rows. The
source keeps what the gradient flows to (rows pulled from the servers, or `LocalRows` in tests).

Shapes: ids int64 [...], rows float32 [..., dim]; with a combiner ids [..., L], rows [..., dim].
Id -1 (`PADDING`) stands for "nothing": its row is zeros, takes no gradient and counts in no mean.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..common.errors import DefinitionError
from .initializers import INITIALIZERS, initial_rows
from .model_spec import DTYPES, ROUNDINGS, TableSpec

PADDING = -1
COMBINERS = ("sum", "mean", "sqrtn")


class RowSource(Protocol):
    """A source of the rows that an Embedding asks for."""

    def rows(self, table: Embedding, ids: Tensor) -> Tensor:
        """Return the rows of `ids`: float32 [..., dim], on the device of `ids`.

        They are differentiable to what the source keeps.

        `ids` is `table.lookup_ids` of what the module's forward got: any shape, never PADDING.

        A source that has `whole = True` is asked for what forward got as it is, unchecked, and
        answers zeros for what is none: so no branch depends on a value, where a model is traced.
        """
        ...


class Embedding(nn.Module):
    """Rows of the server-side table `name`, made at first touch; any int64 is an id.

    `feature` names the entry of the features dict (which `feed` returns) whose tensor is exactly
    what this module's forward gets: the worker then pulls its rows ahead of the forward. Without
    it rows are pulled inside the forward. `combiner` ("sum", "mean" or "sqrtn") reduces the last
    axis of the ids. Modules of one name share the table. `initializer`, `scale`, and
    `dtype` and `rounding` of what the servers keep: see TableSpec. Rows and gradients are float32.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        *,
        initializer: str = "uniform",
        scale: float = 0.05,
        dtype: str = "float32",
        rounding: str = "nearest",
        feature: str | None = None,
        combiner: str | None = None,
    ) -> None:
        super().__init__()
        if not name or not isinstance(name, str):
            raise DefinitionError(f"edl.nn.Embedding needs a table name (a string), not {name!r}.")
        if not isinstance(dim, int) or dim < 1:
            raise DefinitionError(
                f"edl.nn.Embedding({name!r}): dim must be at least 1, not {dim!r}."
            )
        if initializer not in INITIALIZERS:
            raise DefinitionError(
                f"edl.nn.Embedding({name!r}): initializer {initializer!r} is none of "
                f"{', '.join(INITIALIZERS)}."
            )
        if combiner is not None and combiner not in COMBINERS:
            raise DefinitionError(
                f"edl.nn.Embedding({name!r}): combiner {combiner!r} is none of "
                f"{', '.join(COMBINERS)}."
            )
        for value, choices in ((dtype, DTYPES), (rounding, ROUNDINGS)):
            if value not in choices:
                raise DefinitionError(
                    f"edl.nn.Embedding({name!r}): {value!r} is none of {', '.join(choices)}."
                )
        self.name = name
        self.dim = dim
        self.initializer = initializer
        self.scale = scale
        self.dtype = dtype
        self.rounding = rounding
        self.feature = feature
        self.combiner = combiner
        self.source: RowSource | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has: not a source that is of one forward pass of this module."""
        source = self.source if getattr(self.source, "lasting", False) else None
        return {**self.__dict__, "source": source}

    @property
    def spec(self) -> TableSpec:
        """Return what the servers know of the table."""
        return TableSpec(
            self.name, self.dim, self.initializer, self.scale, self.dtype, self.rounding
        )

    def first_rows(self, seed: int, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the first values of the rows `ids` (int64[n]): float32[n, dim]."""
        return initial_rows(seed, self.spec, ids)

    def lookup_ids(self, ids: Tensor) -> Tensor:
        """Return the ids whose rows a forward of `ids` asks its source for: all but PADDING.

        They are as given where none is PADDING, else a vector of those that are not.
        """
        return _present(self._checked(ids))

    def _checked(self, ids: Tensor) -> Tensor:
        """Return the ids, which must be int64, with PADDING where nothing is to be looked up."""
        if not isinstance(ids, Tensor) or ids.dtype != torch.int64:
            got = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
            raise DefinitionError(
                f"Table {self.name!r} got ids of {got}; feed must make them a torch.int64 tensor."
            )
        return ids

    def forward(self, ids: Tensor) -> Tensor:
        if self.source is None:
            raise DefinitionError(
                f"The rows of table {self.name!r} live on the parameter servers, and no trainer is "
                "connected: run the model by `edl train`, load a trained one by edl.load, or in a "
                "plain loop call edl.nn.attach(model, edl.nn.LocalRows(seed=0)) first."
            )
        if getattr(self.source, "whole", False):
            return self._combined(self.source.rows(self, ids), ids)
        ids = self._checked(ids)
        asked = _present(ids)
        rows = self.source.rows(self, asked)
        if asked is not ids:
            empty = rows.new_zeros(*ids.shape, self.dim)
            rows = empty.index_put((ids != PADDING,), rows)
        return self._combined(rows, ids)

    def _combined(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Return what a forward does: the rows of ids, or their sum or mean over the last axis."""
        if self.combiner is None:
            return rows
        if ids.dim() == 0:
            raise DefinitionError(
                f"Table {self.name!r} combines the last axis of ids; got a scalar."
            )
        total = rows.sum(dim=-2)
        if self.combiner == "sum":
            return total
        count = (ids != PADDING).sum(dim=-1, keepdim=True).clamp(min=1).to(rows.dtype)
        return total / (count if self.combiner == "mean" else count.sqrt())

    def extra_repr(self) -> str:
        parts = [repr(self.name), f"dim={self.dim}"]
        parts += [f"feature={self.feature!r}"] if self.feature else []
        parts += [f"combiner={self.combiner!r}"] if self.combiner else []
        return ", ".join(parts)


def _present(ids: Tensor) -> Tensor:
    present = ids != PADDING
    return ids if bool(present.all()) else ids[present]


def tables(model: nn.Module) -> dict[str, TableSpec]:
    """Return the server-side tables of a model by name.

    Raises where two of one name differ.
    """
    specs: dict[str, TableSpec] = {}
    for path, module in model.named_modules():
        if not isinstance(module, Embedding):
            continue
        known = specs.setdefault(module.name, module.spec)
        if known != module.spec:
            raise DefinitionError(
                f"Two Embedding modules share the table {module.name!r} but differ: {known} and "
                f"{module.spec} (at {path!r}). Give them two names or the same arguments."
            )
    return specs


def attach(model: nn.Module, source: RowSource | None) -> list[Embedding]:
    """Make `source` the source of every Embedding of the model, and return those modules."""
    modules = [module for module in model.modules() if isinstance(module, Embedding)]
    for module in modules:
        module.source = source
    return modules

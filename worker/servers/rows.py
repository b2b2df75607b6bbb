"""Rows of the servers' tables within one forward and backward pass.

`_Sum` is where the backward pass adds up the gradients of a table's distinct rows.

Shape suffixes: N records, U unique ids, D row dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ...kernels.ids import add_by_place, sum_by_id
from ...nn.device import Link
from ...nn.embedding import Embedding, attach
from ...ps.worker_client import PsClient
from .ids import Lookup, Unique, unique

Ids = NDArray[np.int64]
Values = NDArray[np.float32]
_Add = Callable[[Tensor], None]


class _Sum:
    """The rows of distinct ids during one forward, and the sum of their gradients."""

    def __init__(self, entry: Unique, rows_UD: Tensor) -> None:
        self.entry = entry
        self.rows_UD = rows_UD
        self._used: set[Lookup] = set()  # those that a gradient reached
        self._total_UD: Tensor | None = None

    def add(self, grad: Tensor, places: Tensor, lookup: Lookup) -> None:
        """Add gradients [*places.shape, D] of the lookup's rows, on the device of the rows."""
        grad_ND = grad.reshape(-1, grad.shape[-1]).to(torch.float32).contiguous()
        places_N = places.reshape(-1)
        self._used.add(lookup)
        if grad_ND.device.type != "cpu":
            sums_UD = torch.ops.aten.embedding_dense_backward(
                grad_ND, places_N, len(self.entry.ids_U), -1, False
            )
            self._total_UD = sums_UD if self._total_UD is None else self._total_UD + sums_UD
            return
        written = None
        if self._total_UD is None:
            written = 0 if len(self.entry.lookups) == 1 else None
            make = torch.zeros if written is None else torch.empty
            self._total_UD = make(self.rows_UD.shape)
        add_by_place(grad_ND.numpy(), places_N.numpy(), self._total_UD.numpy(), written)

    def result(self, link: Link) -> tuple[Ids, Values] | None:
        """Return the ids int64[U] that a gradient reached and its sums float32[U, D].

        None where none did.
        """
        if self._total_UD is None:
            return None
        (sums_UD,) = link.fetch([self._total_UD])
        if len(self._used) == len(self.entry.lookups):
            return self.entry.ids_U, sums_UD
        touched = np.zeros(len(self.entry.ids_U), np.bool_)
        for lookup in self._used:
            touched[lookup.places.reshape(-1).numpy()] = True
        return self.entry.ids_U[touched], sums_UD[touched]


class _Gather(torch.autograd.Function):
    """Rows by place; its backward pass adds to a `_Sum` and passes no gradient on."""

    @staticmethod
    def forward(ctx: Any, rows_UD: Tensor, places: Tensor, add: _Add) -> Tensor:
        ctx.add = add
        return functional.embedding(places, rows_UD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        ctx.add(grad)
        return None, None, None


class PulledRows:
    """The RowSource of all tables of the model during one forward."""

    def __init__(
        self,
        prepared: Mapping[str, Unique],
        rows: Mapping[str, Values],
        pull: Callable[[str, Ids], Values],
        link: Link,
        train: bool,
    ) -> None:
        self._prepared = prepared
        self._rows = rows
        self._pull = pull
        self._link = link
        self._train = train
        self._ahead: dict[str, _Sum] = {}
        self._sums: dict[str, list[_Sum]] = {}

    def rows(self, table: Embedding, ids: Tensor) -> Tensor:
        """Return the rows of `ids` (any shape), shape [*ids.shape, dim].

        Their gradients go to the sums.
        """
        if not ids.numel():
            return torch.zeros(*ids.shape, table.dim, device=self._link.device)
        total, lookup = self._find(table.name, ids)
        places = lookup.places.to(self._link.device, non_blocking=True)
        if not self._train:
            return functional.embedding(places, total.rows_UD)
        rows: Tensor = _Gather.apply(  # type: ignore[no-untyped-call]
            total.rows_UD, places, lambda grad: total.add(grad, places, lookup)
        )
        return rows

    def gradients(self) -> dict[str, tuple[Ids, Values]]:
        """Return distinct ids and their gradients, by table: of those that a gradient reached."""
        found = {}
        for name, sums in self._sums.items():
            parts = [part for total in sums if (part := total.result(self._link)) is not None]
            if parts:
                found[name] = sum_by_id(parts)
        return found

    def _find(self, name: str, ids: Tensor) -> tuple[_Sum, Lookup]:
        """Return rows that were pulled ahead for these very ids, or are pulled now."""
        entry = self._prepared.get(name)
        if entry is not None:
            host = ids.cpu()
            for lookup in entry.lookups:
                if torch.equal(lookup.given, host):
                    if name not in self._ahead:
                        self._ahead[name] = self._sum(name, entry, self._rows[name])
                    return self._ahead[name], lookup
        entry = unique([ids])
        return self._sum(name, entry, self._pull(name, entry.ids_U)), entry.lookups[0]

    def _sum(self, name: str, entry: Unique, rows_UD: Values) -> _Sum:
        total = _Sum(entry, self._link.send(rows_UD).requires_grad_(self._train))
        self._sums.setdefault(name, []).append(total)
        return total


class TableRows:
    """The tables of a model.

    `patience_s` bounds a wait for the servers.
    """

    def __init__(self, model: nn.Module, ps: PsClient, link: Link, patience_s: float) -> None:
        self._model = model
        self._ps = ps
        self._link = link
        self._patience_s = patience_s
        self._features: dict[str, dict[str, None]] = {}  # by table, of all its modules, in order
        for module in model.modules():
            if isinstance(module, Embedding) and module.feature is not None:
                self._features.setdefault(module.name, {})[module.feature] = None

    def prepare(self, features: Any) -> dict[str, Unique]:
        """Return the distinct ids of the tables that name their features.

        Tables of the same features share one result. Ids that the forward will refuse are left out.
        """
        if not isinstance(features, Mapping):
            return {}
        made: dict[tuple[str, ...], Unique] = {}
        prepared = {}
        for table, names in self._features.items():
            there = tuple(name for name in names if _is_ids(features.get(name)))
            if there:
                if there not in made:
                    made[there] = unique([features[name] for name in there])
                prepared[table] = made[there]
        return prepared

    def attach(
        self, prepared: Mapping[str, Unique], rows: Mapping[str, Values], cut: str, *, train: bool
    ) -> PulledRows:
        """Give the model's tables these rows; others are pulled when the forward asks for them."""

        def pull_now(name: str, ids_U: Ids) -> Values:
            return self._ps.pull({name: ids_U}, cut=cut, timeout_s=self._patience_s).rows[name]

        source = PulledRows(prepared, rows, pull_now, self._link, train)
        attach(self._model, source)
        return source


def _is_ids(values: object) -> bool:
    return isinstance(values, Tensor) and values.dtype == torch.int64

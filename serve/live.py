"""Plain torch models of a job that still trains: one for each generation, none of which changes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..nn.embedding import Embedding
from ..nn.model_spec import ModelSpec
from .deltas import Generation
from .trained import Made, filled, unfilled


class LayeredRows:
    """A RowSource of a generation's tables: its rows, and first values of other ids."""

    lasting = True  # for Embedding.__getstate__

    def __init__(self, generation: Generation) -> None:
        self.tables = generation.tables

    def __deepcopy__(self, _memo: object) -> LayeredRows:
        return self

    def rows(self, table: Embedding, ids: Tensor) -> Tensor:
        unique, inverse = np.unique(ids.detach().cpu().numpy().reshape(-1), return_inverse=True)
        found = torch.from_numpy(self.tables[table.name].rows(unique)).to(ids.device)
        places = torch.from_numpy(inverse.reshape(-1)).to(ids.device)
        return functional.embedding(places, found).reshape(*ids.shape, table.dim)


class LiveModels:
    """The models of a job's generations. The definition is asked for a model once for all of them.

    `definition`, `model_params`, `model_zoo` and `device`: as of `edl.load`.
    """

    def __init__(
        self,
        definition: str | Path | Made | None = None,
        *,
        model_params: Mapping[str, Any] | None = None,
        model_zoo: str = "",
        device: str | torch.device = "cpu",
    ) -> None:
        self._definition, self._params, self._zoo = definition, model_params, model_zoo
        self._device = device
        self._made: tuple[ModelSpec, nn.Module] | None = None

    def of(self, generation: Generation) -> nn.Module:
        """Return a model of its own for a generation, in evaluation mode, as `edl.load` would.

        Raises EdlError, as that does.
        """
        if self._made is None or self._made[0] != generation.spec:
            model = unfilled(generation, self._definition, self._params, self._zoo)
            self._made = generation.spec, model
        model = copy.deepcopy(self._made[1])
        return filled(model, generation.dense, LayeredRows(generation), self._device)

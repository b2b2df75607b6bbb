"""The distinct ids of a batch: tensors to arrays and back, around the kernels of kernels/ids.py.

Several tensors may be of one table: they share one numbering, so one pull and one sum serve them
all. PADDING is none of them.

Shape suffix U: unique ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...kernels.ids import Ids, distinct
from ...nn.embedding import PADDING


@dataclass(frozen=True, eq=False)
class Lookup:
    """Ids that a forward asks for, PADDING left out, and the place of each in `Unique.ids_U`."""

    given: Tensor
    places: Tensor  # int32, of the shape of `given`


@dataclass(frozen=True)
class Unique:
    """The distinct ids of one table in one batch, in the order of their first appearance."""

    ids_U: Ids
    lookups: Sequence[Lookup]


def unique(given: Sequence[Tensor]) -> Unique:
    """Return the distinct ids of int64 tensors of any shape, without PADDING, and their places.

    Of a tensor that has PADDING, `Lookup.given` is a vector of the others, as
    `Embedding.lookup_ids` makes it. The results hold views of `given` where it is on the CPU.
    """
    host = [ids.detach().cpu() for ids in given]
    arrays = [np.ascontiguousarray(ids.numpy()).reshape(-1) for ids in host]
    ids_U, places_N = distinct(arrays, PADDING)
    lookups, first = [], 0
    for ids, array in zip(host, arrays, strict=True):
        places = places_N[first : first + len(array)]
        first += len(array)
        if len(places) and places.min() < 0:
            present = places >= 0
            ids, places = torch.from_numpy(array[present]), places[present]
        lookups.append(Lookup(ids, torch.from_numpy(places).reshape(ids.shape)))
    return Unique(ids_U, lookups)

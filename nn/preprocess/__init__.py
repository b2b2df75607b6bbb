"""Layers before the model, by ElasticDL's names: numpy columns or tensors in, tensors out.

Each is a frozen dataclass: what it does is in its fields and in nothing else, and `to_dict` writes
them as JSON. So `from_dict` makes the same layer where the model is served, and a value becomes the
same id or number there as in training. `layer(column)` gives a torch tensor, `layer.numpy(column)`
the same array without torch. They are called from a definition's `feed` or from a server alike.

Numbers and ids are made element by element, of any shape; of a `Ragged` or `Sparse`, of its values.
A column of lists (`records["genres"]`, or an object array of arrays or lists) is a Ragged.
What `from_analysis` takes is the JSON of `edl data analyze`.
"""

from __future__ import annotations

from ...common.ragged import Ragged, Sparse
from .analysis import read_analysis
from .categories import Crossing, Hashing, IndexLookup
from .layer import Layer, from_dict
from .numbers import Discretization, LogRound, Normalizer, RoundIdentity
from .shapes import ConcatenateWithOffset, ToRagged, ToSparse
from .to_number import ToNumber

__all__ = [
    "ConcatenateWithOffset",
    "Crossing",
    "Discretization",
    "Hashing",
    "IndexLookup",
    "Layer",
    "LogRound",
    "Normalizer",
    "Ragged",
    "RoundIdentity",
    "Sparse",
    "ToNumber",
    "ToRagged",
    "ToSparse",
    "from_dict",
    "read_analysis",
]

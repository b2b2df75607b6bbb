"""Metrics of rankings, which merge as those of metrics.py do."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import one_array
from .metrics import Sums, weights_of


class RecallAtK(Sums):
    """The share of records whose item is among the k with the highest scores.

    Outputs are scores [N, items], of all items that there are, labels [N] the place of the
    record's own one, or -1 of a record that does not count; -inf is the score of an item that is
    out of the question. An item of the same score goes before the own one, so a model that tells
    nothing apart finds nothing. `of`, `label`: see OfPart.
    """

    best = "max"

    def __init__(self, k: int, *, of: str = "", label: str = "") -> None:
        """`k`: how many items are shown."""
        if k < 1:
            raise ValueError(f"RecallAtK needs a k of at least 1, not {k}")
        super().__init__(found=np.zeros(()), records=np.zeros(()))
        self._k = k
        self.of, self.label = of, label

    def update(self, outputs: Any, labels: Any, weight: Any = None) -> None:
        outputs, labels = self.part(outputs, labels)
        scores, places = one_array("RecallAtK", outputs), one_array("RecallAtK", labels)
        if scores.ndim != 2 or places.shape != (len(scores),) or places.dtype.kind not in "iu":
            raise ValueError(
                "RecallAtK needs scores [N, items] and whole numbers [N], not "
                f"{list(scores.shape)} and {places.dtype} {list(places.shape)}"
            )
        if np.isnan(scores).any():
            raise ValueError("RecallAtK got NaN among the outputs")
        counts = places >= 0
        weights = weights_of("RecallAtK", weight, len(places))[counts]
        scores, places = scores[counts], places[counts]
        own = np.take_along_axis(scores, places[:, None], axis=1)
        before = (scores >= own).sum(axis=1) - 1
        self._sums["found"] += ((before < self._k) * weights).sum()
        self._sums["records"] += weights.sum()

    def value(self) -> float:
        return self._ratio("found", "records")

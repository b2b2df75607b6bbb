"""The area under the ROC curve: of all scores as they are, or of as many bins as fit.

numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import EdlError
from .metrics import Array, State, check_binary, pair


class AUC:
    """Area under the ROC curve, exact as scikit-learn's while few scores differ, else by bins.

    Scores that are counted apart are at most `BINS`. Where more differ, their float64's last bits
    are dropped, as many as need be, so bins are narrow wherever scores are near each other: around
    0.5 as around 1e-6. What is dropped depends on all scores and not on their order, so the value
    is the same over any number of workers. Pairs of a positive and a negative in one bin count one
    half: the value differs from the exact one by at most `error_bound()`, half the share of such
    pairs, which `values` tells where it is above 1e-3. Labels are 0 and 1.
    """

    BINS = 1 << 17
    best = "max"

    def __init__(self, *, logits: bool = False) -> None:
        """`logits`: scores may be any number; else they are probabilities, from 0 to 1."""
        self.logits = logits
        self._bins = _Bins(self.BINS)

    def update(self, outputs: Any, labels: Any) -> None:
        scores, truth = pair("AUC", outputs, labels)
        check_binary("AUC", truth)
        if not self.logits and len(scores) and (scores.min() < 0 or scores.max() > 1):
            raise ValueError(
                f"AUC got scores in [{scores.min():.3g}, {scores.max():.3g}], outside of [0, 1]: "
                "use AUC(logits=True) for logits"
            )
        self._bins.count(scores, truth > 0.5)

    def state(self) -> State:
        return self._bins.state()

    def load(self, state: Mapping[str, Array]) -> None:
        self._bins = _Bins(self.BINS)
        self.add(state)

    def add(self, state: Mapping[str, Array]) -> None:
        """Count what another one has counted. Raises EdlError where that is none's state."""
        if "keys" not in state and {"positives", "negatives"} == set(state):
            state = self._of_histogram(state)
        self._bins.add(state)

    def value(self) -> float:
        return self._bins.auc()[0]

    def error_bound(self) -> float:
        """Return the most by which `value` may differ from the exact AUC of the same records."""
        return self._bins.auc()[1]

    def _of_histogram(self, state: Mapping[str, Array]) -> State:
        """Return the state that one of an older version means: a histogram of the score."""
        size = len(state["positives"])
        middles = (np.arange(size) + 0.5) / size
        there = np.flatnonzero(state["positives"] + state["negatives"])
        scores = np.log(middles) - np.log1p(-middles) if self.logits else middles
        counts = {name: state[name][there] for name in ("positives", "negatives")}
        return {"keys": _keys(scores[there]), **counts, "shift": np.zeros((), np.int64)}


_BY_BIN = ("keys", "positives", "negatives")  # of a state, beside its shift


def _keys(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return whole numbers in the order of the scores, equal where those are."""
    bits = (scores + 0.0).view(np.int64)  # -0.0 is 0.0
    return bits ^ ((bits >> 63) & np.int64(2**63 - 1))


class _Bins:
    """The number of positives and of negatives by score, without its last `shift` bits."""

    def __init__(self, most: int) -> None:
        self._most, self._shift = most, 0
        self._keys = np.zeros(0, np.int64)
        self._counts = np.zeros((0, 2), np.int64)  # positives, negatives
        self._waiting: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._waits = 0  # of those, how many

    def count(self, scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> None:
        self._add(_keys(scores), np.stack([positive, ~positive], axis=1).astype(np.int64))

    def state(self) -> State:
        self._settle()
        return {
            "keys": self._keys,
            "positives": self._counts[:, 0],
            "negatives": self._counts[:, 1],
            "shift": np.array(self._shift),
        }

    def add(self, state: Mapping[str, Array]) -> None:
        arrays = [np.asarray(state.get(name, 0)) for name in _BY_BIN]
        if set(state) != {*_BY_BIN, "shift"} or len({array.shape for array in arrays}) != 1:
            raise EdlError(f"AUC cannot load a state of {sorted(state)}: it is none of its own.")
        self._coarsen(int(state["shift"]))
        self._add(arrays[0].astype(np.int64), np.stack(arrays[1:], axis=1).astype(np.int64))

    def auc(self) -> tuple[float, float]:
        """Return the area and its error's bound; NaN where one of both kinds is missing."""
        self._settle()
        positives, negatives = self._counts.T.astype(np.float64)
        pairs = float(positives.sum() * negatives.sum())
        if not pairs:
            return math.nan, math.nan
        below = np.cumsum(negatives) - negatives
        tied = float((positives * negatives).sum())
        area = (float((positives * below).sum()) + 0.5 * tied) / pairs
        return area, 0.5 * tied / pairs if self._shift else 0.0

    def _add(self, keys: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        self._waiting.append((keys, counts))
        self._waits += len(keys)
        if self._waits > self._most:
            self._settle()

    def _coarsen(self, shift: int) -> None:
        """Drop so many bits at least."""
        if shift > self._shift:
            self._shift = shift
            self._merge(self._keys, self._counts)

    def _settle(self) -> None:
        if not self._waiting:
            return
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._waiting)])
        counts = np.concatenate([self._counts, *(counts for _, counts in self._waiting)])
        self._waiting, self._waits = [], 0
        self._merge(keys, counts)

    def _merge(self, keys: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        order = np.argsort(keys, kind="stable")
        keys, counts = keys[order], counts[order]
        while True:
            keys = keys >> self._shift << self._shift
            first = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
            keys, counts = keys[first], np.add.reduceat(counts, first)
            if len(keys) <= self._most:
                break
            self._shift += 1
        self._keys, self._counts = keys, counts

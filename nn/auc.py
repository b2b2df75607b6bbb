"""The area under the ROC curve, of all records or within groups: of scores, or of bins of them.

numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import EdlError
from .arrays import Array, OfPart, probabilities
from .groups import ids_of
from .metrics import State, check_binary, pair, weights_of

_BY_BIN = ("keys", "positives", "negatives")  # of a state, beside its shift


class _Area(OfPart):
    """Areas under the ROC curve, of all records or within groups: what AUC and GAUC share."""

    BINS = 1 << 17
    best = "max"
    _arrays: tuple[str, ...] = _BY_BIN

    def __init__(self, *, logits: bool = False, of: str = "", label: str = "") -> None:
        """`logits`: scores may be any number; else they are probabilities, from 0 to 1.

        `of`, `label`: the output and the labels that it is about, where there are several (OfPart).
        """
        self.logits = logits
        self.of, self.label = of, label
        self._bins = _Bins(self.BINS)

    def state(self) -> State:
        state = self._bins.state()
        return {name: state[name] for name in (*self._arrays, "shift")}

    def load(self, state: Mapping[str, Array]) -> None:
        self._bins = _Bins(self.BINS)
        self.add(state)

    def add(self, state: Mapping[str, Array]) -> None:
        """Count what another one has counted. Raises EdlError where that is none's state."""
        if "keys" not in state and {"positives", "negatives"} == set(state):
            state = self._of_histogram(state)
        arrays = [np.asarray(state.get(name, 0)) for name in self._arrays]
        if set(state) != {*self._arrays, "shift"} or len({each.shape for each in arrays}) != 1:
            raise EdlError(
                f"{type(self).__name__} cannot load a state of {sorted(state)}: it is none of its "
                "own."
            )
        self._bins.add(state)

    def value(self) -> float:
        return self._mean()[0]

    def error_bound(self) -> float:
        """Return the most by which `value` may differ from the exact one of the same records."""
        return self._mean()[1]

    def _count(self, outputs: Any, labels: Any, weight: Any, groups: Any) -> None:
        name = type(self).__name__
        scores, truth = pair(name, *self.part(outputs, labels))
        check_binary(name, truth)
        if not self.logits:
            scores = probabilities(name, scores)
        self._bins.count(scores, truth > 0.5, weights_of(name, weight, len(scores)), groups)

    def _mean(self) -> tuple[float, float]:
        """Return the mean of the groups' areas, and of their bounds, by the weight of records.

        NaN where there is no group with labels of both kinds.
        """
        areas, bounds, weights = self._bins.areas()
        total = float(weights.sum())
        if not total:
            return math.nan, math.nan
        return float(areas @ weights) / total, float(bounds @ weights) / total

    def _of_histogram(self, state: Mapping[str, Array]) -> State:
        """Return the state that one of an older version means: a histogram of the score."""
        size = len(state["positives"])
        middles = (np.arange(size) + 0.5) / size
        there = np.flatnonzero(state["positives"] + state["negatives"])
        scores = np.log(middles) - np.log1p(-middles) if self.logits else middles
        counts = {name: state[name][there] for name in ("positives", "negatives")}
        return {"keys": _keys(scores[there]), **counts, "shift": np.zeros((), np.int64)}


class AUC(_Area):
    """Area under the ROC curve, exact as scikit-learn's while few scores differ, else by bins.

    Scores that are counted apart are at most `BINS`. Where more differ, their float64's last bits
    are dropped, as many as need be, so bins are narrow wherever scores are near each other: around
    0.5 as around 1e-6. What is dropped depends on all scores and not on their order, so the value
    is the same over any number of workers. Pairs of a positive and a negative in one bin count one
    half: the value differs from the exact one by at most `error_bound()`, half the share of such
    pairs, which `values` tells where it is above 1e-3. Labels are 0 and 1.
    """

    def update(self, outputs: Any, labels: Any, weight: Any = None) -> None:
        self._count(outputs, labels, weight, None)


class GAUC(_Area):
    """The mean of AUCs within groups, by the weight of each group's records: `GAUC(by="user")`.

        sum over users of impressions * AUC / sum over users of impressions

    over the users with labels of both kinds, as of Zhou et al., Deep Interest Network (KDD 2018),
    "Metrics": how well items are ordered for each user, whatever tells users apart. Where records
    have weights, impressions are their sums. `by` names an entry of the features, or of the labels,
    with a number or a text for each record. Scores within groups are counted apart up to `BINS` in
    all, 32 bytes each; then as AUC has it.
    """

    BINS = 1 << 22
    _arrays = ("groups", *_BY_BIN)

    def __init__(self, by: str, *, logits: bool = False, of: str = "", label: str = "") -> None:
        """`by`: the column of the groups; `logits`, `of`, `label`: as AUC has them."""
        super().__init__(logits=logits, of=of, label=label)
        self.columns = (by,)

    def update(
        self, outputs: Any, labels: Any, weight: Any = None, *, columns: Mapping[str, Any]
    ) -> None:
        (by,) = self.columns
        self._count(outputs, labels, weight, ids_of(by, columns[by]))


def _keys(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return whole numbers in the order of the scores, equal where those are."""
    bits = (scores + 0.0).view(np.int64)  # -0.0 is 0.0
    return bits ^ ((bits >> 63) & np.int64(2**63 - 1))


class _Bins:
    """The weight of positives and of negatives by group and score, without its last `shift` bits.

    Whole numbers are added up exactly, in any order.
    """

    def __init__(self, most: int) -> None:
        self._most, self._shift = most, 0
        self._groups = np.zeros(0, np.int64)
        self._keys = np.zeros(0, np.int64)
        self._counts = np.zeros((0, 2))  # of positives, of negatives
        self._waiting: list[tuple[Array, Array, Array]] = []
        self._waits = 0  # of those, how many

    def count(
        self,
        scores: NDArray[np.float64],
        positive: NDArray[np.bool_],
        weights: NDArray[np.float64],
        groups: NDArray[np.int64] | None,
    ) -> None:
        """Count records; `groups` None: all are of one."""
        if groups is None:
            groups = np.zeros(len(scores), np.int64)
        if len(groups) != len(scores):
            raise ValueError(f"there are {len(groups)} groups' values for {len(scores)} records")
        counts = np.stack([positive, ~positive], axis=1) * weights[:, None]
        self._add(groups, _keys(scores), counts)

    def state(self) -> State:
        self._settle()
        return {
            "groups": self._groups,
            "keys": self._keys,
            "positives": self._counts[:, 0],
            "negatives": self._counts[:, 1],
            "shift": np.array(self._shift),
        }

    def add(self, state: Mapping[str, Array]) -> None:
        self._coarsen(int(state["shift"]))
        keys = np.asarray(state["keys"]).astype(np.int64)
        groups = np.asarray(state.get("groups", np.zeros(len(keys)))).astype(np.int64)
        counts = np.stack([state["positives"], state["negatives"]], axis=1)
        self._add(groups, keys, counts.astype(np.float64))

    def areas(self) -> tuple[Array, Array, Array]:
        """Return area, its error's bound and weight of each group with labels of both kinds."""
        self._settle()
        first = _firsts(self._groups)
        positives, negatives = self._counts.T
        below = _sums_before(negatives, first)
        half = 0.5 * positives * negatives
        of_positives, of_negatives, areas, ties = (
            np.add.reduceat(each, first) if len(first) else np.zeros(0)
            for each in (positives, negatives, positives * below + half, half)
        )
        pairs = of_positives * of_negatives
        both = pairs > 0
        bounds = ties[both] / pairs[both] if self._shift else np.zeros(both.sum())
        return areas[both] / pairs[both], bounds, (of_positives + of_negatives)[both]

    def _add(self, groups: Array, keys: Array, counts: Array) -> None:
        self._waiting.append((groups, keys, counts))
        self._waits += len(keys)
        if self._waits > self._most:
            self._settle()

    def _coarsen(self, shift: int) -> None:
        """Drop so many bits at least."""
        if shift > self._shift:
            self._shift = shift
            self._merge(self._groups, self._keys, self._counts)

    def _settle(self) -> None:
        if not self._waiting:
            return
        mine = self._groups, self._keys, self._counts
        groups, keys, counts = map(np.concatenate, zip(mine, *self._waiting, strict=True))
        self._waiting, self._waits = [], 0
        self._merge(groups, keys, counts)

    def _merge(self, groups: Array, keys: Array, counts: Array) -> None:
        order = np.lexsort((keys, groups))
        groups, keys, counts = groups[order], keys[order], counts[order]
        while True:
            keys = keys >> self._shift << self._shift
            first = _firsts(groups, keys)
            groups, keys = groups[first], keys[first]
            counts = np.add.reduceat(counts, first) if len(first) else counts
            if len(keys) <= self._most or self._shift == _MOST_SHIFT:
                break
            self._shift += 1
        self._groups, self._keys, self._counts = groups, keys, counts


def _sums_before(values: Array, first: NDArray[np.int64]) -> Array:
    """Return for each value the sum of those before it in its group, which begins at `first`.

    No group's sum is told by a difference of sums: a light group beside a heavy one would lose all
    of its digits. So the sums of 1, 2, 4, ... values are added (Hillis and Steele, Data Parallel
    Algorithms, CACM 29, 1986).
    """
    sizes = np.diff(first, append=len(values))
    place = np.arange(len(values)) - np.repeat(first, sizes)  # within its group
    sums = np.zeros(len(values))
    sums[1:] = np.where(place[1:] > 0, values[:-1], 0)
    step = 1
    while step < sizes.max(initial=0):
        sums[step:] = sums[step:] + np.where(place[step:] >= step, sums[:-step], 0)
        step *= 2
    return sums


_MOST_SHIFT = 63  # which leaves the sign: more groups than bins have two each


def _firsts(*columns: Array) -> NDArray[np.int64]:
    """Return where a row of sorted columns differs from the one before, and the first one."""
    changes = np.zeros(len(columns[0]), bool)
    changes[:1] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changes)

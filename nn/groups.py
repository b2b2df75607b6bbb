"""Metrics by group: of the records of each user, or day, by a column of the features or labels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DefinitionError, EdlError
from ..common.hashing import hash64
from .arrays import Array, flat, records_of, some_of
from .metrics import Metric, State, absorb, takes, values
from .weights import checked


def ids_of(by: str, column: Any) -> NDArray[np.int64]:
    """Return an id for each value of a column, the same for equal ones: int64[N].

    Raises ValueError for NaN, which is no group.
    """
    array = flat(f"the group {by!r}", column)
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise ValueError(f"the group {by!r} is NaN for a record: let feed say which one it is")
    return np.asarray(hash64(by, array), np.int64)


class ByGroup:
    """A metric for the records of each group: `ByGroup(AUC(), by="day")`.

    Its values are "name/group", or "name/group/part" of a metric of several. `by` names an entry of
    the features, or of the labels, with a number or a text for each record. There are at most 1,000
    groups. `ByGroup(GAUC(by="user"), by="day")` is one, too.
    """

    MOST = 1000  # each is a value of its own in the status of the job

    def __init__(self, metric: Metric, by: str) -> None:
        """`metric`: a fresh one, of which each group has its own."""
        self._fresh, self._by = metric, by
        self._inner: tuple[str, ...] = tuple(getattr(metric, "columns", ()))
        self.columns = tuple(dict.fromkeys((by, *self._inner)))
        self.best = getattr(metric, "best", "")
        self._groups: dict[str, Metric] = {}

    def update(
        self, outputs: Any, labels: Any, weight: Any = None, *, columns: Mapping[str, Any]
    ) -> None:
        names = _names(self._by, columns[self._by])
        records = len(names)
        if weight is not None:
            weight = checked("ByGroup", weight, records)
            if not takes(self._fresh.update, "weight"):
                raise DefinitionError(
                    f"metrics(): ByGroup's {type(self._fresh).__name__} takes no weights, and feed "
                    "gives some"
                )
        if (there := records_of(labels)) != records:
            raise ValueError(f"ByGroup got {records} values of {self._by!r} for {there} records")
        found, place_of = np.unique(names, return_inverse=True)
        for number, name in enumerate(found.tolist()):
            places = np.flatnonzero(place_of == number)
            given: dict[str, Any] = {} if weight is None else {"weight": weight[places]}
            if self._inner:
                given["columns"] = {
                    each: some_of(columns[each], places, records) for each in self._inner
                }
            update: Callable[..., None] = self._of(name).update
            update(some_of(outputs, places, records), some_of(labels, places, records), **given)

    def state(self) -> State:
        state: State = {"groups": np.array(sorted(self._groups), dtype=np.str_)}
        for number, name in enumerate(state["groups"].tolist()):
            for part, array in self._groups[name].state().items():
                state[f"{number}.{part}"] = array
        return state

    def load(self, state: Mapping[str, Array]) -> None:
        self._groups = {}
        self.add(state)

    def add(self, state: Mapping[str, Array]) -> None:
        """Count what another one has counted. Raises EdlError where that is none's state."""
        if "groups" not in state:
            told = f"ByGroup cannot load a state of {sorted(state)}: it is none of its own."
            raise EdlError(told)
        parts: dict[str, State] = {}
        for key, array in state.items():
            group, _, part = key.partition(".")
            if key != "groups":
                parts.setdefault(group, {})[part] = array
        for number, name in enumerate(state["groups"].tolist()):
            absorb(self._of(name), parts[str(number)])

    def value(self) -> dict[str, float]:
        return values({name: self._groups[name] for name in sorted(self._groups, key=_order)})

    def _of(self, name: str) -> Metric:
        if name not in self._groups:
            if len(self._groups) >= self.MOST:
                raise DefinitionError(
                    f"metrics(): ByGroup(by={self._by!r}) has more than {self.MOST} groups, each a "
                    f"value of its own: GAUC(by={self._by!r}) is the mean of their AUCs"
                )
            self._groups[name] = copy.deepcopy(self._fresh)
        return self._groups[name]


def _names(by: str, column: Any) -> Array:
    """Return the value of each record as text, whole numbers without a point: str[N]."""
    array = flat(f"the group {by!r}", column)
    if array.dtype.kind == "f":
        ids_of(by, array)  # NaN is none
        whole = (array == np.floor(array)) & (np.abs(array) < 2.0**63)
        texts = np.where(whole, array, 0).astype(np.int64).astype(np.str_)
        return np.where(whole, texts, array.astype(np.str_))
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    if array.dtype.kind == "O":
        return np.array([e.decode() if isinstance(e, bytes) else str(e) for e in array], np.str_)
    return array.astype(np.str_)


def _order(name: str) -> tuple[bool, float, str]:
    """Sort numbers by their size, before texts."""
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name

"""Metrics that merge exactly: every state is a sum over records, or is added by the metric.

A worker updates its own metrics and sends `pack(metrics)`; whoever has all the bytes calls `merge`,
which adds the states elementwise, or has the metric `add` them. So the value over any number of
workers is the value over all the records, never a mean of means.

Outputs are [N] or [N, 1] scores or [N, C] class scores, labels [N] or [N, 1]; `weight` says how
much each record counts, as scikit-learn's `sample_weight`. Of several outputs, in a dict or a
tuple, a metric is about one: `AUC(of="income")`.
"""

from __future__ import annotations

import inspect
import io
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DefinitionError, EdlError
from .arrays import Array, OfPart, flat, one_array, probabilities, records_of, to_numpy
from .weights import Weights, checked, plain, weight_of

State = dict[str, Array]
Value = float | dict[str, float]


@runtime_checkable
class Metric(Protocol):
    """A metric: the values of the dict that a definition's `metrics()` returns.

    `state` of a fresh metric is all zeros. One whose states are no sums has a method `add(state)`
    that counts what another has counted.

    One whose `update` takes `weight` too (float64[N]) can be used where feed gives weights. One
    with an attribute `columns`, names of entries of features or labels, is given these by name, as
    the argument `columns`.

    One that says which of its values is best, by an attribute `best` of "min" or "max", need not be
    asked for with it in --keep_best and --early_stopping.
    """

    def update(self, outputs: Any, labels: Any) -> None:
        """Count one batch."""
        ...

    def state(self) -> State:
        """Return what has been counted, as arrays.

        Their elementwise sum over workers is the whole.
        """
        ...

    def load(self, state: Mapping[str, Array]) -> None:
        """Hold this state instead of the present one."""
        ...

    def value(self) -> Value:
        """Return the metric of what has been counted; NaN where that is nothing."""
        ...


def pair(name: str, outputs: Any, labels: Any) -> tuple[NDArray[np.float64], Array]:
    """Return scores and labels of shape [N]. Raises ValueError where they are not, or NaN."""
    scores, truth = flat(name, outputs).astype(np.float64), flat(name, labels)
    if scores.shape != truth.shape:
        raise ValueError(f"{name} got {len(scores)} outputs for {len(truth)} labels")
    if np.isnan(scores).any():
        raise ValueError(f"{name} got NaN among the outputs")
    return scores, truth


def check_binary(name: str, truth: Array) -> None:
    """Raise ValueError for a label that is neither 0 nor 1."""
    if (wrong := truth[(truth != 0) & (truth != 1)]).size:
        raise ValueError(f"{name} got the label {wrong[0]}: labels are 0 and 1")


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def weights_of(name: str, weight: Any, records: int) -> Weights:
    """Return the weight of each record: 1 where nobody says another. Raises ValueError."""
    return np.ones(records) if weight is None else checked(name, weight, records)


class Sums(OfPart):
    """A metric whose state is named arrays, `_sums`, that `update` adds to."""

    best = ""  # "min" or "max", where that is known

    def __init__(self, **zeros: Array) -> None:
        self._sums: State = zeros

    def state(self) -> State:
        return {name: array.copy() for name, array in self._sums.items()}

    def load(self, state: Mapping[str, Array]) -> None:
        if set(state) != set(self._sums):
            raise EdlError(
                f"{type(self).__name__} cannot load a state of {sorted(state)}: it holds "
                f"{sorted(self._sums)}."
            )
        self._sums = {
            name: np.array(state[name], dtype=mine.dtype) for name, mine in self._sums.items()
        }

    def _ratio(self, total: str, count: str) -> float:
        number = float(self._sums[count])
        return float(self._sums[total]) / number if number else math.nan


class Accuracy(Sums):
    """Share of right answers: argmax of [N, C] outputs, or score >= threshold of [N] outputs.

    Labels of the former are 0 to C - 1, or -1: a record that does not count; of the latter 0 and 1.
    `logits`: the threshold is on the sigmoid of the output. `of`, `label`: see OfPart.
    """

    best = "max"

    def __init__(
        self, threshold: float = 0.5, *, logits: bool = False, of: str = "", label: str = ""
    ) -> None:
        if isinstance(threshold, bool) or not isinstance(threshold, int | float):
            raise DefinitionError(
                f"Accuracy(threshold={threshold!r}): the threshold is a number; class scores "
                "[N, C] need none: Accuracy()"
            )
        super().__init__(correct=np.zeros(()), count=np.zeros(()))
        self.threshold = threshold
        self.logits = logits
        self.of, self.label = of, label

    def update(self, outputs: Any, labels: Any, weight: Any = None) -> None:
        outputs, labels = self.part(outputs, labels)
        array = one_array("Accuracy", outputs)
        if array.ndim == 2 and array.shape[1] > 1:
            right, counts = self._of_classes(array, labels)
        else:
            scores, truth = pair("Accuracy", outputs, labels)
            check_binary("Accuracy", truth)
            right = ((_sigmoid(scores) if self.logits else scores) >= self.threshold) == (
                truth > 0.5
            )
            counts = np.ones(len(right), bool)
        weights = weights_of("Accuracy", weight, len(right)) * counts
        self._sums["correct"] += (right * weights).sum()
        self._sums["count"] += weights.sum()

    def _of_classes(self, scores: Array, labels: Any) -> tuple[Array, Array]:
        """Return by record whether the answer is right, and whether it counts."""
        guess, truth = scores.argmax(axis=1), flat("Accuracy", labels)
        if guess.shape != truth.shape:
            raise ValueError(f"Accuracy got {len(guess)} outputs for {len(truth)} labels")
        if np.isnan(scores).any():
            raise ValueError("Accuracy got NaN among the outputs")
        counts, classes = truth != -1, scores.shape[1]
        bad = counts & ((truth < 0) | (truth >= classes) | (truth != np.floor(truth)))
        if (wrong := truth[bad]).size:
            raise ValueError(
                f"Accuracy got the label {wrong[0]} for scores of {classes} classes: labels "
                f"are 0 to {classes - 1}, or -1 where a record does not count"
            )
        return guess == truth, counts

    def value(self) -> float:
        return self._ratio("correct", "count")


class LogLoss(Sums):
    """Mean binary cross-entropy of probabilities (clipped by 1e-7), or of logits, unclipped.

    `of`, `label`: see OfPart.
    """

    best = "min"

    def __init__(self, *, logits: bool = False, of: str = "", label: str = "") -> None:
        super().__init__(total=np.zeros(()), count=np.zeros(()))
        self.logits = logits
        self.of, self.label = of, label

    def update(self, outputs: Any, labels: Any, weight: Any = None) -> None:
        scores, truth = pair("LogLoss", *self.part(outputs, labels))
        if (wrong := truth[~((truth >= 0) & (truth <= 1))]).size:
            raise ValueError(f"LogLoss got the label {wrong[0]}: labels are from 0 to 1")
        if self.logits:
            losses = np.logaddexp(0.0, scores) - truth * scores
        else:
            p = np.clip(probabilities("LogLoss", scores), 1e-7, 1 - 1e-7)
            losses = -(truth * np.log(p) + (1 - truth) * np.log1p(-p))
        weights = weights_of("LogLoss", weight, len(losses))
        self._sums["total"] += (weights * losses).sum()
        self._sums["count"] += weights.sum()

    def value(self) -> float:
        return self._ratio("total", "count")


class MeanSquaredError(Sums):
    """Mean of (output - label)**2 over all elements; outputs and labels of equal size.

    `of`, `label`: see OfPart.
    """

    best = "min"

    def __init__(self, *, of: str = "", label: str = "") -> None:
        super().__init__(total=np.zeros(()), count=np.zeros(()))
        self.of, self.label = of, label

    def update(self, outputs: Any, labels: Any, weight: Any = None) -> None:
        outputs, labels = self.part(outputs, labels)
        guess = one_array("MeanSquaredError", outputs)
        truth = one_array("MeanSquaredError", labels)
        if guess.size != truth.size:
            raise ValueError(
                f"MeanSquaredError got outputs of shape {list(guess.shape)} for labels of shape "
                f"{list(truth.shape)}"
            )
        errors = guess.astype(np.float64).ravel() - truth.astype(np.float64).ravel()
        records = len(guess) if guess.ndim else 1
        weights = weights_of("MeanSquaredError", weight, records)
        each = errors.size // records if records else 1
        self._sums["total"] += (weights @ errors.reshape(records, each) ** 2).sum()
        self._sums["count"] += weights.sum() * each

    def value(self) -> float:
        return self._ratio("total", "count")


class Mean(Sums):
    """Mean over records of `function(outputs, labels)`: of one batch, or [N] of its records.

    `Mean(loss)`. Where feed gives weights, it must be of the records: one mean has lost them.
    `best`: "min" or "max"; of a function named `loss` it is the least.
    """

    def __init__(self, function: Callable[[Any, Any], Any], *, best: str = "") -> None:
        super().__init__(total=np.zeros(()), count=np.zeros(()))
        self._function = function
        self.best = best or ("min" if getattr(function, "__name__", "") == "loss" else "")

    def update(self, outputs: Any, labels: Any, weight: Any = None) -> None:
        records = records_of(labels)
        found = to_numpy(self._function(outputs, labels)).astype(np.float64)
        if found.size == 1 and weight is None:
            self._sums["total"] += found.reshape(()) * records
            self._sums["count"] += records
            return
        if found.shape not in ((records,), (records, 1)):
            raise DefinitionError(
                f"metrics(): Mean got the shape {list(found.shape)} of its function for {records} "
                f"records: it returns one value for each, [{records}], or, without weights, their "
                "mean"
            )
        weights = weights_of("Mean", weight, records)
        self._sums["total"] += (weights * found.reshape(-1)).sum()
        self._sums["count"] += weights.sum()

    def value(self) -> float:
        return self._ratio("total", "count")


def count_batch(
    metrics: Mapping[str, Metric], outputs: Any, labels: Any, features: Any = None
) -> None:
    """Have all metrics count a batch. `labels`: as Definition.feed returns them, with weights.

    Raises DefinitionError where a metric takes no weights and there are some, or wants an entry of
    features or labels that there is not; and what `update` raises.
    """
    weight, truth = weight_of(labels), plain(labels)
    for name, metric in metrics.items():
        given: dict[str, Any] = {}
        if weight is not None:
            if not takes(metric.update, "weight"):
                raise DefinitionError(
                    f"metrics(): {name!r} takes no weights, and feed gives some: use a metric of "
                    "edl.nn, or let its update take (outputs, labels, weight=None)"
                )
            given["weight"] = weight
        if names := getattr(metric, "columns", ()):
            given["columns"] = {each: _column(name, each, features, truth) for each in names}
        update: Callable[..., None] = metric.update
        update(outputs, truth, **given)


def takes(function: Callable[..., Any], argument: str) -> bool:
    """Tell whether an `update` takes an argument of this name besides outputs and labels."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin that does not say
        return False
    any_name = (each.kind is each.VAR_KEYWORD for each in parameters.values())
    return argument in parameters or any(any_name)


def _column(metric: str, name: str, features: Any, labels: Any) -> Array:
    for values in (features, labels):
        if isinstance(values, Mapping) and name in values:
            return flat(f"metrics(): {metric!r}, by {name!r},", values[name])
    there = [
        f"{what} {', '.join(map(repr, values))}"
        for what, values in (("features", features), ("labels", labels))
        if isinstance(values, Mapping)
    ]
    raise DefinitionError(
        f"metrics(): {metric!r} is by {name!r}, and feed gives no such entry of its features or "
        f"labels ({'; '.join(there) or 'neither is a dict'})"
    )


_TOLD = 1e-3  # of a value between 0 and 1, an error that a user should know


def values(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """Return the value of each metric by name.

    A metric of several values becomes "name/part". One that has a method `error_bound` has a second
    value "name/error_bound" where that is above 1e-3.
    """
    flat: dict[str, float] = {}
    for name, metric in metrics.items():
        value = metric.value()
        if isinstance(value, Mapping):
            flat |= {f"{name}/{part}": float(number) for part, number in value.items()}
        else:
            flat[name] = float(value)
            bound = getattr(metric, "error_bound", None)
            if bound is not None and (most := float(bound())) > _TOLD:
                flat[f"{name}/error_bound"] = most
    return flat


def absorb(metric: Metric, state: Mapping[str, Array]) -> None:
    """Have a metric count what another one of its kind has counted."""
    if hasattr(metric, "add"):
        metric.add(state)
        return
    mine = metric.state()
    metric.load({name: array + state[name] for name, array in mine.items()})


def pack(metrics: Mapping[str, Metric]) -> bytes:
    """Return the states of all metrics as one compressed .npz, which holds no pickles."""
    arrays = {
        f"{name}/{part}": np.asarray(array)
        for name, metric in metrics.items()
        for part, array in metric.state().items()
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def unpack(data: bytes) -> dict[str, State]:
    """Return the states by metric that `pack` wrote.

    Raises EdlError where the bytes are something else.
    """
    states: dict[str, State] = {}
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            for key in arrays.files:
                name, _, part = key.rpartition("/")
                states.setdefault(name, {})[part] = arrays[key]
    except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        raise EdlError(f"A worker's metric states cannot be read: {error}.") from error
    return states


def merge(parts: Sequence[bytes], metrics: Mapping[str, Metric]) -> dict[str, float]:
    """Load all packed states into fresh `metrics`, and return their `values`.

    A metric that has a method `add` takes one state after the other; else it loads their sum.
    """
    adds = {name: metric.add for name, metric in metrics.items() if hasattr(metric, "add")}
    totals = {name: metric.state() for name, metric in metrics.items()}
    for part in parts:
        states = unpack(part)
        if set(states) != set(totals):
            raise EdlError(
                f"A worker sent the metrics {sorted(states)}; this definition has {sorted(totals)}."
            )
        for name, state in states.items():
            if name in adds:
                adds[name](state)
            else:
                totals[name] = {key: totals[name][key] + array for key, array in state.items()}
    for name, metric in metrics.items():
        if name not in adds:
            metric.load(totals[name])
    return values(metrics)

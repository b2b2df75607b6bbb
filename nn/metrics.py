"""Metrics that merge exactly: every state is a sum over records, or is added by the metric.

A worker updates its own metrics and sends `pack(metrics)`; whoever has all the bytes calls `merge`,
which adds the states elementwise, or has the metric `add` them. So the value over any number of
workers is the value over all the records, never a mean of means. numpy only; torch tensors are
taken by their own `.numpy()`.

Outputs are [N] or [N, 1] scores or [N, C] class scores, labels [N] or [N, 1].
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DefinitionError, EdlError

Array = NDArray[Any]
State = dict[str, Array]
Value = float | dict[str, float]


@runtime_checkable
class Metric(Protocol):
    """A metric: the values of the dict that a definition's `metrics()` returns.

    `state` of a fresh metric is all zeros. One whose states are no sums has a method `add(state)`
    that counts what another has counted.

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


def to_numpy(values: Any) -> Array:
    """Return the array of a torch tensor (any device, with or without gradient), list or array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if values.is_floating_point() and values.itemsize < 4:  # numpy has not all of those types
            values = values.float()
        if str(values.layout) != "torch.strided":
            values = values.to_dense()
        return np.asarray(values.resolve_conj().resolve_neg().numpy())
    return np.asarray(values)


def one_array(name: str, values: Any) -> Array:
    """Return the values as one array.

    Raises ValueError for several, in a dict or a tuple.
    """
    if isinstance(values, Mapping) or (
        isinstance(values, tuple | list) and any(hasattr(part, "shape") for part in values)
    ):
        what = ", ".join(map(str, values)) if isinstance(values, Mapping) else str(len(values))
        raise ValueError(
            f"{name} got a {type(values).__name__} ({what}) where it needs one tensor: have "
            "metrics() return an object of your own whose update takes the part that it is about"
        )
    return to_numpy(values)


def _flat(name: str, values: Any) -> Array:
    array = one_array(name, values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{name} needs values of shape [N] or [N, 1], not {list(array.shape)}")
    return array


def _records(labels: Any) -> int:
    """Return how many records a batch of labels is of.

    A dict or tuple of tensors is of one batch.
    """
    while isinstance(labels, Mapping | tuple):
        parts = list(labels.values()) if isinstance(labels, Mapping) else labels
        arrays = [part for part in parts if getattr(part, "ndim", 1)]
        if not arrays or not (
            hasattr(arrays[0], "shape") or isinstance(arrays[0], Mapping | tuple)
        ):
            break
        labels = arrays[0]
    return len(labels)


def pair(name: str, outputs: Any, labels: Any) -> tuple[NDArray[np.float64], Array]:
    """Return scores and labels of shape [N]. Raises ValueError where they are not, or NaN."""
    scores, truth = _flat(name, outputs).astype(np.float64), _flat(name, labels)
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


class Sums:
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
    `logits`: the threshold is on the sigmoid of the output.
    """

    best = "max"

    def __init__(self, threshold: float = 0.5, *, logits: bool = False) -> None:
        if isinstance(threshold, bool) or not isinstance(threshold, int | float):
            raise DefinitionError(
                f"Accuracy(threshold={threshold!r}): the threshold is a number; class scores "
                "[N, C] need none: Accuracy()"
            )
        super().__init__(correct=np.zeros((), np.int64), count=np.zeros((), np.int64))
        self.threshold = threshold
        self.logits = logits

    def update(self, outputs: Any, labels: Any) -> None:
        array = one_array("Accuracy", outputs)
        if array.ndim == 2 and array.shape[1] > 1:
            guess, truth = array.argmax(axis=1), _flat("Accuracy", labels)
            if guess.shape != truth.shape:
                raise ValueError(f"Accuracy got {len(guess)} outputs for {len(truth)} labels")
            if np.isnan(array).any():
                raise ValueError("Accuracy got NaN among the outputs")
            guess, truth = guess[truth != -1], truth[truth != -1]
            classes = array.shape[1]
            if (wrong := truth[(truth < 0) | (truth >= classes) | (truth != np.floor(truth))]).size:
                raise ValueError(
                    f"Accuracy got the label {wrong[0]} for scores of {classes} classes: labels "
                    f"are 0 to {classes - 1}, or -1 where a record does not count"
                )
            right = guess == truth
        else:
            scores, truth = pair("Accuracy", outputs, labels)
            check_binary("Accuracy", truth)
            right = ((_sigmoid(scores) if self.logits else scores) >= self.threshold) == (
                truth > 0.5
            )
        self._sums["correct"] += right.sum()
        self._sums["count"] += right.size

    def value(self) -> float:
        return self._ratio("correct", "count")


class LogLoss(Sums):
    """Mean binary cross-entropy of probabilities (clipped by 1e-7), or of logits, unclipped."""

    best = "min"

    def __init__(self, *, logits: bool = False) -> None:
        super().__init__(total=np.zeros((), np.float64), count=np.zeros((), np.int64))
        self.logits = logits

    def update(self, outputs: Any, labels: Any) -> None:
        scores, truth = pair("LogLoss", outputs, labels)
        if (wrong := truth[~((truth >= 0) & (truth <= 1))]).size:
            raise ValueError(f"LogLoss got the label {wrong[0]}: labels are from 0 to 1")
        if self.logits:
            losses = np.logaddexp(0.0, scores) - truth * scores
        else:
            p = np.clip(scores, 1e-7, 1 - 1e-7)
            losses = -(truth * np.log(p) + (1 - truth) * np.log1p(-p))
        self._sums["total"] += losses.sum()
        self._sums["count"] += losses.size

    def value(self) -> float:
        return self._ratio("total", "count")


class MeanSquaredError(Sums):
    """Mean of (output - label)**2 over all elements; outputs and labels of equal size."""

    best = "min"

    def __init__(self) -> None:
        super().__init__(total=np.zeros((), np.float64), count=np.zeros((), np.int64))

    def update(self, outputs: Any, labels: Any) -> None:
        guess = one_array("MeanSquaredError", outputs)
        truth = one_array("MeanSquaredError", labels)
        if guess.size != truth.size:
            raise ValueError(
                f"MeanSquaredError got outputs of shape {list(guess.shape)} for labels of shape "
                f"{list(truth.shape)}"
            )
        errors = guess.astype(np.float64).ravel() - truth.astype(np.float64).ravel()
        self._sums["total"] += (errors**2).sum()
        self._sums["count"] += errors.size

    def value(self) -> float:
        return self._ratio("total", "count")


class Mean(Sums):
    """Mean over records of `function(outputs, labels)`, the mean of one batch: `Mean(loss)`.

    `best`: "min" or "max"; of a function named `loss` it is the least.
    """

    def __init__(self, function: Callable[[Any, Any], Any], *, best: str = "") -> None:
        super().__init__(total=np.zeros((), np.float64), count=np.zeros((), np.int64))
        self._function = function
        self.best = best or ("min" if getattr(function, "__name__", "") == "loss" else "")

    def update(self, outputs: Any, labels: Any) -> None:
        count = _records(labels)
        self._sums["total"] += float(to_numpy(self._function(outputs, labels))) * count
        self._sums["count"] += count

    def value(self) -> float:
        return self._ratio("total", "count")


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
                continue
            for key, array in state.items():
                totals[name][key] = totals[name][key] + array
    for name, metric in metrics.items():
        if name not in adds:
            metric.load(totals[name])
    return values(metrics)

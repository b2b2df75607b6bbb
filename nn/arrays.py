"""Outputs and labels of a batch as arrays, and the part of them that a metric is about.

numpy only; torch tensors are taken by their own `.numpy()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.arrays import ROWS
from ..common.errors import DefinitionError

Array = NDArray[Any]


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
            f"{name} got a {type(values).__name__} ({what}) where it needs one tensor: say which, "
            f"{name}(of=...), and label=... of labels, or have metrics() return an object of your "
            "own whose update takes the part that it is about"
        )
    return to_numpy(values)


def flat(name: str, values: Any) -> Array:
    """Return values [N] or [N, 1] as [N]. Raises ValueError for others."""
    array = one_array(name, values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{name} needs values of shape [N] or [N, 1], not {list(array.shape)}")
    if array.dtype.kind == "O" and any(isinstance(each, ROWS) for each in array.tolist()):
        raise ValueError(f"{name} needs one value for each record, and got lists")
    return array


def probabilities(name: str, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return scores that are probabilities. Raises ValueError for others."""
    if len(scores) and (scores.min() < 0 or scores.max() > 1):
        raise ValueError(
            f"{name} got scores in [{scores.min():.3g}, {scores.max():.3g}], outside of [0, 1]: "
            f"use {name}(logits=True) for logits"
        )
    return scores


def records_of(labels: Any) -> int:
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


def some_of(values: Any, places: NDArray[np.int64], records: int) -> Any:
    """Return what values have of some of a batch's records, in dicts, lists and tuples too.

    What has no first axis of so many records is of all of them, and stays.
    """
    if isinstance(values, Mapping):
        return {name: some_of(each, places, records) for name, each in values.items()}
    shape = getattr(values, "shape", None)
    if shape is None and isinstance(values, list | tuple):
        if any(hasattr(each, "shape") or isinstance(each, Mapping | tuple) for each in values):
            parts = [some_of(each, places, records) for each in values]
            named = isinstance(values, tuple) and hasattr(values, "_fields")
            return type(values)(*parts) if named else type(values)(parts)
        return to_numpy(values)[places] if len(values) == records else values
    return values[places] if shape is not None and len(shape) and shape[0] == records else values


class OfPart:
    """A metric that may be about one of several outputs, and labels, which it names.

    `of`: the output's name: an entry of a dict, "output_0", ... of a tuple, "a.b" of what lies
    within (nn/outputs.py). `label`: the labels' likewise; else, where labels are a dict that has an
    entry of the output's name, that one.
    """

    of: str = ""
    label: str = ""

    def part(self, outputs: Any, labels: Any) -> tuple[Any, Any]:
        """Return what the metric is about. Raises DefinitionError where there is no such part."""
        label = self.label
        if not label and self.of and isinstance(labels, Mapping) and self.of in labels:
            label = self.of
        return (
            self._named(outputs, self.of, "of", "outputs") if self.of else outputs,
            self._named(labels, label, "label", "labels") if label else labels,
        )

    def _named(self, values: Any, name: str, argument: str, what: str) -> Any:
        from .outputs import leaves

        found = dict(leaves(values, ""))
        if name not in found:
            raise DefinitionError(
                f"metrics(): {type(self).__name__}({argument}={name!r}), and the {what} are "
                f"{', '.join(map(repr, found)) or 'none'}"
            )
        return found[name]

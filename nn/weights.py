"""Weights of records: how much each counts in the loss of its minibatch and in metrics.

A definition's feed may return (features, labels, weight). On their way to the loss and to the
metrics the weights travel with the labels (`Weighted`), so that whatever hands labels on need not
know of them. The loss is then one number a record, and the loss of a minibatch their weighted mean,

    sum(weight * loss) / sum(weight)

over all records of the minibatch, of whichever members of an all-reduce group they are. Where the
weights are 0 in sum, so is the loss, and its gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DefinitionError
from .arrays import to_numpy

if TYPE_CHECKING:
    from torch import Tensor

Weights = NDArray[np.float64]


class Labelled:
    """A value that goes to the loss in the place of the labels, which are in it."""

    labels: Any


class Weighted(Labelled):
    """The labels of a minibatch, and the weight of each of its records: float64[N]."""

    def __init__(self, labels: Any, weight: Weights) -> None:
        self.labels = labels
        self.weight = weight

    def to(self, device: Any) -> Weighted:
        """Move the labels to a device, as nn/device.to_device does; the weights stay here."""
        from .device import to_device

        moved = to_device(self.labels, device)
        return self if moved is self.labels else Weighted(moved, self.weight)


def checked(name: str, weight: Any, records: int | None = None) -> Weights:
    """Return weights as float64[N]. Raises ValueError for others, and for another N.

    `weight`: an array, tensor or list of shape [N] or [N, 1], of numbers from 0 on.
    """
    array = to_numpy(weight)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "buif":
        raise ValueError(
            f"{name} got weights of the shape {list(array.shape)} and the type {array.dtype}: "
            "they are numbers, one for each record, [N]"
        )
    if records is not None and len(array) != records:
        raise ValueError(f"{name} got {len(array)} weights for {records} records")
    found = array.astype(np.float64)
    if (wrong := found[~(np.isfinite(found) & (found >= 0))]).size:
        raise ValueError(f"{name} got the weight {wrong[0]}: weights are finite and not below 0")
    return found


def plain(labels: Any) -> Any:
    """Return labels as feed gave them."""
    while isinstance(labels, Labelled):
        labels = labels.labels
    return labels


def weight_of(labels: Any) -> Weights | None:
    """Return the weights that travel with labels; None: each record counts alike."""
    while isinstance(labels, Labelled):
        if isinstance(labels, Weighted):
            return labels.weight
        labels = labels.labels
    return None


def weighted(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loss that is the weighted mean of `loss` where weights travel with the labels.

    Without weights it is `loss` itself. Further arguments (what a teacher answers) are handed on.
    """

    def of_minibatch(outputs: Any, labels: Any, *taught: Any) -> Any:
        if not isinstance(labels, Weighted):
            return loss(outputs, labels, *taught)
        return mean(loss(outputs, labels.labels, *taught), labels.weight)

    return of_minibatch


def mean(losses: Any, weight: Weights) -> Tensor:
    """Return the weighted mean of the losses of records, a scalar. Raises DefinitionError."""
    import torch

    shapes = [len(weight)], [len(weight), 1]
    if not isinstance(losses, torch.Tensor) or list(losses.shape) not in shapes:
        is_tensor = isinstance(losses, torch.Tensor)
        what = f"shape {list(losses.shape)}" if is_tensor else type(losses).__name__
        raise DefinitionError(
            f"loss returned a {what}, and feed gives weights for {len(weight)} records: return one "
            f'loss for each record, shape [{len(weight)}] (of torch: reduction="none"), whose '
            "weighted mean is taken"
        )
    shares = weight / (weight.sum() or 1.0)
    shares_N = torch.as_tensor(shares, dtype=losses.dtype, device=losses.device)
    return (losses.reshape(-1) * shares_N).sum()

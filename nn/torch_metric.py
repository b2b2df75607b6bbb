"""The metrics of torchmetrics, and of definitions, as metrics of edl.nn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..common.errors import DefinitionError
from .arrays import Array, to_numpy
from .metrics import Metric, State, Value


class TorchMetric:
    """A `torchmetrics.Metric` as one of ours.

    Every state must be a sum (`dist_reduce_fx="sum"`).
    """

    def __init__(self, metric: Any) -> None:
        unfit = [
            name
            for name, reduce in metric._reductions.items()
            if getattr(reduce, "__name__", "") != "dim_zero_sum"
            or isinstance(metric._defaults[name], list)
        ]
        if unfit:
            raise DefinitionError(
                f"metrics(): the states {', '.join(unfit)} of torchmetrics' "
                f"{type(metric).__name__} are no sums, so workers' states cannot be added. Use an "
                "edl.nn metric, or the binned form (for example thresholds=1000)."
            )
        self.metric = metric
        higher = getattr(metric, "higher_is_better", None)
        self.best = "" if higher is None else "max" if higher else "min"

    def update(self, outputs: Any, labels: Any) -> None:
        self.metric.update(outputs, labels)

    def state(self) -> State:
        return {name: to_numpy(getattr(self.metric, name)) for name in self.metric._defaults}

    def load(self, state: Mapping[str, Array]) -> None:
        self.metric.reset()
        for name, zeros in self.metric._defaults.items():
            filled = zeros.clone()
            filled.copy_(filled.new_tensor(state[name].tolist()))
            setattr(self.metric, name, filled.to(self.metric.device))
        self.metric._update_count = 1  # else compute() warns that nothing was counted

    def value(self) -> Value:
        result = self.metric.compute()
        if isinstance(result, Mapping):
            return {str(name): float(part) for name, part in result.items()}
        if result.numel() == 1:
            return float(result)
        return {str(i): float(part) for i, part in enumerate(result.flatten().tolist())}


def as_metric(metric: Any) -> Metric:
    """Return `metric` as a Metric: ours and the user's as they are, torchmetrics' adapted."""
    if hasattr(metric, "_reductions") and hasattr(metric, "compute"):
        return TorchMetric(metric)
    missing = [name for name in ("update", "state", "load", "value") if not hasattr(metric, name)]
    if missing or isinstance(metric, type):
        raise DefinitionError(
            f"metrics(): {metric!r} is no metric: "
            + ("it is a class, not an object of it." if isinstance(metric, type) else "")
            + ("" if isinstance(metric, type) else f"it lacks {', '.join(missing)}.")
        )
    adapted: Metric = metric
    return adapted

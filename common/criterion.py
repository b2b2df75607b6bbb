"""The words of --keep_best and --early_stopping: METRIC[:min|max][:PATIENCE]."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import UsageError

PATIENCE = 3  # evaluations: one alone may be worse by chance


@dataclass(frozen=True)
class Criterion:
    """A metric; whether `min` or `max` is best ("": the metric itself knows); how long to wait."""

    metric: str
    best: str = ""
    patience: int = PATIENCE


def criterion(text: str, said: str, patience: bool) -> Criterion:
    """Parse `auc`, `loss:min`, `auc:max:5` or `auc:5`. Raises UsageError.

    `patience`: whether one is taken.
    """
    metric, *rest = (part.strip() for part in text.split(":"))
    best, given = "", ""
    for part in rest:
        if part in ("min", "max") and not best:
            best = part
        elif patience and part.isascii() and part.isdigit() and int(part) and not given:
            given = part
        else:
            raise UsageError(
                f"{said} is METRIC{'[:min|max][:PATIENCE]' if patience else '[:min|max]'}, not "
                f"{text!r}: {part!r} is {'no number of evaluations, nor' if patience else 'not'} "
                "min or max."
            )
    if not metric:
        raise UsageError(f"{said} names no metric: {text!r}.")
    return Criterion(metric, best, int(given or PATIENCE))

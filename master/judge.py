"""The judges of evaluations: which is the best, and when none was better for too long. Pure.

Evaluations are counted in their order, each version once: one that is repeated, by a master that
was started again or a job that goes on with a checkpoint, changes nothing. So what is kept and
where a job ends depend on the values alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..common.criterion import Criterion, criterion
from ..common.errors import JobError
from ..common.settings import JobSettings


@dataclass
class Judge:
    """The judge of one metric; `high`: more is better.

    `since`: evaluations in a row that were no better.
    """

    metric: str
    high: bool
    patience: int = 0  # 0: it never ends the job
    value: float | None = None  # the best so far, of `version`, in `epoch`
    version: int = -1
    epoch: int = 0
    checkpoint: str = ""
    counted: int = -1  # the newest version that was counted
    since: int = 0

    def is_new(self, version: int) -> bool:
        return version > self.counted

    def of(self, metrics: Mapping[str, Any]) -> float:
        """Return the value of the judged metric. Raises JobError where there is none."""
        value = metrics.get(self.metric)
        if isinstance(value, bool) or not isinstance(value, int | float):
            there = ", ".join(metrics) or "none at all"
            what = "no number" if self.metric in metrics else f"not among the metrics ({there})"
            raise JobError(
                f"the metric {self.metric!r}, which --keep_best or --early_stopping names, is "
                f"{what}"
            )
        return float(value)

    def is_better(self, value: float) -> bool:
        """Tell whether the value is strictly better.

        Of two that are alike the earlier one is kept. NaN is never better.
        """
        if math.isnan(value):
            return False
        return self.value is None or (value > self.value if self.high else value < self.value)

    def count(self, value: float, version: int, epoch: int, checkpoint: str = "") -> None:
        """Count an evaluation that has ended."""
        if not self.is_new(version):
            return
        self.counted = version
        self.since += 1
        if self.is_better(value):
            self.value, self.version, self.epoch, self.since = value, version, epoch, 0
            self.checkpoint = checkpoint

    @property
    def exhausted(self) -> bool:
        return 0 < self.patience <= self.since

    @property
    def verdict(self) -> str:
        """The reason why the job ends, in words."""
        times = f"{self.since} evaluation{'s' if self.since > 1 else ''}"
        if self.value is None:
            return f"stopped early: {self.metric} has had no value for {times}"
        return (
            f"stopped early: {self.metric} was best at version {self.version} ({self.value:.6g}), "
            f"and no better in {times} since"
        )


@dataclass
class Judges:
    """The judges of a job: `best` says which checkpoint is kept, `stopper` when the job ends.

    None where that is not asked for.
    """

    best: Judge | None = None
    stopper: Judge | None = None

    def __bool__(self) -> bool:
        return self.best is not None or self.stopper is not None

    def memory(self) -> dict[str, Any]:
        """Return the judges as JSON values, for the journal and for checkpoints."""
        return {
            name: None if judge is None else dataclasses.asdict(judge)
            for name, judge in (("best", self.best), ("stopper", self.stopper))
        }

    def remember(self, memory: Mapping[str, Any]) -> None:
        """Go on from saved judges of the same metrics; the patience is that of now."""
        for name, mine in (("best", self.best), ("stopper", self.stopper)):
            theirs = memory.get(name)
            if mine is None or not theirs:
                continue
            if (mine.metric, mine.high) == (theirs["metric"], theirs["high"]):
                setattr(self, name, Judge(**{**theirs, "patience": mine.patience}))


def judges_of(settings: JobSettings, known: Mapping[str, str]) -> Judges:
    """Return the judges that the settings ask for.

    `known`: what is best of each metric, as the definition says.

    Whoever stops early wants the best, and not what came after it: it is kept as well.
    """

    def judge(text: str, said: str, patience: bool) -> Judge | None:
        if not text or settings.command != "train":
            return None
        asked = criterion(text, said, patience)
        high = (asked.best or best_of(asked, known)) != "min"
        return Judge(asked.metric, high, asked.patience if patience else 0)

    stopper = judge(settings.early_stopping, "--early_stopping", True)
    best = judge(settings.keep_best, "--keep_best", False)
    if best is None and stopper is not None:
        best = Judge(stopper.metric, stopper.high)
    return Judges(best, stopper)


def best_of(asked: Criterion, known: Mapping[str, str]) -> str:
    """Return min or max, of a metric or a part of one ("name/part"); "": it does not say."""
    return known.get(asked.metric) or known.get(asked.metric.partition("/")[0], "")

"""Schedules: the learning rate as a function of the server's version (optimizer steps).

Each is plain data that the servers follow, equal to its namesake of torch.optim.lr_scheduler, whose
step() is called once a version. `sampled` makes one of any function, as a table.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..common.errors import DefinitionError

MOST_SAMPLES = 4096  # of a function: 40 KB in a checkpoint


class _Checked:
    """The base of schedules that look at what they are given."""

    floats: ClassVar[tuple[str, ...]] = ("lr",)
    counts: ClassVar[tuple[str, ...]] = ()
    lengths: ClassVar[tuple[str, ...]] = ()  # numbers of versions, whole or not

    def __post_init__(self) -> None:
        for name in self.floats:
            object.__setattr__(self, name, _number(self, name))
        for name in self.lengths:
            if _number(self, name) < 0:
                raise DefinitionError(f"{_of(self)}: {name} is 0 or more")
        for name in self.counts:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
                raise DefinitionError(f"{_of(self)}: {name} is a whole number from 1 on")
            object.__setattr__(self, name, int(value))


@dataclass(frozen=True)
class Constant(_Checked):
    """The same learning rate for ever."""

    lr: float

    def at(self, _version: int) -> float:
        return self.lr


@dataclass(frozen=True)
class StepDecay(_Checked):
    """lr * gamma ** (version // step_size), as torch.optim.lr_scheduler.StepLR."""

    lr: float
    step_size: int
    gamma: float = 0.1

    floats, lengths = ("lr", "gamma"), ("step_size",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.step_size:
            raise DefinitionError("StepDecay: step_size is above 0")

    def at(self, version: int) -> float:
        return self.lr * self.gamma ** (version // self.step_size)


@dataclass(frozen=True)
class Cosine(_Checked):
    """Half a cosine from lr to min_lr over total_steps, after a linear warm-up."""

    lr: float
    total_steps: int
    warmup_steps: int = 0
    min_lr: float = 0.0

    floats, lengths = ("lr", "min_lr"), ("total_steps", "warmup_steps")

    def at(self, version: int) -> float:
        if version < self.warmup_steps:
            return self.lr * (version + 1) / self.warmup_steps
        done = (version - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        return _half_cosine(self.lr, self.min_lr, min(1.0, done))


@dataclass(frozen=True)
class MultiStep(_Checked):
    """lr * gamma ** (the milestones up to version), as torch.optim.lr_scheduler.MultiStepLR."""

    lr: float
    milestones: Sequence[int]
    gamma: float = 0.1

    floats = ("lr", "gamma")

    def __post_init__(self) -> None:
        super().__post_init__()
        given: Any = self.milestones
        if not all(isinstance(each, numbers.Integral) for each in given):
            raise DefinitionError("MultiStep: milestones are versions, whole numbers")
        object.__setattr__(self, "milestones", tuple(sorted(int(each) for each in given)))

    def at(self, version: int) -> float:
        return self.lr * self.gamma ** bisect.bisect_right(self.milestones, version)


@dataclass(frozen=True)
class Exponential(_Checked):
    """lr * gamma ** version, as torch.optim.lr_scheduler.ExponentialLR."""

    lr: float
    gamma: float

    floats = ("lr", "gamma")

    def at(self, version: int) -> float:
        try:
            return self.lr * self.gamma**version
        except OverflowError:
            return math.inf  # as torch's


@dataclass(frozen=True)
class Polynomial(_Checked):
    """lr * (1 - version / total_iters) ** power, as torch.optim.lr_scheduler.PolynomialLR."""

    lr: float
    total_iters: int = 5
    power: float = 1.0

    floats, counts = ("lr", "power"), ("total_iters",)

    def at(self, version: int) -> float:
        left = 1 - min(version, self.total_iters) / self.total_iters
        return self.lr * float(left**self.power)


@dataclass(frozen=True)
class OneCycle(_Checked):
    """Up to max_lr and down again, as torch.optim.lr_scheduler.OneCycleLR.

    The momentum stays (torch's cycle_momentum=False); past total_steps the last rate stays.
    """

    max_lr: float
    total_steps: int
    pct_start: float = 0.3
    anneal_strategy: str = "cos"
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    three_phase: bool = False

    floats = ("max_lr", "pct_start", "div_factor", "final_div_factor")
    counts = ("total_steps",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anneal_strategy not in ("cos", "linear"):
            raise DefinitionError('OneCycle: anneal_strategy is "cos" or "linear"')
        if not 0 <= self.pct_start <= 1 or self.div_factor <= 0 or self.final_div_factor <= 0:
            raise DefinitionError("OneCycle: pct_start is from 0 to 1, the factors above 0")

    def at(self, version: int) -> float:
        total, first = self.total_steps, self.max_lr / self.div_factor
        last, rise = first / self.final_div_factor, self.pct_start * self.total_steps
        phases = [(rise - 1, first, self.max_lr), (total - 1, self.max_lr, last)]
        if self.three_phase:
            phases[1:] = [(2 * rise - 2, self.max_lr, first), (total - 1, first, last)]
        start, step = 0.0, min(version, total - 1)
        anneal = _half_cosine if self.anneal_strategy == "cos" else _line
        for end, here, there in phases[:-1]:
            if step <= end:
                return anneal(here, there, _part(step, start, end))
            start = end
        end, here, there = phases[-1]
        return anneal(here, there, _part(step, start, end))


@dataclass(frozen=True, repr=False)
class Table(_Checked):
    """Rates of the versions 0, every, 2 * every, ...: a line between two, the last one for ever.

    See `sampled`, which makes one of a function.
    """

    values: Sequence[float]
    every: int = 1

    floats, counts = (), ("every",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.values) <= MOST_SAMPLES + 1:
            raise DefinitionError(f"Table: 1 to {MOST_SAMPLES + 1} values, not {len(self.values)}")
        if not all(_is_finite(value) for value in self.values):
            raise DefinitionError("Table: a value is no finite number")
        object.__setattr__(self, "values", tuple(float(value) for value in self.values))

    def __repr__(self) -> str:
        told = f"{len(self.values)} rates from {self.values[0]:g} to {self.values[-1]:g}"
        return f"Table({told}, every={self.every})"

    def at(self, version: int) -> float:
        number, beyond = divmod(version, self.every)
        if number + 1 >= len(self.values):
            return self.values[-1]
        return _line(self.values[number], self.values[number + 1], beyond / self.every)


@dataclass(frozen=True)
class Warmup(_Checked):
    """A line from start_factor times the first rate to it, over `steps`; then `after`, from its 0.

    As torch's SequentialLR of LinearLR(start_factor, total_iters=steps) and `after`. `after` is a
    number or any other schedule.
    """

    after: Any
    steps: int
    start_factor: float = 1.0 / 3

    floats, counts = ("start_factor",), ("steps",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.after, Warmup):
            raise DefinitionError("Warmup: one warm-up is enough, `after` is another schedule")
        if not isinstance(self.after, Schedule):
            object.__setattr__(self, "after", Constant(_number(self, "after")))

    def at(self, version: int) -> float:
        if version >= self.steps:
            return float(self.after.at(version - self.steps))
        first = float(self.after.at(0))
        return _line(self.start_factor * first, first, version / self.steps)


Schedule = (
    Constant | StepDecay | Cosine | MultiStep | Exponential | Polynomial | OneCycle | Table | Warmup
)
SCHEDULES: dict[str, type[Schedule]] = {
    c.__name__: c
    for c in (
        Constant,
        StepDecay,
        Cosine,
        MultiStep,
        Exponential,
        Polynomial,
        OneCycle,
        Table,
        Warmup,
    )
}


def sampled(function: Callable[[int], float], steps: int) -> Table:
    """Return a schedule of `function(version)`, asked now, for the versions 0 to `steps`.

    Up to 4,096 steps each version is asked. Beyond, every k-th one, k = ceil(steps / 4096), and
    rates between lie on a line: a jump becomes a ramp of k versions (MultiStep keeps jumps). Past
    `steps` the rate stays as it is there. Nine digits are kept, so that all workers have the same.

    Raises DefinitionError where the function does, or returns no finite number.
    """
    given: Any = steps
    if isinstance(given, bool) or not isinstance(given, numbers.Integral) or steps < 1:
        raise DefinitionError("sampled(function, steps): steps is a whole number from 1 on")
    every = -(-int(steps) // MOST_SAMPLES)
    values = []
    for version in range(0, int(steps) + every, every):
        at = min(version, int(steps))
        try:
            value = function(at)
        except Exception as error:  # it is the user's
            raise DefinitionError(f"the schedule's function raised at {at}: {error!r}") from error
        if not _is_finite(value):
            raise DefinitionError(f"the schedule's function returned {value!r} at version {at}")
        values.append(float(f"{float(value):.9g}"))
    return Table(tuple(values), every)


def to_dict(schedule: Schedule) -> dict[str, Any]:
    """Return the schedule ready for JSON; `from_dict` reads it back."""
    fields = {f.name: getattr(schedule, f.name) for f in dataclasses.fields(schedule)}
    if isinstance(schedule, Warmup):
        fields["after"] = to_dict(schedule.after)
    return {"schedule": type(schedule).__name__, **fields}


def from_dict(values: dict[str, Any]) -> Schedule:
    """Return the schedule that `to_dict` wrote.

    Raises KeyError, TypeError, DefinitionError where it is none.
    """
    fields = dict(values)
    kind = SCHEDULES[fields.pop("schedule")]
    if kind is Warmup and isinstance(fields["after"], dict):
        if fields["after"].get("schedule") == Warmup.__name__:
            raise DefinitionError("Warmup: one warm-up is enough")  # however deep a stranger's is
        fields["after"] = from_dict(fields["after"])
    schedule: Schedule = kind(**fields)
    return schedule


def _half_cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * part))


def _line(start: float, end: float, part: float) -> float:
    return start + (end - start) * part


def _part(step: float, start: float, end: float) -> float:
    return (step - start) / (end - start) if end > start else 1.0


def _is_finite(value: Any) -> bool:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _number(schedule: object, name: str) -> float:
    value = getattr(schedule, name)
    if not _is_finite(value):
        raise DefinitionError(f"{_of(schedule)}: {name} is a finite number, not {value!r}")
    return float(value)


def _of(schedule: object) -> str:
    return type(schedule).__name__

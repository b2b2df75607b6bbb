"""Spot weather: when a zone has spot machines and when it has none, from a seed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Shares of the time in which a zone had the machine, of "Can't Be Late" (NSDI '24, us-west-2).
V100 = (0.775, 0.663, 0.628, 0.432)
K80 = (0.403, 0.391, 0.303, 0.043)
AVAILABILITIES = V100 + K80
MEAN_UP_S = 3600.0

# "Modeling The Temporally Constrained Preemptions of Transient Cloud VMs" (HPDC '20): the share of
# machines of Google's that are gone after t hours, of which none lives longer than a day.
_EARLY, _EARLY_H, _LATE_H, _LIMIT_H = 0.45, 1.0, 0.8, 24.0
_LIFETIMES_H = np.linspace(0, _LIMIT_H, 2401)
_GONE = _EARLY * (
    1 - np.exp(-_LIFETIMES_H / _EARLY_H) + np.exp((_LIFETIMES_H - _LIMIT_H) / _LATE_H)
)


@dataclass(frozen=True)
class Weather:
    """A zone's weather: spot machines come for `mean_up_s` at a time and are there a known share.

    Lengths of both are exponential: no moment is like the end. Those of a `bathtub` end early or
    late, with the same mean.
    """

    availability: float  # 0-1, exclusive
    mean_up_s: float = MEAN_UP_S
    is_bathtub: bool = False

    def changes(self, random: np.random.Generator, until_s: float) -> tuple[bool, list[float]]:
        """Return whether spot machines are there at 0, and the times (s) at which that changes."""
        is_up = begins_up = bool(random.random() < self.availability)
        now, times = 0.0, []
        while now < until_s:
            now += self._length(random, is_up)
            times.append(now)
            is_up = not is_up
        return begins_up, [time for time in times if time < until_s]

    def ticks(self, random: np.random.Generator, count: int, tick_s: float) -> NDArray[np.bool_]:
        """Return whether spot machines are there at the begin of each of `count` ticks."""
        begins_up, times = self.changes(random, count * tick_s)
        before = np.searchsorted(times, np.arange(count) * tick_s, side="right")
        return np.asarray((before % 2 == 0) == begins_up)

    def _length(self, random: np.random.Generator, is_up: bool) -> float:
        if not is_up:
            mean = self.mean_up_s * (1 - self.availability) / self.availability
            return float(random.exponential(mean))
        if not self.is_bathtub:
            return float(random.exponential(self.mean_up_s))
        lived = np.interp(random.random() * _GONE[-1], _GONE, _LIFETIMES_H)
        return float(lived / _MEAN_LIFETIME_H * self.mean_up_s)


_MEAN_LIFETIME_H = float(np.trapezoid(1 - _GONE / _GONE[-1], _LIFETIMES_H))

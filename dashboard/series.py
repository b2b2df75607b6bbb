"""The curves of a job, each of at most so many points, the least and the greatest kept. Pure.

A value may be NaN or infinite: that is a gap in what is drawn, and stands where it is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

Point = tuple[int, float, float]  # version, seconds since the job's start, value

MOST = 600  # points of a series
_MOST_SERIES = 64


@dataclass
class Series:
    """One curve. `thinned`: how often it was; `points`: in the order of time."""

    points: list[Point] = field(default_factory=list)
    thinned: int = 0

    def add(self, version: int, t: float, value: float) -> None:
        """Add a point after all others; one that is not later, by time or version, is known."""
        if self.points and (t, version) <= (self.points[-1][1], self.points[-1][0]):
            return
        self.points.append((version, t, value))
        if len(self.points) > MOST:
            self.points = thin(self.points, MOST // 2)
            self.thinned += 1


def thin(points: list[Point], most: int) -> list[Point]:
    """Return at most so many (an even number) of the points: of each stretch two, its extremes."""
    stretches = max(1, most // 2)
    kept: list[Point] = []
    for number in range(stretches):
        start, end = (len(points) * at // stretches for at in (number, number + 1))
        kept += _extremes(points[start:end])
    return kept


def _extremes(stretch: list[Point]) -> list[Point]:
    """Return the least and the greatest, in order; of a stretch without numbers its first."""
    numbers = [point for point in stretch if math.isfinite(point[2])]
    if not numbers:
        return stretch[:1]
    least, greatest = min(numbers, key=_value), max(numbers, key=_value)
    return sorted({least, greatest}, key=lambda point: point[1])


def _value(point: Point) -> float:
    return point[2]


class Curves:
    """The curves of a job by name."""

    def __init__(self) -> None:
        self.all: dict[str, Series] = {}
        self._versions: dict[str, set[int]] = {}  # of metrics, which are told again and again

    def add(self, version: int, t: float, values: Iterable[tuple[str, float]]) -> None:
        """Add a point to each of these."""
        for name, value in values:
            if name in self.all or len(self.all) < _MOST_SERIES:
                self.all.setdefault(name, Series()).add(version, t, value)

    def add_once(self, version: int, t: float, values: Iterable[tuple[str, float]]) -> None:
        """Add a point of metrics that were measured at a version, unless that is known."""
        for name, value in values:
            known = self._versions.setdefault(name, set())
            if version not in known:
                known.add(version)
                self.add(version, t, [(name, value)])

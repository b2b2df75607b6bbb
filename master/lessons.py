"""The records of a job that were trained with a teacher's answer, and without. Pure."""

from __future__ import annotations

from collections.abc import Mapping

NAMES = ("taught", "cached", "untaught")  # of a worker's heartbeat


class Lessons:
    """Counts over all workers that there have been, each of which tells its own so far."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, float]] = {name: {} for name in NAMES}  # by incarnation

    def heard(self, incarnation: str, scalars: Mapping[str, float]) -> bool:
        """Note what a worker says; return whether more records went without."""
        before = self.of["untaught"].get(incarnation, 0.0)
        for name, counts in self.of.items():
            if (count := scalars.get(name, 0.0)) > counts.get(incarnation, 0.0):
                counts[incarnation] = count
        return self.of["untaught"].get(incarnation, 0.0) > before

    def remember(self, of: Mapping[str, Mapping[str, float]]) -> None:
        """Become as the Lessons whose `of` this is."""
        self.of = {name: dict(of.get(name, {})) for name in NAMES}

    @property
    def totals(self) -> dict[str, int]:
        """The records taught, by teachers or by a cache, and those that were not."""
        taught, cached, untaught = (round(sum(self.of[name].values())) for name in NAMES)
        return {"records": taught, "cached": cached, "untaught": untaught}

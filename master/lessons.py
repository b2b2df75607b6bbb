"""The records of a job that were trained with a teacher's answer, and without. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

NAMES = ("taught", "cached", "untaught")  # of a worker's heartbeat
_BEATS = 2  # the second one is begun once the first one is answered, and tells all that is so far


class Lessons:
    """Counts over all workers that there have been, each of which tells its own so far."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, float]] = {name: {} for name in NAMES}  # by incarnation
        self._beats: Counter[str] | None = None  # heard since `close`

    def heard(self, incarnation: str, scalars: Mapping[str, float]) -> bool:
        """Note what a worker says; return whether more records went without."""
        if self._beats is not None:
            self._beats[incarnation] += 1
        before = self.of["untaught"].get(incarnation, 0.0)
        for name, counts in self.of.items():
            if (count := scalars.get(name, 0.0)) > counts.get(incarnation, 0.0):
                counts[incarnation] = count
        return self.of["untaught"].get(incarnation, 0.0) > before

    def close(self) -> None:
        """Begin to wait for what was trained since each worker has told of itself."""
        self._beats = Counter()

    @property
    def is_closing(self) -> bool:
        """Tell whether the job waits for its workers' last counts, which they may send at once."""
        return self._beats is not None

    def is_whole(self, workers: Iterable[str]) -> bool:
        """Return whether each of these workers has told all that it had trained at `close`."""
        beats = self._beats or Counter()
        return all(beats[worker] >= _BEATS for worker in workers)

    def remember(self, of: Mapping[str, Mapping[str, float]]) -> None:
        """Become as the Lessons whose `of` this is."""
        self.of = {name: dict(of.get(name, {})) for name in NAMES}

    @property
    def totals(self) -> dict[str, int]:
        """The records taught, by teachers or by a cache, and those that were not."""
        taught, cached, untaught = (round(sum(self.of[name].values())) for name in NAMES)
        return {"records": taught, "cached": cached, "untaught": untaught}

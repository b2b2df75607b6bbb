"""A record of how fast a job was in each configuration, and of what changes of it cost. Pure.

It is shown the records done now and then. What was done between two looks at which that number had
risen is a span: it counts where the configuration, and everybody in it, were the same at all looks
from one to the other. So the rate has no error by when workers tell what they have done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from ..common.report import Configuration, Phases, Resize, Sample
from .membership import SERVER, WORKER

_MOST = 32  # configurations that are kept: those measured last
_LAST = 5  # changes whose mean is told


_PHASES = ("data_s", "compute_s", "pull_s", "push_s")


@dataclass(frozen=True)
class Spent:
    """What minibatches of workers took, all together: sums, as their heartbeats tell them."""

    minibatches: float = 0.0
    data_s: float = 0.0
    compute_s: float = 0.0
    pull_s: float = 0.0
    push_s: float = 0.0
    nbytes: float = 0.0  # pushed to all servers
    hottest_nbytes: float = 0.0  # to the one that got the most

    @classmethod
    def told(cls, scalars: Sequence[Mapping[str, float]]) -> Spent | None:
        """Return the sums of what these workers have told; None where one has not."""
        if not all("phase_minibatches" in each for each in scalars):
            return None
        return cls(
            *(sum(each[f"phase_{name}"] for each in scalars) for name in cls.__annotations__)
        )

    def __add__(self, other: Spent) -> Spent:
        """Return the sums of both."""
        return Spent(*(a + b for a, b in zip(self._all(), other._all(), strict=True)))

    def __sub__(self, other: Spent) -> Spent:
        """Return what came since `other`."""
        return Spent(*(a - b for a, b in zip(self._all(), other._all(), strict=True)))

    def means(self) -> Phases | None:
        """Return the mean minibatch; None of none."""
        count = self.minibatches
        if count < 1:
            return None
        share = self.hottest_nbytes / self.nbytes if self.nbytes > 0 else 1.0
        means = {name: max(0.0, getattr(self, name)) / count for name in _PHASES}
        return Phases(int(count), **means, share=min(1.0, share))

    def _all(self) -> list[float]:
        return list(vars(self).values())


class Recorder:
    """The throughput of a job by configuration, and the seconds that its changes have cost."""

    def __init__(self) -> None:
        self._samples: dict[Configuration, Sample] = {}  # the one that was measured last is last
        self._done: dict[Configuration, int] = {}  # records of its spans
        self._spent: dict[Configuration, Spent] = {}  # in its spans
        self._told: Spent | None = None  # when the records had risen to this
        self._costs: dict[str, deque[float]] = {
            role: deque(maxlen=_LAST) for role in (WORKER, SERVER)
        }
        self._decided: dict[str, float] = {}  # changes under way, by role: since when
        self._key: tuple[Configuration, Hashable] | None = None
        self._records = 0  # at the last look
        self._risen: float | None = None  # when that number had risen to this, since the key is so

    def look(
        self,
        now: float,
        records: int,
        configuration: Configuration | None,
        members: Hashable = None,
        spent: Spent | None = None,
    ) -> None:
        """Note the records done by now.

        `configuration`: None while it is about to be another: somebody starts, or leaves.
        `members`: all who are in it; another value is another span. `spent`: what all their
        minibatches took; None where somebody has not told.
        """
        key = None if configuration is None else (configuration, members)
        if configuration is None or key != self._key or records < self._records:
            self._key, self._records, self._risen = key, records, None
            return
        if records == self._records:
            return
        if self._risen is not None:
            if spent is not None and self._told is not None:
                before = self._spent.get(configuration, Spent())
                self._spent[configuration] = before + (spent - self._told)
            self._add(configuration, records - self._records, now - self._risen)
            self._end_changes(now)
        self._records, self._risen, self._told = records, now, spent

    def decided(self, role: str, now: float) -> None:
        """Note that there are to be more or fewer of a role: it costs until a span is measured."""
        self._decided[role] = now
        self._key = None

    def forget_changes(self) -> None:
        """Measure what is under way no further: its time would not be the job's own."""
        self._decided.clear()

    def cost(self, role: str, seconds: float) -> None:
        """Note that a change of the number of a role has cost so much."""
        self._costs[role].append(seconds)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The throughput by configuration."""
        return tuple(self._samples.values())

    @property
    def resize(self) -> Resize:
        """The mean of what the last changes have cost."""
        return Resize(_mean(self._costs[WORKER]), _mean(self._costs[SERVER]))

    def _add(self, configuration: Configuration, records: int, seconds: float) -> None:
        if seconds <= 0:
            return
        before = self._samples.pop(configuration, None)
        done = self._done[configuration] = self._done.get(configuration, 0) + records
        measured_s, looks = seconds, 1
        if before is not None:
            measured_s, looks = before.seconds + seconds, before.looks + 1
        self._samples[configuration] = Sample(
            **vars(configuration),
            records_per_s=done / measured_s,
            seconds=measured_s,
            looks=looks,
            phases=self._spent.get(configuration, Spent()).means(),
        )
        if len(self._samples) > _MOST:
            oldest = next(iter(self._samples))
            del self._samples[oldest], self._done[oldest]
            self._spent.pop(oldest, None)

    def _end_changes(self, now: float) -> None:
        for role, since in self._decided.items():
            self.cost(role, now - since)
        self._decided.clear()


def _mean(values: deque[float]) -> float | None:
    return sum(values) / len(values) if values else None

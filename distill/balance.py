"""The choice of a teacher for a request, by what the student knows of each. Pure.

Of two teachers at random, the one that will be through sooner: rows that it has before this
request, by the rows a second that it says it computes (Mitzenmacher, "The Power of Two Choices in
Randomized Load Balancing", 2001). One that is full, or did not answer, is left alone for a while;
one that answers wrongly is asked no more.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from ..common.retry import Backoff

MOST_STRIKES = 3  # wrong answers of one teacher
_BACKOFF = Backoff(0.05, 2.0)  # of one that is full or did not answer
_LEAST_KNOWN = 20  # answers, before one can be late
_LATE = 2.0  # times the 95th percentile


@dataclass
class Standing:
    """A teacher's load, speed and faults, as this student knows them."""

    outstanding: int = 0  # rows that this student has asked it about
    queued: int = 0  # rows that it said were waiting there
    rate: float = 0.0  # rows a second that it said it computes; 0: unknown
    not_before: float = 0.0
    misses: int = 0  # in a row
    strikes: int = 0
    answered: int = 0  # rows
    is_out: bool = False


class Balance:
    """The teachers that there are, and what each of them has to do."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._teachers: dict[str, Standing] = {}
        self._took: deque[float] = deque(maxlen=200)

    @property
    def teachers(self) -> dict[str, Standing]:
        return self._teachers

    @property
    def there(self) -> list[str]:
        """The teachers that may be asked, now or in a while."""
        return [name for name, each in self._teachers.items() if not each.is_out]

    def update(self, names: Collection[str]) -> None:
        """Know these teachers from now on, and no others."""
        for name in [each for each in self._teachers if each not in names]:
            del self._teachers[name]
        for name in names:
            self._teachers.setdefault(name, Standing())

    def choose(self, now: float, rows: int, but: Collection[str] = ()) -> str | None:
        """Return whom to ask about so many rows; None: nobody can be asked now."""
        free = [
            name
            for name, each in self._teachers.items()
            if name not in but and not each.is_out and each.not_before <= now
        ]
        if len(free) > 2:
            free = self._rng.sample(free, 2)
        known = [each.rate for each in self._teachers.values() if each.rate]
        usual = sum(known) / len(known) if known else 1.0
        return min(free, key=lambda name: self._through_s(name, rows, usual), default=None)

    def _through_s(self, name: str, rows: int, usual: float) -> float:
        it = self._teachers[name]
        return (max(it.outstanding, it.queued) + rows) / (it.rate or usual)

    def next_free(self, but: Collection[str] = ()) -> float | None:
        """Return when `choose` may have somebody whom it has not now."""
        times = (
            each.not_before
            for name, each in self._teachers.items()
            if name not in but and not each.is_out
        )
        return min(times, default=None)

    def sent(self, name: str, rows: int) -> None:
        """Note that a teacher was asked."""
        self._teachers[name].outstanding += rows

    def ended(self, name: str, rows: int) -> Standing | None:
        """Note that a request is over, however; None: the teacher is no more known."""
        it = self._teachers.get(name)
        if it is not None:
            it.outstanding = max(0, it.outstanding - rows)
        return it

    def answered(self, name: str, rows: int, took_s: float, queued: int, rate: float) -> None:
        """Note an answer, and what came with it."""
        self._took.append(took_s)
        if (it := self.ended(name, rows)) is not None:
            it.queued, it.rate = queued, rate or it.rate
            it.misses = it.strikes = 0
            it.answered += rows

    def missed(self, name: str, rows: int, now: float) -> None:
        """Note that a teacher was full, or did not answer: it is left alone for a while."""
        if (it := self.ended(name, rows)) is not None:
            it.misses += 1
            it.not_before = now + _BACKOFF.after(it.misses)

    def wrong(self, name: str, rows: int, most: int = MOST_STRIKES) -> bool:
        """Note a wrong answer. True: it was one too many, and the teacher is asked no more."""
        it = self.ended(name, rows)
        if it is None or it.is_out:
            return False
        it.strikes += 1
        it.is_out = it.strikes >= most
        return it.is_out

    def late_after(self) -> float | None:
        """Return after how many seconds an answer is late; None: nobody can say yet."""
        if len(self._took) < _LEAST_KNOWN:
            return None
        ordered = sorted(self._took)
        return _LATE * ordered[int(0.95 * (len(ordered) - 1))]

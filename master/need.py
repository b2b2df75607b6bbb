"""The number of teachers that a job needs, by the share of time in which its workers wait. Pure.

`Need.look` is shown a moment of the job each second or so. It returns a number of teachers, and
why, where that is to be another one. A student that never waited would use so many records a second
as it uses now, divided by the share of time in which it does not wait; a teacher teaches so many as
it does, divided by the share of time in which it computes. The need is the one by the other, and a
fifth more.

  more    where workers wait above 2 % of the last 10 s, and have for so long. What starts is on its
          way: until all that are wanted teach, and have for 10 s, nothing is added. Where answers
          are late for a minute from as many as are needed, one more comes.
  fewer   where for 60 s fewer would have done, with a tenth more than that margin. A number at
          which workers waited is not gone back to while as much is needed as then.
  none    only where none are allowed, and nothing was asked for 60 s; who waits then gets one at
          once.
  same    near the end: where a start takes longer than the waits that it would save.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

MOST_WAITED = 0.02  # share of time
MARGIN = 1.2
LOOKED_AT_S = 10.0  # before more are wanted
LATE_AT_S = 60.0  # before one more is than is needed, for answers that are late all the same
SPARED_S = 60.0  # before fewer are
_SLACK = 1.1  # times the margin, in which a number is kept: above what estimates err by
_LESS = 0.8  # of what was needed when a number did not do, so that it may do again
_LEAST_FREE = 0.05  # share of time without waiting: what one look can tell apart
_KEPT = 0.97  # of what is known of a teacher's speed, a look later
_MOST_TIMES = 4  # as many at once: the less workers wait, the better is the estimate
_GAP_S = 5.0  # between two looks, after which what was seen before tells nothing
_MOST_AWAY_S = 60.0  # one that is on its way for longer is not waited for
_START_S = 10.0  # a guess, until a start was seen


@dataclass(frozen=True)
class Taught:
    """What a teacher told of the second before: records, the share of it computing, what waits."""

    rows_per_s: float
    busy_share: float
    queued: float


@dataclass(frozen=True)
class Look:
    """What is seen of a job at a moment.

    `records_per_s`: of all workers; `wait_share`: of their time; `teaching`: the teachers that do;
    `wanted`: of these, and of those on their way; `records_left`: None: nobody knows.
    """

    now: float
    records_per_s: float
    wait_share: float
    teaching: Sequence[Taught]
    wanted: int
    records_left: int | None = None


@dataclass(frozen=True)
class Choice:
    """Another number of teachers, and why."""

    number: int
    why: str


class Need:
    """The need of one job, within its bounds."""

    def __init__(self, least: int, most: int, start_s: float = 0.0) -> None:
        """Know nothing yet. `start_s`: what a start took, where that was seen; 0: it was not."""
        self.least, self.most = least, most
        self.start_s = start_s or _START_S
        self._key = (0, 0)  # wanted, and teaching
        self._looks: deque[Look] = deque()  # of the last 10 s, all of the same key
        self._looked: float | None = None
        self._asked = 0.0  # when anything was asked last
        self._away: float | None = None  # since when not all that are wanted teach
        self._spared = deque[tuple[float, int]]()  # looks in a row at which so few would do
        self._waits: float | None = None  # since when workers wait more than they may
        self._short = (0, 0.0)  # a number that did not do, and the teachers in use then
        self._taught = self._busy_s = 0.0  # by teachers: what tells their speed

    def bound(self, least: int, most: int) -> None:
        """Keep within these bounds from now on."""
        self.least, self.most = least, most
        self._short = (0, 0.0)
        self._spared.clear()

    def look(self, look: Look) -> Choice | None:
        """Return how many teachers are to be wanted, where that is another number."""
        self._see(look)
        within = min(max(look.wanted, self.least), self.most)
        if within != look.wanted:
            return Choice(within, f"from {self.least} to {self.most} are allowed")
        if not look.wanted:
            waits = look.wait_share > MOST_WAITED and self.most > 0
            return Choice(1, "a worker waits, and no teacher is there") if waits else None
        if self._is_away(look):
            return None
        choice = self._more(look) or self._fewer(look)
        if choice is None or not self._pays(look):
            return None
        self._spared.clear()
        return choice

    # -- what is seen

    def _see(self, look: Look) -> None:
        now, key = look.now, (look.wanted, len(look.teaching))
        if self._looked is None or now - self._looked > _GAP_S:
            self._asked = now
            self._looks.clear()
            self._spared.clear()
        if key != self._key:
            self._key = key
            self._looks.clear()
        if not self._looks:
            self._waits = None
        self._looked = now
        self._looks.append(look)
        while now - self._looks[0].now >= LOOKED_AT_S:
            self._looks.popleft()
        rows = sum(each.rows_per_s for each in look.teaching)
        busy_s = sum(each.busy_share for each in look.teaching)
        self._taught = _KEPT * self._taught + rows
        self._busy_s = _KEPT * self._busy_s + busy_s
        if rows or look.wait_share > 0 or any(each.queued for each in look.teaching):
            self._asked = now
        if self._mean("wait_share") <= MOST_WAITED:
            self._waits = None
        elif self._waits is None:
            self._waits = now

    def _is_away(self, look: Look) -> bool:
        """Tell whether some are on their way, and are to be waited for; measure how long it took.

        Those that come back after a loss are so, too.
        """
        if len(look.teaching) >= look.wanted:
            if self._away is not None:
                self.start_s = max(look.now - self._away, 1.0)
                self._away = None
            return False
        if self._away is None:
            self._away = look.now
            self._spared.clear()
        return look.now - self._away < max(_MOST_AWAY_S, 3 * self.start_s)

    def _mean(self, what: str) -> float:
        return math.fsum(getattr(each, what) for each in self._looks) / len(self._looks)

    def _in_use(self) -> float | None:
        """Return how many teachers would be busy all the time if no worker waited; None: unknown.

        Nothing was taught yet, or nothing was used.
        """
        rate = self._mean("records_per_s")
        if not (rate and self._taught and self._busy_s):
            return None
        free = max(1 - self._mean("wait_share"), _LEAST_FREE)
        return rate / free * self._busy_s / self._taught

    # -- what follows

    def _more(self, look: Look) -> Choice | None:
        # What was seen before they waited is out of sight by then.
        if self._waits is None or look.now - self._waits < LOOKED_AT_S:
            return None
        share = self._mean("wait_share")
        told = f"the workers wait {share:.0%} of the time"
        in_use = self._in_use()
        if in_use is None:
            number, why = look.wanted + 1, "nothing is known yet of what a teacher teaches"
        else:
            number, why = _rounded(MARGIN * in_use), self._rates(in_use)
            if number == look.wanted and look.now - self._waits >= LATE_AT_S:
                number += 1
        number = min(number, _MOST_TIMES * look.wanted, self.most)
        if number <= look.wanted:
            return None
        self._short = (look.wanted, in_use or 0.0)
        return Choice(number, f"{told}; {why}")

    def _fewer(self, look: Look) -> Choice | None:
        if look.now - self._asked >= SPARED_S:
            if look.wanted > self.least:
                return Choice(self.least, f"nothing was asked for {SPARED_S:.0f} s")
            return None
        in_use = self._in_use()
        if in_use is None or look.wanted <= max(self.least, 1):
            return None
        short, then = self._short
        floor = max(self.least, 1, short + 1 if in_use > _LESS * then else 0)
        if max(_rounded(MARGIN * _SLACK * in_use), floor) >= look.wanted:
            self._spared.clear()
            return None
        self._spared.append((look.now, max(_rounded(MARGIN * in_use), floor)))
        if look.now - self._spared[0][0] < SPARED_S:
            return None
        while look.now - self._spared[0][0] > SPARED_S - LOOKED_AT_S:  # as these still show before
            self._spared.popleft()
        number = max(few for _, few in self._spared)
        return Choice(number, f"fewer have done for {SPARED_S:.0f} s; {self._rates(in_use)}")

    def _pays(self, look: Look) -> bool:
        """Tell whether enough is left for a change: more time is won than a start takes."""
        rate = self._mean("records_per_s")
        if look.records_left is None or not rate:
            return True
        left_s = look.records_left / rate
        share = self._mean("wait_share")
        if share > MOST_WAITED:
            return share * (left_s - self.start_s) > self.start_s
        return left_s > 2 * self.start_s  # so that nobody who is sent away is missed

    def _rates(self, in_use: float) -> str:
        speed = self._taught / self._busy_s
        return (
            f"without waiting they use {_told(in_use * speed)} records/s, "
            f"and a teacher teaches {_told(speed)}"
        )


def _rounded(number: float) -> int:
    """Round up."""
    return max(1, math.ceil(number - 1e-6))


def _told(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"

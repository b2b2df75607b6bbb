"""A job's teachers by need, simulated: load, teachers and the share of waiting over time.

    python -m benchmarks.teachers_need     # docs/teachers-need.svg

A student takes a minibatch after the other, each as soon as its answer is there, and asks ahead so
far as a worker does. Teachers come a start's time after they are wanted, answer in the order of
questions, each a little faster or slower than the mean. All tell of themselves by heartbeats of
a second, some of which are late; what they tell is shown to master/need.py, and what that says is
done. tests/unit/master/test_need.py plays the same.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from benchmarks import page
from edl.master.need import MARGIN, Choice, Look, Need, Taught

MINIBATCH = 32
_NOISE = 0.15  # of the time of an answer, as the deviation of its logarithm
_LATE = 0.2  # of the heartbeats
_NOTHING = Taught(0.0, 0.0, 0.0)
_MEAN_S = 5  # of a point of the picture
PICTURE = page.DOCS / "teachers-need.svg"


@dataclass
class Teacher:
    """A teacher: from when on it answers, until when it is busy, and with what."""

    since: float
    free_at: float
    work: deque[tuple[float, float]] = field(default_factory=deque)  # from when to when
    told: Taught = _NOTHING
    last: Taught = _NOTHING  # before that


@dataclass
class Told:
    """A heartbeat of the student: its rate, and the share of time that it waits."""

    records_per_s: float = 0.0
    wait_share: float = 0.0


class Fleet:
    """A student and its teachers. Times are seconds of the simulation."""

    def __init__(
        self,
        load: Callable[[float], float],
        speed: float,
        *,
        most: int,
        rng: Random,
        start_s: float = 5.0,
    ) -> None:
        """Begin without teachers.

        `load(t)`: records a second that the student uses when it does not wait. `speed`: those that
        a teacher teaches. `most`: teachers, by which a student asks ahead.
        """
        self.load, self.speed, self.start_s = load, speed, start_s
        self.window, self.threads = 2 * most + 2, max(8, most + 1)  # as in distill/teachers.py
        self._rng = rng
        self.now = 0.0
        self.teachers: list[Teacher] = []
        self._questions: deque[float] = deque([0.0] * self.window)  # to be asked, since when
        self._under_way: list[float] = []  # heap: when questions that were sent are answered
        self._answers: deque[float] = deque()  # from when on they are there, in order
        self._ready = 0.0  # when the student wants the next answer
        self._waits: deque[tuple[float, float]] = deque()
        self._steps: deque[float] = deque()
        self.student, self._last = Told(), Told()
        self.done = 0  # records

    def want(self, number: int) -> None:
        """Start teachers, or send away those that came last, whose answers still come."""
        del self.teachers[number:]
        while len(self.teachers) < number:
            there = self.now + self.start_s
            self.teachers.append(Teacher(there, there))

    def second(self) -> float:
        """Go on for a second; return the share of it in which the student waited."""
        self.now += 1.0
        self._ask()
        while self._step():
            self._ask()
        return self._beat()

    def _ask(self) -> None:
        """Ask whoever is through soonest, as far as there is anybody."""
        there = [each for each in self.teachers if each.since <= self.now]
        while there and self._questions:
            asked = self._questions[0]
            if len(self._under_way) == self.threads:
                asked = max(asked, self._under_way[0])
            if asked > self.now:
                break
            self._questions.popleft()
            teacher = min(there, key=lambda each: each.free_at)
            begins = max(asked, teacher.free_at)
            took_s = MINIBATCH / self.speed * math.exp(self._rng.gauss(0, _NOISE))
            teacher.free_at = begins + took_s
            teacher.work.append((begins, teacher.free_at))
            self._answers.append(teacher.free_at)
            if len(self._under_way) == self.threads:
                heapq.heappop(self._under_way)
            heapq.heappush(self._under_way, teacher.free_at)

    def _step(self) -> bool:
        """Compute a minibatch, where its answer comes by now; it asks about another one."""
        begins = max(self._ready, self._answers[0]) if self._answers else math.inf
        if begins > self.now:
            return False
        self._answers.popleft()
        if begins > self._ready:
            self._waits.append((self._ready, begins))
        self._steps.append(begins)
        self._questions.append(begins)
        self._ready = begins + MINIBATCH / self.load(begins)
        self.done += MINIBATCH
        return True

    def _beat(self) -> float:
        since, now = self.now - 1.0, self.now
        waiting = max(0.0, now - max(self._ready, since))
        share = min(1.0, waiting + _within(self._waits, since, now))
        steps = sum(since < each <= now for each in self._steps)
        self._steps.clear()
        self._last, self.student = self.student, Told(MINIBATCH * steps, share)
        for teacher in self.teachers:
            rows = MINIBATCH * sum(since < end <= now for _, end in teacher.work)
            queued = MINIBATCH * sum(begin > now for begin, _ in teacher.work)
            busy = _within(teacher.work, since, now)
            teacher.last, teacher.told = teacher.told, Taught(rows, busy, queued)
        return share

    def look(self, records_left: int | None = None) -> Look:
        """Return what a master sees: of each the last heartbeat, or the one before."""
        student = self._last if self._rng.random() < _LATE else self.student
        return Look(
            now=self.now,
            records_per_s=student.records_per_s,
            wait_share=student.wait_share,
            teaching=[
                each.last if self._rng.random() < _LATE else each.told
                for each in self.teachers
                if each.since <= self.now
            ],
            wanted=len(self.teachers),
            records_left=records_left,
        )


def _within(spans: deque[tuple[float, float]], since: float, until: float) -> float:
    """Return how long the spans last between two times, and forget those that are over by then."""
    seconds = sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in spans)
    while spans and spans[0][1] <= until:
        spans.popleft()
    return seconds


def needed(load: float, speed: float) -> int:
    """Return how many teachers a load needs, by what the simulation knows."""
    return math.ceil(MARGIN * load / speed)


@dataclass
class Played:
    """A simulation: by second the teachers that are wanted and the share waited; decisions."""

    wanted: list[int]
    shares: list[float]
    choices: list[tuple[float, Choice]]


def play(
    fleet: Fleet, need: Need, seconds: int, at_first: int, records: int | None = None
) -> Played:
    """Let a need decide for a fleet for so long. `records`: of the job, which may end before."""
    fleet.want(at_first)
    played = Played([], [], [])
    while fleet.now < seconds and (records is None or fleet.done < records):
        played.shares.append(fleet.second())
        choice = need.look(fleet.look(None if records is None else records - fleet.done))
        if choice is not None:
            fleet.want(choice.number)
            played.choices.append((fleet.now, choice))
        played.wanted.append(len(fleet.teachers))
    return played


def _changes(values: Sequence[int]) -> list[tuple[float, float]]:
    """Return the seconds at which the value is another one, and the last second."""
    last = len(values) - 1
    kept = [t for t in range(last) if not t or values[t] != values[t - 1]]
    return [(float(t), float(values[t])) for t in (*kept, last)]


def _means(shares: Sequence[float]) -> list[tuple[float, float]]:
    """Return percents of some seconds each."""
    starts = range(0, len(shares), _MEAN_S)
    return [(float(t), 100 * sum(shares[t : t + _MEAN_S]) / _MEAN_S) for t in starts]


def main() -> None:
    """Draw a load that doubles, and halves twice."""
    loads = [(0, 500.0), (180, 1000.0), (420, 500.0), (660, 250.0), (900, 250.0)]

    def load(t: float) -> float:
        return next(rate for since, rate in reversed(loads) if t >= since)

    speed, seconds = 110.0, 900
    fleet = Fleet(load, speed, most=16, rng=Random(0))
    played = play(fleet, Need(1, 16), seconds, 1)
    for t, choice in played.choices:
        print(f"{t:4.0f} s  {choice.number:2d}  {choice.why}")
    panels = [
        page.Panel(
            "Records/s without waiting",
            "seconds",
            {f"used (a teacher teaches {speed:.0f})": loads},
            True,
        ),
        page.Panel(
            "Teachers",
            "seconds",
            {
                "wanted": _changes(played.wanted),
                "needed": [(t, float(needed(rate, speed))) for t, rate in loads],
            },
            True,
        ),
        page.Panel(
            "Share of time waited, %",
            "seconds",
            {f"of the workers, mean of {_MEAN_S} s": _means(played.shares)},
            True,
        ),
    ]
    PICTURE.write_text(page.picture(panels))


if __name__ == "__main__":
    main()

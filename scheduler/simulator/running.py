"""A job that is played: where it runs, how far it has come, and what it reports."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from ..cluster import Resources
from ..jobs import Job, Shape
from ..speed import unknown_speed
from .application import Placement, Traced
from .learned import Batch, Learning, Measured, Speeds
from .workload import Arrival

_ROUNDING = 1e-6  # steps: errors of floats; what was to end just now has ended


class Running:
    """A job from its arrival to its end.

    `stated`: the progress at which its user says that it ends; None: nobody says.
    """

    def __init__(
        self,
        arrival: Arrival,
        application: Traced,
        learning: Learning,
        restart_s: float,
        stated: float | None,
    ) -> None:
        """Take a job that has nothing yet."""
        self.arrival = arrival
        self.ended: float | None = None  # s
        self.restarts = 0
        self.gpu_s = 0.0
        self.workers_on: dict[str, int] = {}
        self.lost = 0.0  # share of its speed, to others on its nodes
        self._application = application
        self._learning = learning
        self._restart_s = restart_s
        self._stated = stated
        self._placement: Placement = ()
        self._batch: Batch = (0, 0)
        self._delay_s = 0.0  # until it goes on where it has been placed
        self._epoch = 0
        self._progress = 0.0  # steps of the initial batch size
        self._measured: Measured = {}
        self._speeds: Speeds | None = None
        self._waits_since: float | None = arrival.submitted
        self._ran = False

    def place(self, workers_on: Mapping[str, int], now: float) -> None:
        """Put it on these nodes, in their order: it goes on there after a while.

        Where it is already it goes on at once, and on no nodes it waits.
        """
        if workers_on == self.workers_on:
            return
        self.workers_on = dict(workers_on)
        self._placement = tuple(workers_on.values())
        if not workers_on:
            self._waits_since = now
            return
        self._waits_since = None
        self._delay_s = self._restart_s
        self.restarts += self._ran
        self._ran = True
        self._choose()

    def advance(self, now: float, until: float) -> None:
        """Let it run. It ends where its last epoch does."""
        if not self._placement:
            return
        gpus = sum(self._placement)
        begun = now
        delay_s = min(self._delay_s, until - now)
        self._delay_s -= delay_s
        now += delay_s
        while now < until and self.ended is None:
            speed = self._measure() * (1 - self.lost)
            left = self._application.end_of(self._epoch) - self._progress
            if left - speed * (until - now) > _ROUNDING:
                self._progress += speed * (until - now)
                now = until
            else:
                now = min(until, now + left / speed)
                self._progress += left
                self._epoch += 1
                if self._epoch == self._application.epochs:
                    self.ended = now
            self._choose()
        self.gpu_s += gpus * (now - begun)

    def job(self, most: int) -> Job:
        """Return it as a scheduler sees it. `most`: the GPUs of the cluster."""
        if self._speeds is not None:
            self._learning.report(self._measured, self._speeds)
        elif self._learning.last is not None:
            self._measured, self._speeds = self._learning.last
        held = Shape(sum(self._placement), 0, len(self._placement))
        left, speed = self._left(), self._speeds or unknown_speed
        profiled = max((replicas for _, replicas, _ in self._measured), default=0)
        return Job(
            name=self.arrival.name,
            speed=speed,
            worker=Resources(gpu=1),
            submitted=self.arrival.submitted,
            maximum=min(most, self._application.replicas, max(1, 2 * profiled)),
            left=left,
            held=held,
            workers_on=self.workers_on,
            resize_s=self._restart_s,
            resizes=self.restarts,
            served_s=self.gpu_s,
            waits_since=self._waits_since,
            is_nearly_done=left is not None and left < speed(held) * self._restart_s,
        )

    def end_by(self, now: float, until: float) -> float | None:
        """Return when it would end, if it runs on as it is; None: later than `until`."""
        played = copy.copy(self)  # a shallow one: what it holds is replaced, never changed
        played.advance(now, until)
        return played.ended

    def _measure(self) -> float:
        """Learn from the step that it makes now, and return how fast it makes progress."""
        application, placement = self._application, self._placement
        (local, accum), replicas = self._batch, sum(placement)
        step_s, sync_s = application.step_s(placement, local)
        batch, least = replicas * local * (accum + 1), application.batch_range[0]
        grad = application.gradient(batch, self._epoch)
        measured_at = len(placement), replicas, local
        if measured_at not in self._measured:
            self._measured = {**self._measured, measured_at: (step_s - sync_s, step_s)}
        self._speeds = self._learning.speeds(self._measured, grad)
        gain = (grad.var + grad.sqr) / (grad.var * least / batch + grad.sqr)
        return gain / (step_s + accum * (step_s - sync_s))

    def _choose(self) -> None:
        placement = self._placement
        self._batch = self._learning.batch(self._speeds, len(placement), sum(placement))

    def _left(self) -> float | None:
        """Return the records that are left as its user says: until the epoch's end at least."""
        if self._stated is None or self._speeds is None:
            return None
        end = max(self._stated, self._application.end_of(self._epoch))
        return (end - self._progress) * self._application.batch_range[0]

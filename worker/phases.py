"""The phases of a worker's minibatches, where the model is on servers: summed up, for schedulers.

And, of any worker, what its computing thread stood still for: what people see of a job's goodput.

A few readings of the clock a minibatch. The sums travel with each heartbeat; the master takes their
differences (master/recorder.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

DATA, COMPUTE, PULL, PUSH = "data", "compute", "pull", "push"
SERVERS, WORK = "servers", "work"  # causes of waits, as is DATA
Answer = TypeVar("Answer")


class Phases:
    """The seconds of each phase so far, and the bytes that were pushed to each server.

    Any thread may call.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._minibatches = 0
        self._spent_s = dict.fromkeys((DATA, COMPUTE, PULL, PUSH), 0.0)
        self._nbytes: list[int] = []  # by server

    @contextmanager
    def of(self, phase: str) -> Iterator[None]:
        """Count the time of the block to this phase, unless it raises."""
        began = self._clock()
        yield
        spent_s = self._clock() - began
        with self._lock:
            self._spent_s[phase] += spent_s

    def pushed(self, nbytes: Sequence[int]) -> None:
        """Count a minibatch whose push was answered: so many bytes to each server."""
        with self._lock:
            self._minibatches += 1
            if not self._nbytes:
                self._nbytes = [0] * len(nbytes)
            for index, mine in enumerate(nbytes):
                self._nbytes[index] += mine

    def scalars(self) -> dict[str, float]:
        """Return the sums, for a heartbeat; empty before the first minibatch."""
        with self._lock:
            if not self._minibatches:
                return {}
            return {
                "phase_minibatches": float(self._minibatches),
                **{f"phase_{name}_s": spent_s for name, spent_s in self._spent_s.items()},
                "phase_nbytes": float(sum(self._nbytes)),
                "phase_hottest_nbytes": float(max(self._nbytes, default=0)),
            }


class Waits:
    """The seconds in which a worker's computing thread stood still so far, by what it waited for.

    Only that thread counts; any thread may read. What is never counted is not told: `causes` are
    those that this worker measures.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._waited_s: dict[str, float] = {}

    def measure(self, *causes: str) -> None:
        """Tell, from now on, how long was waited for these."""
        self._waited_s |= dict.fromkeys(causes, 0.0)

    @contextmanager
    def on(self, cause: str) -> Iterator[None]:
        """Count the time of the block, unless it raises or the cause is none that is measured."""
        began = self._clock()
        yield
        if cause in self._waited_s:
            self._waited_s[cause] += self._clock() - began

    def answer(self, answer: Future[Answer]) -> Answer:
        """Return the servers' answer, and count the wait unless it is there already."""
        if answer.done():  # as nearly always: that costs a step next to nothing
            return answer.result()
        with self.on(SERVERS):
            return answer.result()

    def scalars(self) -> dict[str, float]:
        """Return the sums, for a heartbeat."""
        return {f"waited_{cause}_s": waited_s for cause, waited_s in self._waited_s.items()}

"""Requests become batches of a model: what is queued, up to a size, split and merged. Pure.

The words are Triton's: a batch takes what is queued, up to `max_batch_size` rows; while it is not
full, it waits until its oldest request has waited for `max_queue_delay_s`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")
Asked = TypeVar("Asked", bound="Request[Any]")
_GAIN = 1.05  # of rows a second, which makes a larger batch worth it
_MOST_TRIED = 1 << 12
_KEPT = 0.8  # of the rows and seconds so far, beside those of the next batch


@dataclass(eq=False)
class Request(Generic[Answer]):
    """Rows that somebody asks about.

    `asked`: what about. `kind`: what requests must have in common to be merged; None: this one is
    computed alone. `pieces`: answers by their first row, whose rows are `answered`.
    """

    rows: int
    kind: Hashable | None
    came: float
    asked: Answer
    pieces: dict[int, Answer] = field(default_factory=dict)
    answered: int = 0
    taken: int = 0  # rows that are in batches
    error: str = ""  # why there will be no answer

    @property
    def is_over(self) -> bool:
        """Tell whether a request has its whole answer, or will have none."""
        return bool(self.error) or self.answered == self.rows


Piece = tuple[Asked, int, int]  # rows [start, stop) of a request


class Queue(Generic[Asked]):
    """Requests in the order in which they came."""

    def __init__(self, max_batch_size: int, max_queue_delay_s: float, max_queued: int) -> None:
        """Hold at most `max_queued` rows, or one request of more than these."""
        self.max_batch_size = max_batch_size
        self.max_queue_delay_s = max_queue_delay_s
        self.max_queued = max_queued
        self.queued = 0  # rows in no batch yet
        self._waiting: deque[Asked] = deque()

    def add(self, request: Asked) -> bool:
        """Queue a request; False: there is no room."""
        if self.queued and self.queued + request.rows > self.max_queued:
            return False
        self._waiting.append(request)
        self.queued += request.rows
        return True

    @property
    def first(self) -> Asked | None:
        """The oldest request that waits, if one does."""
        return self._waiting[0] if self._waiting else None

    def drop(self, request: Asked, why: str) -> None:
        """Give up a request."""
        request.error = why
        if request in self._waiting:
            self._waiting.remove(request)
            self.queued -= request.rows - request.taken

    def ready_at(self) -> float | None:
        """Return from when on `take` has a batch that should not wait; None: there is none."""
        if not self._waiting:
            return None
        if self.queued >= self.max_batch_size or self._waiting[0].kind is None:
            return self._waiting[0].came
        return self._waiting[0].came + self.max_queue_delay_s

    def take(self) -> list[Piece[Asked]]:
        """Take the next batch: pieces of requests of one kind, the oldest first."""
        if not self._waiting:
            return []
        first = self._waiting[0]
        if first.kind is None:
            self._waiting.popleft()
            self.queued -= first.rows
            first.taken = first.rows
            return [(first, 0, first.rows)]
        batch: list[Piece[Asked]] = []
        left = self.max_batch_size
        for request in [each for each in self._waiting if each.kind == first.kind]:
            count = min(left, request.rows - request.taken)
            fits_alone = request.rows <= self.max_batch_size
            if batch and fits_alone and count < request.rows:
                break  # it is not split for this one's sake
            batch.append((request, request.taken, request.taken + count))
            request.taken += count
            self.queued -= count
            left -= count
            if request.taken == request.rows:
                self._waiting.remove(request)
            if not left:
                break
        return batch


def best_size(seconds: Callable[[int], float], most: int = _MOST_TRIED) -> int:
    """Return the batch size, a power of two, at which a model computes the most rows a second.

    `seconds(rows)` computes a batch of so many rows and returns how long that took; it raises
    MemoryError where there is no room for it. Larger sizes are tried until two in a row gain less
    than 5 %.
    """
    best, best_rate, without_gain = 1, 0.0, 0
    size = 1
    while size <= most and without_gain < 2:
        try:
            rate = size / max(seconds(size), 1e-9)
        except MemoryError:
            break
        if rate > best_rate * _GAIN:
            best, best_rate, without_gain = size, rate, 0
        else:
            without_gain += 1
        size *= 2
    return best


class Rate:
    """The rows a second of a model, by its last batches.

    Rows and seconds are smoothed, each for itself: a model that becomes ten times slower says so
    after a few batches, which are long ones, and students turn to others; a small batch, which has
    few rows a second, hardly counts.
    """

    def __init__(self) -> None:
        self._rows = self._seconds = 0.0

    def note(self, rows: int, took_s: float) -> None:
        """Note a batch."""
        self._rows = _KEPT * self._rows + rows
        self._seconds = _KEPT * self._seconds + took_s

    @property
    def value(self) -> float:
        """Rows a second; 0: unknown."""
        return self._rows / self._seconds if self._seconds else 0.0

"""A page of memory that says what the threads of a worker do now; to read it needs no lock, no GIL.

A thread that enters the user's code writes since when, and at which records; the keeper
(keeper.py), a process of its own, reads it however long that code keeps the GIL. Two threads run
user code: the main one, and the one that reads ahead.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final

# What can be entered; a worker is in one of these or in none.
KINDS: Final = (
    "the import of the definition",
    "the opening of the data",
    "the making of the model",
    "on_train_begin",
    "feed",
    "a step",
    "an evaluation",
    "a prediction",
    "the end of a task",
    "an analysis",
    "a callback",
)
IMPORT, OPEN, MODEL, BEGIN, FEED, STEP, EVALUATE, PREDICT, END, ANALYZE, CALLBACK = range(
    len(KINDS)
)

_LIFE = struct.Struct("<64sddq")  # incarnation, lease_s, hang_s, round
_BEAT = struct.Struct("<d")  # when the master heard the worker last
_PLACE = struct.Struct("<dqqqqq")  # since (0: nowhere), kind, task, attempt, start, end
_BEAT_AT = _LIFE.size
_PLACES_AT = (_BEAT_AT + _BEAT.size, _BEAT_AT + _BEAT.size + _PLACE.size)
_NONE = -1

_page: mmap.mmap | bytearray = bytearray(mmap.PAGESIZE)
_main = threading.main_thread().ident


def share() -> None:
    """Write to a page that processes forked from this one read, too, from now on."""
    global _page, _main
    _page, _main = mmap.mmap(-1, mmap.PAGESIZE), threading.main_thread().ident


def live(incarnation: str, *, lease_s: float = 0.0, hang_s: float = 0.0) -> None:
    """Note that the worker is this incarnation now ("": none), and has just been heard."""
    _LIFE.pack_into(_page, 0, incarnation.encode(), lease_s, hang_s, 0)
    beat()


def in_round(number: int) -> None:
    """Note that the worker's leases are those of this round."""
    name, lease_s, hang_s, _ = _LIFE.unpack_from(_page)
    _LIFE.pack_into(_page, 0, name, lease_s, hang_s, number)


def beat() -> None:
    """Note that the master has heard this worker."""
    _BEAT.pack_into(_page, _BEAT_AT, time.monotonic())


def excuse() -> None:
    """Count all threads' times from now again: they wait for others that are known to be late."""
    for at in _PLACES_AT:
        since, *rest = _PLACE.unpack_from(_page, at)
        if since:
            _PLACE.pack_into(_page, at, time.monotonic(), *rest)


class section:
    """A section in which this thread is in the user's code: `with section(STEP, task, ...):`."""

    __slots__ = ("_at", "_before", "_fields")

    def __init__(
        self, kind: int, task: int = _NONE, attempt: int = 0, start: int = 0, end: int = 0
    ) -> None:
        self._fields = (kind, task, attempt, start, end)

    def __enter__(self) -> None:
        self._at = _PLACES_AT[threading.get_ident() != _main]
        self._before = _PLACE.unpack_from(_page, self._at)
        _PLACE.pack_into(_page, self._at, time.monotonic(), *self._fields)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _PLACE.pack_into(_page, self._at, *self._before)


@dataclass(frozen=True)
class Place:
    """The place where a thread is."""

    since: float
    kind: int
    task: int
    attempt: int
    start: int
    end: int

    def __str__(self) -> str:
        what = KINDS[self.kind]
        if self.task == _NONE:
            return what
        if self.start == self.end:
            return f"{what} ({self.task})"
        return f"{what} (positions {self.start}-{self.end} of task {self.task})"

    @property
    def of_task(self) -> bool:
        return self.task != _NONE


@dataclass(frozen=True)
class Pulse:
    """All that the page said when it was read: whose life it is, its last beat, the places."""

    incarnation: str
    lease_s: float
    hang_s: float
    round: int
    heard: float
    places: tuple[Place, ...]

    @property
    def longest(self) -> Place | None:
        """The place where a thread has been longest, if one is anywhere."""
        return min(self.places, key=lambda place: place.since, default=None)


def read() -> Pulse:
    name, lease_s, hang_s, number = _LIFE.unpack_from(_page)
    (heard,) = _BEAT.unpack_from(_page, _BEAT_AT)
    places = (Place(*_PLACE.unpack_from(_page, at)) for at in _PLACES_AT)
    there = tuple(place for place in places if place.since)
    return Pulse(name.rstrip(b"\0").decode(), lease_s, hang_s, number, heard, there)

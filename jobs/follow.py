"""Follow a job to its end: a source of events says what happens, a screen shows it.

The source's threads and the signal handler only put events into one queue, which the main thread
turns into output. So no wait misses anything, and nothing but the main thread draws.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Protocol, Self

from .job import Status

_TICK_S = 1.0


class Screen(Protocol):
    """A place to show a job: `show` each status, `note` what this process does, `end` once."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    def show(self, status: Status) -> None: ...
    def note(self, text: str) -> None: ...
    def end(self, status: Status, exit_code: int) -> None: ...


@dataclass(frozen=True)
class Interrupt:
    """An event: Ctrl-C, or SIGTERM."""


@dataclass(frozen=True)
class Tick:
    """An event: nothing else happened for a second."""


@dataclass(frozen=True)
class Note:
    """A line for the user: as an event it is shown as it is."""

    text: str


@dataclass(frozen=True)
class End:
    """The command is over. `status` None: nothing is shown of it."""

    status: Status | None
    exit_code: int


class Source(Protocol):
    """A source of what happens to one job, which acts on Ctrl-C."""

    def open(self, put: Callable[[object], None]) -> None:
        """Start what puts events. Any thread may call `put`."""

    def take(self, event: object) -> Iterator[Note | Status | End]:
        """Yield what is to be shown of an event. Raises what ends the command with an error."""

    def close(self) -> None: ...


def follow(source: Source, screen: Screen) -> int:
    """Show the job until it ends; return the exit code. Raises as the source does."""
    events: SimpleQueue[object] = SimpleQueue()
    try:
        with _interrupts(lambda: events.put(Interrupt())), screen:
            source.open(events.put)
            while True:
                for shown in source.take(_next(events)):
                    if isinstance(shown, Note):
                        screen.note(shown.text)
                    elif not isinstance(shown, End):
                        screen.show(shown)
                    else:
                        if shown.status is not None:
                            screen.end(shown.status, shown.exit_code)
                        return shown.exit_code
    finally:
        source.close()


def _next(events: SimpleQueue[object]) -> object:
    try:
        return events.get(timeout=_TICK_S)
    except Empty:
        return Tick()


@contextlib.contextmanager
def _interrupts(tell: Callable[[], None]) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into events."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        tell()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)

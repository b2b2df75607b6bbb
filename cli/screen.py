"""Screens of `edl train` while a job runs: a live panel, plain lines, or JSON lines.

A screen is shown each status and decides what of it is worth printing; `end` prints the summary.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import IO, TYPE_CHECKING, Any, Self, TextIO

from ..common import finite
from ..common.clock import Clock, MonotonicClock
from ..common.log import timestamp
from ..common.plain import encodable, inert_lines
from ..jobs import figures, view
from ..jobs.follow import Screen
from ..jobs.job import Status
from .next_command import next_command

if TYPE_CHECKING:
    from rich.console import Console

_LINE_EVERY_S = 10.0


def open_screen(log_format: str, settings: dict[str, Any]) -> Screen:
    """Return the screen for stdout as it is."""
    if log_format == "json":
        return JsonScreen(sys.stdout)
    if sys.stdout.isatty():
        from rich.console import Console

        return LiveScreen(Console(markup=False, emoji=False), settings)
    return PlainScreen(sys.stdout, settings)


class _Printer:
    """A printer of lines, all inert, until that fails: the pipe is closed, the disk is full.

    A job goes on all the same, and so does whoever waits for its exit code.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._lost = False

    def __call__(self, text: str) -> None:
        with self._lock, contextlib.suppress(OSError):
            if not self._lost:
                try:
                    shown = encodable(inert_lines(text), self._stream)
                    print(shown, file=self._stream, flush=True)
                except OSError as error:
                    self._lost = True
                    why = error.strerror or error
                    print(
                        f"edl: nothing more can be printed ({why}); the job goes on",
                        file=sys.stderr,
                    )


class LiveScreen:
    """A panel that is drawn anew in place."""

    def __init__(self, console: Console, settings: dict[str, Any]) -> None:
        from rich.live import Live

        self._console = console
        self._settings = settings
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._note = ""
        self._status: Status = {"state": "starting", **_named(settings)}

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def show(self, status: Status) -> None:
        if status.get("state") == "running" and self._status["state"] == "starting":
            self._note = ""
        self._status = status
        self._draw()

    def note(self, text: str) -> None:
        self._note = text
        self._draw()

    def _draw(self) -> None:
        message = self._note or self._status.get("message")
        self._live.update(view.panel({**self._status, "message": message}), refresh=True)

    def end(self, status: Status, _exit_code: int) -> None:
        self._live.update(view.panel(status), refresh=True)
        self._live.transient = False
        self._live.stop()
        printed = _Printer(self._console.file)  # rich changes a text, and this is to be copied
        for line in view.summary(status, next_command(status, self._settings)):
            printed(line)


class PlainScreen:
    """A line for each event, and one for the progress every 10 s."""

    def __init__(
        self, stream: TextIO, settings: dict[str, Any], clock: Clock | None = None
    ) -> None:
        self.note = _Printer(stream)
        self._settings = settings
        self._news = _News(clock or MonotonicClock())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing: there is nothing to put back."""

    def show(self, status: Status) -> None:
        events, due = self._news.of(status)
        for event in events:
            self.note(f"[{figures.duration(event['t'])}] {event['text']}")
        if due:
            self.note(view.line(status))

    def end(self, status: Status, _exit_code: int) -> None:
        for event in self._news.of(status)[0]:
            self.note(f"[{figures.duration(event['t'])}] {event['text']}")
        self.note("")
        for line in view.summary(status, next_command(status, self._settings)):
            self.note(line)


class JsonScreen:
    """A screen of one object per line; `event` is note, event, status or end."""

    def __init__(self, stream: TextIO, clock: Clock | None = None) -> None:
        self._printed = _Printer(stream)
        self._news = _News(clock or MonotonicClock())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing: there is nothing to put back."""

    def show(self, status: Status) -> None:
        events, due = self._news.of(status)
        for event in events:
            self._print("event", {"t": event["t"], "msg": event["text"]})
        if due:
            self._print("status", _without_events(status))

    def note(self, text: str) -> None:
        self._print("note", {"msg": text})

    def end(self, status: Status, exit_code: int) -> None:
        for event in self._news.of(status)[0]:
            self._print("event", {"t": event["t"], "msg": event["text"]})
        self._print("end", {**_without_events(status), "exit_code": exit_code})

    def _print(self, event: str, values: dict[str, Any]) -> None:
        line = {"ts": timestamp(time.time()), "role": "edl", "event": event, **values}
        self._printed(finite.dumps(line))


class _News:
    """The news of a status: events not told yet, and whether a line of progress is due."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_at = clock.now()
        self._last: Status | None = None

    def of(self, status: Status) -> tuple[list[Status], bool]:
        events: list[Status] = status.get("events") or []
        if self._last in events:
            place = len(events) - 1 - events[::-1].index(self._last)
            fresh = events[place + 1 :]
        else:
            fresh = events
        self._last = events[-1] if events else self._last
        due = self._clock.now() >= self._due_at and status.get("state") != "starting"
        if due:
            self._due_at = self._clock.now() + _LINE_EVERY_S
        return fresh, due


def _without_events(status: Status) -> Status:
    return {key: value for key, value in status.items() if key != "events"}


def _named(settings: dict[str, Any]) -> Status:
    return {key: settings[key] for key in ("job_name", "command") if key in settings}

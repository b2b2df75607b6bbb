"""The screen of `edl.train`: a block that a notebook draws anew each second, or plain lines."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any, Self

from ..cli.next_command import next_command
from ..cli.screen import JsonScreen, PlainScreen
from ..common.clock import Clock, MonotonicClock
from ..common.plain import inert_lines
from ..common.settings import JobSettings
from ..jobs import figures, view
from ..jobs.follow import Screen
from ..jobs.job import Status
from .page import block

_EVERY_S = 1.0
_EVENTS = 3


def open_screen(settings: JobSettings) -> Screen:
    """Return the screen for this process: a notebook's, or lines on stdout."""
    resolved = dataclasses.asdict(settings)
    if settings.log_format == "json":
        return JsonScreen(sys.stdout)
    if (draw := _of_notebook()) is not None:
        return NotebookScreen(draw, resolved)
    return PlainScreen(sys.stdout, resolved)


def _of_notebook() -> Callable[[str, str], None] | None:
    """Return what draws a text, and the same as HTML, in place; None where there is no notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is None:
        return None
    handle: Any = None

    def draw(text: str, html: str) -> None:
        nonlocal handle
        shown = {"text/plain": text, "text/html": html}
        if handle is None:
            handle = ipython.display.display(shown, raw=True, display_id=True)
        else:
            handle.update(shown, raw=True)

    return draw


class NotebookScreen:
    """A block in place: where the job stands, and its last events."""

    def __init__(
        self,
        draw: Callable[[str, str], None],
        settings: dict[str, Any],
        clock: Clock | None = None,
    ) -> None:
        self._draw = draw
        self._settings = settings
        self._clock = clock or MonotonicClock()
        self._drawn_at = float("-inf")
        self._note = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing: what was drawn stays."""

    def show(self, status: Status) -> None:
        """Draw a status, unless one was drawn less than a second ago: another comes."""
        if self._clock.now() - self._drawn_at < _EVERY_S:
            return
        self._drawn_at = self._clock.now()
        if status.get("state") == "running":
            self._note = ""
        events = (status.get("events") or [])[-_EVENTS:]
        told = [f"[{figures.duration(event['t'])}] {event['text']}" for event in events]
        message = self._note or str(status.get("message") or "")
        self._lines([f"{status.get('job_name', '')} {view.line(status)}", message, *told])

    def note(self, text: str) -> None:
        self._note = text
        self._lines([text])

    def end(self, status: Status, _exit_code: int) -> None:
        self._lines(view.summary(status, next_command(status, self._settings)))

    def _lines(self, lines: list[str]) -> None:
        shown = [inert_lines(line) for line in lines if line]
        self._draw("\n".join(shown), block(shown))

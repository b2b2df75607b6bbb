"""A job's status as a notebook shows it: a table without scripts, all of it escaped. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable

from ..common.plain import inert_texts
from ..jobs import figures
from ..jobs.job import Status


def table(status: Status) -> str:
    """Return a table of one job."""
    status = inert_texts(status)
    rows = [
        ("job", str(status.get("job_name", "?"))),
        ("state", figures.end(status)),
        ("records", figures.progress(status)),
        ("now", " · ".join(figures.now(status))),
        ("time", figures.duration(status.get("started_s_ago")) + figures.mean_rate(status)),
        ("workers", figures.counted(status.get("workers"))),
        ("servers", figures.counted(status.get("servers"))),
        ("restarts", figures.restarts(status)),
        *(("quarantined", each) for each in figures.quarantined(status.get("quarantined") or ())),
        ("checkpoint", str(status.get("checkpoint") or "")),
    ]
    if status.get("command") == "launch":
        rows = [*rows[:2], *figures.launched(status)]
    body = "".join(_row(name, text) for name, text in rows if text not in ("", "-"))
    return f"<table>{body}</table>"


def block(lines: Iterable[str]) -> str:
    """Return lines as they are."""
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>"


def _row(name: str, text: str) -> str:
    return f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"

"""The health of a job in one sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..jobs import figures
from ..jobs.job import STOPPED, Status

_SILENT_S = 10.0  # a master says something four times a second, or each two seconds
_DOING = {"train": "Training", "evaluate": "Evaluating", "predict": "Predicting"}
_WARNS = ("starting", "stopping", "queued", "suspending", "suspended", "waiting")

Health = dict[str, str]


def health(status: Status, heard_s: float | None, meter: Mapping[str, Any] | None) -> Health:
    """Return `level` (good, warn, bad, ended) and `text`. `heard_s`: the age of the status."""
    state, message = str(status.get("state", "?")), str(status.get("message") or "")
    if meter and (meter["lost"] or meter["twice"]):
        return _told(
            "bad",
            f"The books do not add up: {meter['lost']} records lost, "
            f"{meter['twice']} counted twice",
        )
    if state == "done":
        return _told("ended", _done(status, meter))
    if state == "failed":
        return _told("bad", f"Failed: {message or 'see its log'}")
    if state == STOPPED:
        return _told("ended", _stopped(message))
    if state in ("dead", "silent"):
        return _told("bad", message or f"The master is {state}")
    if heard_s is not None and heard_s > _SILENT_S:
        return _told("warn", f"The master has said nothing for {heard_s:.0f} s")
    if state in _WARNS:
        return _told("warn", f"{state.capitalize()}: {message}" if message else state.capitalize())
    if away := _away(status):
        return _told("warn", f"{away}{f': {message}' if message else ''}")
    if message:
        return _told("warn", message)
    return _told("good", _working(status))


def _told(level: str, text: str) -> Health:
    return {"level": level, "text": text if text.endswith((".", "!", "?")) else f"{text}."}


def _stopped(message: str) -> str:
    if message.startswith(STOPPED):  # as a master says it: stopped (why) at record N
        return message[0].upper() + message[1:]
    return f"Stopped: {message}" if message else "Stopped"


def _done(status: Status, meter: Mapping[str, Any] | None) -> str:
    if status.get("exit_code") == 3:
        return "Finished, and skipped records that are named below"
    if not meter:
        return "Done"
    return f"Done: {meter['applied']:,} records, each applied exactly once"


def _away(status: Status) -> str:
    """Return who is not there, of those that are wanted; "": all are."""
    told = []
    for name in ("server", "worker", "teacher"):
        rows = [row for row in status.get(f"{name}s") or [] if row.get("state") != "left"]
        away = [row for row in rows if row.get("heartbeat_age_s") is None]
        if len(away) == 1:
            told.append(f"{name} {away[0]['index']} of {len(rows)} is {away[0]['state']}")
        elif away:
            told.append(f"{len(away)} of {len(rows)} {name}s are away")
    return ", ".join(told).capitalize()


def _working(status: Status) -> str:
    parts = [_DOING.get(str(status.get("command")), "Running")]
    if workers := status.get("workers"):
        there = sum(row.get("heartbeat_age_s") is not None for row in workers)
        parts.append(f"{there} worker{'s' if there != 1 else ''} at work")
    if rate := status.get("records_per_s"):
        parts.append(f"{rate:,.0f} records/s")
    if told := figures.progress(status):
        parts.append(told)
    return ", ".join(parts)

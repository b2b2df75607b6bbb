"""Why an EdlJob waits, or has less than it might, as the scheduler says it. Pure.

Whoever shares out nodes, or asks Kueue, leaves its words in an annotation ("Reason: sentence"); the
controller alone writes the status, and takes them from there: a condition, a message, Events.
"""

from __future__ import annotations

import re

from ..common.plain import plain, same_but_figures
from . import names
from .api import Object
from .job import is_queued

QUEUED = "Queued"  # the condition
_SAID = re.compile(r"([A-Z][A-Za-z]{0,60}): (.+)", re.DOTALL)
_MOST = 1000  # characters: anybody who may change an EdlJob may write there
_NOBODY = "no pod runs; it waits for the scheduler (`edl schedule serve`), which has not come to it"


def said(job: Object) -> tuple[str, str]:
    """Return the scheduler's words of a job, a reason and a sentence; ("", "") where it has none.

    One that somebody else has suspended waits for no scheduler.
    """
    spec, about = job["spec"], job["metadata"]
    if spec.get("suspend") and not is_queued(job):
        return "", ""
    found = _SAID.fullmatch(str((about.get("annotations") or {}).get(names.SAYS) or ""))
    if found is not None:
        return found[1], plain(found[2], _MOST)
    return ("WaitingForScheduler", _NOBODY) if spec.get("suspend") else ("", "")


def condition(job: Object, phase: str) -> tuple[str, bool, str, str] | None:
    """Return the condition's type, whether it is so, reason and message; None: it has no say."""
    reason, message = said(job)
    if "scheduling" not in job["spec"] and not message:
        return None
    if phase in names.OVER:
        return QUEUED, False, phase, ""
    return QUEUED, is_queued(job), reason or "NotQueued", message


def news(before: Object, made: Object) -> tuple[str, str] | None:
    """Return what the scheduler says that it did not say before, figures apart; None: nothing."""
    old, new = _condition(before), _condition(made)
    message = str(new.get("message") or "")
    if not message or same_but_figures(message, str(old.get("message") or "")):
        return None
    return str(new["reason"]), message


def is_said(made: Object, message: str) -> bool:
    """Tell whether a status's message is the scheduler's."""
    return bool(message) and _condition(made).get("message") == message


def _condition(status: Object) -> Object:
    found: list[Object] = status.get("conditions") or []
    return next((each for each in found if each["type"] == QUEUED), {})

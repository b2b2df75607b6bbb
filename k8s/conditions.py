"""The conditions of an EdlJob's status: what is so, since when, and why. Pure.

Ready and Stalled are for those who ask any resource whether it is as was wanted: kstatus, and so
Flux and kubectl (docs/gitops.md). The others are edl's own words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from . import queued
from .api import Object
from .job import durable

_AS_WANTED = ("Running", "Suspended", "Succeeded")  # phases in which a spec is followed
_NO_VOLUME = (
    "without spec.jobVolume the journal is lost with the master's pod: when it is, or when the job "
    "is suspended, the job goes on with its last checkpoint where spec.settings.checkpoint_dir "
    "lies in a volume, else it begins anew"
)

Told = tuple[str, bool, str, str]  # its type, whether it is so, the reason, and a message


@dataclass(frozen=True)
class Problem:
    """A fact that stands in the way; `fatal`: a job that has not begun cannot begin."""

    reason: str
    message: str
    fatal: bool = True


def conditions(
    job: Object,
    phase: str,
    why: tuple[str, str],
    failure: tuple[str, str],
    problem: Problem | None,
    now: str,
) -> list[Object]:
    """Return the conditions of a job in a phase. One that is as it was keeps its time.

    `why` and `failure`: why it waits, and why it has failed, or what it says at its end: each in a
    word and in a sentence. `now`: RFC 3339.
    """
    generation = job["metadata"].get("generation", 1)
    before = {each["type"]: each for each in (job.get("status") or {}).get("conditions", [])}
    held = queued.condition(job, phase)
    made = []
    for kind, is_so, reason, message in (
        *_of_spec(job, problem),
        *_of_any_resource(phase, why, failure, problem),
        (
            "Running",
            phase == "Running",
            why[0] if phase == "Pending" else phase,
            why[1] if phase == "Pending" else "",
        ),
        ("Suspended", phase == "Suspended", phase, ""),
        *([held] if held else []),
        ("Succeeded", phase == "Succeeded", phase, failure[1] if phase == "Succeeded" else ""),
        ("Failed", phase == "Failed", *_failed(phase, failure)),
    ):
        word = "True" if is_so else "False"
        known = before.get(kind, {})
        same = known.get("status") == word
        made.append(
            {
                "type": kind,
                "status": word,
                "reason": reason,
                **({"message": message} if message else {}),
                "lastTransitionTime": known["lastTransitionTime"] if same else now,
                "observedGeneration": generation,
            }
        )
    return made


def _of_spec(job: Object, problem: Problem | None) -> Iterator[Told]:
    if problem:
        yield "Accepted", False, problem.reason, problem.message
    else:
        yield "Accepted", True, "Valid", ""
    lasts = durable(job["spec"])
    yield "Durable", lasts, "JobVolume" if lasts else "NoJobVolume", "" if lasts else _NO_VOLUME


def _of_any_resource(
    phase: str, why: tuple[str, str], failure: tuple[str, str], problem: Problem | None
) -> Iterator[Told]:
    if phase in _AS_WANTED:
        yield "Ready", True, phase, ""
    else:
        yield "Ready", False, *why
    if problem:  # what stands in the spec has no effect until somebody acts
        yield "Stalled", True, problem.reason, problem.message
    else:
        yield "Stalled", phase == "Failed", *_failed(phase, failure)


def _failed(phase: str, failure: tuple[str, str]) -> tuple[str, str]:
    return (failure[0] or phase, failure[1]) if phase == "Failed" else (phase, "")

"""The state of the process in a pod: it waits (and why), runs, or has ended (and how). Pure.

How it ended is told as an exit code (minus a signal's number), which the master's policy reads
(master/replicas.py): what came from outside is told as -SIGKILL, and is no failure:

    evicted, preempted by the scheduler, drained, deleted, its node lost      -9, with the reason
    out of memory                                                             OUT_OF_MEMORY
    exit code N; killed by signal N (an exit code above 128)                  N; -N
    ended, and nobody says how                                                -9, unknown

A pod that is being deleted has ended when its containers have, which on some nodes is seconds
before it is gone, and whose end some nodes never report; one whose node does not answer is given up
when its grace period is over, since nobody will ever say so.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import gates
from .api import Object

OUT_OF_MEMORY = 137
PREEMPTED = -int(signal.SIGKILL)
# Reasons of a pod's end that lie outside it, in the words of kubelet, scheduler and controllers.
_FROM_OUTSIDE = {
    "Evicted",
    "NodeLost",
    "NodeShutdown",
    "NodeAffinity",
    "Preempted",
    "Preempting",
    "Shutdown",
    "Terminated",
    "UnexpectedAdmissionError",
}
_REFUSED_BY_NODE = "OutOf"  # OutOfcpu, OutOfmemory: the node had no room after all
_HOPELESS = {"InvalidImageName", "ErrImageNeverPull"}
_IMAGE = {"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable"}
_UNSCHEDULABLE = "cannot be scheduled"
_SIGNAL_BASE = 128


@dataclass(frozen=True)
class Waiting:
    """The process does not run yet. `why`: "" while nothing is wrong; `hopeless`: it never will."""

    why: str = ""
    hopeless: bool = False
    image: bool = False
    gated: bool = False

    @property
    def word(self) -> str:
        """Return the kind of `why`, for programs."""
        if self.image:
            return "ImageNotPulled"
        if self.gated:
            return "SchedulingGated"
        return "Unschedulable" if self.why.startswith(_UNSCHEDULABLE) else "Waiting"


@dataclass(frozen=True)
class Running:
    """The process runs, at this address (which may not be known yet)."""

    address: str = ""


@dataclass(frozen=True)
class Ended:
    """The process has ended: `code` as in the module's table, `why` in words.

    `unknown`: the code is only a guess.
    """

    code: int
    why: str
    unknown: bool = False


State = Waiting | Running | Ended


def observe(pod: Object, gone: bool = False) -> State:
    """Return the state of the process in a pod.

    `gone`: the pod exists no more, and this is the last that was seen of it.
    """
    status: dict[str, Any] = pod.get("status") or {}
    phase = status.get("phase", "Pending")
    if phase in ("Succeeded", "Failed") or gone or _all_terminated(status):
        return _ended(pod, status)
    if phase == "Running":
        return Running(status.get("podIP") or "")
    if why := gates.held(pod):
        return Waiting(why, gated=True)
    return _waiting(status)


def deletion(pod: Object) -> int | None:
    """Return the seconds of grace of a pod that is being deleted; None where it is not."""
    about = pod["metadata"]
    if not about.get("deletionTimestamp"):
        return None
    return int(about.get("deletionGracePeriodSeconds") or 0)


def is_checking(pod: Object) -> bool:
    """Tell whether the containers that come before that of edl are at work."""
    status: dict[str, Any] = pod.get("status") or {}
    states = [each.get("state") or {} for each in status.get("initContainerStatuses") or []]
    return status.get("phase", "Pending") == "Pending" and any("running" in each for each in states)


def has_run(pod: Object) -> bool:
    """Tell whether a pod's own containers have begun."""
    states = [
        each.get("state") or {} for each in (pod.get("status") or {}).get("containerStatuses") or []
    ]
    return any("running" in each or "terminated" in each for each in states)


def _all_terminated(status: dict[str, Any]) -> bool:
    """Tell whether all containers have ended, which a node may report before the pod's end."""
    found = status.get("containerStatuses") or []
    return bool(found) and all("terminated" in (each.get("state") or {}) for each in found)


def _ended(pod: Object, status: dict[str, Any]) -> Ended:
    outside = _from_outside(status)
    ends = list(_terminations(status, "containerStatuses"))
    # of those that come before them only one that failed is an end: the others never begin then
    ends += [end for end in _terminations(status, "initContainerStatuses") if end.get("exitCode")]
    deleted = deletion(pod) is not None
    if any(end.get("reason") == "OOMKilled" for end in ends):
        return Ended(OUT_OF_MEMORY, "ran out of memory")
    if outside:
        return Ended(PREEMPTED, outside)
    if not ends:
        why = "was deleted" if deleted else "is gone; nobody knows how it ended"
        return Ended(PREEMPTED, why, unknown=not deleted)
    code = next((end["exitCode"] for end in ends if end.get("exitCode")), 0)
    number = ends[0].get("signal") or (code - _SIGNAL_BASE if code > _SIGNAL_BASE else 0)
    if deleted and (code == 0 or number in (signal.SIGKILL, signal.SIGTERM)):
        # it was told to go: 0 is a drain, a signal that the grace was over
        return Ended(0 if code == 0 else PREEMPTED, "was deleted")
    if number:
        return Ended(-number, "")
    return Ended(code, "")


def _terminations(status: dict[str, Any], which: str) -> Iterator[dict[str, Any]]:
    for each in status.get(which) or []:
        end = (each.get("state") or {}).get("terminated")
        if end:
            yield end


def _from_outside(status: dict[str, Any]) -> str:
    """Return the words for an end that lies outside the process; "" where it does not."""
    reason, message = status.get("reason") or "", status.get("message") or ""
    for each in status.get("conditions") or []:
        if each.get("type") == "DisruptionTarget" and each.get("status") == "True":
            reason, message = each.get("reason") or reason, each.get("message") or message
            return _words(reason, message)
    if reason in _FROM_OUTSIDE or reason.startswith(_REFUSED_BY_NODE):
        return _words(reason, message)
    return ""


def _words(reason: str, message: str) -> str:
    return f"was taken away ({reason}{f': {message}' if message else ''})"


def _waiting(status: dict[str, Any]) -> Waiting:
    for each in status.get("conditions") or []:
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            why = each.get("message") or each.get("reason") or "no reason is given"
            return Waiting(f"{_UNSCHEDULABLE}: {why}")
    for each in (
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ):
        waiting = (each.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason") or "", waiting.get("message") or ""
        said = f"{reason}{f': {message}' if message else ''}"
        if reason in _IMAGE | _HOPELESS:
            why = f"image {each.get('image')}: {said}"
            return Waiting(why, reason in _HOPELESS, image=True)
        if reason.startswith("Create") and reason.endswith("Error"):
            return Waiting(f"its container cannot be made: {said}")
    return Waiting()

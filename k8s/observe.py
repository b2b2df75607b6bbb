"""The state of the process in a pod: it waits (and why), runs, or has ended (and how). Pure.

How it ended is told as an exit code (minus a signal's number), which the master's policy reads
(master/replicas.py): what came from outside is told as -SIGKILL, and is no failure:

    evicted, preempted by the scheduler, drained, deleted, its node lost      -9, with the reason
    out of memory                                                             OUT_OF_MEMORY
    exit code N; killed by signal N (an exit code above 128)                  N; -N
    ended, and nobody says how                                                -9, unknown

The process is that of our own container (names.CONTAINER), whatever else the pod holds: sidecars,
of the spec or put in by a webhook, and containers beside ours say nothing of it. Of the containers
that run before it one that fails is its end, since it never begins then.

A pod that is being deleted has ended when our container has, which on some nodes is seconds
before it is gone, and whose end some nodes never report; one whose node does not answer is given up
when its grace period is over, since nobody will ever say so. One whose other containers run on
(`lingers`) never ends by itself: whoever has read its end deletes it.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

from ..common.plain import plain
from . import gates
from .api import Object
from .names import CHECK, CONTAINER

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
_MOST = 300  # characters of last words
_OVER = ("Succeeded", "Failed")  # phases
_FAILED = 1  # the exit code of what failed before our container


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
    ours = _ours(status)
    if phase in _OVER or gone or "terminated" in ours:
        return _ended(pod, status)
    if phase == "Running" or "running" in ours:  # another container may wait for its image
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
    """Tell whether the check of the definition, which comes before the master, is at work."""
    status: dict[str, Any] = pod.get("status") or {}
    return status.get("phase", "Pending") == "Pending" and "running" in _check(status)


def has_run(pod: Object) -> bool:
    """Tell whether our container has begun."""
    return not {"running", "terminated"}.isdisjoint(_ours(pod.get("status") or {}))


def has_checked(pod: Object) -> bool:
    """Tell whether the check of the definition has begun."""
    return not {"running", "terminated"}.isdisjoint(_check(pod.get("status") or {}))


def has_begun(pod: Object) -> bool:
    """Tell whether our container, or the check before it, has begun; injected ones say nothing."""
    return not isinstance(observe(pod), Waiting) or has_run(pod) or has_checked(pod)


def unprepared(pod: Object) -> tuple[str, str] | None:
    """Return the node that has a pod, but not yet what its containers need, and since when.

    None where it has: volumes, ConfigMaps, Secrets and the network come before any image.
    """
    if has_begun(pod):
        return None
    for each in (pod.get("status") or {}).get("conditions") or []:
        if (each.get("type"), each.get("status")) == ("PodReadyToStartContainers", "False"):
            node = (pod.get("spec") or {}).get("nodeName")
            return (node, each.get("lastTransitionTime") or "") if node else None
    return None


def takes_room(pod: Object) -> bool:
    """Tell whether a pod, of whomever, has containers that run or may still run.

    Where all have ended, its node may say so before the pod's end.
    """
    status: dict[str, Any] = pod.get("status") or {}
    found = status.get("containerStatuses") or []
    ended = bool(found) and all("terminated" in (each.get("state") or {}) for each in found)
    return status.get("phase", "Pending") not in _OVER and not ended


def last_words(pod: Object) -> str:
    """Return the last line that a process which failed has said, by its node; "" if none did."""
    end = _ours(pod.get("status") or {}).get("terminated") or {}
    lines = str(end.get("message") or "").strip().splitlines()
    return plain(lines[-1], _MOST) if end.get("exitCode") and lines else ""


def restarts(pod: Object) -> int:
    """Return how often our container was begun again; others may be as often as they like."""
    return sum(each.get("restartCount", 0) for each in _told_of_ours(pod.get("status") or {}))


def lingers(pod: Object) -> bool:
    """Tell whether our container has ended, and others of the pod that are no sidecars run on."""
    return "terminated" in _ours(pod.get("status") or {}) and takes_room(pod)


def _ours(status: dict[str, Any]) -> dict[str, Any]:
    """Return the state of our container; {} where nothing is known of it."""
    return _state_of(status.get("containerStatuses"), CONTAINER)


def _told_of_ours(status: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is told of our container: one entry, or none."""
    found = status.get("containerStatuses") or []
    return [each for each in found if each.get("name", CONTAINER) == CONTAINER]


def _check(status: dict[str, Any]) -> dict[str, Any]:
    return _state_of(status.get("initContainerStatuses"), CHECK)


def _state_of(found: Any, name: str) -> dict[str, Any]:
    for each in found or []:
        if each.get("name", name) == name:
            return each.get("state") or {}
    return {}


def _ended(pod: Object, status: dict[str, Any]) -> Ended:
    outside = _from_outside(status)
    end, before = _ours(status).get("terminated"), ""
    if end is None:
        end, before = _failed_before(pod, status)
    deleted = deletion(pod) is not None
    if end and end.get("reason") == "OOMKilled" and not before:
        return Ended(OUT_OF_MEMORY, "ran out of memory")
    if outside:
        return Ended(PREEMPTED, outside)
    if end is None:
        why = "was deleted" if deleted else "is gone; nobody knows how it ended"
        return Ended(PREEMPTED, why, unknown=not deleted)
    code = int(end.get("exitCode") or 0)
    number = int(end.get("signal") or (code - _SIGNAL_BASE if code > _SIGNAL_BASE else 0))
    if deleted and (code == 0 or number in (signal.SIGKILL, signal.SIGTERM)):
        # it was told to go: 0 is a drain, a signal that the grace was over
        return Ended(0 if code == 0 else PREEMPTED, "was deleted")
    if before:  # whatever ended it, this is a failure: the next pod will meet it too
        how = "out of memory" if end.get("reason") == "OOMKilled" else f"exit code {code}"
        return Ended(_FAILED, f"its init container {before} failed ({how})")
    if number:
        return Ended(-number, "")
    return Ended(code, "")


def _failed_before(pod: Object, status: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return how a container failed that comes before ours, and its name ("": the check).

    A sidecar is none: it is told to go when ours has ended, or is started again.
    """
    sidecars = names_of_sidecars(pod.get("spec") or {})
    for each in status.get("initContainerStatuses") or []:
        end, name = (each.get("state") or {}).get("terminated"), each.get("name", CHECK)
        if end and end.get("exitCode") and name not in sidecars:
            return end, "" if name in (CHECK, CONTAINER) else name
    return None, ""


def names_of_sidecars(spec: Object) -> set[str]:
    """Return the names of a pod's sidecars: init containers that go on beside the others."""
    found = spec.get("initContainers") or []
    return {each["name"] for each in found if each.get("restartPolicy") == "Always"}


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
    before = status.get("initContainerStatuses") or []
    for each in (*before, *_told_of_ours(status)):
        waiting = (each.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason") or "", waiting.get("message") or ""
        said = f"{reason}{f': {message}' if message else ''}"
        if reason in _IMAGE | _HOPELESS:
            why = f"image {each.get('image')}: {said}"
            return Waiting(why, reason in _HOPELESS, image=True)
        if reason.startswith("Create") and reason.endswith("Error"):
            return Waiting(f"its container cannot be made: {said}")
    return Waiting()

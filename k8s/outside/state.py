"""The state of a job, as its objects tell it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...common import finite
from ...jobs.job import ENDED, Status, as_of_now
from .. import job as edljob
from .. import names, objects, observe, queued
from ..api import Object

SUSPENDED = "edl.dev/suspended"  # annotation of a batch Job, whose parallelism is 0 then
_OF_NOW = ("records_per_s", "throughput", "remaining_s", "world_size")
_PHASES = {
    "Pending": "starting",
    "Running": "running",
    "Suspended": "suspended",
    "Stopping": "stopping",
    "Succeeded": "done",
    "Failed": "failed",
}


def status_of(
    name: str, top: Object, said: Object | None, masters: Sequence[Object], refused: str = ""
) -> Status:
    """Return what the master said last, as far as it still holds.

    It may be gone since, or not be there yet; `refused`: why its pod cannot be made (refusal).
    """
    status: Status = {"job_name": name, "state": "starting"}
    if said is not None:
        status = as_of_now(status | finite.loads(said["data"][objects.STATUS]))
    if status["state"] in ENDED:
        return status
    if ended := _end_of(top):
        return {**idle(status), **ended}
    live = alive(masters)
    if is_suspended(top):
        state = "suspending" if live else "suspended"
        message = f"`edl resume {name}{names.option(top['metadata'])}` goes on"
        if edljob.is_queued(top):
            state, message = "suspending" if live else "queued", queued.said(top)[1]
        if "report" in status:
            status["report"] = {**status["report"], "suspended": True}
        return {**idle(status), "state": state, "message": message}
    if any(isinstance(observe.observe(pod), observe.Running) for pod in live):
        return status
    return {**idle(status), "state": "starting", "message": waits_for(top, masters, refused)}


def refusal(top: Object, events: Iterable[Object]) -> str:
    """Return why the pod of a Job's master is refused, by a quota, a policy, a webhook; "" if not.

    Kubernetes tells it by an Event alone.
    """
    mine = [
        each
        for each in events
        if each.get("reason") == "FailedCreate"
        and (each.get("involvedObject") or {}).get("uid") == top["metadata"]["uid"]
    ]
    if not mine:
        return ""
    said = str(max(mine, key=event_time).get("message") or "")
    return f"the master's pod is refused: {said.partition('Error creating: ')[2] or said}"


def waits_for(top: Object, masters: Sequence[Object], refused: str = "") -> str:
    """Say why there is no master; "" where nothing is wrong yet."""
    for pod in reversed(masters):
        state = observe.observe(pod)
        if isinstance(state, observe.Waiting):
            return f"the master {state.why}" if state.why else "the master's pod is being started"
        if isinstance(state, observe.Ended):
            how = state.why or f"with exit code {state.code}"
            if words := observe.last_words(pod):
                how += f": {words}"
            return f"the master's pod ended ({how}); another one comes"
    for each in (top.get("status") or {}).get("conditions") or []:
        if each.get("type") == "Accepted" and each.get("status") == "False":
            return str(each.get("message") or each.get("reason"))
    said = top.get("status") or {}
    if top["kind"] == names.KIND and not said.get("phase"):
        return (
            "no controller has looked at it yet; "
            f"`edl doctor{names.option(top['metadata'])}` tells whether one runs for it"
        )
    return str(said.get("message") or refused or "the master has no pod yet")


def order(pod: Object) -> tuple[int, int, str]:
    """Sort pods by role, as names.ROLES has them, and index; the oldest first."""
    labels = pod["metadata"]["labels"]
    role = names.ROLES.index(labels.get(names.ROLE_LABEL, "worker"))
    created = pod["metadata"].get("creationTimestamp") or ""
    return role, int(labels.get(names.INDEX_LABEL) or 0), created


def event_time(event: Object) -> str:
    """Return when an event was last seen, as text that sorts; "" where it does not say."""
    return str(
        event.get("lastTimestamp")
        or (event.get("series") or {}).get("lastObservedTime")
        or event.get("eventTime")
        or event.get("firstTimestamp")
        or ""
    )


def _end_of(top: Object) -> Status:
    """Return state, code and message of a job that is over; nothing else."""
    found = top.get("status") or {}
    if top["kind"] == names.KIND:
        state = _PHASES.get(found.get("phase") or "", "")
        if state not in ENDED:
            return {}
        code = found.get("exitCode")
        code = int(state == "failed") if code is None else int(code)
        return as_of_now({"state": state, "exit_code": code, "message": found.get("message") or ""})
    for each in found.get("conditions") or []:
        if each.get("status") == "True" and each.get("type") in ("Complete", "Failed"):
            if each["type"] == "Complete":
                return {"state": "done", "exit_code": 0, "message": ""}
            why = ": ".join(filter(None, (each.get("reason"), each.get("message"))))
            return {"state": "failed", "exit_code": 1, "message": why or "its Job has failed"}
    return {}


def is_ours(top: Object) -> bool:
    """Return whether a Job (or an EdlJob) is of edl."""
    return top["kind"] == names.KIND or names.JOB_LABEL in (top["metadata"].get("labels") or {})


def is_suspended(top: Object) -> bool:
    """Tell whether somebody has suspended a job; its pods may still be there."""
    if top["kind"] == names.KIND:
        return bool(top["spec"].get("suspend"))
    return (top["metadata"].get("annotations") or {}).get(SUSPENDED) == "true"


def is_durable(top: Object) -> bool:
    """Tell whether a job's journal outlives the master's pod."""
    if top["kind"] == names.KIND:
        return "emptyDir" not in (top["spec"].get("jobVolume") or {"emptyDir": {}})
    volumes = top["spec"]["template"]["spec"].get("volumes") or []
    return any(each["name"] == "job" and "emptyDir" not in each for each in volumes)


def alive(masters: Sequence[Object]) -> list[Object]:
    """Return the pods that have not ended."""
    return [pod for pod in masters if not isinstance(observe.observe(pod), observe.Ended)]


def idle(status: Status) -> Status:
    """Return the status without the figures and the rows of processes, which are gone."""
    kept = {key: value for key, value in status.items() if key not in _OF_NOW}
    rows = ("workers", "servers", "teachers", "nodes")
    return {**kept, **{key: [] for key in rows if key in kept}}


def name_of(top: Object) -> str:
    """Return the job's name."""
    if top["kind"] == names.KIND:
        return str(top["metadata"]["name"])
    return str(top["metadata"]["labels"][names.JOB_LABEL])

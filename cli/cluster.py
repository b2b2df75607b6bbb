"""Jobs in a Kubernetes cluster, seen from outside: listed, scaled, suspended, ended.

Everything goes through the API server, so that it works from wherever kubectl does. A job's top object
owns all else of it: an EdlJob, whose spec says what is wanted and which a controller follows, or a batch
Job, which runs the master; what is wanted of that one stands in the job's ConfigMap, which the master
watches. What the master says is read from the ConfigMap of its status.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..common.errors import JobError, UsageError
from ..k8s import names, objects, observe
from ..k8s.api import Api, ApiError, Object
from . import rights
from .jobs import ENDED, Status

# Nobody waits longer for an answer in front of a terminal.
PATIENCE_S = 8.0
SUSPENDED = "edl.dev/suspended"  # annotation of a batch Job, whose parallelism is 0 then
SUSPENDING_S = 120.0  # a master has 60 s and the drain's to go
_CANCEL_GRACE_S = 1  # 0 would forget the pod while its node may still run it
_INTERRUPTED = 130
_LOOK_S = 0.5
_TRIES = 5  # of a change that somebody else's crossed
_PHASES = {
    "Pending": "starting",
    "Running": "running",
    "Suspended": "suspended",
    "Stopping": "stopping",
    "Succeeded": "done",
    "Failed": "failed",
}


@contextlib.contextmanager
def connected(namespace: str) -> Iterator[Api]:
    """The API of the cluster. A refusal in the block is told with what mends it."""
    api = Api.connect(namespace, PATIENCE_S)
    try:
        yield api
    except ApiError as error:
        raise rights.explained(error) from error
    finally:
        api.close()


class ClusterJob:
    """One job of a cluster."""

    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.name = name
        self._object = names.object_name(name)

    def top(self) -> Object:
        """Its top object, an EdlJob or a Job. Raises UsageError where there is no such job."""
        unseen: list[ApiError] = []
        for kind, name in ((names.KIND, self.name), ("Job", self._object)):
            try:
                found = self.api.get(kind, name)
            except ApiError as error:
                if error.status != 403:  # who may see the one kind may lack the other
                    raise
                unseen.append(error)
                continue
            if found is not None and _is_ours(top := {**found, "kind": kind}):
                return top
        if len(unseen) == 2:
            raise unseen[0]
        blind = f" ({rights.explained(unseen[0])})" if unseen else ""
        raise UsageError(
            f"There is no job {self.name!r} in the namespace {self.api.namespace}: `edl list "
            f"-n {self.api.namespace}` shows those that are there{blind}."
        )

    def status(self) -> Status:
        """The state now. Raises UsageError where there is no such job."""
        top = self.top()
        said = self.api.get("ConfigMap", names.object_name(self.name, "status"))
        return status_of(self.name, top, said, self.pods("master"))

    def status_if_there(self) -> Status | None:
        """As `status`; None where there is no such job any more."""
        try:
            return self.status()
        except UsageError:
            return None

    def metrics(self) -> list[Object] | None:
        """What its pods use; None where the cluster has nobody who measures."""
        try:
            return self.api.list("PodMetrics", names.selector(self.name))[0]
        except ApiError as error:
            if error.status in (403, 404, 503):
                return None
            raise

    def pods(self, *components: str) -> list[Object]:
        items, _ = self.api.list("Pod", names.selector(self.name, *components))
        return sorted(items, key=order)

    def scale(self, num_workers: int) -> int:
        """Want so many workers; how many were wanted before."""
        top = self._going_on()
        if top["kind"] == names.KIND:
            before = int((top["spec"].get("worker") or {}).get("replicas") or 0)
            self.api.patch(names.KIND, self.name, {"spec": {"worker": {"replicas": num_workers}}})
            return before

        def change(wanted: dict[str, Any]) -> None:
            nonlocal before
            before, wanted["num_workers"] = wanted["num_workers"], num_workers

        before = 0
        self._want(change)
        return before

    def stop(self, reason: str) -> None:
        """End it in order: workers hand back, a checkpoint is written."""
        if _is_suspended(self._going_on()):
            raise JobError(
                f"Job {self.name!r} is suspended, so that nobody is there to end it in order: "
                f"`edl resume` it first, or `edl cancel` it."
            )
        self._want(lambda wanted: wanted.update(stop=reason))

    def suspend(self, force: bool = False) -> None:
        """End its pods, keep where it is. Raises UsageError where it would begin anew and `force` is
        not given."""
        top = self._going_on()
        if _is_suspended(top):
            raise JobError(f"Job {self.name!r} is suspended already: `edl resume` goes on.")
        if not force and not _is_durable(top):
            raise UsageError(
                f"Job {self.name!r} has no --job_volume: its journal ends with its pods, and it "
                "would begin anew. Stop it with a checkpoint (`edl stop`), or say --force."
            )
        if top["kind"] == names.KIND:
            self.api.patch(names.KIND, self.name, {"spec": {"suspend": True}})
            return
        self._pause({SUSPENDED: "true"})
        self._await_master_gone()
        self._delete_pods(None, "ps")  # each leaves a snapshot
        self._delete_pods(_CANCEL_GRACE_S, "worker")  # whom would they hand back to?

    def resume(self) -> None:
        """Go on where it was suspended."""
        top = self._going_on()
        if not _is_suspended(top):
            raise JobError(f"Job {self.name!r} is not suspended.")
        if top["kind"] == names.KIND:
            self.api.patch(names.KIND, self.name, {"spec": {"suspend": False}})
            return
        about = {"annotations": {SUSPENDED: None}}
        self.api.patch("Job", self._object, {"metadata": about, "spec": {"parallelism": 1}})

    def cancel(self, reason: str) -> None:
        """End it at once, without a checkpoint; what is known of it stays."""
        top = self._going_on()
        of_controller = top["kind"] == names.KIND
        status = self.status()
        if of_controller:
            self.api.patch(names.KIND, self.name, {"spec": {"suspend": True}})
        else:
            self._pause({})
        self._delete_pods(_CANCEL_GRACE_S)
        self._await_master_gone()  # it would write another status over this one
        self._delete_pods(_CANCEL_GRACE_S)  # which it made meanwhile
        ended = {"state": "failed", "exit_code": _INTERRUPTED, "message": reason, "resume": None}
        body = objects.status(self.name, json.dumps({**_idle(status), **ended}))
        about = {**objects.owner_reference(top), "blockOwnerDeletion": False}
        body["metadata"]["ownerReferences"] = [about]
        name = body["metadata"]["name"]
        if self.api.get("ConfigMap", name) is None:
            self.api.create("ConfigMap", body)
        else:
            self.api.patch("ConfigMap", name, {"data": body["data"]})
        if of_controller and not _is_suspended(top):
            self.api.patch(names.KIND, self.name, {"spec": {"suspend": False}})

    def delete(self) -> None:
        """It and all that is of it."""
        top = self.top()
        self.api.delete(top["kind"], top["metadata"]["name"], policy="Background")

    def events(self) -> list[Object]:
        """What the cluster says of its objects, oldest first."""
        found, _ = self.api.list("Event")
        pods = {pod["metadata"]["name"] for pod in self.pods()}
        mine = [e for e in found if self._is_mine(e.get("involvedObject") or {}, pods)]
        return sorted(mine, key=event_time)

    def _is_mine(self, about: dict[str, Any], pods: set[str]) -> bool:
        kind, name = about.get("kind", ""), about.get("name", "")
        if kind == names.KIND:
            return bool(name == self.name)
        if kind != "Pod":
            return name in (self._object, names.object_name(self.name, "ps"))
        # of a pod that is gone nothing but its name is left
        ours = rf"{re.escape(self._object)}-([a-z0-9]{{5}}|master-.+|(ps|worker)-\d+-.+)"
        return name in pods or re.fullmatch(ours, name) is not None

    def _going_on(self) -> Object:
        """The top object of a job that is not over. Raises JobError."""
        top = self.top()
        said = self.api.get("ConfigMap", names.object_name(self.name, "status"))
        state = status_of(self.name, top, said, [])["state"]
        if state in ENDED:
            raise JobError(f"Job {self.name!r} is over: {state}.")
        return top

    def _pause(self, annotations: dict[str, str]) -> None:
        about = {"annotations": annotations}
        self.api.patch("Job", self._object, {"metadata": about, "spec": {"parallelism": 0}})

    def _await_master_gone(self) -> None:
        give_up = time.monotonic() + SUSPENDING_S
        while live := _alive(self.pods("master")):
            if time.monotonic() > give_up:
                raise JobError(
                    f"The master's pod {live[0]['metadata']['name']} has not ended for "
                    f"{SUSPENDING_S:.0f} s: look at its node (`edl describe {self.name}`), then say "
                    "it again."
                )
            time.sleep(_LOOK_S)

    def _delete_pods(self, grace_s: int | None, *components: str) -> None:
        for pod in self.pods(*components):
            self.api.delete("Pod", pod["metadata"]["name"], grace_s=grace_s)

    def _want(self, change: Callable[[dict[str, Any]], None]) -> None:
        for _ in range(_TRIES):
            found = self.api.get("ConfigMap", self._object)
            if found is None:
                raise JobError(
                    f"Job {self.name!r} has not begun yet: `edl describe {self.name}` shows what it "
                    "waits for."
                )
            wanted = json.loads(found["data"][objects.WANTED])
            change(wanted)
            found["data"][objects.WANTED] = json.dumps(wanted)
            try:
                self.api.replace("ConfigMap", self._object, found)
                return
            except ApiError as error:
                if error.status != 409:
                    raise
        raise JobError(f"Job {self.name!r} is being changed by others: try again.")


def all_jobs(api: Api) -> list[Status]:
    """The status of each job of the namespace, by time of start."""
    selector = "app.kubernetes.io/name=edl,app.kubernetes.io/component=job"
    tops = [{**each, "kind": names.KIND} for each in _visible(api, names.KIND, "")]
    tops += [{**each, "kind": "Job"} for each in _visible(api, "Job", selector)]
    maps, _ = api.list("ConfigMap", selector)
    said = {each["metadata"]["name"]: each for each in maps}
    masters, _ = api.list("Pod", f"app.kubernetes.io/name=edl,{names.ROLE_LABEL}=master")
    return [
        status_of(
            name := _name_of(each),
            each,
            said.get(names.object_name(name, "status")),
            [m for m in masters if m["metadata"]["labels"][names.JOB_LABEL] == name],
        )
        for each in sorted(tops, key=lambda each: each["metadata"].get("creationTimestamp") or "")
    ]


def _visible(api: Api, kind: str, selector: str) -> list[Object]:
    """Those of a kind; none where the cluster does not know it, or the user may not see it."""
    try:
        return api.list(kind, selector)[0]
    except ApiError as error:
        if error.status == 404 or (error.status == 403 and kind == names.KIND):
            return []
        if error.status == 403 and _may_list(api, names.KIND):
            return []
        raise


def _may_list(api: Api, kind: str) -> bool:
    try:
        api.list(kind)
    except ApiError:
        return False
    return True


def status_of(name: str, top: Object, said: Object | None, masters: Sequence[Object]) -> Status:
    """What the master said last, as far as it still holds: it may be gone since, or not be there yet.
    Pure."""
    status: Status = {"job_name": name, "state": "starting"}
    if said is not None:
        status |= json.loads(said["data"][objects.STATUS])
    if status["state"] in ENDED:
        return status
    if ended := _end_of(top):
        return {**_idle(status), **ended}
    live = _alive(masters)
    if _is_suspended(top):
        state = "suspending" if live else "suspended"
        return {**_idle(status), "state": state, "message": f"`edl resume {name}` goes on"}
    if any(isinstance(observe.observe(pod), observe.Running) for pod in live):
        return status
    return {**_idle(status), "state": "starting", "message": waits_for(top, masters)}


def waits_for(top: Object, masters: Sequence[Object]) -> str:
    """Why there is no master; "" where nothing is wrong yet."""
    for pod in reversed(masters):
        state = observe.observe(pod)
        if isinstance(state, observe.Waiting):
            return f"the master {state.why}" if state.why else "the master's pod is being started"
        if isinstance(state, observe.Ended):
            how = state.why or f"with exit code {state.code}"
            return f"the master's pod ended ({how}); another one comes"
    for each in (top.get("status") or {}).get("conditions") or []:
        if each.get("type") == "Accepted" and each.get("status") == "False":
            return str(each.get("message") or each.get("reason"))
    return str((top.get("status") or {}).get("message") or "the master has no pod yet")


def order(pod: Object) -> tuple[int, int, str]:
    """Master, servers, workers; by index; the oldest first."""
    labels = pod["metadata"]["labels"]
    role = ("master", "ps", "worker").index(labels.get(names.ROLE_LABEL, "worker"))
    created = pod["metadata"].get("creationTimestamp") or ""
    return role, int(labels.get(names.INDEX_LABEL) or 0), created


def event_time(event: Object) -> str:
    return str(
        event.get("lastTimestamp")
        or (event.get("series") or {}).get("lastObservedTime")
        or event.get("eventTime")
        or event.get("firstTimestamp")
        or ""
    )


def _end_of(top: Object) -> Status:
    """State, code and message of a job that is over; nothing else."""
    found = top.get("status") or {}
    if top["kind"] == names.KIND:
        state = _PHASES.get(found.get("phase") or "", "")
        if state not in ENDED:
            return {}
        code = found.get("exitCode")
        code = int(state == "failed") if code is None else int(code)
        return {"state": state, "exit_code": code, "message": found.get("message") or ""}
    for each in found.get("conditions") or []:
        if each.get("status") == "True" and each.get("type") in ("Complete", "Failed"):
            if each["type"] == "Complete":
                return {"state": "done", "exit_code": 0, "message": ""}
            why = ": ".join(filter(None, (each.get("reason"), each.get("message"))))
            return {"state": "failed", "exit_code": 1, "message": why or "its Job has failed"}
    return {}


def _is_ours(top: Object) -> bool:
    return top["kind"] == names.KIND or names.JOB_LABEL in (top["metadata"].get("labels") or {})


def _is_suspended(top: Object) -> bool:
    if top["kind"] == names.KIND:
        return bool(top["spec"].get("suspend"))
    return (top["metadata"].get("annotations") or {}).get(SUSPENDED) == "true"


def _is_durable(top: Object) -> bool:
    """Whether the journal outlives the master's pod."""
    if top["kind"] == names.KIND:
        return "emptyDir" not in (top["spec"].get("jobVolume") or {"emptyDir": {}})
    volumes = top["spec"]["template"]["spec"].get("volumes") or []
    return any(each["name"] == "job" and "emptyDir" not in each for each in volumes)


def _alive(masters: Sequence[Object]) -> list[Object]:
    return [pod for pod in masters if not isinstance(observe.observe(pod), observe.Ended)]


def _idle(status: Status) -> Status:
    """The same, of a job whose processes are gone."""
    kept = {key: value for key, value in status.items() if key not in ("records_per_s",)}
    return {**kept, **{key: [] for key in ("workers", "servers") if key in kept}}


def _name_of(top: Object) -> str:
    if top["kind"] == names.KIND:
        return str(top["metadata"]["name"])
    return str(top["metadata"]["labels"][names.JOB_LABEL])

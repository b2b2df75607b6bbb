"""Jobs in a Kubernetes cluster, seen from outside: listed, scaled, suspended, ended.

Everything goes through the API server, so that it works from wherever kubectl does. A job's top
object owns all else of it: an EdlJob, whose spec says what is wanted and which a controller
follows, or a batch Job, which runs the master; what is wanted of that one stands in the job's
ConfigMap, which the master watches. What the master says is read from the ConfigMap of its status.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...common import finite, launched
from ...common.contradictions import why_not_teachers
from ...common.errors import EdlError, JobError, PeerError, Unreachable, UsageError
from ...jobs.job import ENDED, INTERRUPTED, STOPPED, Kind, Report, Status
from ...jobs.wait import GOALS
from .. import holders, job_config, names, nodes, objects
from ..api import Api, Object
from ..connection import CLIENT, ApiError
from . import checkpoint, events, logs, rights, scaling, state, view
from .job_pods import JobPods

# Nobody waits longer for an answer in front of a terminal.
PATIENCE_S = 8.0
_CANCEL_GRACE_S = 1  # 0 would forget the pod while its node may still run it
_TRIES = 5  # of a change that somebody else's crossed


@contextlib.contextmanager
def connected(namespace: str, client: str = CLIENT) -> Iterator[Api]:
    """Connect to the cluster. A refusal in the block is told with what mends it."""
    api = Api.connect(namespace, PATIENCE_S, client)
    try:
        yield api
    except ApiError as error:
        raise explained(api, error) from error
    finally:
        api.close()


def explained(api: Api, error: ApiError) -> EdlError:
    """Make of a refusal one line with what mends it in this cluster."""
    everywhere = False
    if error.status == 403:
        with contextlib.suppress(PeerError):  # what was refused is the news
            found = holders.controller(api)
            everywhere = found is not None and found.everywhere
    return rights.explained(error, everywhere)


class ClusterJob:
    """A job of a cluster."""

    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.pods = JobPods(api, name)
        self._name = name
        self._object = names.object_name(name)

    @property
    def name(self) -> str:
        return self._name

    @property
    def where(self) -> str:
        return f"{self.name} -n {self.api.namespace}"

    def top(self) -> Object:
        """Return the job's EdlJob, or its Job. Raises UsageError if there is no such job."""
        unseen: list[ApiError] = []
        for kind, name in ((names.KIND, self.name), ("Job", self._object)):
            try:
                found = self.api.get(kind, name)
            except ApiError as error:
                if error.status != 403:  # who may see the one kind may lack the other
                    raise
                unseen.append(error)
                continue
            if found is not None and state.is_ours(top := {**found, "kind": kind}):
                return top
        if len(unseen) == 2:
            raise unseen[0]
        blind = f" ({explained(self.api, unseen[0])})" if unseen else ""
        raise UsageError(
            f"There is no job {self.name!r} in the namespace {self.api.namespace}: `edl list "
            f"-n {self.api.namespace}` shows those that are there{blind}."
        )

    def status(self) -> Status:
        """Return the job's state now. Raises UsageError where there is no such job."""
        top = self.top()
        said = self.api.get("ConfigMap", names.object_name(self.name, "status"))
        masters = self.pods.found("master")
        return state.status_of(self.name, top, said, masters, "" if masters else self._refusal(top))

    def _refusal(self, top: Object) -> str:
        """Return why a Job's master has no pod, to whoever may read events."""
        if top["kind"] == names.KIND:
            return ""  # its status says it
        try:
            return state.refusal(top, events.of_job(self.api, self.name, []))
        except ApiError as error:
            if error.status != 403:
                raise
            return ""

    def look(self) -> Status | None:
        try:
            return self.status()
        except UsageError:
            return None
        except ApiError as error:
            if error.status < 500 and error.status != 429:
                raise
            raise Unreachable(str(error)) from error  # it passes

    def scale(
        self,
        num_workers: int,
        num_ps: int = 0,
        num_teachers: int | None = None,
        max_teachers: int = 0,
    ) -> int:
        """Ask for so many replicas; return how many workers were wanted before.

        0 workers or servers, None: as many as there are. `max_teachers`: from `num_teachers` to so
        many, by need. Raises UsageError for a number that the job's spec does not allow, and where
        the scheduler says how many there are; JobError for teachers that it cannot have.
        """
        top = self._going_on()
        if num_teachers is not None:
            begun = job_config.settings(self.api.get("ConfigMap", self._object))
            if begun and (refused := why_not_teachers(begun, num_teachers, max_teachers)):
                raise JobError(refused)
        if top["kind"] == names.KIND:
            if "scheduling" in top["spec"] and (num_workers or num_ps):
                raise UsageError(
                    f"Job {self.name!r} gets its workers from the scheduler: change "
                    "spec.worker.minReplicas and maxReplicas, or take spec.scheduling away."
                )
            worker = top["spec"].get("worker") or {}
            before = int(worker.get("replicas") or 0)
            if num_workers:
                scaling.check_bounds(self.name, worker, num_workers)
            asked = {"worker": num_workers, "ps": num_ps}
            spec: Object = {role: {"replicas": count} for role, count in asked.items() if count}
            if num_teachers is not None:
                spec["teacher"] = {"replicas": num_teachers, "maxReplicas": max_teachers or None}
            scaling.check_change(top, spec)
            self.api.patch(names.KIND, self.name, {"spec": spec})
            return before

        def change(wanted: dict[str, Any]) -> None:
            nonlocal before
            before = wanted["num_workers"]
            wanted.update(num_workers=num_workers or before, num_ps=num_ps)
            if num_teachers is not None:
                wanted.update(num_teachers=num_teachers, max_teachers=max_teachers)

        before = 0
        self.want(change)
        return before

    def fetch(
        self, path: str, dest: str, force: bool, say: Callable[[str], None]
    ) -> tuple[str, int]:
        from . import fetch

        return fetch.fetch(self, path, dest, force, say)

    def stop(self, reason: str) -> str:
        """End the job in order, with a checkpoint; return what happens now."""
        if state.is_suspended(self._going_on()):
            raise JobError(
                f"Job {self.name!r} is suspended, so that nobody is there to end it in order: "
                f"`edl resume {self.where}` first, or `edl cancel {self.where}`."
            )
        self.want(lambda wanted: wanted.update(stop=reason))
        return f"is stopping: `edl status {self.where}` shows when it has."

    def checkpoint(self, timeout_s: float) -> str:
        if state.is_suspended(self._going_on()):
            raise JobError(f"Job {self.name!r} is suspended: what it has done is kept.")
        if self.status().get("command") == launched.COMMAND:
            raise JobError(launched.SAVES_ITSELF)
        return checkpoint.ask(self, timeout_s)

    def suspend(self, force: bool = False) -> None:
        """End the job's pods, and keep where it is.

        Raises UsageError where it would begin anew and `force` is not given.
        """
        top = self._going_on()
        if state.is_suspended(top):
            raise JobError(
                f"Job {self.name!r} is suspended already: `edl resume {self.where}` goes on."
            )
        if not force and not state.is_durable(top):
            raise UsageError(
                f"Job {self.name!r} has no --job_volume: its journal ends with its pods, and it "
                f"would begin anew. Stop it with a checkpoint (`edl stop {self.where}`), or say "
                "--force."
            )
        if top["kind"] == names.KIND:
            self.api.patch(names.KIND, self.name, {"spec": {"suspend": True}})
            return
        self._pause({state.SUSPENDED: "true"})
        self.pods.await_master_gone()
        self.pods.delete(None, "ps")  # each leaves a snapshot
        saves = self.status().get("command") == launched.COMMAND
        # A script saves; whom would other workers hand back to?
        self.pods.delete(None if saves else _CANCEL_GRACE_S, "worker")
        self.pods.delete(_CANCEL_GRACE_S, "teacher")

    def resume(self) -> None:
        """Go on with the job where it was suspended."""
        top = self._going_on()
        if not state.is_suspended(top):
            raise JobError(f"Job {self.name!r} is not suspended.")
        if top["kind"] == names.KIND:
            self.api.patch(names.KIND, self.name, {"spec": {"suspend": False}})
            return
        about = {"annotations": {state.SUSPENDED: None}}
        self.api.patch("Job", self._object, {"metadata": about, "spec": {"parallelism": 1}})

    def cancel(self, reason: str) -> None:
        """End the job at once, without a checkpoint; what is known of it stays."""
        top = self._going_on()
        of_controller = top["kind"] == names.KIND
        status = self.status()
        if of_controller:
            self.api.patch(names.KIND, self.name, {"spec": {"suspend": True}})
        else:
            self._pause({})
        self.pods.delete(_CANCEL_GRACE_S)
        self.pods.await_master_gone()  # it would write another status over this one
        self.pods.delete(_CANCEL_GRACE_S)  # which it made meanwhile
        ended = {"state": STOPPED, "exit_code": INTERRUPTED, "message": reason, "resume": None}
        body = objects.status(self.name, finite.dumps({**state.idle(status), **ended}))
        about = {**objects.owner_reference(top), "blockOwnerDeletion": False}
        body["metadata"]["ownerReferences"] = [about]
        name = body["metadata"]["name"]
        if self.api.get("ConfigMap", name) is None:
            self.api.create("ConfigMap", body)
        else:
            self.api.patch("ConfigMap", name, {"data": body["data"]})
        if of_controller and not state.is_suspended(top):
            self.api.patch(names.KIND, self.name, {"spec": {"suspend": False}})

    def delete(self) -> str:
        """Delete the job and all that is of it; return what is so now."""
        top = self.top()
        kind, about = top["kind"], top["metadata"]
        self.api.delete(kind, about["name"], policy="Background")
        if not about.get("finalizers"):
            return "is deleted"
        left = self.api.get(kind, about["name"])
        if left is None or left["metadata"]["uid"] != about["uid"]:
            return "is deleted"
        waits = ", ".join(left["metadata"].get("finalizers") or about["finalizers"])
        return f"is being deleted: it waits for its finalizers {waits}"

    def lines(
        self,
        *,
        role: str | None,
        index: int | None,
        tail: int | None,
        follow: bool,
        until: Callable[[], bool] | None = None,
    ) -> Iterator[str]:
        return logs.lines(self, role=role, index=index, tail=tail, follow=follow, until=until)

    def kinds(self, machines: Iterable[str]) -> dict[str, Kind]:
        """Return kind and market of these nodes, by name, where anybody still knows it."""
        noted = (self.top()["metadata"].get("annotations") or {}).get(nodes.NOTED)
        found = nodes.read_noted(noted)
        for name in set(machines) - found.keys():
            if (node := self._node(name)) is not None:
                found[name] = nodes.kind_of(node)
        return found

    def events(self) -> Report:
        found = events.of_job(self.api, self.name, self.pods.found())
        now = datetime.datetime.now(datetime.UTC)
        rows = [view.event_row(event, now) for event in found]
        empty = "No events: a cluster keeps them for an hour or so."
        return Report(rows, lambda wide: view.events_table(rows, wide), empty)

    def describe(self) -> Report:
        """Return the job's state, its pods and what they wait for, its events."""
        status, pods = self.status(), self.pods.found()
        found = events.of_job(self.api, self.name, pods)
        now = datetime.datetime.now(datetime.UTC)
        rows = [view.pod_row(pod, now) for pod in pods]
        told = [view.event_row(event, now) for event in found]
        return Report(
            {"status": status, "pods": rows, "events": told},
            lambda wide: view.description(status, rows, told, wide),
        )

    def usage(self) -> tuple[Report, bool]:
        """Return what the job's pods ask for, use and do; whether somebody measures their use."""
        metrics = self.pods.metrics()
        rows = view.usage_rows(self.pods.found(), metrics, self.status())
        measured = metrics is not None
        return Report(rows, lambda _wide: view.usage_table(rows, measured)), measured

    def _node(self, name: str) -> Object | None:
        try:
            return self.api.get("Node", name)
        except ApiError as error:
            if error.status != 403:
                raise
            return None  # the user may not see nodes

    def _going_on(self) -> Object:
        """Return the top object of a job that is not over. Raises JobError where it is."""
        top = self.top()
        said = self.api.get("ConfigMap", names.object_name(self.name, "status"))
        found = state.status_of(self.name, top, said, [])["state"]
        if found in ENDED:
            raise JobError(f"Job {self.name!r} is over: {found}.")
        return top

    def _pause(self, annotations: dict[str, str]) -> None:
        about = {"annotations": annotations}
        self.api.patch("Job", self._object, {"metadata": about, "spec": {"parallelism": 0}})

    def want(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change what is wanted of the job."""
        for _ in range(_TRIES):
            found = self.api.get("ConfigMap", self._object)
            if found is None:
                raise JobError(
                    f"Job {self.name!r} has not begun yet: `edl describe {self.where}` shows what "
                    "it waits for."
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


class ClusterJobs:
    """The jobs of a namespace."""

    goals = GOALS
    look_every_s = 1.0

    def __init__(self, api: Api) -> None:
        self.api = api

    @property
    def starting(self) -> str:
        return f"submit -n {self.api.namespace}"

    @property
    def place(self) -> str:
        return f"the namespace {self.api.namespace}"

    def find(self, name: str | None) -> ClusterJob:
        if name is None:
            found = self.statuses()
            running = [each for each in found if each["state"] not in ENDED]
            chosen = next((those for those in (running, found) if len(those) == 1), None)
            if chosen is None:
                known = ", ".join(each["job_name"] for each in running or found)
                raise UsageError(
                    f"Which job? There are: {known}."
                    if known
                    else f"There are no jobs in {self.place}: `edl submit -n {self.api.namespace}` "
                    "makes one."
                )
            name = chosen[0]["job_name"]
        job = ClusterJob(self.api, name)
        job.top()
        return job

    def names(self) -> list[str]:
        return [str(status["job_name"]) for status in self.statuses()]

    def statuses(self) -> list[Status]:
        return all_jobs(self.api)


def all_jobs(api: Api) -> list[Status]:
    """Return the status of each job of the namespace, by time of start."""
    selector = "app.kubernetes.io/name=edl,app.kubernetes.io/component=job"
    tops = _tops(api, selector)
    maps, _ = api.list("ConfigMap", selector)
    said = {each["metadata"]["name"]: each for each in maps}
    masters, _ = api.list("Pod", f"app.kubernetes.io/name=edl,{names.ROLE_LABEL}=master")
    return [
        state.status_of(
            name := state.name_of(each),
            each,
            said.get(names.object_name(name, "status")),
            [m for m in masters if m["metadata"]["labels"][names.JOB_LABEL] == name],
        )
        for each in sorted(tops, key=lambda each: each["metadata"].get("creationTimestamp") or "")
    ]


def _tops(api: Api, selector: str) -> list[Object]:
    """Return the EdlJobs and Jobs that are there, of a kind that is known and that one may see.

    Raises the first refusal where that is none: who may see EdlJobs needs no right on Jobs.
    """
    found: list[Object] = []
    refused: list[ApiError] = []
    kinds = ((names.KIND, ""), ("Job", selector))
    for kind, labels in kinds:
        try:
            found += [{**each, "kind": kind} for each in api.list(kind, labels)[0]]
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            refused.append(error)
    if len(refused) == len(kinds):
        raise next((each for each in refused if each.status == 403), refused[0])
    return found

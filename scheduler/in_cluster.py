"""The EdlJobs of a cluster: watched, planned for, and changed by their specs alone.

Nodes, pods and EdlJobs are kept as copies by list and watch. What is planned is written into the
EdlJobs: workers and servers as they are, suspend against the version that was seen, so that it
crosses nobody's own. Pods are kube-scheduler's and the masters'. The last plan is a ConfigMap; a
Lease lets one scheduler act at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..common.errors import JobError, PeerError, UsageError
from ..common.times import rfc3339
from ..k8s import names
from ..k8s.api import Api, Object
from ..k8s.connection import ApiError
from ..k8s.holders import holder
from ..k8s.leadership import Leadership
from ..k8s.nodes import is_ready
from ..k8s.observe import takes_room
from ..k8s.outside import rights
from ..k8s.reflector import Change, Reflector
from .admission import admit
from .edljobs import Copy, Looker, change
from .jobs import Job, Plan, Quota
from .notes import Notes
from .place import Seen, Tell, read_plan, write_plan

NAME = names.SCHEDULER  # of its Lease and its ConfigMap
_PLAN = "plan.json"
_LABELS = {
    "app.kubernetes.io/name": "edl",
    "app.kubernetes.io/component": "scheduler",
    "app.kubernetes.io/part-of": "edl",
}
_KINDS = (names.KIND, "Node", "Pod", "Workload")  # as Copy has them
_EVERYWHERE = ("Node", "Pod")  # what of other namespaces is looked at
_SELECTORS = {"Workload": "app.kubernetes.io/managed-by=edl"}
_LISTED_S = 60.0  # until the API server must have given all once
_ANEW_S = 30.0  # a plan that says nothing new is not written again sooner


class ClusterPlace:
    """The EdlJobs of one namespace, or of all."""

    def __init__(
        self,
        api: Api,
        is_everywhere: bool,
        clock: Callable[[], float],
        copy: Callable[[], Copy] | None = None,
        quotas: Sequence[Quota] = (),
    ) -> None:
        """Take what is looked at: `copy`, or lists that are asked for each time.

        `clock`: s since the epoch. `quotas`: whose priorities bound what Kueue is told.
        """
        self._api = api
        self._jobs = api.inside("") if is_everywhere else api
        self._copy = copy or self._listed
        self._clock = clock
        self._looker = Looker(is_everywhere, quotas)
        self._notes = Notes()
        self._kept: tuple[Any, float] = (None, 0.0)  # the last plan's jobs, and when

    def look(self) -> Seen:
        """Return the EdlJobs that are the scheduler's to change, and the nodes."""
        return self._looker.look(self._copy(), self._clock())

    def act(self, plan: Plan, seen: Seen, tell: Tell) -> None:
        """Change the EdlJobs that the plan changes; those that give something up come first."""
        objects, gates = self._looker.objects, self._looker.gates
        given = {job.name: gates.of(objects[job.name]).bound(plan[job.name]) for job in seen.jobs}

        def grows(job: Job) -> bool:
            return given[job.name].shape.workers > job.held.workers

        now = rfc3339(self._clock())
        for job in sorted(seen.jobs, key=grows):
            it = objects[job.name]
            patch = change(it, job, given[job.name], now, gates.of(it).queue)
            if patch is None:
                continue
            about = it["metadata"]
            try:
                self._api.inside(about["namespace"]).patch(names.KIND, about["name"], patch)
            except PeerError as error:
                is_crossed = isinstance(error, ApiError) and error.status in (404, 409)
                why = "it was changed meanwhile" if is_crossed else str(error)
                tell(f"{job.name}: not changed, {why}; it is looked at again")
                continue
            tell(f"{job.name}: {given[job.name].why}")
        wanted = {
            objects[job.name]["metadata"]["uid"]: plan[job.name].shape.workers
            for job in seen.jobs
            # that one which is pinned keeps what it has says nothing of what it should have
            if not (job.is_pinned and plan[job.name].shape.workers == job.held.workers)
        }
        admit(self._api, gates, wanted, now, tell)
        self._note(plan, seen, tell)

    def _note(self, plan: Plan, seen: Seen, tell: Tell) -> None:
        """Write into the EdlJobs what keeps them waiting, or small, for whoever asks about one."""
        every = self._looker.every
        gates = {name: self._looker.gates.of(it) for name, it in every.items()}
        found = self._notes.patches(every, plan, seen.ignored, gates, self._clock())
        for name, patch in found.items():
            about = every[name]["metadata"]
            try:
                self._api.inside(about["namespace"]).patch(names.KIND, about["name"], patch)
            except PeerError as error:
                if not isinstance(error, ApiError) or error.status not in (404, 409):
                    tell(f"{name}: why it waits is not written into it, {error}")

    def keep(self, plan: dict[str, Any], tell: Tell) -> None:
        """Keep the plan in a ConfigMap."""
        jobs, now = plan["jobs"], self._clock()
        if jobs == self._kept[0] and now - self._kept[1] < _ANEW_S:
            return
        data = {"data": {_PLAN: write_plan(plan)}}
        try:
            try:
                self._api.patch("ConfigMap", NAME, data)
            except ApiError as error:
                if error.status != 404:
                    raise
                kind = {"apiVersion": "v1", "kind": "ConfigMap"}
                about = {"name": NAME, "labels": _LABELS}
                self._api.create("ConfigMap", {**kind, "metadata": about, **data})
        except PeerError as error:
            tell(f"the plan is not kept: {error}")
            return
        self._kept = jobs, now

    def _listed(self) -> Copy:
        def of(kind: str) -> list[Object]:
            here = self._api.inside("") if kind in _EVERYWHERE else self._jobs
            return here.list(kind, _SELECTORS.get(kind, ""))[0]

        try:
            return Copy(*map(of, _kinds(self._api)))
        except ApiError as error:
            raise rights.explained(error) from error


class Watched:
    """Copies of EdlJobs, nodes and pods, kept by list and watch."""

    def __init__(self, api: Api, is_everywhere: bool, news: Callable[[], None], tell: Tell) -> None:
        """Prepare to watch. `news` is called where something changed that a plan depends on."""
        self._news = news
        self._tell = tell
        self._lock = threading.Condition()
        self._objects: dict[str, dict[str, Object]] = {}  # by kind and uid, once they are listed
        self._problem = ""
        everything = api.inside("")
        self._kinds = _kinds(api)
        self._reflectors = [
            Reflector(
                everything if kind in _EVERYWHERE or is_everywhere else api,
                kind,
                _SELECTORS.get(kind, ""),
                lambda change, kind=kind: self._changed(kind, change),  # type: ignore[misc]
                lambda _asked, found, kind=kind: self._found(kind, found),  # type: ignore[misc]
                on_silence=self._silence,
            )
            for kind in self._kinds
        ]

    def start(self) -> None:
        """Begin, and wait until all is there. Raises JobError where it does not come."""
        for reflector in self._reflectors:
            reflector.start()
        with self._lock:
            if not self._lock.wait_for(lambda: len(self._objects) == len(self._kinds), _LISTED_S):
                raise JobError(f"the Kubernetes API gave no list in {_LISTED_S:g} s{self._problem}")

    def close(self) -> None:
        """Tell of no change any more."""
        for reflector in self._reflectors:
            reflector.close()

    def copy(self) -> Copy:
        """Return the objects as they were told last."""
        with self._lock:
            return Copy(*(list(self._objects[kind].values()) for kind in self._kinds))

    def _found(self, kind: str, found: Mapping[str, Object]) -> None:
        with self._lock:
            self._objects[kind] = dict(found)
            self._lock.notify_all()
        self._news()

    def _changed(self, kind: str, change: Change) -> None:
        with self._lock:
            known, uid = self._objects.get(kind, {}), change.after["metadata"]["uid"]
            if change.gone:
                known.pop(uid, None)
            else:
                known[uid] = change.after
        before = change.before
        if before is None or change.gone or _digest(kind, before) != _digest(kind, change.after):
            self._news()

    def _silence(self, error: PeerError | None) -> None:
        self._problem = f": {error}" if error is not None else ""
        if error is None:
            self._tell("the Kubernetes API answers again")
        else:
            self._tell(f"the Kubernetes API fails: {error}; jobs go on meanwhile")


def claim(api: Api) -> Leadership:
    """Return the claim to be the one scheduler of the namespace."""
    return Leadership.of_service(api, NAME, _LABELS)


def serves(api: Api) -> bool:
    """Tell whether a scheduler of the namespace acts."""
    return bool(holder(api, NAME))


def last_plan(api: Api) -> dict[str, Any]:
    """Return the last plan of a namespace's scheduler (place.read_plan).

    Raises UsageError where there is none, or none that can be read.
    """
    found = api.get("ConfigMap", NAME)
    if found is None:
        raise UsageError(
            f"No plan was made yet in the namespace {api.namespace}: the Deployment {NAME} of the "
            "manifests makes them, or `edl schedule serve --runtime kubernetes`."
        )
    return read_plan(str((found.get("data") or {}).get(_PLAN)), f"the ConfigMap {NAME}")


def _kinds(api: Api) -> tuple[str, ...]:
    return _KINDS if api.kueue() else _KINDS[:-1]


def _digest(kind: str, it: Object) -> Any:
    """Return the part of an object that a plan depends on, but the figures of a report."""
    about, spec, status = it["metadata"], it.get("spec") or {}, it.get("status") or {}
    if kind == names.KIND:
        marks = {**(about.get("annotations") or {}), names.SAYS: ""}  # which is written here
        return about["generation"], about.get("labels"), marks, status.get("phase")
    if kind == "Node":
        return spec, about.get("labels"), status.get("allocatable"), is_ready(it)
    if kind == "Workload":
        return about["generation"], about.get("deletionTimestamp"), status
    return spec.get("nodeName"), takes_room(it), about.get("deletionTimestamp")

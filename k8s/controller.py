"""The controller: keeps each EdlJob's objects as its spec wants them, its status as they are.

Three copies of what there is (EdlJobs, their pods, their ConfigMaps) are kept by list and watch;
each change in one of them puts the name of its job into a queue, and nothing else. Whoever takes a
name out asks decide.py what is to be done. The copies only say *that* something is: before anything
is made, changed or deleted, the job is read from the API server itself and decided upon again,
since a copy may be old. What fails is tried again after a pause; what changed meanwhile is refused
(409) and looked at anew.

It holds no state that matters: it may be killed at any moment, and two of them at a time do no
harm. The Lease (__main__.py) only spares them the work.
"""

from __future__ import annotations

import functools
import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ..common.errors import PeerError
from ..common.identity import Identity
from ..common.times import rfc3339
from . import accounts, names
from .allowed import USUAL, Installed
from .api import Api
from .connection import ApiError
from .copies import Copies, Key
from .decide import OTHERS, decide
from .job_status import PHASES
from .keys import Keys
from .masters import Memory
from .plans import Action, Plan, Seen
from .reflector import Change, Reflector

log = logging.getLogger(__name__)

_OURS = "app.kubernetes.io/name=edl,app.kubernetes.io/managed-by=edl"
_WORKERS = 4
_LOOK_S = 120.0  # between two looks at what nobody watches
_CLOSE_S = 10.0
_PAST_MENDING = (400, 422)  # what is asked for is wrong


class Metrics:
    """The metrics that a controller tells Prometheus, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.reconciles = Counter(
            "edl_controller_reconciles",
            "Looks at a job, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self.seconds = Histogram(
            "edl_controller_reconcile_duration_seconds", "Time of a look.", registry=registry
        )
        self.actions = Counter(
            "edl_controller_actions",
            "Requests that change something.",
            ["verb", "kind"],
            registry=registry,
        )
        self.queue = Gauge("edl_controller_queue_depth", "Jobs to look at.", registry=registry)
        self.jobs = Gauge("edl_controller_jobs", "EdlJobs by phase.", ["phase"], registry=registry)
        self.leads = Gauge("edl_controller_leads", "1: this one acts.", registry=registry)


@dataclass
class _Known:
    """The knowledge of one job that is kept between two looks at it."""

    memory: Memory = field(default_factory=Memory)
    looked: float | None = None  # at all of it


class Controller:
    """The controller of the EdlJobs that `api` sees: of one namespace, or of all."""

    def __init__(
        self,
        api: Api,
        metrics: Metrics | None = None,
        *,
        installed: Installed = USUAL,
        clock: Callable[[], float] = time.monotonic,
        resync_s: float = _LOOK_S,
    ) -> None:
        self._api = api
        self._installed = installed
        self._metrics = metrics or Metrics()
        self._clock = clock
        self._copies = copies = Copies()
        for phase in PHASES:
            count = functools.partial(copies.count, phase)
            self._metrics.jobs.labels(phase).set_function(count)
        self._known: dict[Key, _Known] = {}  # touched by whoever has the key only
        self._furnished: set[str] = set()  # namespaces that have the accounts of pods
        self._lock = threading.Condition()
        self._keys: Keys[Key] = Keys()
        self._unlisted = {names.KIND, "Pod", "ConfigMap"}
        self._closed = False
        self._reflectors = [
            Reflector(
                api,
                kind,
                "" if kind == names.KIND else _OURS,
                lambda change, kind=kind: self._changed(kind, change),  # type: ignore[misc]
                lambda _asked, _objects, kind=kind: self._listed(kind),  # type: ignore[misc]
                resync_s=resync_s,
                on_silence=self._silence,
            )
            for kind in sorted(self._unlisted)
        ]
        self._threads = [
            threading.Thread(target=self._work, name=f"reconcile-{i}", daemon=True)
            for i in range(_WORKERS)
        ]

    def start(self) -> None:
        for reflector in self._reflectors:
            reflector.start()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Begin no look any more, and wait until those under way have ended."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        for reflector in self._reflectors:
            reflector.close()
        until = time.monotonic() + _CLOSE_S
        for thread in (each for each in self._threads if each.is_alive()):
            thread.join(max(0.0, until - time.monotonic()))

    # -- what is seen

    def _changed(self, kind: str, change: Change) -> None:
        key = self._copies.take(kind, change)
        if key is not None:
            self._put(key, 0.0)

    def _listed(self, kind: str) -> None:
        with self._lock:
            self._unlisted.discard(kind)
            self._lock.notify_all()

    def _silence(self, error: PeerError | None) -> None:
        if error is None:
            log.info("the Kubernetes API answers again")
        else:
            log.warning("the Kubernetes API fails: %s; jobs go on meanwhile", error)

    def _put(self, key: Key, after_s: float) -> None:
        with self._lock:
            self._keys.add(key, self._clock() + after_s)
            self._metrics.queue.set(len(self._keys))
            self._lock.notify_all()

    # -- what is done

    def _work(self) -> None:
        while True:
            with self._lock:
                key = None
                while not self._closed:
                    if not self._unlisted:  # half a copy would look as if pods were gone
                        key = self._keys.take(self._clock())
                        if key is not None:
                            break
                    idle = bool(self._unlisted)
                    self._lock.wait(None if idle else self._keys.wait_s(self._clock()))
                if key is None:
                    return
                self._metrics.queue.set(len(self._keys))
            self._look(key)

    def _look(self, key: Key) -> None:
        outcome = "done"
        try:
            with self._metrics.seconds.time():
                again_s = self.reconcile(key)
        except ApiError as error:
            outcome = "conflict" if error.status == 409 else "refused"
            self._failed(key, error)
        except PeerError as error:
            outcome = "unreachable"
            self._failed(key, error)
        # What one odd job brings about must not stop the others: it is told, counted, tried again.
        except Exception as error:
            outcome = "failed"
            log.exception("job=%s/%s -> an error of the controller", *key)
            self._failed(key, error)
        else:
            with self._lock:
                self._keys.done(key)
                if again_s is not None:
                    self._keys.add(key, self._clock() + again_s)
                self._lock.notify_all()
        self._metrics.reconciles.labels(outcome).inc()

    def _failed(self, key: Key, error: Exception) -> None:
        with self._lock:
            pause_s = self._keys.failed(key, self._clock())
            self._lock.notify_all()
        log.info("job=%s/%s -> again in %.1f s error=%r", *key, pause_s, str(error))

    def reconcile(self, key: Key) -> float | None:
        """Do what is to be done for one job; in how many seconds to look again.

        One caller at a time for each key. Raises PeerError, ApiError where it could not be done.
        """
        known = self._known.setdefault(key, _Known())
        now = self._clock()
        seen = self._copies.seen(key)
        if seen is None or seen.job["metadata"].get("deletionTimestamp"):
            del self._known[key]  # its objects go with it: they are its own
            return None
        plan = self._decide(seen, known.memory)
        uid = seen.job["metadata"]["uid"]
        young = known.looked is not None and now - known.looked < _LOOK_S
        sure = plan.over or (young and uid == known.memory.uid)
        # also before a death is counted: a pod that has just been made may not be in the copy yet
        if not sure or _changes_objects(plan) or plan.memory != known.memory:
            api = self._api.inside(key[0])
            seen = _read(api, key[1])
            if seen is None:
                del self._known[key]
                return None
            plan = self._decide(seen, known.memory)
            known.looked = now
        self._do(key, seen, known, plan)
        return plan.again_s if plan.over else min(_LOOK_S, plan.again_s or _LOOK_S)

    def _decide(self, seen: Seen, memory: Memory) -> Plan:
        return decide(seen, memory, self._clock(), rfc3339(time.time()), _renewed, self._installed)

    def _do(self, key: Key, seen: Seen, known: _Known, plan: Plan) -> None:
        api = self._api.inside(key[0])
        for action in plan.actions:
            if action.kind == "Event":
                _tell(api, action)
                continue
            try:
                if (action.verb, action.kind) == ("create", "Pod") and not self._api.namespace:
                    self._furnish(api)
                _act(api, action)
            except ApiError as error:
                self._furnished.discard(key[0])  # the accounts may be gone
                known.looked = None  # the copies may be old
                if error.status != 409 and (action.kind != names.KIND or action.verb == "delete"):
                    self._tell_refusal(api, seen, known, action, error)
                raise
            self._metrics.actions.labels(action.verb, action.kind).inc()
            if action.subresource != "status":
                log.info("job=%s/%s %s %s=%s", *key, action.verb, action.kind, action.name)
        known.memory = plan.memory
        if known.memory.refused:
            known.memory = replace(known.memory, refused="")
            self._put(key, 0.0)  # the status still says so

    def _furnish(self, api: Api) -> None:
        """Make the accounts of a namespace's pods, once, where nobody installs any there."""
        if api.namespace not in self._furnished:
            accounts.make(api)
            self._furnished.add(api.namespace)

    def _tell_refusal(
        self, api: Api, seen: Seen, known: _Known, action: Action, error: ApiError
    ) -> None:
        """Write into the status of the job, whatever of the plan has been done."""
        what = {"create": "made", "patch": "changed"}.get(action.verb, "deleted")
        said = f"the {action.kind} {action.name} cannot be {what}: {error.message}"
        if error.status in _PAST_MENDING:
            said += "; mend the spec"
        uid = seen.job["metadata"]["uid"]
        known.memory = replace(known.memory, uid=uid, refused=said)
        job = api.get(names.KIND, seen.job["metadata"]["name"])
        if job is None:
            return
        if (action.verb, action.kind) == ("create", "Pod"):
            known.memory = replace(known.memory, unmade=job["status"]["masters"] - 1)
        shown = self._decide(replace(seen, job=job), known.memory)
        for each in shown.actions:
            if each.subresource == "status":
                each.body["status"].pop("masters", None)  # none is made now
                _act(api, each)
            elif each.kind == "Event":
                _tell(api, each)


def _changes_objects(plan: Plan) -> bool:
    return any(action.subresource != "status" and action.kind != "Event" for action in plan.actions)


def _read(api: Api, name: str) -> Seen | None:
    """Read all of a job from the API server itself."""
    job = api.get(names.KIND, name)
    if job is None or job["metadata"].get("deletionTimestamp"):
        return None
    pods, _ = api.list("Pod", names.selector(name))
    return Seen(
        job=job,
        pods=pods,
        config=api.get("ConfigMap", names.object_name(name)),
        status=api.get("ConfigMap", names.object_name(name, "status")),
        others={
            kind: api.get(
                kind,
                names.object_name(name, "ps")
                if kind == "PodDisruptionBudget"
                else names.object_name(name),
            )
            for kind in OTHERS
        },
    )


def _act(api: Api, action: Action) -> None:
    """Make one request of a plan. Raises ApiError: 409 where the object has changed since."""
    if action.verb == "create":
        api.create(action.kind, action.body)
    elif action.verb == "patch":
        api.patch(action.kind, action.name, action.body, action.subresource)
    else:
        api.delete(action.kind, action.name, uid=action.uid, grace_s=action.grace_s)


def _tell(api: Api, event: Action) -> None:
    """Make an Event, which nothing hangs on. One that is there already happened again."""
    try:
        try:
            api.create("Event", event.body, patience_s=0.0)
        except ApiError as error:
            if error.status != 409:
                raise
            found = api.get("Event", event.name) or {}
            again = {"count": int(found.get("count") or 0) + 1}
            again["lastTimestamp"] = event.body["lastTimestamp"]
            api.patch("Event", event.name, again, patience_s=0.0)
    except PeerError as error:
        log.info("event=%s -> not told error=%r", event.name, str(error))


def _renewed(token: str) -> Identity:
    return Identity.create(token or secrets.token_hex(16))

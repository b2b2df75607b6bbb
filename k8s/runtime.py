"""Replicas as pods, through the Kubernetes API.

Whoever asks never waits for the API: creations and deletions go through one queue and are tried
again as long as the API server is away, so that training goes on without it. A pod's name carries
its incarnation, so that a creation whose answer was lost is found made. What became of pods is seen
by watching them (reflector.py, observe.py), also of those that a master before this one has made.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..common.errors import EdlError, PeerError, Unreachable
from ..runtime.base import Exit, Note, OnReport, Replica, Running
from . import names, observe, oom
from .api import Api, Object
from .calls import Calls
from .connection import ApiError
from .reflector import Change, Reflector

log = logging.getLogger(__name__)

_AGAIN_S = 2.0  # until a creation or deletion that found nobody is tried again
_QUOTA_S = 10.0  # until one that was forbidden is
_CALL_S = 10.0  # of one try
_IMAGE_S = 120.0  # an image that cannot be pulled for so long is a failure
_GIVE_UP_S = 5.0  # beyond its grace: a pod whose node does not say that it ended
_CLOSE_S = 10.0
_UNMADE = 1  # the exit code of what could not be made


@dataclass
class _Pod:
    replica: Replica
    name: str
    body: Object | None = None  # until it is made; None: another master has made it
    made: float | None = None  # by time.monotonic
    given_up: bool = False  # when its grace is over
    running: bool = False
    why: str = ""  # it waits
    doomed: bool = False  # to be deleted


class KubernetesRuntime:
    """A runtime (runtime/base.py) whose replicas are pods of a cluster.

    `make(role, index, incarnation, env, arguments, memory)` makes the pod; `cap(role, index)` is
    the most memory of one that ran out of it. `keep_done`: a pod that has ended well stays, for its
    log.
    """

    def __init__(
        self,
        api: Api,
        job: str,
        *,
        make: Callable[[str, int, str, Mapping[str, str], Sequence[str], str], Object],
        cap: Callable[[str, int], str],
        report: OnReport,
        keep_done: bool = False,
    ) -> None:
        self._least_kept = 0 if keep_done else 1
        self._api = api
        self._job = job
        self._make = make
        self._cap = cap
        self._report = report
        self._lock = threading.Lock()
        self._pods: dict[str, _Pod] = {}  # by incarnation, until its end is reported
        self._memory: dict[tuple[str, int], str] = {}  # what they get after they ran out of it
        self._strangers: set[str] = set()
        self._closed = False
        self._reflector = Reflector(
            api,
            "Pod",
            names.selector(job, *names.REPLICAS),
            self._changed,
            self._listed,
            on_silence=self._silence,
        )
        self._calls = Calls("kubernetes")
        self._reflector.start()
        self._calls.start()

    # -- Runtime

    def start(
        self,
        role: str,
        index: int,
        incarnation: str,
        env: Mapping[str, str],
        arguments: Sequence[str] = (),
    ) -> Replica:
        replica = Replica(role, index, incarnation)
        with self._lock:
            if self._closed:
                raise EdlError(f"{role} {index} cannot be started: the job is ending")
            memory = self._memory.get((role, index), "")
            body = self._make(role, index, incarnation, env, arguments, memory)
            pod = self._pods[incarnation] = _Pod(replica, body["metadata"]["name"], body)
            self._calls.put(lambda: self._create(pod))
        return replica

    def adopt(self, replica: Replica) -> None:
        with self._lock:
            if not self._closed and replica.incarnation not in self._pods:
                name = names.pod_name(self._job, replica.role, replica.index, replica.incarnation)
                pod = self._pods[replica.incarnation] = _Pod(replica, name, made=time.monotonic())
                self._calls.put(lambda: self._look(pod))

    def stop(self, replica: Replica, grace_s: float) -> None:
        with self._lock:
            pod = self._pods.get(replica.incarnation)
            if pod is not None:
                pod.doomed = True
                self._calls.put(lambda: self._delete(pod, int(grace_s)))

    def close(self) -> None:
        known = self._let_go()
        self._calls.join(_CLOSE_S)  # it may be making one
        give_up = time.monotonic() + _CLOSE_S
        for name in (pod.name for pod in known if pod.made is not None):
            try:
                patience_s = max(0.0, give_up - time.monotonic())
                self._api.delete("Pod", name, grace_s=0, patience_s=patience_s)
            except PeerError as error:  # its owner's end takes it along
                log.warning("pod=%s -> not deleted error=%r", name, str(error))

    def detach(self) -> None:
        self._let_go()

    def _let_go(self) -> list[_Pod]:
        """Ask and tell nothing more; return the pods whose end was not told yet."""
        with self._lock:
            self._closed = True
            known = list(self._pods.values())
            self._pods.clear()
            self._calls.close()
        self._reflector.close()
        return known

    # -- what is asked of the API, one after the other

    def _create(self, pod: _Pod) -> None:
        if pod.doomed or pod.body is None:
            self._end(pod, observe.PREEMPTED, "was not made any more")
            return
        try:
            self._api.create("Pod", pod.body, patience_s=_CALL_S)
        except Unreachable as error:
            log.warning("pod=%s -> not made yet error=%r", pod.name, str(error))
            self._calls.put(lambda: self._create(pod), _AGAIN_S)
            return
        except ApiError as error:
            if error.status == 409 and error.reason == "AlreadyExists":
                log.info("pod=%s -> it is there", pod.name)
            elif error.status == 403:  # what others may change: quotas, limits, policies, roles
                full = "exceeded quota" in error.message
                why = "a quota leaves no room" if full else "the cluster forbids its pod"
                self._wait(pod, f"{why}: {error.message}")
                self._calls.put(lambda: self._create(pod), _QUOTA_S)
                return
            elif error.status == 429 or error.status >= 500:
                self._wait(pod, f"the Kubernetes API refuses for now: {error.message}")
                self._calls.put(lambda: self._create(pod), _AGAIN_S)
                return
            else:
                self._end(pod, _UNMADE, f"cannot be made: {error.message}; mend what it asks for")
                return
        pod.made = time.monotonic()

    def _delete(self, pod: _Pod, grace_s: int) -> None:
        if pod.made is None:
            return  # not made: `_create` sees that it is doomed
        try:
            there = self._api.delete("Pod", pod.name, grace_s=grace_s, patience_s=_CALL_S)
        except PeerError as error:
            log.warning("pod=%s -> not deleted yet error=%r", pod.name, str(error))
            self._calls.put(lambda: self._delete(pod, grace_s), _AGAIN_S)
            return
        if not there:
            self._end(pod, observe.PREEMPTED, "was deleted")

    def _look(self, pod: _Pod) -> None:
        """Look whether a pod that another master has started is there."""
        try:
            found = self._api.get("Pod", pod.name)
        except PeerError as error:
            log.warning("pod=%s -> not seen yet error=%r", pod.name, str(error))
            self._calls.put(lambda: self._look(pod), _AGAIN_S)
            return
        if found is None:
            self._end(pod, observe.PREEMPTED, "is gone; nobody knows how it ended", unknown=True)
        else:
            self._seen(pod, found, gone=False)

    # -- what is seen

    def _changed(self, change: Change) -> None:
        labels = change.after["metadata"].get("labels") or {}
        with self._lock:
            pod = self._pods.get(labels.get(names.INCARNATION_LABEL, ""))
        if pod is not None:
            self._seen(pod, change.after, change.gone)

    def _listed(self, asked: float, objects: Mapping[str, Object]) -> None:
        """Find pods that were made before the list was asked for and are not in it.

        Their event was lost. A pod that is in two lists and nobody's is of a master whose books are
        lost.
        """
        there = {each["metadata"]["name"] for each in objects.values()}
        with self._lock:
            gone = [
                pod
                for pod in self._pods.values()
                if pod.made is not None and pod.made < asked and pod.name not in there
            ]
            known = {pod.name for pod in self._pods.values()}
        for pod in gone:
            self._end(pod, observe.PREEMPTED, "is gone; nobody knows how it ended", unknown=True)
        strangers = {
            each["metadata"]["name"]
            for each in objects.values()
            if each["metadata"]["name"] not in known and observe.takes_room(each)
        }
        for name in strangers & self._strangers:
            log.warning("pod=%s -> deleted: of no replica of this job", name)
            self._calls.put(lambda name=name: self._remove(name))  # type: ignore[misc]
        self._strangers = strangers

    def _remove(self, name: str) -> None:
        try:
            self._api.delete("Pod", name, patience_s=0.0)
        except PeerError as error:  # the next list finds it again
            log.warning("pod=%s -> not deleted error=%r", name, str(error))

    def _seen(self, pod: _Pod, found: Object, gone: bool) -> None:
        pod.made = pod.made or time.monotonic()
        state = observe.observe(found, gone)
        if isinstance(state, observe.Ended):
            self._ended(pod, found, state, gone)
            return
        if isinstance(state, observe.Running):
            if not pod.running:
                pod.running = True
                self._report(Running(pod.replica))
        elif state.why != pod.why:
            self._waits(pod, state)
        grace_s = observe.deletion(found)
        if grace_s is not None and not pod.given_up:
            pod.given_up = True
            why = "was deleted, and its node does not say that it ended"
            self._calls.put(
                lambda: self._end(pod, observe.PREEMPTED, why, unknown=True), grace_s + _GIVE_UP_S
            )

    def _waits(self, pod: _Pod, state: observe.Waiting) -> None:
        self._wait(pod, state.why)
        if state.hopeless:
            self._fail(pod, state.why)
        elif state.image:
            self._calls.put(lambda: self._fail(pod, state.why, only_if_waiting=True), _IMAGE_S)

    def _wait(self, pod: _Pod, why: str) -> None:
        if why and why != pod.why:
            self._report(Note(pod.replica, f"waits: {why}"))
        pod.why = why

    def _fail(self, pod: _Pod, why: str, only_if_waiting: bool = False) -> None:
        """Take away a pod that will never run, and count it as a failure."""
        if only_if_waiting and (pod.running or pod.why != why):
            return
        with self._lock:
            known = pod.replica.incarnation in self._pods
        if known:
            self._end(pod, _UNMADE, why)
            self._calls.put(lambda: self._remove(pod.name))

    def _ended(self, pod: _Pod, found: Object, ended: observe.Ended, gone: bool) -> None:
        if ended.code == observe.OUT_OF_MEMORY and ended.why:
            replica = pod.replica
            limit, grown = oom.memory_after_oom(found, self._cap(replica.role, replica.index))
            if grown:
                self._memory[replica.role, replica.index] = grown
                why = f"{ended.why} ({limit}); the next one gets {grown}"
                ended = observe.Ended(observe.PREEMPTED, why)
            elif limit:
                why = f"{ended.why} ({limit}, the most it may get: --oom_memory_cap)"
                ended = observe.Ended(ended.code, why)
        # Of the others the logs are kept until the job is deleted, but for one that never ends.
        if not gone and (ended.code < self._least_kept or observe.lingers(found)):
            self._calls.put(lambda: self._remove(pod.name))
        self._end(pod, ended.code, ended.why, ended.unknown)

    def _end(self, pod: _Pod, code: int, why: str, unknown: bool = False) -> None:
        with self._lock:
            if self._closed or self._pods.pop(pod.replica.incarnation, None) is None:
                return
        self._report(Exit(pod.replica, code, unknown, why))

    def _silence(self, error: PeerError | None) -> None:
        if error is None:
            self._report(Note(None, "the Kubernetes API answers again"))
        else:
            self._report(Note(None, f"{error}; training goes on, nothing is replaced meanwhile"))

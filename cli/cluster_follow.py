"""Follow a job of a cluster to its end: its status, its top object, what its master's pod waits for.

Three watches put what changes into one queue, and so do Ctrl-C and the threads that act on it; the main
thread alone turns that into output. The watches outlive an API server that is away: the job goes on
without it, and so does this.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any

from ..common.errors import EdlError, JobError, PeerError, UsageError
from ..k8s import names, objects
from ..k8s.api import Object
from ..k8s.reflector import Change, Reflector
from .cluster import ClusterJob, status_of, waits_for
from .follow import INTERRUPTED, interrupts
from .jobs import ENDED, Status
from .screen import Screen

_TICK_S = 1.0
# A job's Job ends after its master has said its last status, unless that could not be written.
_LAST_STATUS_S = 5.0

Event = tuple[str, Any]


def follow(job: ClusterJob, screen: Screen) -> int:
    """Show the job until it ends; the exit code.

    The first Ctrl-C stops it, the second ends it at once. Raises JobError where it failed before its
    master said anything, or was deleted.
    """
    top = job.top()
    events: SimpleQueue[Event] = SimpleQueue()

    def watch(kind: str, selector: str, name: str) -> Reflector:
        def changed(change: Change) -> None:
            if name in ("", change.after["metadata"]["name"]):
                events.put(("gone" if change.gone else kind, change.after))

        def listed(asked: float, objects: Mapping[str, Object]) -> None:
            events.put(("listed", {"kind": kind}))

        return Reflector(job.api, kind, selector, changed, listed, on_silence=silence)

    def silence(error: PeerError | None) -> None:
        events.put(("silence", error))

    parts = f"{names.JOB_LABEL}={job.name},app.kubernetes.io/component=job"
    about = "" if top["kind"] == names.KIND else parts  # users label EdlJobs as they like
    reflectors = [
        watch("ConfigMap", parts, names.object_name(job.name, "status")),
        watch("Pod", names.selector(job.name, "master"), ""),
        watch(top["kind"], about, top["metadata"]["name"]),
    ]
    try:
        with interrupts(lambda: events.put(("interrupt", None))), screen:
            for each in reflectors:
                each.start()
            screen.note(f"submitted to the namespace {job.api.namespace}")
            return _Follower(job, top, screen, events).run()
    finally:
        for each in reflectors:
            each.close()


class _Follower:
    def __init__(
        self, job: ClusterJob, top: Object, screen: Screen, events: SimpleQueue[Event]
    ) -> None:
        self._job = job
        self._top = top
        self._screen = screen
        self._events = events
        self._said: Object | None = None  # the ConfigMap of the status
        self._masters: dict[str, Object] = {}
        self._noted = ""
        self._silent = False
        self._interrupts = 0
        self._over_since: float | None = None
        self._unlisted = {"ConfigMap", "Pod", top["kind"]}  # until then much may be unknown

    def run(self) -> int:
        while True:
            try:
                kind, value = self._events.get(timeout=_TICK_S)
            except Empty:
                kind, value = "tick", None
            if kind == "interrupt":
                self._interrupts += 1
                if self._interrupts > 2:
                    return INTERRUPTED
                self._interrupt()
            elif kind == "silence":
                self._silence(value)
            elif kind == "note":
                self._screen.note(value)
            elif kind == "gone" and value["metadata"]["uid"] == self._top["metadata"]["uid"]:
                if self._interrupts > 1:
                    return INTERRUPTED
                raise JobError(f"Job {self._job.name!r} was deleted.")
            elif kind != "tick":
                self._take(kind, value)
            if (code := self._show(kind)) is not None:
                return code

    def _take(self, kind: str, found: Object) -> None:
        """What has changed."""
        if kind == "listed":
            self._unlisted.discard(found["kind"])
        elif kind == "gone":
            self._masters.pop(found["metadata"]["uid"], None)
        elif kind == "ConfigMap":
            self._said = found
        elif kind == "Pod":
            self._masters[found["metadata"]["uid"]] = found
        else:
            self._top = {**found, "kind": self._top["kind"]}

    def _show(self, kind: str) -> int | None:
        """The exit code where the job is over."""
        masters = list(self._masters.values())
        status = status_of(self._job.name, self._top, self._said, masters)
        if status["state"] in ENDED:
            return self._ended(status)
        if self._unlisted or kind in ("interrupt", "silence", "note", "tick"):
            return None
        if status["state"] == "starting":
            self._note(waits_for(self._top, masters))
        elif status["state"] in ("suspended", "suspending"):
            self._note(f"{status['state']}: {status['message']}")
        else:
            self._noted = ""
        self._screen.show(status)
        return None

    def _ended(self, status: Status) -> int | None:
        last = json.loads(self._said["data"][objects.STATUS]) if self._said else {}
        if self._over_since is None:
            self._over_since = time.monotonic()
        if last.get("state") not in ENDED and (
            time.monotonic() - self._over_since < _LAST_STATUS_S
        ):
            return None  # its last words may be on their way
        code = INTERRUPTED if self._interrupts else int(status.get("exit_code") or 0)
        if "records_done" not in status and code not in (0, INTERRUPTED):
            kind = UsageError if code == UsageError.exit_code else JobError
            raise kind(
                f"Job {self._job.name!r} failed before it began: {status.get('message')} (`edl logs "
                f"{self._job.name} -n {self._job.api.namespace} --role master` may say more)"
            )
        self._screen.end({**status, "resume": None}, code)  # that path is of the pods
        return code

    def _note(self, text: str) -> None:
        if text and text != self._noted:
            self._screen.note(text)
        self._noted = text

    def _silence(self, error: PeerError | None) -> None:
        """Three watches say so; once is enough."""
        if error is not None and not self._silent:
            self._screen.note(f"{error}; the job goes on without it, and is followed again then")
        elif error is None and self._silent:
            self._screen.note("the Kubernetes API answers again")
        self._silent = error is not None

    def _interrupt(self) -> None:
        if self._interrupts == 1:
            self._screen.note(
                "stopping: the workers hand back what they have, a checkpoint is written; Ctrl-C "
                "again to end it at once"
            )
            self._act(lambda: self._job.stop("Ctrl-C"))
        else:
            self._screen.note("ending the job now; Ctrl-C again to leave")
            self._act(lambda: self._job.cancel("killed"))

    def _act(self, act: Callable[[], object]) -> None:
        """In a thread: the API server may be away."""

        def run() -> None:
            try:
                act()
            except UsageError as error:
                self._events.put(("note", str(error)))
            except EdlError as error:
                self._events.put(("note", f"{error}; Ctrl-C to try again"))

        threading.Thread(target=run, daemon=True).start()

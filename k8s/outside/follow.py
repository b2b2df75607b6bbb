"""Events of a job of a cluster, for its follower: its status, its top object, its master.

Three watches say what changes, and of a Job a fourth why its pod cannot be made. They outlive an
API server that is away: the job goes on without it, and so does this. The first interrupt stops the
job, the second ends it at once.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ...common.errors import EdlError, JobError, PeerError, UsageError
from ...jobs.follow import End, Interrupt, Note
from ...jobs.job import ENDED, INTERRUPTED, Status
from .. import names, objects
from ..api import Object
from ..connection import Refused
from ..reflector import Change, Reflector
from .job import ClusterJob
from .state import refusal, status_of, waits_for

# A job's Job ends after its master has said its last status, unless that could not be written.
_LAST_STATUS_S = 5.0


@dataclass(frozen=True)
class _Changed:
    """An object is there, or is another than it was."""

    kind: str
    object: Object


@dataclass(frozen=True)
class _Gone:
    """An object is there no more."""

    object: Object


@dataclass(frozen=True)
class _Listed:
    """The objects of a kind were told, all of them."""

    kind: str


@dataclass(frozen=True)
class _Silence:
    """The API server does not answer; None: it does again."""

    error: PeerError | None


class ClusterSource:
    """The events of one job.

    `take` raises JobError where it failed before its master said anything, or was deleted.
    """

    def __init__(self, job: ClusterJob) -> None:
        self._job = job
        self._top = job.top()
        self._put: Callable[[object], None] = lambda _event: None
        self._reflectors: list[Reflector] = []
        self._said: Object | None = None  # the ConfigMap of the status
        self._masters: dict[str, Object] = {}
        self._refused = ""  # why the master's pod cannot be made
        self._noted = ""
        self._silent = False
        self._interrupts = 0
        self._over_since: float | None = None
        self._unlisted = {"ConfigMap", "Pod", self._top["kind"]}  # until then much may be unknown

    def open(self, put: Callable[[object], None]) -> None:
        self._put = put
        kind, job = self._top["kind"], self._job.name
        parts = f"{names.JOB_LABEL}={job},app.kubernetes.io/component=job"
        about = "" if kind == names.KIND else parts  # users label EdlJobs as they like
        self._reflectors = [
            self._watch("ConfigMap", parts, names.object_name(job, "status")),
            self._watch("Pod", names.selector(job, "master"), ""),
            self._watch(kind, about, self._top["metadata"]["name"]),
        ]
        if kind != names.KIND:  # an EdlJob's status says it; who may not read events is not told
            self._reflectors.append(Reflector(self._job.api, "Event", "", self._event))
        put(Note(f"submitted to the namespace {self._job.api.namespace}"))
        for each in self._reflectors:
            each.start()

    def close(self) -> None:
        for each in self._reflectors:
            each.close()

    def take(self, event: object) -> Iterator[Note | Status | End]:
        if isinstance(event, Interrupt):
            self._interrupts += 1
            if self._interrupts > 2:
                yield End(None, INTERRUPTED)
                return
            yield self._interrupt()
        elif isinstance(event, _Silence):
            yield from self._silence(event.error)
        elif isinstance(event, Note):
            yield event
        elif isinstance(event, _Gone) and self._is_top(event.object):
            if self._interrupts < 2:
                raise JobError(f"Job {self._job.name!r} was deleted.")
            yield End(None, INTERRUPTED)
            return
        else:
            self._take(event)
        yield from self._show(isinstance(event, _Changed | _Gone | _Listed))

    def _watch(self, kind: str, selector: str, name: str) -> Reflector:
        """Follow one object of a kind; `name` "": all of them."""

        def changed(change: Change) -> None:
            if name in ("", change.after["metadata"]["name"]):
                found = change.after
                self._put(_Gone(found) if change.gone else _Changed(kind, found))

        def listed(_asked: float, objects: Mapping[str, Object]) -> None:
            if kind == self._top["kind"] and not any(map(self._is_top, objects.values())):
                self._put(_Gone(self._top))  # before it was first listed, so no change tells it
            self._put(_Listed(kind))

        def silence(error: PeerError | None) -> None:
            self._put(_Silence(error))

        return Reflector(self._job.api, kind, selector, changed, listed, on_silence=silence)

    def _event(self, change: Change) -> None:
        if not change.gone and refusal(self._top, [change.after]):
            self._put(_Changed("Event", change.after))

    def _is_top(self, found: Object) -> bool:
        return bool(found["metadata"]["uid"] == self._top["metadata"]["uid"])

    def _take(self, event: object) -> None:
        """Remember what an event says has changed."""
        if isinstance(event, _Listed):
            self._unlisted.discard(event.kind)
        elif isinstance(event, _Gone):
            self._masters.pop(event.object["metadata"]["uid"], None)
        elif isinstance(event, _Changed) and event.kind == "ConfigMap":
            self._said = event.object
        elif isinstance(event, _Changed) and event.kind == "Event":
            self._refused = refusal(self._top, [event.object])
        elif isinstance(event, _Changed) and event.kind == "Pod":
            self._refused = ""
            self._masters[event.object["metadata"]["uid"]] = event.object
        elif isinstance(event, _Changed):
            self._top = {**event.object, "kind": self._top["kind"]}

    def _show(self, changed: bool) -> Iterator[Note | Status | End]:
        masters = list(self._masters.values())
        status = status_of(self._job.name, self._top, self._said, masters, self._refused)
        if status["state"] in ENDED:
            yield from self._ended(status)
            return
        if self._unlisted or not changed:
            return
        if status["state"] == "starting":
            yield from self._note(waits_for(self._top, masters, self._refused))
        elif status["state"] in ("suspended", "suspending"):
            yield from self._note(f"{status['state']}: {status['message']}")
        else:
            self._noted = ""
        yield status

    def _ended(self, status: Status) -> Iterator[End]:
        last = json.loads(self._said["data"][objects.STATUS]) if self._said else {}
        if self._over_since is None:
            self._over_since = time.monotonic()
        if last.get("state") not in ENDED and (
            time.monotonic() - self._over_since < _LAST_STATUS_S
        ):
            return  # its last words may be on their way
        code = INTERRUPTED if self._interrupts else int(status.get("exit_code") or 0)
        begun = "records_done" in status or status.get("round")
        if not begun and code not in (0, INTERRUPTED):
            kind = UsageError if code == UsageError.exit_code else JobError
            raise kind(
                f"Job {self._job.name!r} failed before it began: {status.get('message')} (`edl "
                f"logs {self._job.where} --role master` may say more)"
            )
        yield End({**status, "resume": None}, code)  # that path is of the pods

    def _note(self, text: str) -> Iterator[Note]:
        if text and text != self._noted:
            yield Note(text)
        self._noted = text

    def _silence(self, error: PeerError | None) -> Iterator[Note]:
        """Tell of a silent API server once, though three watches say so."""
        if isinstance(error, Refused):
            raise error
        if error is not None and not self._silent:
            yield Note(f"{error}; the job goes on without it, and is followed again then")
        elif error is None and self._silent:
            yield Note("the Kubernetes API answers again")
        self._silent = error is not None

    def _interrupt(self) -> Note:
        if self._interrupts == 1:
            self._act(lambda: self._job.stop("Ctrl-C"))
            return Note(
                "stopping: the workers hand back what they have, a checkpoint is written; Ctrl-C "
                "again to end it at once"
            )
        self._act(lambda: self._job.cancel("killed"))
        return Note("ending the job now; Ctrl-C again to leave")

    def _act(self, act: Callable[[], object]) -> None:
        """Call `act` in a thread, for the API server may be away."""

        def run() -> None:
            try:
                act()
            except UsageError as error:
                self._put(Note(str(error)))
            except EdlError as error:
                self._put(Note(f"{error}; Ctrl-C to try again"))

        threading.Thread(target=run, daemon=True).start()

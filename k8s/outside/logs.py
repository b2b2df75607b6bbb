"""The logs of a job's pods, through the API server, interleaved as they come.

Each pod that is followed has a thread, which begins when its container has; pods that come later
are followed too, until the job is over and all is read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Protocol

from ...common.errors import EdlError, PeerError, UsageError
from ...jobs.job import ENDED, Status
from .. import names, observe
from ..api import Api, Object
from ..connection import Refused
from ..reflector import Change, Reflector
from .job_pods import JobPods

_LOOK_S = 2.0  # whether the job is over


class _Job(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def api(self) -> Api: ...
    @property
    def pods(self) -> JobPods: ...
    def status(self) -> Status: ...


def lines(
    job: _Job,
    *,
    role: str | None,
    index: int | None,
    tail: int | None,
    follow: bool,
    until: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """Yield all lines, or the last `tail` of each pod, with its replica before them if several.

    `follow`: also what comes until the job ends, or until `until()`. Raises UsageError where there
    is no such pod.
    """
    if index is not None and role is None:
        raise UsageError("--index needs --role: worker, server, teacher or master.")
    component = [names.COMPONENTS[role]] if role else []
    if follow:
        yield from _Follower(job, component, index, tail).lines(until)
        return
    chosen = [pod for pod in job.pods.found(*component) if _is_of(pod, index)]
    if not chosen:
        raise UsageError(
            f"Job {job.name!r} has no such pod: `edl describe {job.name} -n {job.api.namespace}` "
            "shows those that there are."
        )
    for pod in chosen:
        prefix = f"{_replica(pod):<10} | " if len(chosen) > 1 else ""
        container = _container(pod)
        if not container and observe.has_checked(pod):
            container = names.CHECK  # all that there is so far
        if not container:
            yield f"{prefix}({observe.observe(pod).why or 'it has not begun'})"  # type: ignore[union-attr]
            continue
        name = pod["metadata"]["name"]
        for line in _split(job.api.log(name, container=container, follow=False, tail=tail)):
            yield prefix + line


class _Follower:
    def __init__(
        self, job: _Job, component: list[str], index: int | None, tail: int | None
    ) -> None:
        self._job = job
        self._component = component
        self._index = index
        self._tail = tail
        self._selector = names.selector(job.name, *component)
        self._alone = index is not None or component == ["master"]
        self._lines: SimpleQueue[tuple[str, str | None]] = SimpleQueue()
        self._read: set[str] = set()  # uids of pods that have, or had, a thread
        self._reading = 0
        self._closed = False  # nobody reads any more

    def lines(self, until: Callable[[], bool] | None) -> Iterator[str]:
        changed: SimpleQueue[Object] = SimpleQueue()

        def tell(change: Change) -> None:
            if not change.gone:
                changed.put(change.after)

        reflector = Reflector(self._job.api, "Pod", self._selector, tell)
        reflector.start()
        try:
            while until is None or not until():
                self._begin(_taken(changed))
                over = self._is_over()  # asked before reading: what was written before is read
                yield from self._fresh()
                if over and not self._reading:
                    return
        finally:
            self._closed = True
            reflector.close()

    def _is_over(self) -> bool:
        """Tell whether the job has ended, and all of its pods are read that there are."""
        try:
            if self._job.status()["state"] not in ENDED:
                return False
            self._begin(self._job.pods.found(*self._component))  # no event has told of some yet
        except UsageError:  # deleted
            return True
        except Refused:
            raise
        except PeerError:
            return False
        return True

    def _begin(self, pods: Iterable[Object]) -> None:
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if uid in self._read or not _is_of(pod, self._index) or not _container(pod):
                continue
            self._read.add(uid)
            self._reading += 1
            threading.Thread(target=self._copy, args=(pod,), daemon=True).start()

    def _fresh(self) -> Iterator[str]:
        """Yield what comes for a while."""
        wait_s = _LOOK_S if self._reading else _LOOK_S / 4
        while True:
            try:
                prefix, line = self._lines.get(timeout=wait_s)
            except Empty:
                return
            if line is None:
                self._reading -= 1
                return
            yield line if self._alone else f"{prefix:<10} | {line}"

    def _copy(self, pod: Object) -> None:
        """Copy a pod's log, line by line; in a thread of its own."""
        replica, name, container = _replica(pod), pod["metadata"]["name"], _container(pod)
        try:
            for line in _split(
                self._job.api.log(name, container=container, follow=True, tail=self._tail)
            ):
                if self._closed:
                    return
                self._lines.put((replica, line))
        except EdlError as error:
            self._lines.put((replica, f"(its log broke off: {error})"))
        finally:
            self._lines.put((replica, None))


def _taken(changed: SimpleQueue[Object]) -> Iterator[Object]:
    """Take what there is."""
    while True:
        try:
            yield changed.get_nowait()
        except Empty:
            return


def _is_of(pod: Object, index: int | None) -> bool:
    found = pod["metadata"]["labels"].get(names.INDEX_LABEL, "0")
    return index is None or found == str(index)


def _replica(pod: Object) -> str:
    """Return the name that its file has on this machine: master, server-0, worker-1."""
    labels = pod["metadata"]["labels"]
    role = labels.get(names.ROLE_LABEL, "?")
    if role == "master":
        return "master"
    return f"{'server' if role == 'ps' else role}-{labels.get(names.INDEX_LABEL, '?')}"


def _container(pod: Object) -> str:
    """Return the container whose log is the pod's; "" while there is none: it is refused then.

    It is named in each request: of a pod with several the API server guesses none. That of the
    check of a definition is told only where it has ended the pod, since a master tells its words.
    """
    state = observe.observe(pod)
    if observe.has_run(pod) or isinstance(state, observe.Running):
        return names.CONTAINER
    return names.CHECK if isinstance(state, observe.Ended) and observe.has_checked(pod) else ""


def _split(pieces: Iterator[bytes]) -> Iterator[str]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    if rest:
        yield rest.decode(errors="replace")

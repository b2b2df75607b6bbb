"""Jobs in a Kubernetes cluster, seen from outside: made, watched, scaled, ended.

Everything goes through the API server, so that it works from wherever kubectl does: what the user
wants is written into the job's ConfigMap, what the master says is read from the one of its status.
A job's Job owns all else of it, so deleting that deletes all.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ..common.errors import EdlError, JobError, UsageError
from ..common.identity import Identity
from ..common.settings import JobSettings
from ..k8s import names, objects, observe, pods
from ..k8s.api import Api, ApiError, Object
from ..k8s.reflector import Change, Reflector
from .follow import INTERRUPTED, interrupts
from .jobs import ENDED, Status
from .screen import Screen

_TICK_S = 1.0
_TRIES = 5  # of a change that somebody else's crossed


class ClusterJob:
    """One job of a cluster."""

    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.name = name
        self._object = names.object_name(name)

    def exists(self) -> bool:
        return self.api.get("Job", self._object) is not None

    def status(self) -> Status:
        """The state now. Raises UsageError where there is no such job."""
        found = self.api.get("Job", self._object)
        if found is None:
            raise UsageError(
                f"There is no job {self.name!r} in the namespace {self.api.namespace}: `edl list "
                "--runtime kubernetes` shows those that are there."
            )
        said = self.api.get("ConfigMap", names.object_name(self.name, "status"))
        return _status(self.name, found, said, self.pods("master"))

    def pods(self, *components: str) -> list[Object]:
        items, _ = self.api.list("Pod", names.selector(self.name, *components))
        return sorted(items, key=_order)

    def scale(self, num_workers: int) -> int:
        """Want so many workers; how many were wanted before."""
        before = 0

        def change(wanted: dict[str, Any]) -> None:
            nonlocal before
            before, wanted["num_workers"] = wanted["num_workers"], num_workers

        self._want(change)
        return before

    def stop(self, reason: str) -> None:
        """End it in order: workers hand back, a checkpoint is written."""
        self._want(lambda wanted: wanted.update(stop=reason))

    def delete(self) -> bool:
        """It and all that is of it; whether it was there."""
        return self.api.delete("Job", self._object, policy="Background")

    def events(self) -> list[Object]:
        """What the cluster says of its objects, oldest first."""
        found, _ = self.api.list("Event")
        prefix = self._object
        mine = [e for e in found if e["involvedObject"].get("name", "").startswith(prefix)]
        return sorted(mine, key=lambda e: e.get("lastTimestamp") or e.get("eventTime") or "")

    def log_lines(
        self, role: str | None, index: int | None, tail: int | None, follow: bool
    ) -> Iterator[str]:
        """The lines of its pods, each with its pod before it where there are several."""
        components = {"server": "ps"}
        chosen = self.pods(*([components.get(role, role)] if role else []))
        if index is not None:
            chosen = [
                p for p in chosen if p["metadata"]["labels"].get(names.INDEX_LABEL) == str(index)
            ]
        if not chosen:
            raise UsageError(f"Job {self.name!r} has no such pod: `edl describe {self.name}`.")
        if follow and len(chosen) > 1:
            yield from self._follow_all(chosen, tail)
            return
        for pod in chosen:
            name = pod["metadata"]["name"]
            prefix = f"{name} | " if len(chosen) > 1 else ""
            for line in _lines(self.api.log(name, follow=follow, tail=tail)):
                yield prefix + line

    def _follow_all(self, chosen: list[Object], tail: int | None) -> Iterator[str]:
        queue: SimpleQueue[str | None] = SimpleQueue()

        def read(name: str) -> None:
            try:
                for line in _lines(self.api.log(name, follow=True, tail=tail)):
                    queue.put(f"{name} | {line}")
            except EdlError as error:
                queue.put(f"{name} | (no more: {error})")
            finally:
                queue.put(None)

        for pod in chosen:
            threading.Thread(target=read, args=(pod["metadata"]["name"],), daemon=True).start()
        left = len(chosen)
        while left:
            line = queue.get()
            if line is None:
                left -= 1
            else:
                yield line

    def _want(self, change: Callable[[dict[str, Any]], None]) -> None:
        for _ in range(_TRIES):
            found = self.api.get("ConfigMap", self._object)
            if found is None:
                raise UsageError(f"There is no job {self.name!r} in {self.api.namespace}.")
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
    """The status of each job of the namespace."""
    selector = "app.kubernetes.io/name=edl,app.kubernetes.io/component=job"
    found, _ = api.list("Job", selector)
    maps, _ = api.list("ConfigMap", selector)
    said = {each["metadata"]["name"]: each for each in maps}
    masters, _ = api.list("Pod", f"app.kubernetes.io/name=edl,{names.ROLE_LABEL}=master")
    return [
        _status(
            name := each["metadata"]["labels"][names.JOB_LABEL],
            each,
            said.get(names.object_name(name, "status")),
            [m for m in masters if m["metadata"]["labels"][names.JOB_LABEL] == name],
        )
        for each in found
    ]


def plan(settings: JobSettings) -> list[Object]:
    """All that a submission makes, in order, without what only the moment gives (token, owner)."""
    if not settings.image_name:
        raise UsageError("--runtime kubernetes needs --image_name: an image with edl in it.")
    made = pods.templates(settings, _overlays(settings))
    job = settings.job_name
    return [
        objects.master_job(job, made["master"]),
        objects.secret(job, Identity("")),
        objects.config(settings, made),
        objects.service(job),
        objects.network_policy(job),
    ]


def submit(api: Api, settings: JobSettings) -> ClusterJob:
    """Make the job. Raises UsageError where one of its name is there; nothing is left where the
    API server refuses a part."""
    job = settings.job_name
    top, _, *others = plan(settings)
    top["spec"]["parallelism"] = 0  # until all that its pod needs is there
    try:
        owner = api.create("Job", top)
    except ApiError as error:
        if error.status == 409:
            raise UsageError(
                f"--job_name: a job named {job!r} is in the namespace {api.namespace} already: choose "
                f"another name, or delete that one (`edl delete {job}`)."
            ) from error
        raise
    try:
        identity = Identity.create(secrets.token_hex(16))
        for each in (objects.secret(job, identity), *others):
            each["metadata"]["ownerReferences"] = [
                {**objects.owner_reference(owner), "blockOwnerDeletion": False}
            ]
            api.create(each["kind"], each)
        api.patch("Job", top["metadata"]["name"], {"spec": {"parallelism": 1}})
    except BaseException:
        api.delete("Job", top["metadata"]["name"])
        raise
    return ClusterJob(api, job)


def follow(job: ClusterJob, screen: Screen) -> int:
    """Show the job until it ends; the exit code. The first Ctrl-C stops it, the second deletes it."""
    queue: SimpleQueue[tuple[str, Any]] = SimpleQueue()

    def changed(change: Change) -> None:
        about = change.after["metadata"]
        if about["name"] == names.object_name(job.name, "status"):
            queue.put(("status", json.loads(change.after["data"][objects.STATUS])))

    selector = f"{names.JOB_LABEL}={job.name},app.kubernetes.io/component=job"
    reflector = Reflector(job.api, "ConfigMap", selector, changed)
    reflector.start()
    times = 0
    try:
        with interrupts(lambda: queue.put(("interrupt", None))), screen:
            screen.note(f"submitted to the namespace {job.api.namespace}")
            while True:
                try:
                    kind, value = queue.get(timeout=_TICK_S)
                except Empty:
                    continue
                if kind == "interrupt":
                    times += 1
                    if times > 1:
                        screen.note("deleting the job")
                        job.delete()
                        return INTERRUPTED
                    screen.note(
                        "stopping: the workers hand back, a checkpoint is written; Ctrl-C again to "
                        "delete the job"
                    )
                    job.stop("Ctrl-C")
                    continue
                if value.get("state") in ENDED:
                    code = INTERRUPTED if times else int(value["exit_code"])
                    screen.end(value, code)
                    return code
                screen.show(value)
    finally:
        reflector.close()


def _status(name: str, job: Object, said: Object | None, masters: list[Object]) -> Status:
    """What the master said last; before that, what its pod waits for."""
    if said is not None:
        return dict(json.loads(said["data"][objects.STATUS]))
    status: Status = {"job_name": name, "state": "starting"}
    for pod in masters:
        state = observe.observe(pod)
        if isinstance(state, observe.Waiting) and state.why:
            status["message"] = f"the master {state.why}"
        elif isinstance(state, observe.Ended):
            status["message"] = f"the master's pod ended: {state.why or f'exit code {state.code}'}"
    return status


def _overlays(settings: JobSettings) -> dict[str, Any]:
    if not settings.cluster_spec:
        return {}
    import yaml

    try:
        found = yaml.safe_load(Path(settings.cluster_spec).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(
            f"--cluster_spec: {settings.cluster_spec} cannot be read: {error}."
        ) from error
    if not isinstance(found, dict):
        raise UsageError(f"--cluster_spec: {settings.cluster_spec} is no mapping of roles to pods.")
    return found


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    if rest:
        yield rest.decode(errors="replace")


def _order(pod: Object) -> tuple[int, int, str]:
    labels = pod["metadata"]["labels"]
    role = ("master", "ps", "worker").index(labels.get(names.ROLE_LABEL, "worker"))
    return role, int(labels.get(names.INDEX_LABEL) or 0), pod["metadata"]["creationTimestamp"]

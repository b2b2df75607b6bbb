"""`edl cp` of a job of a cluster: a helper pod with the job's volumes, read through the API server.

Of an EdlJob the controller makes it (copying.py). Where there is none, it is the pod of a batch
Job, which whoever submits such jobs may make.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

from ...common.errors import JobError, PeerError, UsageError
from ...jobs import transfer
from .. import copying, names, objects, observe
from ..api import Object
from ..connection import ApiError
from ..names import FILES_PORT
from .job import ClusterJob

_MADE_S = 20.0  # for a controller that runs to make the pod
_BEGUN_S = 300.0  # for the pod to run, which may wait for an image
_SERVES_S = 30.0  # for what runs in it to listen
_LOOK_S = 0.3
_SILENT_S = 60.0


def fetch(
    job: ClusterJob, path: str, dest: str, force: bool, say: Callable[[str], None]
) -> tuple[str, int]:
    """Copy a file or a folder of the job; return where it stands now, and its bytes.

    `path` is relative to the job's folder, or one of its pods. Raises UsageError for what cannot
    be, JobError where it did not come whole.
    """
    target = transfer.place_for(path, dest, force)
    top = job.top()
    config = job.api.get("ConfigMap", names.object_name(job.name))
    if config is None:
        raise JobError(f"Job {job.name!r} has not begun yet: it has no files.")
    secret = secrets.token_hex(32)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    asked = copying.Wish(secrets.token_hex(3), path, digest)
    templates = json.loads(config["data"][objects.TEMPLATES])
    if refused := copying.refusal(templates, path):
        raise UsageError(f"{job.name}:{refused}")
    helper = _OfController(job, asked) if top["kind"] == names.KIND else _Own(job, asked, templates)
    try:
        helper.begin(top)
        pod = _running(job, helper, say)
        return str(target), transfer.receive(_stream(job, pod, secret), target)
    finally:
        helper.end()


class _OfController:
    """A helper pod that the controller of EdlJobs makes."""

    def __init__(self, job: ClusterJob, asked: copying.Wish) -> None:
        self._job = job
        self._asked = asked

    @property
    def advice(self) -> str:
        where = self._job.api.namespace
        return f"does the controller run (`edl doctor -n {where}`), and is it of this version?"

    def begin(self, _top: Object) -> None:
        self._annotate(self._asked.to_annotation())

    def pod(self) -> Object | None:
        return self._job.api.get("Pod", copying.pod_name(self._job.name, self._asked.id))

    def end(self) -> None:
        with contextlib.suppress(PeerError):  # the pod ends by itself; the next copy deletes it
            self._annotate(None)

    def _annotate(self, text: str | None) -> None:
        about = {"annotations": {copying.ANNOTATION: text}}
        self._job.api.patch(names.KIND, self._job.name, {"metadata": about})


class _Own:
    """A helper pod of a batch Job that is made here."""

    advice = "may Jobs make pods here (`kubectl describe job`)?"

    def __init__(self, job: ClusterJob, asked: copying.Wish, templates: dict[str, Any]) -> None:
        self._job = job
        self._name = copying.pod_name(job.name, asked.id)
        self._template = copying.template(templates, asked)

    def begin(self, top: Object) -> None:
        labels = {names.JOB_LABEL: self._job.name, names.ROLE_LABEL: copying.ROLE}
        owner = {**objects.owner_reference(top), "blockOwnerDeletion": False}
        about = {"name": self._name, "labels": labels, "ownerReferences": [owner]}
        spec = {"backoffLimit": 0, "template": self._template}
        made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec}
        self._job.api.create("Job", made)

    def pod(self) -> Object | None:
        found, _ = self._job.api.list("Pod", f"job-name={self._name}")
        return found[0] if found else None

    def end(self) -> None:
        with contextlib.suppress(PeerError):  # it goes with the job that it is of
            self._job.api.delete("Job", self._name)


def _running(job: ClusterJob, helper: _OfController | _Own, say: Callable[[str], None]) -> str:
    """Wait until the helper runs; return its name."""
    began, told = time.monotonic(), ""
    while True:
        pod, waited_s = helper.pod(), time.monotonic() - began
        if pod is None:
            if waited_s > _MADE_S:
                raise JobError(f"nobody has made a helper pod for {job.name!r}: {helper.advice}")
        else:
            state = observe.observe(pod)
            if isinstance(state, observe.Running):
                return str(pod["metadata"]["name"])
            why = state.why or (f"exit code {state.code}" if hasattr(state, "code") else "")
            if isinstance(state, observe.Ended) or waited_s > _BEGUN_S:
                raise JobError(
                    f"the helper pod {pod['metadata']['name']} does not run ({why}): say it again "
                    "when there is room."
                )
            if why and why != told:
                say(f"the helper pod {why}")
            told = why
        time.sleep(_LOOK_S)


def _stream(job: ClusterJob, pod: str, secret: str) -> Iterator[bytes]:
    """Yield what the helper sends, once it listens."""
    give_up = time.monotonic() + _SERVES_S
    while True:
        try:
            pieces = job.api.through(pod, FILES_PORT, secret, _SILENT_S)
            first = next(pieces, b"")
            break
        except ApiError as error:
            if error.status == 403:
                raise
            if error.status < 500 or time.monotonic() > give_up:
                raise JobError(f"the helper pod {pod} is not reached: {error}") from error
        time.sleep(_LOOK_S)
    yield first
    yield from pieces

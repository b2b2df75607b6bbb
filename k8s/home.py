"""A master in its pod: its lease, its runtime, what the user wants of it, what it says.

Everything it needs to know of the cluster is in the job's ConfigMap, mounted and watched: the pods'
templates, and what is wanted now. What it says goes to the ConfigMap of the status.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..common import finite, storage
from ..common.errors import EdlError, Fenced, PeerError, UsageError
from ..common.settings import JobSettings
from ..jobs.job import ended_as
from ..runtime.base import OnReport, Replica, Runtime
from . import names, objects, oom, pods
from .api import Api, Object
from .connection import ApiError
from .leadership import Leadership
from .reflector import Change, Reflector
from .runtime import KubernetesRuntime

log = logging.getLogger(__name__)

_STATUS_S = 2.0  # between two writes of the status
_CALL_S = 5.0
_LAST_S = 15.0  # the last one
_OTHERS = ("num_ps", "num_teachers", "max_teachers")  # that are wanted, besides workers
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)  # to every master after this one, too


class Home:
    """The pod of one master. Raises UsageError where this process is in none."""

    def __init__(self, settings: JobSettings) -> None:
        name = os.environ.get("EDL_POD")
        if not name:
            raise UsageError(
                "--runtime kubernetes: this master runs in no pod: start the job with `edl submit`."
            )
        self._settings = settings
        self._job = settings.job_name
        self._api = Api.connect(client=names.MASTER)
        pod = self._api.get("Pod", name)
        if pod is None:
            raise UsageError(f"There is no pod {name} in the namespace {self._api.namespace}.")
        if pod["metadata"].get("deletionTimestamp"):
            # whoever told it so came before there was anybody to hear
            raise Fenced("this pod is told to go")
        owners = pod["metadata"].get("ownerReferences") or [objects.owner_reference(pod)]
        self._owner = {k: owners[0][k] for k in ("apiVersion", "kind", "name", "uid")}
        if self._owner["kind"] == names.KIND:
            # so that `kubectl drain` takes the pods for somebody's; a Job would count them as its
            self._owner["controller"] = True
        self._templates: dict[str, Object] = json.loads(
            (Path(pods.SETTINGS_DIR) / objects.TEMPLATES).read_text()
        )
        self._status = _StatusWriter(self._api, self._job, self._owner)
        self._wanted: Reflector | None = None
        self._leadership = Leadership(
            self._api,
            names.object_name(self._job),
            name,
            names.labels(self._job, "master"),
            owner=self._owner,
        )

    @property
    def address(self) -> str:
        """Return where the others find the master."""
        return objects.address(self._job, self._api.namespace)

    def live(self, job_dir: Path, run: Callable[[], tuple[int, str]]) -> int:
        """Run the job as the one master among the pods that may try; return its exit code.

        `run` returns the exit code and, where it could not even begin, why. It leaves result.json,
        unless the job did not begin. What ends it is told before the pod ends, so that no other
        tries again. Raises PeerError where another pod goes on.
        """
        try:
            try:
                self.acquire(job_dir)
            except UsageError as error:  # nowhere to write the result: only told
                self.decided(_failed(self._job, error.exit_code, str(error)))
                raise
            result = job_dir / "result.json"
            if not result.exists():
                try:
                    code, message = run()
                except PeerError:
                    raise  # the pod is told to go, or nobody answers: another one goes on
                except EdlError as error:
                    code, message = error.exit_code, str(error)
                if not result.exists():  # it could not even begin
                    ended = _failed(self._job, code, message)
                    storage.write_file(result, finite.dumps(ended).encode())
            status = finite.loads(result.read_bytes())
            self.decided(status)
            return int(status["exit_code"])
        finally:
            self.close()

    def acquire(self, job_dir: Path) -> None:
        """Become the one master of the job.

        What an earlier job of this name has left in the volume is put aside. Raises UsageError
        where the volume is not for this user to write.
        """
        self._leadership.acquire()
        try:
            self._settle(job_dir)
        except OSError as error:
            if error.errno not in _FORBIDDEN:
                raise  # of the moment: the next master may find it well
            raise UsageError(
                f"--job_volume: user {os.getuid()} may not write there ({error.strerror}: "
                f"{error.filename}). Give that user, or its group, the volume's folder and what "
                "is in it, and submit the job again."
            ) from error

    def _settle(self, job_dir: Path) -> None:
        job_dir.mkdir(parents=True, exist_ok=True)
        mark = job_dir / "owner"
        if not mark.exists() or mark.read_text() != self._owner["uid"]:
            left = [path for path in job_dir.iterdir() if path.name != "old"]
            if left:
                old = job_dir / "old" / str(time.time_ns() // 1_000_000)
                old.mkdir(parents=True)
                for path in left:
                    path.rename(old / path.name)
            (job_dir / "logs").mkdir()
            storage.write_file(job_dir / "settings.json", self._settings.to_json().encode())
            storage.write_file(mark, self._owner["uid"].encode())

    def start_runtime(self, report: OnReport, keep_done: bool = False) -> Runtime:
        """Return what runs the pods. `keep_done`: one that has ended well stays, for its log."""
        return KubernetesRuntime(
            self._api,
            self._job,
            make=self._make,
            cap=self._cap,
            report=report,
            keep_done=keep_done,
        )

    def serve(
        self,
        scale: Callable[[int, int, int, int], Any],
        stop: Callable[[str], Any],
        fence: Callable[[str], None],
        checkpoint: Callable[[str], Any] = lambda _question: None,
    ) -> None:
        """Do what is wanted from now on, and keep the lease.

        `scale(workers, servers, teachers, most teachers)`: 0 servers are as many as there are.
        `checkpoint` is told each question for one, perhaps once more.
        """
        self._leadership.keep(fence)
        # its account was made anew: no pod of it is taken any more, but another one's may be
        self._api.connection.on_end = lambda error: fence(str(error))
        told: tuple[int, ...] | None = None  # the journal may remember others: told in any case

        def look(change: Change) -> None:
            nonlocal told
            if change.gone:
                return
            try:
                wanted = json.loads(change.after["data"][objects.WANTED])
                others = (int(wanted.get(name, 0)) for name in _OTHERS)
                numbers = int(wanted["num_workers"]), *others
                reason = str(wanted["stop"])
                questions = [str(each) for each in wanted.get("checkpoints") or []]
            except (KeyError, TypeError, ValueError) as error:
                log.error("%s cannot be read: %r: it is left alone", objects.WANTED, error)
                return
            if numbers != told:
                told = numbers
                scale(*numbers)
            for question in questions:
                checkpoint(question)
            if reason:
                stop(reason)

        selector = f"{names.JOB_LABEL}={self._job},{names.CONFIG_LABEL}=wanted"
        self._wanted = Reflector(self._api, "ConfigMap", selector, look)
        self._wanted.start()

    def show(self, status: dict[str, Any]) -> None:
        self._status.put(status)

    def decided(self, status: dict[str, Any]) -> None:
        """Tell that the job is over. Where it has failed, its Job shall not try again."""
        self._status.close(status)
        if status["exit_code"] and self._owner["kind"] == "Job":  # a controller reads the status
            try:
                self._api.patch("Job", self._owner["name"], {"spec": {"backoffLimit": 0}})
            except PeerError as error:  # it starts a master again, which finds the same end
                log.warning("%s -> its end is not told error=%r", self._owner["name"], str(error))

    def close(self) -> None:
        if self._wanted is not None:
            self._wanted.close()
        self._status.close(None)
        self._leadership.close()
        self._api.close()

    def _make(
        self,
        role: str,
        index: int,
        incarnation: str,
        env: Mapping[str, str],
        arguments: Sequence[str],
        memory: str,
    ) -> Object:
        given = ("--index", str(index), "--incarnation", incarnation, "--master", self.address)
        return pods.replica(
            self._template(role, index),
            Replica(role, index, incarnation),
            job=self._job,
            arguments=(*given, *arguments),
            env=env,
            owner=self._owner,
            memory=memory,
        )

    def _cap(self, role: str, index: int) -> str:
        return oom.memory_cap(self._settings, self._template(role, index))

    def _template(self, role: str, index: int) -> Object:
        if role != "worker":
            return self._templates[names.COMPONENTS[role]]
        settings = self._settings
        pool = pods.worker_pool(settings.worker_pod_priority, settings.num_workers, index)
        return self._templates[pool]


def _failed(job: str, code: int, message: str) -> dict[str, Any]:
    """Return the status of a job that could not begin."""
    ended = {"job_name": job, "state": ended_as(code), "exit_code": code}
    return {**ended, "message": message, "resume": None}


class _StatusWriter:
    """The newest status, written by a thread of its own: the master does not wait for the API."""

    def __init__(self, api: Api, job: str, owner: Object) -> None:
        self._api = api
        self._job = job
        self._owner = owner
        self._changed = threading.Condition()
        self._newest: str | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def put(self, status: dict[str, Any]) -> None:
        with self._changed:
            self._newest = finite.dumps(status)
            self._changed.notify_all()

    def close(self, status: dict[str, Any] | None) -> None:
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(_LAST_S)
        if status is not None:
            try:
                self._write(finite.dumps(status), _LAST_S)
            except PeerError as error:
                log.warning("status -> the last one is not written error=%r", str(error))

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._newest is None and not self._closed.is_set():
                    self._changed.wait()
                newest, self._newest = self._newest, None
            if self._closed.is_set() or newest is None:
                return
            try:
                self._write(newest, _CALL_S)
            except PeerError as error:
                log.info("status -> not written error=%r", str(error))
            self._closed.wait(_STATUS_S)

    def _write(self, text: str, patience_s: float) -> None:
        body = objects.status(self._job, text)
        name, change = body["metadata"]["name"], {"data": body["data"]}
        try:
            self._api.patch("ConfigMap", name, change, patience_s=patience_s)
        except ApiError as error:
            if error.status != 404:
                raise
            body["metadata"]["ownerReferences"] = [self._owner]
            self._api.create("ConfigMap", body, patience_s=patience_s)

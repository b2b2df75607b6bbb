"""A job as Python has it: what `edl status`, `logs`, `wait`, `scale`, `stop`, ... say and do.

A Job is a name and a place. Nothing is kept of what it says, so that any process, also one that did
not start it, sees the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..cli.place import place
from ..common.errors import EdlError, JobError, JobFailed, UsageError
from ..jobs.job import ENDED, STOPPED, Status, whole
from ..jobs.local import LocalJob
from ..jobs.wait import TooLate
from .page import table
from .result import Result

if TYPE_CHECKING:
    from ..jobs import job as protocol

_TAIL = 20  # lines of a log that an error shows
_LAST_WORDS_S = 5.0  # a process that has ended is told of at once; a busy machine takes longer
_LOOK_S = 0.5  # between two looks of `await job`


class Job:
    """A job, of this machine or of a cluster, that runs, waits or is over."""

    def __init__(self, name: str, runtime: str = "local", namespace: str = "") -> None:
        self.name = name
        self._runtime, self._namespace = runtime, namespace

    def __repr__(self) -> str:
        namespace = f", namespace={self._namespace!r}" if self._namespace else ""
        where = f", runtime={self._runtime!r}{namespace}" if self._runtime != "local" else ""
        return f"edl.job({self.name!r}{where})"

    def _repr_html_(self) -> str:
        return table(self.status())

    @property
    def path(self) -> Path | None:
        """The job's folder; None in a cluster."""
        with self._found() as (_, job):
            return job.folder if isinstance(job, LocalJob) else None

    @contextlib.contextmanager
    def _found(self) -> Iterator[tuple[protocol.Jobs, protocol.Job]]:
        with place(self._runtime, self._namespace) as found:
            yield found, found.find(self.name)

    # -- what is known of it

    def status(self) -> Status:
        """Return its state now: what `edl status -o json` prints (docs/cli.md)."""
        with self._found() as (_, job):
            status = job.status()
            if status.get("state") == "dead" and isinstance(job, LocalJob):
                from ..jobs.reap import settle

                settle(job, _LAST_WORDS_S)
                status = job.status()
            return whole(status)

    def done(self) -> bool:
        """Tell whether nothing more comes from it."""
        return self.status().get("state") in (*ENDED, "dead")

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of its last evaluation, {} before the first."""
        return dict(self.status().get("metrics") or {})

    def events(self) -> list[dict[str, Any]]:
        """Return what happened, as `edl events -o json` prints it."""
        with self._found() as (_, job):
            return list(job.events().rows)

    def logs(
        self,
        role: str | None = None,
        follow: bool = False,
        *,
        index: int | None = None,
        tail: int | None = None,
    ) -> Iterator[str]:
        """Yield the lines of its logs; `follow`: also what comes until it ends.

        `role`: master, worker, server or teacher; `tail`: only the last lines of each.
        """
        with self._found() as (_, job):
            yield from job.lines(role=role, index=index, tail=tail, follow=follow)

    # -- its end

    def wait(self, timeout: float | None = None, until: str = "ended") -> Status:
        """Wait until it is ended, done, running, ... (as `edl wait --for`); return its status.

        Raises TimeoutError after `timeout` seconds, JobFailed where that cannot come any more.
        """
        from ..jobs.wait import wait

        timeout_s = float("inf") if timeout is None else timeout
        with self._found() as (places, job):
            if until not in places.goals:
                raise UsageError(f"until is one of {', '.join(places.goals)}, not {until!r}.")
            try:
                return wait(job.look, until, timeout_s, places.look_every_s)
            except TooLate:
                raise
            except JobError as error:
                raise self.failure(str(error)) from error

    async def wait_async(self, timeout: float | None = None, until: str = "ended") -> Status:
        """Do as `wait`, and let others run meanwhile."""
        give_up = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return await asyncio.to_thread(self.wait, 0.0, until)
            except TooLate:
                if time.monotonic() + _LOOK_S > give_up:
                    raise
            await asyncio.sleep(_LOOK_S)

    def __await__(self) -> Generator[Any, None, Result]:
        async def result() -> Result:
            await self.wait_async()
            return self.result()

        return result().__await__()

    def result(self, timeout: float | None = None) -> Result:
        """Wait until it has ended, and return what came of it.

        One that was stopped in order has a result too. Raises TimeoutError, JobFailed.
        """
        status = self.wait(timeout)
        in_order = status["state"] == STOPPED and status.get("resume")
        if status["state"] in ("failed", STOPPED) and not in_order:
            raise self.failure()
        return Result.of(status, self.path)

    def failure(self, told: str = "") -> EdlError:
        """Return the error of a job that failed; `told`: why, where its status does not say it."""
        status = self.status()
        reason = str(status.get("message") or told)
        code = int(status.get("exit_code") or JobError.exit_code)
        if code == UsageError.exit_code and status.get("records_done") is None:
            return UsageError(reason)  # nothing has begun, as of `edl train`
        where = self.name  # with the flags by which a command finds it, unless it is gone meanwhile
        with contextlib.suppress(EdlError), self._found() as (_, found):
            where = found.where
        return JobFailed(where, reason, code, _last_words(self))

    # -- what is done to it

    def scale(
        self, workers: int = 0, ps: int = 0, teachers: int | tuple[int, int] | None = None
    ) -> None:
        """Change the number of its workers, servers or teachers; (MIN, MAX) teachers: by need."""
        if not workers and not ps and teachers is None:
            raise UsageError("How many? Say workers=N, ps=N or teachers=N.")
        least, most = teachers if isinstance(teachers, tuple) else (teachers, 0)
        with self._found() as (_, job):
            job.scale(workers, ps, least, 0 if most == least else most)

    def checkpoint(self, timeout: float | None = None) -> str:
        """Have a checkpoint of now written, while training goes on; return where it is.

        Raises JobError where there can be none, TimeoutError after `timeout` seconds.
        """
        with self._found() as (_, job):
            return job.checkpoint(float("inf") if timeout is None else timeout)

    def stop(self) -> str:
        """End it in order, with a checkpoint; return what happens now."""
        with self._found() as (_, job):
            return f"{self.name} {job.stop('Job.stop')}"

    def cancel(self) -> None:
        """End it at once, without a checkpoint; what is known of it stays."""
        with self._found() as (_, job):
            job.cancel("Job.cancel")

    def chaos(
        self, *rules: str, seed: int = 0, lasting: float = float("inf")
    ) -> list[dict[str, Any]]:
        """Hit its processes as `edl chaos run` does, until it or the rules end; return the hits.

        A rule is "worker", "ps:index=1" (at once, by SIGKILL), "worker:every=20s,signal=TERM", ...
        `lasting`: so many seconds at most.
        """
        from ..chaos.injector import strike
        from ..chaos.schedule import parse, schedule

        if not rules:
            raise UsageError("No fault is named: say chaos('worker'), for example.")
        faults = schedule([parse(rule) for rule in rules], seed)
        with self._found() as (_, job):
            if not isinstance(job, LocalJob):
                raise UsageError("chaos is of local jobs; pods of a cluster are killed by kubectl.")
            job.check_running()
            return [vars(line) for line in strike(job, faults, lasting)[1]]

    def suspend(self, force: bool = False) -> None:
        """End its pods, and keep where it is; `force`: also where it would begin anew."""
        with self._of_cluster(
            "a local one is stopped (stop) and gone on with (Result.resume)"
        ) as job:
            job.suspend(force)

    def resume(self) -> None:
        """Go on with a job of a cluster that was suspended."""
        with self._of_cluster("a local one is gone on with by edl.train(resume=...)") as job:
            job.resume()

    @contextlib.contextmanager
    def _of_cluster(self, instead: str) -> Iterator[Any]:
        with self._found() as (_, job):
            if isinstance(job, LocalJob):
                raise UsageError(f"That is of jobs in a cluster; {instead}.")
            yield job

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        """Stop it in order, unless it is over, and wait for its end."""
        with contextlib.suppress(JobError):
            if not self.done():
                self.stop()
                self.wait()


def _last_words(job: Job) -> str:
    """Return the end of the logs of a job's workers, or of its master; "" where there are none."""
    for role in ("worker", "master"):
        with contextlib.suppress(EdlError):
            if lines := list(job.logs(role, tail=_TAIL)):
                return "\n".join(lines)
    return ""


def job(name: str | None = None, runtime: str | None = None, namespace: str = "") -> Job:
    """Return a job by its name, whoever started it; without a name the only one (that runs).

    `runtime` and `namespace`: as of `edl status`. Raises UsageError where there is none.
    """
    chosen = _runtime(runtime)
    with place(chosen, namespace) as found:
        return Job(found.find(name).name, chosen, namespace)


def jobs(runtime: str | None = None, namespace: str = "") -> list[Job]:
    """Return all jobs of this machine, or of a namespace of a cluster."""
    chosen = _runtime(runtime)
    with place(chosen, namespace) as found:
        return [Job(name, chosen, namespace) for name in found.names()]


def _runtime(said: str | None) -> str:
    chosen = said or os.environ.get("EDL_RUNTIME") or "local"
    if chosen not in ("local", "kubernetes"):
        raise UsageError(f"runtime is local or kubernetes, not {chosen!r}.")
    return chosen

"""Events of a job of this machine, for its follower: its child's end, its master's status.

One thread waits for the child (the master's supervisor), one asks the master by long polls. The
first interrupt asks the master to stop; the second kills.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..common import paths
from ..common.errors import EdlError, JobError, UsageError
from . import loggers
from .follow import End, Interrupt, Note, Tick
from .job import ENDED, INTERRUPTED, Status
from .local import LocalJob, kill

# Before it serves, the master has the definition checked and the data counted, which takes as long
# as the data is big. An hour is a guess beyond any honest case; Ctrl-C is there before.
START_DEADLINE_S = 3600.0
_END_GRACE_S = 30.0  # a master that said its last status must exit within
_LOOK_S = 0.05  # for master.json: a file has no event in the standard library
_STATUS_WAIT_S = 10.0
_STATUS_PAUSE_S = 0.25  # between two status: no eye is faster, and the master has other work

_STOPPING = (
    "the workers hand back what they have, a checkpoint is written, and the command that goes on "
    "from it printed"
)


@dataclass(frozen=True)
class _Exit:
    """The child is gone."""

    code: int


@dataclass(frozen=True)
class _Answer:
    """The master's status."""

    status: Status


@dataclass(frozen=True)
class _Failure:
    """An error that ends the following."""

    error: EdlError
    kills: bool = False


def wait_until_serving(
    job: LocalJob, child: subprocess.Popen[bytes], say: Callable[[str], object] = lambda _: None
) -> None:
    """Return once the master serves (for --detach). Raises where it ends before.

    `say` hears what it waits for, where that takes long.
    """
    deadline, said = time.monotonic() + START_DEADLINE_S, ""
    while job.address() is None:
        if (waits := paths.waited_for(job.folder)) not in ("", said):
            said = waits
            say(f"still starting: {waits}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            raise died(job, child.wait(_LOOK_S))
        if time.monotonic() > deadline:
            raise _too_late(job)


class LocalSource:
    """The events of one job. `child` runs its master; `stopping`: what Ctrl-C does, told then.

    `take` raises JobError where the master died without a result, or what it said before it served.
    """

    def __init__(
        self, job: LocalJob, child: subprocess.Popen[bytes], stopping: str = _STOPPING
    ) -> None:
        self._job = job
        self._child = child
        self._stopping = stopping
        self._put: Callable[[object], None] = lambda _event: None
        self._interrupts = 0
        self._over = threading.Event()
        self._last: Status = {"job_name": job.name, "state": "starting"}
        self._answered = False
        self._gone_by: float | None = None  # set once the last status was said

    def open(self, put: Callable[[object], None]) -> None:
        self._put = put
        for run in (self._wait, self._watch):
            threading.Thread(target=run, daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def take(self, event: object) -> Iterator[Note | Status | End]:
        if isinstance(event, _Exit):
            yield self._ended(event.code)
        elif self._gone_by is not None:  # the last status is here; its process has little time left
            if isinstance(event, Interrupt) or time.monotonic() > self._gone_by:
                kill(self._job, self._child)
                yield self._ended(self._child.wait())
        elif isinstance(event, Interrupt):
            yield from self._interrupt()
        elif isinstance(event, _Failure):
            if event.kills:
                kill(self._job, self._child)
            raise event.error
        elif isinstance(event, Note):
            yield event
        elif isinstance(event, _Answer):
            self._last, self._answered = event.status, True
            yield event.status
            if event.status.get("exit_code") is not None:
                self._gone_by = time.monotonic() + _END_GRACE_S
        elif isinstance(event, Tick) and self._answered:
            yield self._last

    def _wait(self) -> None:
        """Wait for the child, in a thread of its own."""
        code = self._child.wait()
        if code < 0 and paths.is_locked(self._job.folder):
            self._put(Note("the master's supervisor was killed; the master goes on"))
            paths.wait_until_unlocked(self._job.folder)
        for text in loggers.wait_for_end(self._job.folder):
            self._put(Note(text))
        self._put(_Exit(code))

    def _watch(self) -> None:
        """Wait until the master serves, then ask it, in a thread of its own."""
        try:
            serves = self._await_serving()
        except EdlError as error:
            self._put(_Failure(error))
            return
        if serves:
            self._ask()

    def _await_serving(self) -> bool:
        """Wait until the master serves; return False where the job is over before."""
        if self._job.address() is None:
            self._put(Note("starting: checking the definition, counting the data"))
        deadline, told = time.monotonic() + START_DEADLINE_S, ""
        while self._job.address() is None:
            if (waits := paths.waited_for(self._job.folder)) not in ("", told):
                told = waits
                self._put(Note(f"still starting: {waits}"))
            if self._over.wait(_LOOK_S):
                return False
            if time.monotonic() > deadline:
                self._put(_Failure(_too_late(self._job), kills=True))
                return False
        return True

    def _ask(self) -> None:
        """Ask for status after status, until the job is over."""
        client = self._job.client(patience_s=3600.0)  # as long as its process lives

        def close_when_over() -> None:
            self._over.wait()
            client.close()

        threading.Thread(target=close_when_over, daemon=True).start()
        revision = 0
        try:
            while not self._over.wait(_STATUS_PAUSE_S if revision else 0.0):
                revision, status = client.status(revision, _STATUS_WAIT_S)
                self._put(_Answer(status))
        except EdlError as error:
            if not self._over.is_set() and paths.is_locked(self._job.folder):
                self._put(_Failure(error))

    def _interrupt(self) -> Iterator[Note]:
        self._interrupts += 1
        if self._interrupts > 1:
            yield Note("killing the job")
            kill(self._job, self._child)
        elif self._job.address() is None:
            yield Note("ending; Ctrl-C again to kill")
            self._child.terminate()
        else:
            yield Note(f"stopping: {self._stopping}; Ctrl-C again to kill everything now")
            threading.Thread(target=self._stop, name="stop", daemon=True).start()

    def _stop(self) -> None:
        try:
            with contextlib.closing(self._job.client()) as client:
                client.stop("Ctrl-C")
        except EdlError as error:
            # By a signal it hears also where no call comes through, as without a loopback.
            self._child.terminate()
            told = "it is told by SIGTERM; Ctrl-C again to kill"
            self._put(Note(f"the master does not hear ({error}): {told}"))

    def _ended(self, returncode: int) -> End:
        """Return the result that the master left. Raises JobError where it left none."""
        self._over.set()
        result = self._job.result()
        if result is None and self._last.get("state") in ENDED:
            result = self._last
        if self._interrupts:
            result = result or self._job.give_up(INTERRUPTED, "killed", self._last)
            return End(result, INTERRUPTED)
        if result is None:
            raise died(self._job, returncode)
        code = result.get("exit_code")
        return End(result, returncode if code is None else int(code))


def died(job: LocalJob, returncode: int) -> EdlError:
    """Return the error of a master that ended without a result: what it said, if it said why."""
    error = how_it_died(job, returncode)
    if job.address() is None:
        with contextlib.suppress(OSError):  # a full disk, say, of which the error tells
            if returncode == INTERRUPTED:
                job.give_up(INTERRUPTED, "stopped before it had begun")
            else:
                job.give_up(error.exit_code, str(error))
    return error


def how_it_died(job: LocalJob, returncode: int | None) -> EdlError:
    """Return what a master that ended without a result said, if it said why.

    `returncode`: None where nobody has heard it.
    """
    words = job.last_words()
    last = words.rpartition("\n")[2]
    if (returncode is None or returncode > 0) and last.startswith("edl: error: "):
        kind = UsageError if returncode == UsageError.exit_code else JobError
        return kind(last.removeprefix("edl: error: "))
    how = "has ended" if returncode is None else f"exited with {returncode}"
    if returncode is not None and returncode < 0:
        how = f"was killed by signal {-returncode}"
    told = f"The master of job {job.name!r} {how} before the job was over"
    if full := paths.why_unwritable(job.folder):  # then its log has lost what it said, too
        return JobError(f"{told}: {full}: make room there. {job.how_to_go_on()}".rstrip())
    return JobError(
        f"{told}. {job.how_to_go_on()}\nThe end of its log, {job.log}:\n{words or '(empty)'}"
    )


def _too_late(job: LocalJob) -> JobError:
    return JobError(
        f"The master of job {job.name!r} did not serve within {START_DEADLINE_S:.0f} s; see "
        f"{job.log}."
    )

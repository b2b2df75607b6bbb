"""Follow a job to its end: status from the master's long poll, the child's end, Ctrl-C.

One thread waits for the child (the master's supervisor), one asks the master, the signal handler
speaks too; all three only put events into one queue, which the main thread turns into output. So no
wait misses anything, and nothing but the main thread draws. The first interrupt asks the master to
stop; the second kills.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

from ..common import paths
from ..common.errors import EdlError, JobError, UsageError
from .jobs import ENDED, Job, Status, kill
from .screen import Screen

INTERRUPTED = 130
# Before it serves, the master has the definition checked and the data counted, which takes as long
# as the data is big. An hour is a guess beyond any honest case; Ctrl-C is there before.
START_DEADLINE_S = 3600.0
_END_GRACE_S = 30.0  # a master that said its last status must exit within
_LOOK_S = 0.05  # for master.json: a file has no event in the standard library
_STATUS_WAIT_S = 10.0
_STATUS_PAUSE_S = 0.25  # between two status: no eye is faster, and the master has other work
_TICK_S = 1.0

_STOPPING = (
    "the workers hand back what they have, a checkpoint is written, and the command that goes on from "
    "it printed"
)

Event = tuple[str, Any]


def follow(
    job: Job, child: subprocess.Popen[bytes], screen: Screen, stopping: str = _STOPPING
) -> int:
    """Show the job until it ends; the exit code of the command. `stopping`: what Ctrl-C does, told then.

    Raises JobError where the master died without a result, or what it said before it served.
    """
    events: SimpleQueue[Event] = SimpleQueue()

    def wait() -> None:
        code = child.wait()
        if code < 0 and paths.is_locked(job.folder):
            events.put(("note", "the master's supervisor was killed; the master goes on"))
            paths.wait_until_unlocked(job.folder)
        events.put(("exit", code))

    threading.Thread(target=wait, daemon=True).start()
    with interrupts(lambda: events.put(("interrupt", None))), screen:
        return _Follower(job, child, screen, events, stopping).run()


def wait_until_serving(job: Job, child: subprocess.Popen[bytes]) -> None:
    """For --detach: returns once the master serves. Raises where it ends before."""
    deadline = time.monotonic() + START_DEADLINE_S
    while job.address() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            raise _died(job, child.wait(_LOOK_S))
        if time.monotonic() > deadline:
            raise _too_late(job)


class _Follower:
    def __init__(
        self,
        job: Job,
        child: subprocess.Popen[bytes],
        screen: Screen,
        events: SimpleQueue[Event],
        stopping: str,
    ) -> None:
        self._stopping = stopping
        self._job = job
        self._child = child
        self._screen = screen
        self._events = events
        self._interrupts = 0
        self._over = threading.Event()
        self._last: Status = {"job_name": job.name, "state": "starting"}

    def run(self) -> int:
        try:
            code = self._start()
            return self._watch() if code is None else code
        finally:
            self._over.set()

    def _start(self) -> int | None:
        """Until the master serves (None) or is gone (the exit code)."""
        if self._job.address() is None:
            self._screen.note("starting: checking the definition, counting the data")
        deadline, told = time.monotonic() + START_DEADLINE_S, ""
        while self._job.address() is None:
            if (waits := paths.waited_for(self._job.folder)) not in ("", told):
                told = waits
                self._screen.note(f"still starting: {waits}")
            kind, value = self._next(_LOOK_S)
            if kind == "exit":
                return self._ended(value)
            if kind == "interrupt":
                self._interrupt()
            elif kind == "note":
                self._screen.note(value)
            if time.monotonic() > deadline:
                kill(self._job, self._child)
                raise _too_late(self._job)
        threading.Thread(target=self._ask, name="status", daemon=True).start()
        return None

    def _watch(self) -> int:
        while True:
            kind, value = self._next(_TICK_S)
            if kind == "exit":
                return self._ended(value)
            if kind == "interrupt":
                self._interrupt()
            elif kind == "error":
                raise value
            elif kind == "note":
                self._screen.note(value)
            else:
                self._last = value or self._last
                self._screen.show(self._last)
            if self._last.get("exit_code") is not None:
                return self._said_its_last()

    def _next(self, timeout_s: float) -> Event:
        try:
            return self._events.get(timeout=timeout_s)
        except Empty:
            return "tick", None

    def _ask(self) -> None:
        """In a thread of its own: status after status, until the job is over."""
        client = self._job.client(patience_s=3600.0)  # as long as its process lives

        def close_when_over() -> None:
            self._over.wait()
            client.close()

        threading.Thread(target=close_when_over, daemon=True).start()
        revision = 0
        try:
            while not self._over.wait(_STATUS_PAUSE_S if revision else 0.0):
                revision, status = client.status(revision, _STATUS_WAIT_S)
                self._events.put(("status", status))
        except EdlError as error:
            if not self._over.is_set() and paths.is_locked(self._job.folder):
                self._events.put(("error", error))

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            self._screen.note("killing the job")
            kill(self._job, self._child)
        elif self._job.address() is None:
            self._screen.note("ending; Ctrl-C again to kill")
            self._child.terminate()
        else:
            self._screen.note(f"stopping: {self._stopping}; Ctrl-C again to kill everything now")
            threading.Thread(target=self._stop, name="stop", daemon=True).start()

    def _stop(self) -> None:
        client = self._job.client()
        try:
            client.stop("Ctrl-C")
        except EdlError as error:
            text = f"the master does not hear ({error}); Ctrl-C again to kill"
            self._events.put(("note", text))
        finally:
            client.close()

    def _said_its_last(self) -> int:
        """The final status is here; the process has little time left to go."""
        deadline = time.monotonic() + _END_GRACE_S
        while time.monotonic() < deadline:
            kind, value = self._next(_TICK_S)
            if kind == "exit":
                return self._ended(value)
            if kind == "interrupt":
                break
        kill(self._job, self._child)
        return self._ended(self._child.wait())

    def _ended(self, returncode: int) -> int:
        """The master is gone: show its result."""
        self._over.set()
        result = self._job.result()
        if result is None and self._last.get("state") in ENDED:
            result = self._last
        if self._interrupts:
            result = result or self._job.give_up(INTERRUPTED, "killed", self._last)
            self._screen.end(result, INTERRUPTED)
            return INTERRUPTED
        if result is None:
            raise _died(self._job, returncode)
        code = result.get("exit_code")
        code = returncode if code is None else int(code)
        self._screen.end(result, code)
        return code


def _died(job: Job, returncode: int) -> EdlError:
    """The error of a master that ended without a result: what it said, if it said why."""
    error = _told(job, returncode)
    if job.address() is None:
        job.give_up(error.exit_code, str(error))
    return error


def _told(job: Job, returncode: int) -> EdlError:
    words = job.last_words()
    last = words.rpartition("\n")[2]
    if returncode > 0 and last.startswith("edl: error: "):
        kind = UsageError if returncode == UsageError.exit_code else JobError
        return kind(last.removeprefix("edl: error: "))
    how = f"was killed by signal {-returncode}" if returncode < 0 else f"exited with {returncode}"
    return JobError(
        f"The master of job {job.name!r} {how} before the job was over. {job.how_to_go_on()}\n"
        f"The end of its log, {job.log}:\n{words or '(empty)'}"
    )


def _too_late(job: Job) -> JobError:
    return JobError(
        f"The master of job {job.name!r} did not serve within {START_DEADLINE_S:.0f} s; see "
        f"{job.log}."
    )


@contextlib.contextmanager
def interrupts(tell: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM become events."""

    def handler(number: int, frame: FrameType | None) -> None:
        tell()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)

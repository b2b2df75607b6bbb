"""The master's end of a nursery, a process that forks replicas with their imports done.

`python -m edl.worker --nursery` (worker/nursery.py) speaks JSON lines; here a forked replica looks
like a `subprocess.Popen`: `pid`, `poll`, `wait`. A nursery that dies takes nothing with it but the
news of its children's ends, so its children are then waited for as adopted ones are (adopted.py),
and the next replica is started the slow way.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ..common.errors import JobError
from ..common.process import STACK_SIGNAL
from ..common.settings import ANALYZE, JobSettings
from .adopted import AdoptedReplica, start_time

_FORK_S = 30.0  # how long a start may take
_CLOSE_S = 5.0  # it ends at once, unless it imports or compiles
_STACK_S = 1.0  # a stack is written by then


class ForkedReplica:
    """A child of the nursery, as far as a Popen is used here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.started = start_time(pid)
        self.unknown = False  # how it ended, because the nursery has gone before
        self.returncode: int | None = None
        self._ended = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal. Raises subprocess.TimeoutExpired."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def ended(self, returncode: int) -> None:
        self.returncode = returncode
        self._ended.set()


class Nursery:
    """A nursery that starts at once, in the background; `start` waits until it is ready."""

    def __init__(
        self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self._log = log
        self._late: set[int] = set()  # requests that nobody waits for any more
        self._changed = threading.Condition()
        self._ready = False
        self._closed = False
        self._ids = itertools.count()
        self._started: dict[int, ForkedReplica] = {}  # by request, until `start` takes it
        self._children: dict[int, ForkedReplica] = {}
        threading.Thread(target=self._read, name="nursery", daemon=True).start()

    @classmethod
    def of_job(cls, settings: JobSettings, job_dir: Path) -> Self:
        """Start the process that a local job's workers and servers are forked from."""
        what = ANALYZE if settings.command == ANALYZE else settings.strategy
        command = (sys.executable, "-m", "edl.worker", "--nursery", what)
        return cls(command, job_dir / "logs" / "nursery.log", settings.envs)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ready(self) -> bool:
        """Tell whether a start need not wait."""
        return self._ready and not self._closed

    def await_ready(
        self, at_most_s: float, every_s: float, say: Callable[[str, float], None]
    ) -> None:
        """Wait until the nursery has its imports; `say` what is waited for, and how long by now.

        Raises JobError where it ends, or is not there `at_most_s` (0: ever) after.
        """
        what, began = "importing torch", time.monotonic()
        with self._changed:
            while not self._changed.wait_for(lambda: self._ready or self._closed, every_s):
                seconds = time.monotonic() - began
                if 0 < at_most_s <= seconds:
                    os.kill(self.pid, STACK_SIGNAL)
                    time.sleep(_STACK_S)
                    raise JobError(
                        f"{what} has taken {seconds:.0f} s, so it hangs (--hang_s): {self._log} "
                        "has its stack"
                    )
                say(what, seconds)
            if self._closed:
                raise JobError(f"{what} has failed: see {self._log}")

    def start(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> ForkedReplica | None:
        """Start a forked replica; None where the nursery is gone or does not answer."""
        number = next(self._ids)
        request = {"id": number, "argv": list(argv), "env": dict(env), "log": str(log)}
        with self._changed:
            if not self._changed.wait_for(lambda: self._ready or self._closed, _FORK_S):
                return None
            if self._closed or not self._send(request):
                return None
            if not self._changed.wait_for(lambda: number in self._started or self._closed, _FORK_S):
                self._late.add(number)  # the caller starts it otherwise: there must not be two
            return self._started.pop(number, None)

    def close(self) -> None:
        """End the nursery; its children go on."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone already
            self._process.stdin.close()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_CLOSE_S)

    def _send(self, request: Mapping[str, Any]) -> bool:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return False
        return True

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as told:
            for line in told:
                self._take(json.loads(line))
        with self._changed:
            self._closed = True
            orphans = list(self._children.values())
            self._children.clear()
            self._changed.notify_all()
        for orphan in orphans:
            threading.Thread(target=_await_orphan, args=(orphan,), daemon=True).start()

    def _take(self, message: Mapping[str, Any]) -> None:
        with self._changed:
            if "ready" in message:
                self._ready = True
            elif "id" in message:
                child = ForkedReplica(message["pid"])
                if message["id"] in self._late:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child.pid, signal.SIGKILL)
                self._started[message["id"]] = self._children[child.pid] = child
            else:
                ended = self._children.pop(message["pid"])
                ended.ended(os.waitstatus_to_exitcode(message["status"]))
            self._changed.notify_all()


def _await_orphan(child: ForkedReplica) -> None:
    adopted = AdoptedReplica(child.pid, child.started)
    child.unknown = True
    child.ended(adopted.wait())

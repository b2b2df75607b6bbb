"""This end of a nursery: a process that forks replicas which have their imports behind them.

`python -m edl.worker --nursery` (worker/nursery.py) speaks JSON lines; here a forked replica looks
like a `subprocess.Popen`: `pid`, `poll`, `wait`. A nursery that dies takes nothing with it but the
news of its children's ends, so its children are then waited for by their pid's disappearance
(`pidfd_open`), and the next replica is started the slow way.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LOST_CHILD = -9  # of a child whose nursery is gone: its status cannot be known; a preemption
_FORK_S = 30.0  # how long a start may take, the nursery's own imports included


class ForkedReplica:
    """A child of the nursery, as far as a Popen is used here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal. Raises subprocess.TimeoutExpired."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def ended(self, returncode: int) -> None:
        self.returncode = returncode
        self._ended.set()


class Nursery:
    """Starts the nursery at once, in the background; `start` waits until it is ready."""

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
        self._changed = threading.Condition()
        self._ready = False
        self._closed = False
        self._ids = itertools.count()
        self._started: dict[int, ForkedReplica] = {}  # by request, until `start` takes it
        self._children: dict[int, ForkedReplica] = {}
        threading.Thread(target=self._read, name="nursery", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ready(self) -> bool:
        """A start need not wait."""
        return self._ready and not self._closed

    def start(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> ForkedReplica | None:
        """A forked replica; None where the nursery is gone or does not answer."""
        number = next(self._ids)
        request = {"id": number, "argv": list(argv), "env": dict(env), "log": str(log)}
        with self._changed:
            if not self._changed.wait_for(lambda: self._ready or self._closed, _FORK_S):
                return None
            if self._closed or not self._send(request):
                return None
            self._changed.wait_for(lambda: number in self._started or self._closed, _FORK_S)
            return self._started.pop(number, None)

    def close(self) -> None:
        """End the nursery; its children go on."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone already
            self._process.stdin.close()
        self._process.wait(_FORK_S)

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
        for line in self._process.stdout:
            message = json.loads(line)
            with self._changed:
                if "ready" in message:
                    self._ready = True
                elif "id" in message:
                    child = ForkedReplica(message["pid"])
                    self._started[message["id"]] = self._children[child.pid] = child
                else:
                    ended = self._children.pop(message["pid"])
                    ended.ended(os.waitstatus_to_exitcode(message["status"]))
                self._changed.notify_all()
        with self._changed:
            self._closed = True
            orphans = list(self._children.values())
            self._children.clear()
            self._changed.notify_all()
        for orphan in orphans:
            threading.Thread(target=_await_orphan, args=(orphan,), daemon=True).start()


def _await_orphan(child: ForkedReplica) -> None:
    try:
        handle = os.pidfd_open(child.pid)
    except ProcessLookupError:
        child.ended(_LOST_CHILD)
        return
    select.select([handle], [], [])
    os.close(handle)
    child.ended(_LOST_CHILD)

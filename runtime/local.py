"""Replicas as processes of this machine.

Each is a session (and process group) of its own, so that a Ctrl-C in the terminal reaches the
master alone and a kill reaches all that a replica started, and so that they outlive the master,
whose successor adopts them. One thread per process waits for its end and reports it. Output is
appended to `<job_dir>/logs/<role>-<index>.log`. The job's token travels in the environment only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..common.errors import EdlError
from ..common.listen import ANY_PORTS
from .adopted import AdoptedReplica, start_time
from .base import Exit, OnReport, Replica
from .memory import Kills
from .nursery import ForkedReplica, Nursery

Child = subprocess.Popen[bytes] | ForkedReplica | AdoptedReplica
_MODULES = {"worker": "edl.worker", "server": "edl.ps", "teacher": "edl.distill"}
_CLOSE_S = 5.0  # a killed process is gone at once; only a hung disk takes longer


class LocalRuntime:
    """A runtime whose replicas are processes of this machine.

    `command` is what runs a replica, before its arguments; a test gives another. Replicas come out
    of the `nursery` where there is one.
    """

    def __init__(
        self,
        job_dir: Path,
        *,
        master_address: str,
        report: OnReport,
        command: Mapping[str, Sequence[str]] | None = None,
        nursery: Nursery | None = None,
    ) -> None:
        self._logs = job_dir / "logs"
        self._master_address = master_address
        self._report = report
        self._command = command or {
            role: (sys.executable, "-m", module) for role, module in _MODULES.items()
        }
        self._nursery = nursery
        self._lock = threading.Lock()
        self._children: dict[str, Child] = {}  # by incarnation
        self._waiters: list[threading.Thread] = []
        self._kills = Kills()
        self._closed = False

    def start(
        self,
        role: str,
        index: int,
        incarnation: str,
        env: Mapping[str, str],
        arguments: Sequence[str] = (),
    ) -> Replica:
        env = {**ANY_PORTS, **env}  # fixed ports are the master's own
        command = [
            *self._command[role],
            *("--index", str(index)),
            *("--incarnation", incarnation),
            *("--master", self._master_address),
            *arguments,
        ]
        with self._lock:
            if self._closed:
                raise EdlError(f"{role} {index} cannot be started: the job is ending")
            log = self._logs / f"{role}-{index}.log"
            child: Child | None
            try:
                self._logs.mkdir(parents=True, exist_ok=True)
                child = self._fork(command, env, log) or _spawn(command, env, log)
            except OSError as error:
                raise EdlError(f"{role} {index} cannot be started: {error}") from error
            replica = Replica(role, index, incarnation, child.pid, start_time(child.pid))
            self._watch(replica, child)
        return replica

    def adopt(self, replica: Replica) -> None:
        with self._lock:
            if not self._closed and replica.incarnation not in self._children:
                self._watch(replica, AdoptedReplica(replica.pid, replica.started))

    def _watch(self, replica: Replica, child: Child) -> None:
        """Watch a process. The lock is held."""
        self._children[replica.incarnation] = child
        name = f"wait-{replica.role}-{replica.index}"
        waiter = threading.Thread(target=self._wait, args=(replica, child), name=name, daemon=True)
        self._waiters = [t for t in self._waiters if t.is_alive()] + [waiter]
        waiter.start()

    def _fork(
        self, arguments: Sequence[str], env: Mapping[str, str], log: Path
    ) -> ForkedReplica | None:
        """Fork a replica out of the nursery, where it is ready: it has its imports behind it.

        Nobody waits for it to be: the master has others to answer meanwhile. A job's first replicas
        find it ready, since it has checked the definition; those of a restarted master may not.
        """
        if self._nursery is None or not self._nursery.ready:
            return None
        return self._nursery.start(arguments[2:], {**os.environ, **env}, log)

    def stop(self, replica: Replica, grace_s: float) -> None:
        with self._lock:
            child = self._children.get(replica.incarnation)
        if child is None:
            return
        if grace_s <= 0:
            self._signal(child, signal.SIGKILL)
            return
        self._signal(child, signal.SIGTERM, group=False)
        killer = threading.Thread(
            target=self._kill_after, args=(child, grace_s), name="kill-after", daemon=True
        )
        killer.start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            children, waiters = list(self._children.values()), list(self._waiters)
        for child in children:
            self._signal(child, signal.SIGKILL)
        for waiter in waiters:
            waiter.join(_CLOSE_S)

    def detach(self) -> None:
        with self._lock:
            self._closed = True
            self._children.clear()

    def _wait(self, replica: Replica, child: Child) -> None:
        since = self._kills.begin()
        code = child.wait()
        with self._lock:
            ours = self._children.pop(replica.incarnation, None) is not None
            closed = self._closed
        if ours and start_time(child.pid) in (0, replica.started):  # no stranger's pid by now
            self._signal_group(child.pid, signal.SIGKILL)  # what the replica started goes with it
        if not closed:
            why = self._kills.why(code, since)
            self._report(Exit(replica, code, getattr(child, "unknown", False), why))

    def _kill_after(self, child: Child, grace_s: float) -> None:
        try:
            child.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._signal(child, signal.SIGKILL)

    def _signal(self, child: Child, number: signal.Signals, group: bool = True) -> None:
        if child.poll() is not None:
            return
        if group:
            self._signal_group(child.pid, number)
        # Itself too: one that was forked just now may not lead its group yet.
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(child.pid, number)

    @staticmethod
    def _signal_group(pid: int, number: signal.Signals) -> None:
        if pid <= 0:  # a start that never was; 0 would be our own group
            return
        try:
            os.killpg(pid, number)
        except (ProcessLookupError, PermissionError):
            return  # nobody of the group is left


def _spawn(arguments: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with open(log, "ab") as output:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            start_new_session=True,
        )

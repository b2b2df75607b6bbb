"""Processes that are not our children, watched all the same: those of an earlier master.

A pidfd becomes readable when its process ends, whoever the parent is, and never means another
process; the start time in /proc tells whether the pid still was the right one when it was opened.
How such a process ended only its parent learns: it is taken as preempted.
"""

from __future__ import annotations

import errno
import os
import select
import subprocess
from pathlib import Path

UNKNOWN_END = -9
# How pidfd_open says that no process has the pid: nothing has it (ESRCH), or a thread of another
# process has (ENOENT; older kernels say EINVAL).
_NO_PROCESS = (errno.ESRCH, errno.ENOENT, errno.EINVAL)


class AdoptedReplica:
    """A process that somebody else has started, as far as a Popen is used here."""

    unknown = True

    def __init__(self, pid: int, started: int) -> None:
        self.pid = pid
        self._handle = -1
        if pid <= 0:  # of a start that never was
            return
        try:
            self._handle = os.pidfd_open(pid)
        except OSError as error:
            if error.errno not in _NO_PROCESS:
                raise
            return
        if start_time(pid) != started:  # the pid is another process's by now
            self._let_go()

    def __del__(self) -> None:
        self._let_go()

    def poll(self) -> int | None:
        """Return None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return UNKNOWN_END once it has ended. Raises subprocess.TimeoutExpired."""
        code = self._look(None if timeout is None else 1000 * timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def _look(self, timeout_ms: float | None) -> int | None:
        if self._handle < 0:
            return UNKNOWN_END
        poll = select.poll()  # not select(): a master has more descriptors than that can take
        poll.register(self._handle, select.POLLIN)
        return UNKNOWN_END if poll.poll(timeout_ms) else None

    def _let_go(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def start_time(pid: int) -> int:
    """Return when a process started, in ticks since boot; 0 where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(stat.rpartition(")")[2].split()[19])  # after its name, which may hold anything

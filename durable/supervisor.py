"""The supervisor: it starts the master, and starts it again when something kills it.

The supervisor knows nothing of the job: it holds the job's lock, hands signals on and waits. A
master that ends with an exit code has decided so, and the code is passed on. One that is killed by
a signal that nobody asked for, or to which the system gave no more threads or memory, is started
again at once; it finds its journal and goes on. A supervisor that is killed itself takes nothing
with it: the master has the lock too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from ..common.paths import JOURNAL
from ..common.process import STARVED, ended_with

COMMAND = (sys.executable, "-m", "edl.master")  # what runs a master
_MOST_DEATHS = 5  # in a row, each within
_SHORT_LIFE_S = 10.0  # of its start: whatever kills it will do so again
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_INTERRUPTED = 130


def supervise(
    job_dir: Path,
    command: Sequence[str] = COMMAND,
    now: Callable[[], float] = time.monotonic,
    *,
    ends_with_pod: bool = False,
) -> int:
    """Run the job from its start to its end; returns its exit code.

    `command` runs a master; a test gives another.

    `ends_with_pod`: who sends a signal wants this pod to end, not the job.
    """
    return _Supervisor(job_dir, command, now, ends_with_pod).run()


class _Supervisor:
    def __init__(
        self, job_dir: Path, command: Sequence[str], now: Callable[[], float], ends_with_pod: bool
    ) -> None:
        self._job_dir = job_dir
        self._command = command
        self._now = now
        self._ends_with_pod = ends_with_pod
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: int | None = None  # the signal that somebody sent us last

    def run(self) -> int:
        before = {number: signal.signal(number, self._hand_on) for number in _SIGNALS}
        try:
            return self._run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _run(self) -> int:
        deaths, after = 0, ""
        ended_before = self._result()
        while True:
            started = self._now()
            code = self._start(after).wait()
            if code >= 0 and code != STARVED:
                return code
            if (result := self._result()) not in (None, ended_before):
                return int(json.loads(result)["exit_code"])  # it was killed after its last word
            if self._ends_with_pod and self._asked is not None:
                return _INTERRUPTED  # another pod goes on
            if self._asked == -code and not (self._job_dir / JOURNAL).exists():
                return _INTERRUPTED  # it had not begun: there is nothing to end in order
            after = _words(code)
            deaths = deaths + 1 if self._now() - started < _SHORT_LIFE_S else 0
            if deaths == _MOST_DEATHS:
                print(self._giving_up(after), file=sys.stderr, flush=True)
                return 1
            print(f"the master {after}: started again", file=sys.stderr, flush=True)

    def _start(self, after: str) -> subprocess.Popen[bytes]:
        told = ["--after", after] if after else []
        known = self._asked
        if known is not None:  # whoever was asked may not have got round to it
            told += ["--stop", signal.Signals(known).name]
        self._child = subprocess.Popen(
            [*self._command, "--job-dir", str(self._job_dir), "--serve", *told],
            env={**os.environ, "EDL_JOB_DIR": str(self._job_dir), **self._identity()},
            stdin=subprocess.DEVNULL,
            close_fds=False,  # the lock
            start_new_session=True,  # what a terminal interrupts is this process alone
        )
        if self._asked != known:  # while there was nobody to hand it on to
            self._child.send_signal(self._asked or known or 0)
        return self._child

    def _hand_on(self, number: int, _frame: FrameType | None) -> None:
        self._asked = number
        if self._child is not None:
            self._child.send_signal(number)

    def _identity(self) -> dict[str, str]:
        """Return the variables that the environment lacks, out of the job's folder.

        With them a master can be started by hand.
        """
        if os.environ.get("EDL_TOKEN"):
            return {}
        from ..common.identity import Identity

        try:
            return Identity.of_folder(self._job_dir).variables()
        except FileNotFoundError:
            return {}

    def _result(self) -> bytes | None:
        try:
            return (self._job_dir / "result.json").read_bytes()
        except FileNotFoundError:
            return None

    def _giving_up(self, after: str) -> str:
        return (
            f"edl: error: the master {after}, {_MOST_DEATHS} times in a row within "
            f"{_SHORT_LIFE_S:.0f} s of its start: not started again. Workers and servers wait for "
            "it for --master_timeout_s yet; when the cause is gone, go on with "
            f"`edl train --resume {self._job_dir}`"
        )


def _words(code: int) -> str:
    if code >= 0:
        return ended_with(code)
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"

"""The check of the definition and the count of the data, which a worker makes in its own process.

So no user code ever runs in the master, and a definition that hangs is told from data that are
large.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ..common import paths, storage
from ..common.errors import JobError
from ..common.process import STACK_SIGNAL
from ..common.settings import JobSettings
from ..runtime.nursery import ForkedReplica, Nursery
from .core import EXIT_INTERRUPTED
from .replicas import describe_end

log = logging.getLogger("edl.master")

_SAY_S = 30.0  # between two lines of what a start waits for
_IMPORT_S = 1800.0  # our own imports and torch's, from a network's disk: no code of the user's
_STACK_S = 1.0  # it is written by then
_DESCRIBE_S = 3600.0  # counting the records of very large text files takes minutes


def describe(
    settings: JobSettings, job_dir: Path, nursery: Nursery
) -> tuple[dict[str, Any] | None, int]:
    """Return what the worker says of definition and data, or None and the exit code."""
    log, result = job_dir / "logs" / "describe.log", job_dir / "describe.json"
    result.unlink(missing_ok=True)
    nursery.await_ready(_IMPORT_S, _SAY_S, lambda what, s: _tell_start(job_dir, what, s))
    phase = _Phase(job_dir, settings.hang_s)
    child = nursery.start(["edl.worker", "--describe", "--job-dir", str(job_dir)], os.environ, log)
    if child is None:
        raise JobError(f"the definition cannot be checked: see {job_dir / 'logs' / 'nursery.log'}")

    def end(number: signal.Signals) -> None:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, number)

    previous = signal.signal(signal.SIGTERM, lambda *_: end(signal.SIGTERM))
    try:
        while (code := phase.ended(child)) is None:
            if phase.is_over:
                end(STACK_SIGNAL)
                time.sleep(_STACK_S)
                raise JobError(
                    f"{phase.what} has taken {phase.limit_s:g} s, so it hangs (--hang_s): {log} "
                    "has its stack"
                )
    except KeyboardInterrupt:
        code = -signal.SIGINT
    finally:
        end(signal.SIGKILL)
        signal.signal(signal.SIGTERM, previous)
        (job_dir / paths.STARTING).unlink(missing_ok=True)
    words = log.read_text(errors="replace")
    sys.stderr.write(words)
    if code == 0 and result.exists():
        return json.loads(result.read_text()), 0
    if -code in (signal.SIGTERM, signal.SIGINT):
        return None, EXIT_INTERRUPTED
    if code > 0 and ("edl: error" in words or "Traceback" in words):
        return None, code
    memory = _MORE_MEMORY if code == -signal.SIGKILL else ""
    raise JobError(f"{phase.what} {describe_end(code)}{memory}, and not with an error: see {log}")


_MORE_MEMORY = (
    ", perhaps because it needs more memory than there is: give the master more "
    "(--master_resource_request memory=1Gi), or this machine"
)


class _Phase:
    """The step that the check of the definition is in, as it says itself, and for how long."""

    def __init__(self, job_dir: Path, hang_s: float) -> None:
        self._every_s = min(_SAY_S, hang_s / 4) if hang_s else _SAY_S
        self._dir = job_dir
        self._hang_s = hang_s
        self._began = time.monotonic()
        (job_dir / paths.DESCRIBING).unlink(missing_ok=True)
        self.what = "the check of the definition"

    def ended(self, child: ForkedReplica) -> int | None:
        """Return the exit code of the check, or None after a while."""
        try:
            return child.wait(self._every_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(OSError):
                what = (self._dir / paths.DESCRIBING).read_text(encoding="utf-8")
                if what != self.what:
                    self.what, self._began = what, time.monotonic()

    @property
    def limit_s(self) -> float:
        return max(self._hang_s, _DESCRIBE_S) if self.what == paths.COUNTING else self._hang_s

    @property
    def is_over(self) -> bool:
        """Tell whether the check hangs.

        Where it does not, the user is told that it still goes on.
        """
        seconds = time.monotonic() - self._began
        _tell_start(self._dir, self.what, seconds)
        return 0 < self.limit_s <= seconds


def _tell_start(job_dir: Path, what: str, seconds: float) -> None:
    text = f"{what}, for {seconds:.0f} s by now"
    log.info("starting: %s", text)
    with contextlib.suppress(OSError):
        storage.write_file(job_dir / paths.STARTING, text.encode())

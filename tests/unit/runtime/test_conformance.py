"""Local processes as every runtime: see tests/tools/conformance.py."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
from tools.conformance import *
from tools.conformance import PROGRAMS, WAIT_S

from edl.runtime.adopted import start_time
from edl.runtime.local import LocalRuntime


class LocalKit:
    def __init__(self, folder) -> None:
        self.folder = folder

    def runtime(self, program, report):
        command = {"worker": (sys.executable, "-c", PROGRAMS[program])}
        return LocalRuntime(self.folder, master_address="", report=report, command=command)

    def env(self, incarnation):
        return {"EDL_MARK": str(self.folder / incarnation)}

    def started(self, replica) -> None:
        deadline = time.monotonic() + WAIT_S
        while not (self.folder / replica.incarnation).exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)  # a file has no event in the standard library

    def take_away(self, replica) -> None:
        os.kill(replica.pid, signal.SIGKILL)

    def there(self, replica) -> bool:
        return start_time(replica.pid) == replica.started != 0 and _state(replica.pid) != "Z"


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


@pytest.fixture
def kit(tmp_path):
    return LocalKit(tmp_path)

"""A worker that is told to go while its lease ends lives no second life."""

from __future__ import annotations

import signal
import subprocess
import sys

# The loop finds that the master has declared it lost, in the moment in which SIGTERM has come.
LIFE = """
import signal
import sys
from types import SimpleNamespace

from edl.common.errors import Fenced
from edl.common.settings import JobSettings
from edl.worker import __main__ as worker

settings = JobSettings(job_name="x", drain_grace_s=60.0).to_json()
beat = SimpleNamespace(progress=[], version=0, scalars={}, round=0)
member = SimpleNamespace(drain=lambda: None, beat=lambda: beat)
master = SimpleNamespace(
    register=lambda *_: SimpleNamespace(fenced=False, settings_json=settings),
    heartbeat=lambda **_: None,
    close=lambda: None,
)
worker._line = lambda *_: master
process = worker._Process("127.0.0.1:1", 0, SimpleNamespace(address=""))


def run(*_):
    process._member = member
    if "told" in sys.argv:
        process.on_sigterm(signal.SIGTERM, None)
    process._member = None
    raise Fenced("the master has declared this worker lost")


process._run = run
try:
    process.live("one")
except Fenced:
    worker.leave(7)
"""


def ended(*arguments: str) -> int:
    return subprocess.run(
        [sys.executable, "-c", LIFE, *arguments], check=False, timeout=300
    ).returncode


def test_who_is_fenced_and_told_to_go_ends_by_the_signal() -> None:
    assert 7 == ended()
    assert -signal.SIGTERM == ended("told")

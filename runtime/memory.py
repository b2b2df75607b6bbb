"""Tell whether the kernel killed for want of memory, which a plain SIGKILL does not say."""

from __future__ import annotations

import signal
from pathlib import Path

_COUNTERS = Path("/proc/vmstat")


def oom_kills(counters: Path = _COUNTERS) -> int:
    """Return how many processes the kernel has killed so since boot, of all of this machine.

    It is 0 where the kernel does not tell.
    """
    try:
        lines = counters.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def why_killed(code: int, kills: int) -> str:
    """Say how a process ended in whose life the kernel killed so many; "": its code says it all."""
    if code != -signal.SIGKILL or kills <= 0:
        return ""
    return "was killed by SIGKILL while the kernel was killing for want of memory"

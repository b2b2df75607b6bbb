"""Waiting for what another thread does, where no event tells of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FAR_S = 300.0  # a deadline that no test reaches, though kernels are compiled meanwhile


def until(true: Callable[[], object], within_s: float = FAR_S) -> None:
    """Poll until `true()` says so. Raises AssertionError where it does not within `within_s`."""
    deadline, pause = time.monotonic() + within_s, threading.Event()
    while not true():
        assert time.monotonic() < deadline, f"not true within {within_s:.0f} s: {true}"
        pause.wait(0.001)

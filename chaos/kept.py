"""A process that is started again whenever it has ended, as a supervisor of consumers would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_END_S = 60.0


class Kept:
    """A Python that runs with these arguments, and what it says."""

    def __init__(self, arguments: list[str], env: Mapping[str, str], log: Path) -> None:
        self._arguments, self._env, self._log = arguments, dict(env), log
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def keep(self) -> None:
        """Start it where it does not run."""
        if self._process is not None and self._process.poll() is None:
            return
        self.starts += 1
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._arguments],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def end(self) -> None:
        """Kill it, for good."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_END_S)

"""Processes that wait at failpoints (common/faults.py) until they are let go, or killed there."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

WAIT_S = 50.0  # a process that is held goes on by itself after 60 s

Told = dict[str, Any]  # point, role, index, pid, and what the point tells


class Gates:
    """Gates that hold whoever reaches a point for as long as `holds` says so; any number at once.

    Jobs that are started until `close` have the points armed, by the environment.
    """

    def __init__(self, *points: str) -> None:
        self.holds: Callable[[Told], bool] = lambda told: False
        self.reached: list[Told] = []
        self._changed = threading.Condition()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind("faults")
        self._socket.listen(64)
        os.environ["EDL_FAULTS"] = ",".join([os.path.abspath("faults"), *points])
        threading.Thread(target=self._serve, daemon=True).start()

    def hold(self, holds: Callable[[Told], bool]) -> None:
        with self._changed:
            self.holds = holds
            self._changed.notify_all()

    def wait(self, times: int = 1, **about: Any) -> Told:
        """Wait until somebody reaches, for the so many-th time, what this is about."""

        def found() -> list[Told]:
            return [told for told in self.reached if about.items() <= told.items()]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= times, WAIT_S), about
            return found()[times - 1]

    def close(self) -> None:
        del os.environ["EDL_FAULTS"]
        self._socket.close()
        self.hold(lambda told: False)

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        with line:
            told = json.loads(line.makefile().readline())
            with self._changed:
                self.reached.append(told)
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self.holds(told), WAIT_S)
            with contextlib.suppress(OSError):  # it was killed here
                line.sendall(b'{"do": "continue"}\n')

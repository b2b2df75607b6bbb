"""The controller that failpoints ask (common/faults.py): a unix socket, one decision at a time.

While a decision is made every process that has reached an armed point is held. `decide` may kill
the very process that asks, or any other; it answers what the asking one shall do.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

Answer = Mapping[str, Any]
CONTINUE: Answer = {"do": "continue"}
OFF: Answer = {"do": "off"}


@dataclass(frozen=True)
class Hit:
    """A process has reached a point.

    `role` is worker, ps, teacher or master; `about` is the point's own.
    """

    point: str
    role: str
    index: int
    pid: int
    about: Mapping[str, Any]


class Controller:
    """A server from `__enter__` to `__exit__`; then every process goes on and asks no more."""

    def __init__(self, path: Path, points: Iterable[str], decide: Callable[[Hit], Answer]) -> None:
        self._path = path
        self._points = tuple(points)
        self._decide = decide
        self._one = threading.Lock()
        self.errors: list[BaseException] = []

    @property
    def variable(self) -> str:
        """Return the value of EDL_FAULTS for the job."""
        return ",".join((str(self._path), *self._points))

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self._path))
        self._socket.listen(64)
        threading.Thread(target=self._serve, name="controller", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):  # it wakes the thread that accepts
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError):  # who asked was killed: there is nobody to answer
            told = json.loads(line.makefile().readline() or "null")
            if told is None:
                return
            role = told.pop("role")
            hit = Hit(
                told.pop("point"),
                "ps" if role == "server" else role,
                told.pop("index"),
                told.pop("pid"),
                told,
            )
            with self._one:
                try:
                    answer = self._decide(hit)
                # Whatever the cell's own code raises must not hold the process for ever: it goes
                # on, and whoever owns the cell raises the error.
                except Exception as error:  # noqa: BLE001
                    self.errors.append(error)
                    answer = OFF
            line.sendall(json.dumps(answer).encode() + b"\n")

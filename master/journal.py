"""The master's journal: every decision, on disk before the answer leaves (rule 6).

SQLite in WAL mode with synchronous=FULL: one decision is one transaction, there whole or not at all
after a power cut. Decisions are method calls on the pure state machines: (kind, arguments as JSON);
calling them again in this order gives the same state.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..common.errors import JobError


class Journal:
    """Used by one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS decisions ("
                "number INTEGER PRIMARY KEY, kind TEXT NOT NULL, arguments TEXT NOT NULL)"
            )
        except sqlite3.Error as error:
            raise self._error(error) from error

    def append(self, kind: str, arguments: Mapping[str, Any]) -> None:
        """Write one decision; it is on disk when this returns. Raises JobError."""
        text = json.dumps(arguments, default=_encode)
        try:
            self._connection.execute(
                "INSERT INTO decisions (kind, arguments) VALUES (?, ?)", (kind, text)
            )
        except sqlite3.Error as error:
            raise self._error(error) from error

    def replay(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """All decisions, oldest first. Raises JobError."""
        try:
            for kind, text in self._connection.execute(
                "SELECT kind, arguments FROM decisions ORDER BY number"
            ):
                yield kind, json.loads(text, object_hook=_decode)
        except sqlite3.Error as error:
            raise self._error(error) from error

    def close(self) -> None:
        self._connection.close()

    def _error(self, error: sqlite3.Error) -> JobError:
        return JobError(
            f"the journal {self._path} cannot be used: {error}. "
            "Make room on its disk (or set EDL_HOME to another one) and start the job again."
        )


def _encode(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"__bytes__": base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} cannot stand in the journal")


def _decode(values: dict[str, Any]) -> Any:
    if values.keys() == {"__bytes__"}:
        return base64.b64decode(values["__bytes__"])
    return values

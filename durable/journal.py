"""The journal: each decision of a process that may be killed, on disk before its answer leaves.

Rule 6 of docs/architecture.md.

SQLite in WAL mode with synchronous=FULL (docs/adr/0008-the-masters-journal.md): the decisions of a
batch of events are one transaction (group commit), there whole or not at all after a power cut. A
decision is a name and its fields as JSON; to make them again in this order, on top of the state
that `compact` stored, gives the same state.

What is small and changes seldom (who is there, which processes run, how far the job is) is no
decision but a named state, written whole (`put`).

Whoever opens the journal takes it over: its epoch rises by one, and in the very transaction that
would write decisions an older epoch is refused. So of two masters only the newer can decide,
however long the older one slept. `check` is for what is answered without a decision.

What the names and fields are is its owner's to know, and has a format number: whoever opens the
file says which one it writes. A file of a newer format is refused, and left as it is.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..common.errors import Fenced, JobError

Decision = tuple[str, dict[str, Any]]

_META = "CREATE TABLE IF NOT EXISTS meta (epoch INTEGER NOT NULL, format INTEGER NOT NULL)"
_TABLES = f"""
{_META};
CREATE TABLE IF NOT EXISTS states (name TEXT PRIMARY KEY, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS decisions (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, arguments TEXT NOT NULL
);
"""
_COMPACTED = "compacted"
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_BUSY_S = 10.0  # another master writes one decision at a time; more is a disk that hangs


class Journal:
    """The journal of a job, which belongs to one master once it is opened.

    `epoch` counts the masters of the job. Used by one thread.

    `format`: of what is in it, where that is older than what its owner writes: `compact` must be
    the first to write then. 0 is what was written before formats had a number. `length`: decisions
    since the last `compact`. What is appended is on disk after the next `commit`, `put` or
    `compact`. All methods but `append` raise JobError where the file cannot be used, and Fenced
    where a newer master has taken over.
    """

    def __init__(self, path: Path, format: int = 1) -> None:
        self._path = path
        self._newest_format = format
        if path.exists() and not path.is_file():  # SQLite would wait for a pipe
            raise self._damaged("it is no plain file")
        with self._errors():
            self._connection = sqlite3.connect(
                path, _BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT")
            with self._transaction():
                self.format = self._format_on_disk()
                self.epoch = self._epoch_on_disk() + 1
                self._write_meta()
            self._seen = self._data_version()
            self._waiting: list[tuple[str, str]] = []  # decisions that are not on disk
            self.length = self._one("SELECT count(*) FROM decisions")

    def append(self, kind: str, arguments: Mapping[str, Any]) -> None:
        """Add a decision, which nobody may be told of before `commit`."""
        self._waiting.append((kind, _text(arguments)))
        self.length += 1

    @property
    def waiting(self) -> int:
        """The number of decisions that are not on disk."""
        return len(self._waiting)

    def commit(self) -> None:
        """Write what was appended; it is on disk when this returns."""
        if self._waiting:
            with self._errors(), self._transaction():
                self._write_waiting()
            self._waiting.clear()

    def put(self, name: str, state: Mapping[str, Any]) -> None:
        """Write a named state in the place of the one before, with what was appended."""
        texts = [(name, _text(state))]
        with self._errors(), self._transaction():
            self._write_waiting()
            self._put_states(texts)
        self._waiting.clear()

    def get(self, name: str) -> dict[str, Any] | None:
        """Return the named state; None where there is none."""
        with self._errors():
            row = self._connection.execute(
                "SELECT state FROM states WHERE name = ?", (name,)
            ).fetchone()
        try:
            return None if row is None else _parse(row[0])
        except ValueError as error:
            raise self._damaged(str(error)) from error

    def check(self) -> None:
        """Raise Fenced unless this master is the newest: before it says anything.

        Takes microseconds.
        """
        with self._errors():
            seen = self._data_version()  # changes only when another connection has written
            if seen != self._seen:
                self._must_be_ours()
                self._seen = seen

    def compact(
        self, state: Mapping[str, Any], named: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Store a state in the place of all decisions that led to it, and named states with it.

        The journal is of its owner's format then.
        """
        texts = [(name, _text(each)) for name, each in (named or {}).items()]
        texts.append((_COMPACTED, _text(state)))
        with self._errors(), self._transaction():
            self._must_be_ours()
            self._put_states(texts)
            self._connection.execute("DELETE FROM decisions")
            self.format = self._newest_format
            self._write_meta()
        self._waiting.clear()
        self.length = 0

    def replay(self) -> tuple[dict[str, Any] | None, list[Decision]]:
        """Return the stored state, where there is one, and the decisions since, oldest first."""
        with self._errors():
            found = self._one("PRAGMA quick_check(1)")
            if found != "ok":
                raise self._damaged(str(found))
            state = self.get(_COMPACTED)
            decisions = self._connection.execute(
                "SELECT kind, arguments FROM decisions ORDER BY number"
            )
            try:
                return state, [(kind, _parse(text)) for kind, text in decisions]
            except ValueError as error:
                raise self._damaged(str(error)) from error

    @property
    def is_blank(self) -> bool:
        """Tell whether nobody has stored a state in it yet."""
        with self._errors():
            query = f"SELECT count(*) FROM states WHERE name = '{_COMPACTED}'"
            return not self._one(query)

    def close(self) -> None:
        self._connection.close()

    # -- inside

    def _write_waiting(self) -> None:
        self._must_be_ours()
        self._connection.executemany(
            "INSERT INTO decisions (kind, arguments) VALUES (?, ?)", self._waiting
        )

    def _put_states(self, texts: Iterable[tuple[str, str]]) -> None:
        self._connection.executemany(
            "INSERT OR REPLACE INTO states (name, state) VALUES (?, ?)", texts
        )

    def _write_meta(self) -> None:
        self._connection.execute("DELETE FROM meta")
        self._connection.execute(
            "INSERT INTO meta (epoch, format) VALUES (?, ?)", (self.epoch, self.format)
        )

    def _format_on_disk(self) -> int:
        """Return the format of the file; of a new one the newest.

        Raises JobError where the file's is newer.
        """
        columns = self._connection.execute("PRAGMA table_info(meta)").fetchall()
        if "format" not in (column[1] for column in columns):
            epoch = self._epoch_on_disk()
            # No default for the number: a version that knows none could not open the file any more.
            self._connection.execute("DROP TABLE meta")
            self._connection.execute(_META)
            self._connection.execute("INSERT INTO meta (epoch, format) VALUES (?, 0)", (epoch,))
        found = self._one("SELECT max(format) FROM meta")
        if found is not None and found > self._newest_format:
            raise JobError(
                f"the journal {self._path} is of format {found}, and this version of edl knows up "
                f"to {self._newest_format}: go on with the job by the version that wrote it, or a "
                "newer one"
            )
        return self._newest_format if found is None else int(found)

    def _must_be_ours(self) -> None:
        newest = self._epoch_on_disk()
        if newest != self.epoch:
            raise Fenced(
                f"another master, of epoch {newest}, has taken over this job (this one is of epoch "
                f"{self.epoch}): this one ends"
            )

    def _epoch_on_disk(self) -> int:
        return int(self._one("SELECT coalesce(max(epoch), 0) FROM meta"))

    def _data_version(self) -> int:
        return int(self._one("PRAGMA data_version"))

    def _one(self, query: str) -> Any:
        return self._connection.execute(query).fetchone()[0]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:  # commits, or rolls back what an exception leaves
            yield

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code in _DAMAGE:
                raise self._damaged(str(error)) from error
            if code == sqlite3.SQLITE_BUSY:
                remedy = (
                    "Another process holds it for longer than a decision takes (a master stopped "
                    "as it wrote?): end that process"
                )
            else:
                remedy = "Make room on its disk (or set EDL_HOME to another one)"
            raise JobError(
                f"the journal {self._path} cannot be used: {error}. {remedy} and start the job "
                "again."
            ) from error

    def _damaged(self, how: str) -> JobError:
        return JobError(
            f"the journal {self._path} is damaged: {how}. What it held cannot be trusted: "
            "go on with the job's newest checkpoint where it has one (`edl train --resume "
            "CHECKPOINT`), or start it again."
        )


def _bytes_as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"__bytes__": base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} cannot stand in the journal")


# Made once: to make an encoder costs as much as to use it on a decision, which is no circle.
_text = json.JSONEncoder(default=_bytes_as_json, check_circular=False).encode


def _decode(values: dict[str, Any]) -> Any:
    if values.keys() == {"__bytes__"}:
        return base64.b64decode(values["__bytes__"])
    return values


def _parse(text: str) -> Any:
    return json.loads(text, object_hook=_decode)

"""Snapshots that a shard writes of itself, for its replacement to begin where it ended.

recovery.py reads them.

Each is of one moment of this shard, beside no other: parameters, optimizer state, version, ledger,
what the aggregation has summed. What the others have and this one lacks after its restore is sent
again, as the ledgers tell (docs/failure-model.md).

A delta is copied into memory and let go before the first byte is written; a base is written in
pieces while its pin is held. Either way pushes wait only while the steps under way end. Rows that a
failed snapshot should have had are owed to the next one.

A new base begins a new chain when the deltas' bytes exceed half of its predecessor's or after 16 of
them. The two newest chains are kept; the *coverage* is the end of the one before the newest: what a
restore reaches even where any one file of the newest is damaged.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ...common import faults
from ...common.errors import EdlError
from ...common.pieces import encode
from ...common.storage import FileRecord
from ..books.dense import Chunk, ChunkKey
from ..books.ledger import Entry
from ..books.pins import Moment
from ..books.state import ShardBooks
from ..books.store import Store
from ..rows.table import RowBlock
from . import cut as snapshot
from .chain import Folder, Link, link_name
from .changes import Changes
from .recovery import Restored

log = logging.getLogger(__name__)

_PIN = "recovery snapshot"
_MOST_DELTAS = 16
_MOST_DELTA_PART = 0.5  # of the base's bytes
_END_S = 5.0  # a snapshot under way may take so long when the server ends


@dataclass(frozen=True)
class Coverage:
    """The positions that a restore is sure to have, and all tasks below the mark."""

    number: int
    low_water: int
    ledger: tuple[Entry, ...]

    @classmethod
    def of(cls, link: Link) -> Coverage:
        return cls(link.number, link.low_water, link.ledger)


@contextlib.contextmanager
def _only_logged(trouble: str) -> Iterator[None]:
    """Log what is raised within, and nothing more: a folder's backend may raise anything."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  no tuple names the errors of all backends
        log.warning("%s: %s", trouble, error)


class Recorder:
    """The writer of the snapshots of one incarnation of a shard.

    One thread at a time.
    """

    def __init__(
        self,
        store: Store,
        folder: Folder,
        incarnation: str,
        restored: Restored | None = None,
        changes: Changes | None = None,
    ) -> None:
        """Begin a chain. `changes`: the one of this shard, where others read it too."""
        self._store, self._folder, self._incarnation = store, folder, incarnation
        self._changes = changes or Changes(store)
        self._parent = restored.parent if restored else None
        self._next = restored.link.number + 1 if restored and restored.link else 1
        self._before = restored.link if restored else None  # the end of the chain before
        self._chain: list[Link] = []
        self._oldest: list[int] = []  # of each chain of this incarnation: its base
        self._ancestors: tuple[str, ...] = ()
        if restored is not None:
            self._ancestors = restored.ancestors
        else:  # the first one, or one of a job that goes on with other servers
            with _only_logged("what servers before have left is not seen"):
                self._ancestors = tuple(name for name in folder.names() if name != incarnation)
        self._books: ShardBooks | None = None  # of the last snapshot
        self._state = ""  # its name among the changes

    @property
    def coverage(self) -> Coverage | None:
        """Return the coverage; None: nothing is sure yet."""
        return Coverage.of(self._before) if self._before and self._chain else None

    def take(self) -> Link | None:
        """Take a snapshot of now; None: there is nothing new.

        Raises what the folder raises, having left nothing behind and forgotten nothing.
        """
        number, store = self._next, self._store
        faults.point("ps.snapshot.begin", number=number)
        state = f"{_PIN} {number}"
        moment = self._changes.moment(_PIN, state, unless=self._books)
        if moment is None:
            return None
        self._next += 1  # also where it fails: no number is ever used twice
        records: list[FileRecord] = []
        written: Link | None = None
        try:
            is_base = self._needs_base(moment)
            pieces = self._pieces(moment, is_base)
            if not is_base:
                pieces = iter(list(pieces))
                store.pins.unpin_moment(moment)
            for name, tensors, about in pieces:
                parts = encode(tensors, about)
                name = f"{number:012d}.{name}.safetensors"
                records.append(FileRecord(name, 0, ""))
                records[-1] = self._folder.write(self._incarnation, name, *parts)
                if len(records) == 1:
                    faults.point("ps.snapshot.mid", number=number)
            if not store.pins.is_of_this_life(moment):  # the model was replaced beneath the pin
                return None
            link = self._link(number, moment, is_base, records)
            faults.point("ps.snapshot.commit", number=number)
            self._folder.commit(self._incarnation, link)
            written = link
        finally:
            if written is None:  # whatever it was: half a snapshot is not left behind
                self._changes.forget(state)
                self._clear_away(number, records)
            store.pins.unpin_moment(moment)
        self._is_written(moment, written)
        self._changes.forget(self._state)
        self._state = state
        return written

    def _needs_base(self, moment: Moment) -> bool:
        if not self._chain or self._changes.since(self._state, moment.life) is None:
            return True
        base, *deltas = self._chain
        nbytes = sum(link.nbytes for link in deltas)
        return len(deltas) >= _MOST_DELTAS or nbytes > _MOST_DELTA_PART * base.nbytes

    def _pieces(self, moment: Moment, is_base: bool) -> Iterator[snapshot.Piece]:
        parameters = moment.parameters
        since = None if is_base else self._changes.since(self._state, moment.life)
        version = since.version if since is not None else None
        chunks: list[tuple[ChunkKey, Chunk]] = list(parameters.dense.changed_since(version, _PIN))

        def rows(name: str, most: int) -> Iterator[RowBlock]:
            table = parameters.tables[name]
            size = table.pinned_rows(_PIN)
            numbers = np.arange(size) if since is None else since.rows(name, size)
            for start in range(0, len(numbers), most):
                yield table.rows(_PIN, numbers[start : start + most])

        return snapshot.pieces(parameters.spec, moment.books, chunks, rows)

    def _link(
        self, number: int, moment: Moment, is_base: bool, records: Iterable[FileRecord]
    ) -> Link:
        books = moment.books
        return Link(
            number=number,
            base=number if is_base else self._chain[0].number,
            previous=0 if is_base else self._chain[-1].number,
            version=books.version,
            low_water=books.low_water,
            ledger=books.ledger,
            pushes=books.pushes,
            model=json.loads(moment.parameters.spec.to_json()),
            files=tuple(records),
            parent=self._parent,
        )

    def _is_written(self, moment: Moment, link: Link) -> None:
        if link.previous:
            self._chain.append(link)
        else:
            self._before = self._chain[-1] if self._chain else self._before
            self._chain = [link]
            self._oldest.append(link.number)
        self._books = moment.books

    def _clear_away(self, number: int, records: Iterable[FileRecord]) -> None:
        names = [link_name(number), *(record.name for record in records)]
        with _only_logged(f"snapshot={number} half a snapshot is left behind"):
            self._folder.remove(self._incarnation, names)  # what went wrong first is what is told

    def prune(self) -> None:
        """Remove what is older than the two newest chains.

        Raises what the folder raises.
        """
        if len(self._oldest) < 2 or self._folder.has_child(self._incarnation):
            return
        self._oldest = self._oldest[-2:]
        first = f"{self._oldest[0]:012d}"
        old = [n for n in self._folder.names(self._incarnation) if n[0].isdigit() and n < first]
        self._folder.remove(self._incarnation, old)
        for incarnation in self._ancestors:
            self._folder.remove(incarnation, self._folder.names(incarnation))
        self._ancestors = ()


class Snapshots:
    """A thread that takes a snapshot every `interval_s`.

    What fails is told and tried again.
    """

    def __init__(
        self,
        recorder: Recorder,
        interval_s: float,
        tell: Callable[[str, Coverage | None], None],
        taken: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the thread.

        `tell` is called with what the user shall know ("": nothing), and with new coverage;
        `taken` after each look that leaves a snapshot of all there is.
        """
        self._recorder, self._interval_s, self._tell = recorder, interval_s, tell
        self._taken = taken
        self._told = ""  # of the failure that lasts
        self._covered = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop; a snapshot under way may still end."""
        self._stop.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.once()

    def once(self) -> None:
        began = time.monotonic()
        try:
            link = self._recorder.take()
        except Exception as error:  # noqa: BLE001  a backend may raise anything; training goes on
            self._failed(error)
            return
        self._taken()
        if link is None:
            return
        if self._told:
            log.warning("snapshots are written again")
        self._told = ""
        log.debug(
            "snapshot=%d version=%d nbytes=%d seconds=%.2f",
            link.number,
            link.version,
            link.nbytes,
            time.monotonic() - began,
        )
        coverage = self._recorder.coverage
        if coverage is not None and coverage.number != self._covered:
            self._covered = coverage.number
            self._tell("", coverage)
        if not link.previous:
            with _only_logged("old snapshots could not be removed"):  # the next base tries again
                self._recorder.prune()

    def _failed(self, error: Exception) -> None:
        text = str(error) or ("out of memory" if isinstance(error, MemoryError) else repr(error))
        what = (isinstance(error, OSError) and error.strerror) or text
        if what == self._told:
            return
        self._told = what
        note = (
            f"no snapshot could be written: {text}. Training goes on, and it is tried again every "
            f"{self._interval_s:g} s; until then more is computed again should this server be lost"
        )
        log.error("%s", note, exc_info=None if isinstance(error, (OSError, EdlError)) else error)
        self._tell(note, None)

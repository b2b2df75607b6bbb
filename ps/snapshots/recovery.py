"""A shard's own snapshots, so that its replacement begins where it ended, and their way back.

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

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ...common import faults
from ...common.errors import CheckpointError, EdlError
from ...common.storage import FileRecord
from ..books.dense import Chunk, ChunkKey
from ..books.ledger import Entry
from ..books.pins import Moment
from ..books.state import ShardBooks
from ..books.store import Store
from ..rows.optimizers import Ints
from ..rows.table import RowBlock
from . import cut as snapshot
from .chain import Folder, Link, Parent, link_name

log = logging.getLogger(__name__)

_PIN = "recovery snapshot"
_MOST_DELTAS = 16
_MOST_DELTA_PART = 0.5  # of the base's bytes
_NO_ROWS = np.empty(0, np.int64)
_END_S = 5.0  # a snapshot under way may take so long when the server ends


@dataclass(frozen=True)
class Coverage:
    """What a restore is sure to have: of each task so much, all of those below the mark."""

    number: int
    low_water: int
    ledger: tuple[Entry, ...]

    @classmethod
    def of(cls, link: Link) -> Coverage:
        return cls(link.number, link.low_water, link.ledger)


# -- Writing


class Recorder:
    """Writes the snapshots of one incarnation of a shard. One thread at a time."""

    def __init__(
        self, store: Store, folder: Folder, incarnation: str, restored: Restored | None = None
    ) -> None:
        self._store, self._folder, self._incarnation = store, folder, incarnation
        self._parent = restored.parent if restored else None
        self._next = restored.link.number + 1 if restored and restored.link else 1
        self._before = restored.link if restored else None  # the end of the chain before
        self._chain: list[Link] = []
        self._oldest: list[int] = []  # of each chain of this incarnation: its base
        self._ancestors = restored.ancestors if restored else ()
        self._books: ShardBooks | None = None  # of the last snapshot
        self._life = 0
        self._sizes: dict[str, int] = {}  # rows that it has
        self._owed: dict[str, Ints] = {}  # rows that have changed since
        self._marks_are_lost = False

    @property
    def coverage(self) -> Coverage | None:
        """None: nothing is sure yet."""
        return Coverage.of(self._before) if self._before and self._chain else None

    def take(self) -> Link | None:
        """A snapshot of now. None: there is nothing new.

        Raises what the folder raises, having left nothing behind and forgotten nothing.
        """
        number, store = self._next, self._store
        faults.point("ps.snapshot.begin", number=number)
        moment = store.pins.pin_moment(_PIN, self._books)
        if moment is None:
            return None
        self._next += 1  # also where it fails: no number is ever used twice
        records: list[FileRecord] = []
        tables = moment.parameters.tables
        try:
            sizes = {name: table.pinned_rows(_PIN) for name, table in tables.items()}
            self._note_touched(moment)
            is_base = self._needs_base(moment)
            pieces = self._pieces(moment, is_base)
            if not is_base:
                pieces = iter(list(pieces))
                store.pins.unpin_moment(moment)
            for name, tensors, about in pieces:
                parts = snapshot.encode(tensors, about)
                name = f"{number:012d}.{name}.safetensors"
                records.append(FileRecord(name, 0, ""))
                records[-1] = self._folder.write(self._incarnation, name, *parts)
                if len(records) == 1:
                    faults.point("ps.snapshot.mid", number=number)
            if not store.pins.is_of_this_life(moment):  # the model was replaced beneath the pin
                self._clear_away(number, records)
                return None
            link = self._link(number, moment, is_base, records)
            faults.point("ps.snapshot.commit", number=number)
            self._folder.commit(self._incarnation, link)
        except BaseException:
            self._clear_away(number, records)
            raise
        finally:
            store.pins.unpin_moment(moment)
        self._is_written(moment, link, sizes)
        return link

    def _note_touched(self, moment: Moment) -> None:
        lost, self._marks_are_lost = self._marks_are_lost, True
        if moment.life != self._life:  # rows have other numbers now
            self._owed, self._sizes = {}, {}
        for name, table in moment.parameters.tables.items():
            is_owed = np.zeros(table.pinned_rows(_PIN), np.bool_)
            is_owed[self._owed.get(name, _NO_ROWS)] = True
            is_owed[table.touched(_PIN)] = True
            is_owed[self._sizes.get(name, 0) :] = True
            self._owed[name] = np.flatnonzero(is_owed)
        self._marks_are_lost = lost

    def _needs_base(self, moment: Moment) -> bool:
        if not self._chain or self._marks_are_lost or self._life != moment.life:
            return True
        base, *deltas = self._chain
        nbytes = sum(link.nbytes for link in deltas)
        return len(deltas) >= _MOST_DELTAS or nbytes > _MOST_DELTA_PART * base.nbytes

    def _pieces(self, moment: Moment, is_base: bool) -> Iterator[snapshot.Piece]:
        parameters, since = moment.parameters, None
        if not is_base:
            assert self._books is not None
            since = self._books.version
        chunks: list[tuple[ChunkKey, Chunk]] = list(parameters.dense.changed_since(since, _PIN))

        def rows(name: str, most: int) -> Iterator[RowBlock]:
            table = parameters.tables[name]
            numbers = np.arange(table.pinned_rows(_PIN)) if is_base else self._owed[name]
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

    def _is_written(self, moment: Moment, link: Link, sizes: dict[str, int]) -> None:
        if link.previous:
            self._chain.append(link)
        else:
            self._before = self._chain[-1] if self._chain else self._before
            self._chain = [link]
            self._oldest.append(link.number)
        self._books, self._life = moment.books, moment.life
        self._sizes, self._owed, self._marks_are_lost = sizes, {}, False

    def _clear_away(self, number: int, records: Iterable[FileRecord]) -> None:
        names = [link_name(number), *(record.name for record in records)]
        try:
            self._folder.remove(self._incarnation, names)
        except Exception as error:  # noqa: BLE001  what went wrong first is what is told
            log.warning("snapshot=%d half a snapshot is left behind: %s", number, error)

    def prune(self) -> None:
        """Remove what is older than the two newest chains. Raises what the folder raises."""
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
    """Takes one every `interval_s`, in a thread of its own; what fails is told and tried again."""

    def __init__(
        self, recorder: Recorder, interval_s: float, tell: Callable[[str, Coverage | None], None]
    ) -> None:
        """`tell` is called with what the user shall know ("": nothing), and with new coverage."""
        self._recorder, self._interval_s, self._tell = recorder, interval_s, tell
        self._told = ""  # of the failure that lasts
        self._covered = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """A snapshot under way may still end."""
        self._stop.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.once()

    def once(self) -> None:
        began = time.monotonic()
        try:
            link = self._recorder.take()
            if link is None:
                return
        except Exception as error:  # noqa: BLE001  a backend may raise anything; training goes on
            self._failed(error)
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
            try:
                self._recorder.prune()
            except Exception as error:  # noqa: BLE001  as above, and the next base tries again
                log.warning("old snapshots could not be removed: %s", error)

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


# -- Reading


@dataclass(frozen=True)
class Restored:
    """Where a replacement begins. `link` None: no snapshot was whole, the store is as good as lost.

    `ancestors`: incarnations whose files are not needed once there are two chains of one's own.
    """

    link: Link | None
    parent: Parent
    ancestors: tuple[str, ...]
    notes: list[str] = field(default_factory=list)


def restore(store: Store, folder: Folder, incarnation: str, *, of: str, at_least: int) -> Restored:
    """Make `store` what the newest whole snapshot of the lineage of incarnation `of` says.

    `incarnation` is whose store it is. Raises CheckpointError where what is found is older than
    `at_least`: the others have forgotten what it lacks.
    """
    notes: list[str] = []
    _set_parent(folder, incarnation, Parent(of), notes)
    try:
        link, ancestors = _restore(store, folder, of, notes)
        number = link.number if link else 0
        if number < at_least:
            newest = f"ends at {link.number}" if link else "is gone"
            raise CheckpointError(
                f"server {store.index} cannot be recovered: what is whole of its snapshots in "
                f"{folder.url}/{of} {newest}, and work up to {at_least} has been taken for safe: "
                f"start the job again from a checkpoint. {' '.join(notes)}"
            )
    except OSError as error:
        raise CheckpointError(f"{folder.url} cannot be read: {error}") from error
    parent = Parent(of, number)
    _set_parent(folder, incarnation, parent, notes)
    return Restored(link, parent, ancestors, notes)


def _set_parent(folder: Folder, incarnation: str, parent: Parent, notes: list[str]) -> None:
    try:
        folder.set_parent(incarnation, parent)
    except OSError as error:  # a full disk can still be read; each link names the parent too
        log.error("cannot write to %s: %s", folder.url, error)
        notes.append(f"cannot write to {folder.url}: {error}")


def _restore(
    store: Store, folder: Folder, of: str, notes: list[str]
) -> tuple[Link | None, tuple[str, ...]]:
    link, lineage = None, _lineage(folder, of, notes)
    for incarnation, most in lineage:
        links, wrong = folder.links(incarnation, most)
        _note(notes, *wrong)
        link = _load_newest(store, folder, incarnation, links, notes)
        if link is not None:
            break
    return link, tuple(incarnation for incarnation, _ in lineage)


def _lineage(folder: Folder, of: str, notes: list[str]) -> list[tuple[str, int | None]]:
    """The incarnation, its parent, and so on; of each the highest number that is of this line."""
    lineage: list[tuple[str, int | None]] = []
    most: int | None = None
    while of and of not in (known for known, _ in lineage):
        lineage.append((of, most))
        parent, wrong = folder.parent(of)
        _note(notes, *wrong)
        if parent is None:
            break
        of = parent.incarnation
        if parent.number is not None:
            most = parent.number if most is None else min(most, parent.number)
    return lineage


def _load_newest(
    store: Store, folder: Folder, incarnation: str, links: list[Link], notes: list[str]
) -> Link | None:
    """The newest chain whose base is whole, as far as it is whole."""
    here = None
    for base in reversed([link for link in links if not link.previous]):
        try:
            parts = _load_base(store, folder, incarnation, base)
        except CheckpointError as error:
            _note(notes, str(error))
            continue
        here = base
        while True:
            more = [link for link in links if link.previous == here.number]
            for link in reversed(more):  # two, where one failed and came into being all the same
                try:
                    parts = _load_delta(store, folder, incarnation, link)
                except CheckpointError as error:
                    _note(notes, str(error))
                    continue
                here = link
                break
            else:
                break
        books = ShardBooks(here.version, here.low_water, here.ledger, here.pushes, parts.sums())
        store.restorer.set_books(books)
        break
    numbers = {link.number for link in links}
    for link in links:
        if link.previous and link.previous not in numbers:
            name = f"{folder.path}/{incarnation}/{link_name(link.previous)}"
            _note(notes, f"snapshot {link.number} is of no use: {name} is missing or damaged")
    return here


def _load_base(store: Store, folder: Folder, incarnation: str, link: Link) -> snapshot.Parts:
    spec = snapshot.spec_of(link.model, f"{folder.path}/{incarnation}/{link_name(link.number)}")
    parts = snapshot.Parts(store.index, store.slot_map, spec)
    store.restorer.begin(spec, ShardBooks(link.version), new_job=False)
    faults.point("ps.recover", number=link.number)
    for record in link.files:
        where = f"{folder.path}/{incarnation}/{record.name}"
        parts.load(
            store, folder.read_checked(incarnation, record), store.restorer.insert_rows, where
        )
    return parts


def _load_delta(store: Store, folder: Folder, incarnation: str, link: Link) -> snapshot.Parts:
    """All of it is read before any of it is used."""
    files = [folder.read_checked(incarnation, record) for record in link.files]
    assert store.spec is not None
    parts = snapshot.Parts(store.index, store.slot_map, store.spec)
    for data, record in zip(files, link.files, strict=True):
        parts.load(
            store, data, store.restorer.put_rows, f"{folder.path}/{incarnation}/{record.name}"
        )
    return parts


def _note(notes: list[str], *texts: str) -> None:
    for text in texts:
        log.warning("a snapshot is skipped: %s", text)
        notes.append(text)

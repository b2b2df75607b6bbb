"""The answers of one teacher that are kept in a folder, by record and view (segments.py).

What is in the folder is indexed by the heads of its segments, at first and again, now and then,
when something is missing: others write there too. What is put here is found here at once, and is
written after a moment, many rows to a file. An answer is found only for the features that the
teacher was asked about: with those of another `feed`, or of one that says something new each time,
the record counts as missing.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..common.clock import Clock, MonotonicClock
from ..common.errors import UsageError
from ..data.views import Seen
from . import segments, tree
from .frames import Part
from .segments import DIGEST, RECORD, SOURCE, VIEW, Damaged, Rows

log = logging.getLogger(__name__)

BY_FEATURES = ""  # the source of records whose number is the digest of their features
_FINGERPRINT = re.compile(r"[0-9a-f]{8,64}")
_AGE_S = 1.0  # of what is not written yet, and of what is known of others' files, about
_MOST_LOOKING = 0.05  # of the time
_WRITTEN_NBYTES = 8 << 20  # of a segment, about
_MOST_PENDING_NBYTES = 64 << 20  # where nothing can be written
_LOADED_NBYTES = 256 << 20  # of segments in memory
_MOST_NOTES = 8
_BLOCK = 256  # records
_ROW_BITS = 24  # of a place, below the number of its segment


@dataclass
class _Segment:
    """A segment of the index. `path` None: not written yet."""

    path: Path | None
    rows: Rows
    parts: list[Part] | None = None

    @property
    def nbytes(self) -> int:
        return self.rows.table.nbytes + sum(part.values.nbytes for part in self.parts or ())


class Cache:
    """The answers of one teacher. Any thread may call."""

    def __init__(
        self,
        folder: Path,
        teacher: str,
        *,
        clock: Clock | None = None,
        on_note: Callable[[str], None] = log.warning,
    ) -> None:
        """Index what `folder` has of the teacher with this fingerprint.

        `on_note` is called with what a user should know.
        """
        self.folder, self.teacher = folder, teacher
        self._clock, self._on_note = clock or MonotonicClock(), on_note
        self._changed = threading.Condition()
        self._places: dict[tuple[str, int, int], NDArray[np.int64]] = {}
        self._by_features: dict[int, int] = {}  # places: these numbers come in no blocks
        self._segments: dict[int, _Segment] = {}
        self._number = 0  # of the next segment
        self._loaded = OrderedDict[int, int]()  # bytes by segment, the one used last at the end
        self._names = set[str]()  # of files that are indexed, or were passed over
        self._said = set[str]()  # kinds of notes
        self._pending: list[int] = []  # segments that are to be written
        self._pending_nbytes = 0
        self._closed = False
        self._next_look = self._clock.now()
        with self._changed:
            self._look()

    # -- the student

    def find(self, seen: Seen, digests: NDArray[np.int64]) -> tuple[NDArray[np.bool_], list[Part]]:
        """Return which of the records are kept, as bool[N], and the answers about these, in order.

        `digests`: int64[N], of the features of each record as `feed` gives them now.
        """
        with self._changed:
            if (self._places_of(seen) < 0).any() and self._clock.now() >= self._next_look:
                self._look()
            while True:  # at most once for each segment
                places = self._same(seen, self._places_of(seen), digests)
                numbers = np.unique(places[places >= 0] >> _ROW_BITS).tolist()
                answers = {number: self._parts(number) for number in numbers}
                if all(parts is not None for parts in answers.values()):
                    return _gathered(places, {n: p for n, p in answers.items() if p is not None})

    def put(self, seen: Seen, digests: NDArray[np.int64], parts: Sequence[Part]) -> None:
        """Keep the answers about records, a row for each, but for those that are kept already."""
        with self._changed:
            new = np.zeros(len(seen.records), np.bool_)
            new[np.unique(seen.records, return_index=True)[1]] = True
            new &= self._places_of(seen) < 0
            if not new.any() or self._closed or self._pending_nbytes > _MOST_PENDING_NBYTES:
                return
            table = np.zeros((int(new.sum()), 4), np.int64)
            table[:, RECORD], table[:, VIEW] = seen.records[new], seen.view
            table[:, DIGEST] = digests[new]
            made = _Segment(None, Rows([seen.source], table), tree.picked(parts, new.nonzero()[0]))
            self._pending.append(self._add(made))
            self._pending_nbytes += made.nbytes
            if self._pending_nbytes >= _WRITTEN_NBYTES:
                self._changed.notify_all()

    # -- the writer

    def keep_writing(self) -> None:
        """Write what is put, in time, until this is closed: the work of a thread."""
        closed = False
        while not closed:
            with self._changed:
                if not self._closed and self._pending_nbytes < _WRITTEN_NBYTES:
                    self._changed.wait(_AGE_S)
                closed = self._closed
            if not self.flush():  # a disk that is full, say
                with self._changed:
                    closed = self._closed or self._changed.wait_for(lambda: self._closed, _AGE_S)

    def flush(self) -> bool:
        """Write what was put and is not written yet; False where that cannot be. One at a time."""
        with self._changed:
            alike: dict[object, dict[int, _Segment]] = {}
            for number in self._pending:
                segment = self._segments[number]
                alike.setdefault(tree.kind_of(segment.parts or ()), {})[number] = segment
        for some in alike.values():
            try:
                self._write(some)
            except OSError as error:
                self.say(
                    f"errno {error.errno}",
                    f"answers of teachers cannot be kept in {self.folder}: {error.strerror}. "
                    "Training goes on, and they are asked again",
                )
                return False
        return True

    def close(self) -> None:
        """Take nothing more; `keep_writing` ends when all is written."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _write(self, some: dict[int, _Segment]) -> None:
        """Write pending segments, which are alike, as one. Raises OSError."""
        rows = _joined([segment.rows for segment in some.values()])
        parts = tree.joined([segment.parts or () for segment in some.values()])
        name, data = segments.pack(self.teacher, rows, parts)
        segments.write_whole(self.folder / name, data)
        with self._changed:
            self._names.add(name)
            self._add(_Segment(self.folder / name, rows), anew=True)
            self._pending = [number for number in self._pending if number not in some]
            for number in some:
                self._pending_nbytes -= self._segments.pop(number).nbytes

    # -- the index; all with the lock

    def _places_of(self, seen: Seen) -> NDArray[np.int64]:
        """Return where the answers about records are: segment and row, or -1."""
        if seen.source == BY_FEATURES:
            found = [self._by_features.get(record, -1) for record in seen.records.tolist()]
            return np.array(found, np.int64)
        places = np.full(len(seen.records), -1, np.int64)
        for n, record in enumerate(seen.records.tolist()):
            block = self._places.get((seen.source, seen.view, record // _BLOCK))
            if block is not None:
                places[n] = block[record % _BLOCK]
        return places

    def _same(
        self, seen: Seen, places: NDArray[np.int64], digests: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the places of answers about these very features, and -1 for others."""
        for n in np.flatnonzero(places >= 0):
            segment = self._segments[int(places[n]) >> _ROW_BITS]
            if segment.rows.table[places[n] & (1 << _ROW_BITS) - 1, DIGEST] != digests[n]:
                places[n] = -1
                self.say(
                    "other",
                    f"feed makes other features of record {seen.records[n]} of {seen.source} than "
                    f"those about which {self.folder} has an answer: such records are asked again. "
                    "Where feed draws at random, have it draw by edl.distill.view_seeds; where it "
                    "or the data is another one, give another --teacher_cache; where features have "
                    "no row for each record, they are found with the same records only "
                    "(--shuffle false)",
                )
        return places

    def _add(self, segment: _Segment, *, anew: bool = False) -> int:
        """Take a segment into the index, and return its number."""
        number, self._number = self._number, self._number + 1
        self._segments[number] = segment
        self._enter(number, segment, anew)
        return number

    def _enter(self, number: int, segment: _Segment, anew: bool) -> None:
        """Note where its rows are. `anew`: also of those that are known from elsewhere."""
        table, others = segment.rows.table, np.arange(len(segment.rows.table))
        if BY_FEATURES in segment.rows.sources:
            by_features = table[:, SOURCE] == segment.rows.sources.index(BY_FEATURES)
            others, rows = np.flatnonzero(~by_features), np.flatnonzero(by_features)
            numbers = table[rows, RECORD].tolist()
            there = dict(zip(numbers, (number << _ROW_BITS | rows).tolist(), strict=True))
            known = self._by_features
            known.update({r: at for r, at in there.items() if anew or r not in known})
        blocks = np.stack([table[:, SOURCE], table[:, VIEW], table[:, RECORD] // _BLOCK], 1)[others]
        kinds, kind_of = np.unique(blocks, axis=0, return_inverse=True)
        for kind, (source, view, block) in enumerate(kinds.tolist()):
            key = segment.rows.sources[source], view, block
            places = self._places.get(key)
            if places is None:
                places = self._places[key] = np.full(_BLOCK, -1, np.int64)
            rows = others[kind_of.ravel() == kind]
            at = table[rows, RECORD] % _BLOCK
            mine = np.full(len(rows), anew) | (places[at] < 0)
            places[at[mine]] = number << _ROW_BITS | rows[mine]

    def _look(self) -> None:
        """Index the files that are new in the folder."""
        began = self._clock.now()
        try:
            names = {name for name in os.listdir(self.folder) if segments.is_segment(name)}
        except OSError:
            names = set()  # there is none yet; if it cannot be made, whoever writes says so
        for name in sorted(names - self._names):
            path = self.folder / name
            self._names.add(name)
            try:
                self._add(_Segment(path, segments.read_rows(path, self.teacher)))
            except (Damaged, OSError) as error:
                self._pass_over(path, error)
        now = self._clock.now()
        self._next_look = now + max(_AGE_S, (now - began) / _MOST_LOOKING)

    def _parts(self, number: int) -> list[Part] | None:
        """Return a segment's answers, read if need be; None: it cannot be used, and is no more."""
        segment = self._segments.get(number)
        if segment is None:
            return None
        if segment.parts is None:
            assert segment.path is not None
            try:
                segment.parts = segments.read_parts(segment.path, len(segment.rows.table))
            except (Damaged, OSError) as error:
                self._pass_over(segment.path, error)
                self._drop(number)
                return None
            self._loaded[number] = segment.nbytes
        if number in self._loaded:
            self._loaded.move_to_end(number)
        parts = segment.parts
        while sum(self._loaded.values()) > _LOADED_NBYTES and len(self._loaded) > 1:
            oldest, _ = self._loaded.popitem(last=False)
            self._segments[oldest].parts = None
        return parts

    def _drop(self, number: int) -> None:
        """Forget a segment; others may have the same rows."""
        del self._segments[number]
        self._places.clear()
        self._by_features.clear()
        for other, segment in self._segments.items():
            self._enter(other, segment, False)

    def _pass_over(self, path: Path, error: Exception) -> None:
        self.say(
            str(path),
            f"{path} is passed over, and its records are asked about again: {error}. It may be "
            "removed",
        )

    def say(self, kind: str, text: str) -> None:
        """Tell the user once of this kind; of very many kinds (files, say) the log only."""
        if kind in self._said:
            return
        self._said.add(kind)
        if len(self._said) <= _MOST_NOTES:
            self._on_note(text)
        else:
            log.warning("%s", text)


def _gathered(
    places: NDArray[np.int64], answers: dict[int, list[Part]]
) -> tuple[NDArray[np.bool_], list[Part]]:
    """Return which rows there are, bool[N], and their answers; those of one kind, if of several."""
    found = np.zeros(len(places), np.bool_)
    parts: list[Part] = []
    for number, whole in answers.items():
        here = (places >= 0) & (places >> _ROW_BITS == number)
        mine = tree.picked(whole, places[here] & (1 << _ROW_BITS) - 1)
        if not parts:
            parts, found = mine, here
        elif tree.kind_of(parts) == tree.kind_of(mine):
            both = found | here
            parts, found = tree.woven(found[both], parts, mine), both
    return found, parts


def _joined(several: Sequence[Rows]) -> Rows:
    """Return the rows of several segments as those of one."""
    sources = list(dict.fromkeys(source for rows in several for source in rows.sources))
    tables = []
    for rows in several:
        table = rows.table.copy()
        numbers = np.array([sources.index(source) for source in rows.sources], np.int64)
        table[:, SOURCE] = numbers[table[:, SOURCE]]
        tables.append(table)
    return Rows(sources, np.concatenate(tables))


# -- which teacher's


def is_fingerprint(text: object) -> bool:
    return isinstance(text, str) and _FINGERPRINT.fullmatch(text) is not None


def kept(folder: Path) -> list[str]:
    """Return the fingerprints of the teachers whose answers are in a folder."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [name for name in names if is_fingerprint(name) and _has_segments(folder / name)]


def only(folder: Path) -> Path:
    """Return where the answers of the one teacher are that a job without teachers learns from.

    That is `folder`/FINGERPRINT, or `folder` itself where it is such a one. Raises UsageError.
    """
    if is_fingerprint(folder.name) and _has_segments(folder):
        return folder
    found = kept(folder)
    if not found:
        raise UsageError(
            f"--teacher_cache {folder} has no answers, and the job has no teachers: give it some "
            "(--num_teachers N or --teachers HOST:PORT), or the folder of a job that had"
        )
    if len(found) > 1:
        raise UsageError(
            f"--teacher_cache {folder} has the answers of {len(found)} teachers, {', '.join(found)}"
            f", and the job has none that would say which: name one, as in --teacher_cache "
            f"{folder / found[0]}"
        )
    return folder / found[0]


def _has_segments(folder: Path) -> bool:
    try:
        return any(segments.is_segment(name) for name in os.listdir(folder))
    except OSError:
        return False

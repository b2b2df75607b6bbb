"""A student's teachers with a cache before them: what is kept is not asked again.

The cache holds the answers of one teacher, which its fingerprint tells. Whoever is asked first says
it; the folder then remembers it for the job, so that a worker that comes when no teacher is there
any more knows it too. A job that has no teachers at all learns from the only one in the folder.
Until it is known, everything is asked. Another teacher than that one is asked nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common import background
from ..common.clock import Clock
from ..common.identity import job_id
from ..data.views import Seen
from . import segments, tree
from .alike import AboutLink, Agree, Alike
from .cache import BY_FEATURES, Cache, is_fingerprint, only
from .frames import Part
from .link import Link
from .question import Question
from .teachers import Teachers, Untaught

log = logging.getLogger(__name__)

_OF = "of values, parameters and modules"  # what a fingerprint tells, as its mark says


@dataclass
class Asked:
    """A minibatch: the answers that are kept, and what was asked about the other records."""

    seen: Seen
    parts: list[Part]
    digests: NDArray[np.int64]
    whole: bool  # features without a row for each record
    mine: NDArray[np.bool_]  # kept, by row
    kept: list[Part] = field(default_factory=list)
    question: Question | None = None


class Cached:
    """The cache of one student, and the teachers that are asked for what it lacks.

    `cached`: records taught from it.
    """

    def __init__(
        self,
        folder: Path,
        token: str | None,
        *,
        alone: bool,
        teacher: str = "",
        agree: Agree = lambda _address, _told: "",
        clock: Clock | None = None,
        on_note: Callable[[str], None] = log.warning,
    ) -> None:
        """Open the cache, where it is known of whom it is.

        `token`: the job's; its hash names the job in the folder; None: there is no job. `alone`: no
        teacher will ever be there. `teacher`: the fingerprint, where it is known. `agree`: as in
        `Alike`. Raises UsageError where no answers are there, or those of several.
        """
        self._folder, self._alone = folder, alone
        self._clock, self._on_note = clock, on_note
        self._mark: Path | None = None
        if token is not None:
            self._mark = folder / f"job-{job_id(token)}.teacher"
        self._lock = threading.Lock()  # to open nothing after the end
        self._closed = False
        self._cache: Cache | None = None
        self._writer: Future[None] | None = None
        self.cached = 0
        if alone:
            found = only(folder)
            self._open(found.parent, found.name)
        elif is_fingerprint(told := teacher or self._marked()):
            self._open(folder, told)
        self._alike = Alike(
            self.teacher,
            whose=f"that whose answers are in --teacher_cache {folder}",
            must_tell="by which its answers could be kept: leave out --teacher_cache",
            agree=agree,
            on_known=self._begin,
        )

    def link(self, address: str, link: AboutLink) -> Link:
        """Return the way to a teacher by which only the right one is asked."""
        return self._alike.link(address, link)

    def ask(self, teachers: Teachers, features: Any, seen: Seen | None) -> Asked:
        """Look a minibatch up, and ask about the records that lack; return at once.

        `seen` None: nobody knows which records these are, and they are known by their features.
        Where the features have no row for each record, it is kept or asked as a whole. Raises
        TypeError where the features are no tensors and arrays.
        """
        parts = tree.parts_of(features, "feed's features")
        rows = tree.rows_of(parts)
        count = len(seen.records) if seen is not None else rows or 1
        whole = rows != count
        digests = segments.digests_of(parts, None if whole else count)
        seen = seen or Seen(BY_FEATURES, np.broadcast_to(digests, count))
        asked = Asked(seen, parts, np.broadcast_to(digests, count), whole, np.zeros(count, bool))
        if self._cache is not None:
            asked.mine, asked.kept = self._cache.find(seen, asked.digests)
        if whole and not asked.mine.all():
            asked.mine, asked.kept = np.zeros(count, bool), []
        if not asked.mine.all() and not self._alone:
            lacking = tree.picked(parts, np.flatnonzero(~asked.mine)) if asked.kept else parts
            asked.question = teachers.ask_parts(lacking)
        return asked

    def answer(self, teachers: Teachers, asked: Asked, *, without: str) -> Any:
        """Return what is taught of the minibatch; None: the rules say to go on without.

        Raises Untaught.
        """
        count = len(asked.mine)
        if asked.question is None:
            if asked.mine.all():
                self.cached += count
                return tree.values_of(asked.kept)
            if without == "hard_labels":
                teachers.untaught += count
                return None
            raise Untaught(self._lack(asked))
        told = teachers.answer(asked.question, count - int(asked.mine.sum()))
        if told is None:
            teachers.untaught += int(asked.mine.sum())
            return None
        parts = asked.question.answer or []
        self._put(asked, parts)
        if not asked.kept:
            return told
        if tree.kind_of(parts) != tree.kind_of(asked.kept):  # as it is no longer answered
            again = teachers.ask_parts(asked.parts)
            return teachers.answer(again, int(asked.mine.sum()))
        self.cached += int(asked.mine.sum())
        return tree.values_of(tree.woven(asked.mine, asked.kept, parts))

    @property
    def teacher(self) -> str:
        """The fingerprint of the teacher; "": it is not known yet."""
        return self._cache.teacher if self._cache is not None else ""

    def close(self) -> None:
        """Write what is left."""
        with self._lock:
            self._closed = True
        if self._cache is not None:
            self._cache.close()
        if self._writer is not None:
            self._writer.result(60.0)

    def _put(self, asked: Asked, parts: Sequence[Part]) -> None:
        lacking = ~asked.mine
        if self._cache is not None and tree.rows_of(parts) == int(lacking.sum()):
            seen = Seen(asked.seen.source, asked.seen.records[lacking], asked.seen.view)
            self._cache.put(seen, asked.digests[lacking], parts)

    def _lack(self, asked: Asked) -> str:
        record = asked.seen.records[int(np.flatnonzero(~asked.mine)[0])]
        if asked.seen.source == BY_FEATURES:
            return (
                f"the cache {self._folder} has no answer about what a batch has, and no teacher is "
                "set: call set_fixed_teacher or set_dynamic_teacher"
            )
        of = f" (view {asked.seen.view})" if asked.seen.view else ""
        return (
            f"--teacher_cache {self._folder} has no answer about record {record} of "
            f"{asked.seen.source}{of} as feed gives it, and the job has no teachers: give it some "
            "(--num_teachers N), or let it go on with hard labels (--without_teachers hard_labels)"
        )

    # -- whose answers

    def _marked(self) -> str:
        """Return the fingerprint that a worker of this job has left; "": none, or one of less."""
        try:
            said = self._mark.read_text(errors="replace") if self._mark is not None else ""
        except OSError:
            return ""
        fingerprint, _, of = said.strip().partition("\n")
        if is_fingerprint(fingerprint) and of != _OF:
            self._on_note(
                f"{self._mark} is of an earlier edl, whose fingerprints did not tell a teacher's "
                f"parameters and the modules that it imports: what {self._folder} has under "
                f"{fingerprint} is not taken for this job's, and its teachers are asked again"
            )
            return ""
        return fingerprint

    def _open(self, folder: Path, fingerprint: str) -> None:
        cache = Cache(folder / fingerprint, fingerprint, clock=self._clock, on_note=self._on_note)
        self._writer = background.begin("write-answers", cache.keep_writing)
        self._cache = cache

    def _begin(self, fingerprint: str) -> None:
        """Keep this teacher's answers from now on, and let the job's other workers know."""
        with self._lock:
            if self._closed:
                return
            try:
                if self._mark is not None:
                    segments.write_whole(self._mark, f"{fingerprint}\n{_OF}\n".encode())
            except OSError as error:
                log.warning("file=%s -> not written error=%r", self._mark, str(error))
            self._open(self._folder, fingerprint)

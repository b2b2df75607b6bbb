"""Deltas for whoever serves a job that trains: a cut every --delta_s, and what has changed.

A script, as those of course.py. Each cut becomes a delta from the one before, where all servers
know that one; the first, and whenever the deltas have grown to half of the last base or are many,
is a base as well (common/deltas.py). What the servers write is complete once the manifest is there,
which is the last write.

The folder is the memory: a master that follows another, or a failed write, looks there for the last
cut that is whole. Whether the servers still know it they say themselves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from dataclasses import dataclass
from typing import Any

from ..common import deltas, faults, storage
from ..common.claims import Taken
from ..common.deltas import About, Name
from ..common.errors import CheckpointError, EdlError
from ..common.places import Place
from ..durable.loop import Script
from .books.plan import Plan
from .books.task import planned
from .core import Core
from .groups.group import Group
from .groups.server_cuts import ServerCuts
from .groups.servers import Cut

log = logging.getLogger(__name__)

_MOST_DELTAS = 64  # a reader who begins applies as many to a base
_MOST_PART = 0.5  # of the base's bytes
_LAST_PATIENCE_S = 30.0  # with a folder that fails at the end: readers would stay behind
_RETRY_S = 1.0


class _AnotherCut(Exception):
    """This cut is let go of on some servers, and all of one is wanted."""


@dataclass
class _Last:
    """The last cut that is in the folder, and what lies there since the base before it."""

    used: int = 0  # the highest number that anything there has
    number: int = 0
    cut: str = ""  # "": none that the next one can build on
    base_nbytes: int = 0
    delta_nbytes: int = 0
    deltas: int = 0
    other: str = ""  # the job that has left the newest, where it is another

    @property
    def wants_base(self) -> bool:
        """Tell whether whoever begins to read should find a newer base."""
        many = self.deltas >= _MOST_DELTAS
        return not self.cut or many or self.delta_nbytes > _MOST_PART * self.base_nbytes


class Deltas:
    """The writer of a job's bases and deltas, to --delta_dir where that is given."""

    def __init__(self, core: Core, group: Group, cuts: ServerCuts) -> None:
        """`cuts`: those of the group, which has servers alone."""
        self._core, self._group, self._cuts, self._loop = core, group, cuts, core.loop
        self._busy = False
        self._last: _Last | None = None  # None: not known, the folder says it
        self._kept: tuple[int, dict[str, Any]] | None = None  # what the last one holds
        self._told = ""

    def run(self) -> Script[None]:
        """Write a cut every --delta_s, from the first step until training ends."""
        core = self._core
        if not core.settings.delta_dir:
            return
        yield lambda: core.version > 0 or self._is_over
        while not self._is_over:
            until = core.clock.now() + core.settings.delta_s
            if core.status.state == "running" and core.changing is None:
                yield from self.write()
            self._loop.wake_at(until)
            yield lambda: self._is_over or core.clock.now() >= until  # noqa: B023

    @property
    def _is_over(self) -> bool:
        return self._core.queue.plan_done or self._core.ended

    def write_last(self) -> Script[None]:
        """Write the state that the job ends with; what fails is tried again for a while."""
        yield from self.write(_LAST_PATIENCE_S)

    def write(self, patience_s: float = 0.0) -> Script[None]:
        """Write the state of now, if it is another than the last. What fails is told.

        `patience_s`: it is tried again for so long.
        """
        if not self._core.settings.delta_dir:
            return
        give_up = self._core.clock.now() + patience_s
        yield lambda: not self._busy
        self._busy = True
        try:
            while True:
                version = self._group.version
                try:
                    yield from self._write_now(self._core.owner)
                    return
                except _AnotherCut:
                    continue
                except Taken:
                    return  # which is told by whoever holds the claim
                except (OSError, EdlError) as error:
                    self._last = None  # a manifest may be there all the same
                    if version != self._group.version and not self._core.ended:
                        continue  # a server that held the cut was replaced: another cut
                    self._failed(str(error))
                    is_over = self._core.ended or self._core.status.state == "stopping"
                    if is_over or self._core.clock.now() >= give_up:
                        if patience_s:
                            self._core.tell(f"the job's last state is in no delta: {error}")
                        return
                yield from self._loop.sleep(_RETRY_S)
        finally:
            self._busy = False

    def _failed(self, why: str) -> None:
        if self._told != why:
            self._told = why
            settings = self._core.settings
            self._core.tell(
                f"no delta can be written to {settings.delta_dir}: {why}; training goes on, and "
                f"it is tried again every {settings.delta_s:g} s"
            )

    def _write_now(self, job: str) -> Script[None]:
        cut, books = yield from self._cuts.take()
        try:
            if self._kept == (cut.version, books):
                return
            what = yield self._loop.background(lambda: self._write(job, cut, books))
            self._kept, self._told = (cut.version, books), ""
            if what:
                self._core.tell(what)
        finally:
            self._loop.background(lambda: self._cuts.unpin(cut.name))

    # -- In the background

    def _write(self, job: str, cut: Cut, books: dict[str, Any]) -> str:
        """Write a cut: as a delta where that can be, and as a base where one is wanted.

        Returns what is worth telling.
        """
        root = Place(self._core.settings.delta_dir)
        last = self._last = self._last or _find(root, job)
        if last.used >= deltas.MOST:
            raise CheckpointError(
                f"a base or delta of number {deltas.MOST} lies there, and no cut can have a higher "
                "one: take it out of the folder, or name another --delta_dir"
            )
        last.used += 1  # no number is used twice, also where this fails
        records = records_at(self._core.queue.plan, books)
        about = About(job, cut.name, last.used, records=records)
        wants_base = last.wants_base
        if last.cut:
            told = dataclasses.replace(about, since=last.cut)
            name = Name(about.number, last.number)
            nbytes = self._write_one(root, name, cut, told, let_go=not wants_base)
            if nbytes is None:  # a server was replaced since: what changed on it nobody knows
                log.info("cut=%s is not known to all servers: a base is written", last.cut)
                last.cut = ""
                raise _AnotherCut
            last.number, last.cut = about.number, cut.name
            last.deltas, last.delta_nbytes = last.deltas + 1, last.delta_nbytes + nbytes
        if not wants_base:
            return ""
        settings = dataclasses.asdict(self._core.settings)
        first = not last.base_nbytes
        nbytes = self._write_one(root, Name(about.number), cut, about, books={"settings": settings})
        assert nbytes is not None  # all of it can always be written
        last.number, last.cut, last.base_nbytes = about.number, cut.name, nbytes
        last.deltas = last.delta_nbytes = 0
        _prune(root, job)
        return _told_first(root, last, about, nbytes) if first else ""

    def _write_one(
        self,
        root: Place,
        name: Name,
        cut: Cut,
        about: About,
        *,
        let_go: bool = False,
        books: dict[str, Any] | None = None,
    ) -> int | None:
        """Write a base or a delta, its manifest last; return its bytes.

        `let_go`: nothing else is read of this cut. None: the servers do not know the cut before.
        """
        place = root / str(name)
        self._core.claims.hold(root)
        written = self._cuts.values(cut.name, place, about.since, let_go=let_go)
        if written is None:
            return None
        snapshot, rows = written
        faults.point("master.delta", number=about.number, base=not about.since)
        about = dataclasses.replace(about, rows=rows)
        self._core.claims.hold(root)
        snapshot.write_manifest(place, cut.version, {**about.as_books(), **(books or {})})
        faults.point("master.delta_written", number=about.number, base=not about.since)
        return sum(record.nbytes for record in snapshot.files)


def _told_first(root: Place, last: _Last, about: About, nbytes: int) -> str:
    """Return what to tell of the first base of a job in a folder."""
    told = f"a base of {nbytes:,} bytes is written to {root}, then deltas"
    if not last.other:
        return told
    return (
        f"{told}; the job {last.other} has left cuts there, which stay, and those of this one, "
        f"{about.job}, begin at {about.number}: whoever follows {last.other} does not go on with "
        "them before it is started anew"
    )


def records_at(plan: Plan, books: dict[str, Any]) -> int:
    """Return how many records the job had been trained on at a cut, by the cut's books."""
    _, records = plan.of_first(books["epochs_opened"])
    for number, _, position, *_ in books["tasks"]:
        records -= planned(plan, number).size - position
    return records - sum(plan.records_between(first, end) for first, end in books["untouched"])


def _find(root: Place, job: str) -> _Last:
    """Return where a folder stands. Raises OSError."""
    names = deltas.listed(root)
    last = _Last(used=max((name.number for name in names), default=0))
    for name in reversed(names):
        try:
            manifest = deltas.said(root / str(name))
            about = deltas.about(manifest)
        except CheckpointError:
            continue  # half a one, of a master that was killed
        if about.job != job:
            if not last.cut:
                last.other = about.job
            break
        if not last.cut:
            last.number, last.cut = about.number, about.cut
        nbytes = sum(record.nbytes for record in manifest.files)
        if not about.since:
            last.base_nbytes = nbytes
            break
        last.deltas, last.delta_nbytes = last.deltas + 1, last.delta_nbytes + nbytes
    if not last.base_nbytes:  # deltas that lead on from nothing
        last.cut = ""
    return last


def _prune(root: Place, job: str) -> None:
    """Remove what nobody needs who begins at one of this job's two newest bases.

    What another job has left, and what nobody can read, is not this one's to remove.
    """
    try:
        own = []
        for name in deltas.listed(root):
            with contextlib.suppress(CheckpointError):  # half a one: it may be whole soon
                if deltas.about(deltas.said(root / str(name))).job == job:
                    own.append(name)
        for name in deltas.obsolete(own):
            storage.remove(root / str(name))
    except OSError as error:
        log.warning("old deltas in %s are left: %s", root, error)  # the next base tries again

"""The states that a job keeps on disk: its checkpoints, and beside them the best by a metric.

    <checkpoint_dir, or the job's folder>/checkpoints/version-...  the newest, --keep_checkpoint_max
    <...>/best/version-...                                         one, of --keep_best
    <...>/servers/version-...                                      where its servers began

Scripts, as those of course.py. The best is written of the very cut that was evaluated.
"""

from __future__ import annotations

import dataclasses
import logging
from functools import cached_property
from typing import Any

from ..common import storage
from ..common.errors import EdlError, Unreachable
from ..common.paths import CHECKPOINTS
from ..common.places import Place
from ..durable.loop import Script
from .books.saved import books_of
from .core import Core
from .evaluation import Evaluation
from .groups.group import Group
from .groups.servers import Cut, Snapshot
from .judge import Judge, Judges
from .owning import KEY

log = logging.getLogger(__name__)

BEST, SERVERS = "best", "servers"


class Checkpoints:
    """The writer of a job's checkpoints."""

    def __init__(self, core: Core, group: Group, judges: Judges) -> None:
        self._core, self._group, self._judges = core, group, judges
        self._settings, self._loop = core.settings, core.loop
        self.busy = False  # one is being written
        self._kept: tuple[int, dict[str, Any]] | None = None  # what the last one holds
        self.unkept = ""  # why the best is not what is kept as such

    @cached_property
    def folder(self) -> Place:
        return Place(self._settings.checkpoint_dir or self._core.job_dir / CHECKPOINTS)

    @property
    def keeps_last(self) -> bool:
        """Tell whether a job that finishes leaves its last state."""
        return self._settings.keep_last and self._settings.keeps_checkpoints

    def promise(self) -> str:
        """Return what a user must know when a training job starts.

        That is: that nothing, or not all, is kept.
        """
        settings = self._settings
        if settings.command != "train" or self.keeps_last:
            return ""
        if settings.keep_last:
            return (
                "nothing that this job learns is kept: its folder ends with its pods; give "
                "--checkpoint_dir on a --volume, or a --job_volume"
            )
        best = ", only the best, and what --checkpoint_steps writes," if self._judges.best else ""
        kept = best or (
            " beyond what --checkpoint_steps writes" if settings.checkpoint_steps else ""
        )
        return f"no state{kept} is kept at the end: --no_keep_last"

    # -- the newest

    def write(self, last: bool = False) -> Script[str]:
        """Write a checkpoint; return why there is none, "": there is.

        last: the one that nothing follows; the others may fail, and training goes on.
        """
        yield lambda: not self.busy
        self.busy = True
        try:
            while True:
                version = self._group.version
                try:
                    yield from self._write_newest()
                    return ""
                except (OSError, EdlError) as error:
                    if version != self._group.version:
                        continue  # a server that held the cut was replaced: another cut
                    text = f"checkpoint {self.folder} cannot be written: {error}"
                    if last:
                        self._core.fail(f"{text}; {self._core.how_to_go_on()}")
                    else:
                        self._core.tell(f"{text}; training goes on")
                    return text
        finally:
            self.busy = False

    def _write_newest(self) -> Script[None]:
        cut, books = yield from self._group.cuts.take()
        try:
            if self._kept != (cut.version, books):
                writing = self._loop.background(lambda: self._write(self.folder, cut, books))
                written = yield writing
                self._kept = cut.version, books
                self._saved(written)
        finally:
            self._loop.background(lambda: self._group.cuts.unpin(cut.name))

    def keep(self, left: Cut) -> Script[None]:
        """Make a checkpoint of what is in the folder `left.name` already."""
        books = books_of(self._core.queue, left.applied)
        try:
            self._saved((yield self._loop.background(lambda: self._keep(left, books))))
        except (OSError, EdlError) as error:
            self._core.fail(f"checkpoint {self.folder} cannot be written: {error}")

    def _keep(self, left: Cut, books: dict[str, Any]) -> Place:
        """Write the checkpoint, and return where it is. Runs in the background."""
        self._core.claims.hold(self.folder)
        directory = storage.free_directory(self.folder, left.version)
        directory.make()
        snapshot = self._group.cuts.kept(left, directory)
        self._write_manifest(directory, left.version, snapshot, books)
        self._prune()
        return directory

    def _write(self, folder: Place, cut: Cut, books: dict[str, Any]) -> Place:
        """Write a cut into a new folder, and return that. Runs in the background."""
        self._core.claims.hold(self.folder)
        directory = storage.free_directory(folder, cut.version)
        directory.make()
        snapshot = self._group.cuts.snapshot(cut.name, directory)
        self._write_manifest(directory, cut.version, snapshot, books)
        if folder == self.folder:
            self._prune()
        return directory

    def _prune(self) -> None:
        """Remove what is too old; what fails at a store is tried again after the next one."""
        try:
            storage.prune(self.folder, self._settings.keep_checkpoint_max)
        except OSError as error:
            log.warning("old checkpoints could not be removed: %s", error)

    def _write_manifest(
        self, directory: Place, version: int, snapshot: Snapshot, books: dict[str, Any]
    ) -> None:
        settings = dataclasses.asdict(self._core.settings)  # of now: its servers may change
        more = {"settings": settings, KEY: self._core.owner}
        if self._judges:
            more["judged"] = self._judges.memory()
        self._core.claims.hold(self.folder)
        snapshot.write_manifest(directory, version, {**books, **more})

    def _saved(self, directory: Place) -> None:
        self._core.status.checkpoint = str(directory)
        self._core.tell(f"checkpoint {directory.name} is written", kind="checkpoint")
        self._core.save()

    # -- for other servers

    def hand_over(self, cut: Cut, books: dict[str, Any]) -> Script[Place]:
        """Write what other servers begin with, and return where it is.

        Raises OSError, EdlError.
        """
        folder = self.folder / SERVERS
        directory: Place = yield self._loop.background(lambda: self._write(folder, cut, books))
        return directory

    def handed_over(self, directory: Place) -> None:
        """Remove what servers before these have begun with."""
        self._loop.background(lambda: _remove_others(directory))

    # -- the best

    def keep_best(
        self, evaluation: Evaluation, cut: Cut, books: dict[str, Any] | None
    ) -> Script[bool]:
        """Count an evaluation that has ended; where it is the best, keep the state that it read.

        False: that state is gone, with a server that was replaced: evaluate again.
        """
        judge = self._judges.best
        if judge is None or not judge.is_new(evaluation.version):
            return True
        value, kept = judge.of(evaluation.metrics or {}), ""
        if judge.is_better(value):
            yield lambda: not self.busy
            self.busy = True
            version = self._group.version
            try:
                kept = str((yield from self._write_best(cut, books)))
                self.unkept = ""
            except (OSError, EdlError) as error:
                if version != self._group.version or isinstance(error, Unreachable):
                    return False
                self.unkept = (
                    f"the best checkpoint ({judge.metric} {value:.6g}, version "
                    f"{evaluation.version}) "
                    f"could not be written: {error}"
                )
                self._core.tell(f"{self.unkept}; training goes on")
                return True  # what is kept stays the best, until another is better than that
            finally:
                self.busy = False
        judge.count(value, evaluation.version, evaluation.epoch, kept)
        if kept:
            self._show_best(judge)
            self._core.tell(f"the best so far: {judge.metric} {value:.6g}, kept as {kept}")
        return True

    def _write_best(self, cut: Cut, books: dict[str, Any] | None) -> Script[Place]:
        own = books is None  # a group's state has not changed since: nothing trains meanwhile
        if books is None:
            cut, books = yield from self._group.cuts.take()
        try:
            folder = self.folder / BEST
            directory: Place = yield self._loop.background(lambda: self._write(folder, cut, books))
        finally:
            if own:
                self._loop.background(lambda: self._group.cuts.unpin(cut.name))
        yield self._loop.background(lambda: _remove_others(directory))
        return directory

    def _show_best(self, judge: Judge) -> None:
        if judge.value is not None:
            self._core.status.best = {
                "metric": judge.metric,
                "value": judge.value,
                "version": judge.version,
                "epoch": judge.epoch,
                "checkpoint": judge.checkpoint,
            }

    def adopt_best(self) -> Script[None]:
        """Keep the best so far here, too, where the job goes on with a checkpoint of another."""
        judge = self._judges.best
        if judge is None or judge.value is None or self._core.status.best is not None:
            return
        found = judge.checkpoint
        try:
            copying = self._loop.background(lambda: _copy(found, self.folder / BEST))
            judge.checkpoint = str((yield copying))
        except (OSError, EdlError) as error:
            self._core.tell(
                f"the best so far ({judge.metric} {judge.value:.6g}) is not there any more: {error}"
            )
            judge.value, judge.since = None, 0
            return
        self._show_best(judge)
        self._core.save()


def _remove_others(kept: Place) -> None:
    """Remove all but this one from the folder of the best. Runs in the background."""
    for place in storage.find_checkpoints(kept.parent):
        if place != kept:
            storage.remove(place)


def _copy(found: str, folder: Place) -> Place:
    """Copy a checkpoint to this folder, and return where it is then. Runs in the background."""
    manifest = storage.read_manifest(found, checksums=False)
    if manifest.place.parent == folder:
        return manifest.place
    directory = storage.free_directory(folder, manifest.version)
    directory.remove_all()  # half a copy of a master that was killed
    for record in manifest.files:
        storage.copy(manifest, record, directory)
    directory.write(storage.MANIFEST, manifest.place.read(storage.MANIFEST))
    return directory

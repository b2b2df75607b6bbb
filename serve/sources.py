"""The sources of models, and the look for newer ones.

A model is a job, a folder of checkpoints, one checkpoint, or an exported model. Of the first two
what is newer is opened beside what answers, and takes its place once it is whole and warm. What
cannot be opened is told and tried again, later each time; whatever answers goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ..common import paths, storage
from ..common.errors import EdlError, UsageError
from ..common.locations import is_local
from ..common.places import Place
from ..common.resolve import checkpoint_dir_of
from .columns import told_of
from .export_format import is_exported
from .from_checkpoint import CheckpointOpener, Options
from .kserve.refused import Refused
from .kserve.tensors import from_http
from .repository import Repository
from .servable import Servable

log = logging.getLogger("edl.serve")

_AGAIN_S = 15.0  # after what could not be opened; twice as long each time
_LONGEST_S = 600.0


class Source(Protocol):
    """A place where versions of one model are."""

    name: str

    def there(self) -> list[str]:
        """Return what there is to open, the oldest first; cheap. Raises EdlError."""
        ...

    def open(self, what: str) -> Servable:
        """Open one of these, whole. Raises EdlError."""
        ...


class CheckpointSource:
    """The checkpoints of a job, of a folder, or one alone."""

    def __init__(self, name: str, where: str, options: Options) -> None:
        self.name, self._where = name, where
        self._opener = CheckpointOpener(options)

    def there(self) -> list[str]:
        folder = str(paths.named_job(self._where) or self._where)
        if is_local(folder) and (Path(folder) / "settings.json").exists():
            folder = checkpoint_dir_of(Path(folder))
        # A checkpoint alone, or nothing: then the opening says what is wrong.
        return [str(path) for path in storage.find_checkpoints(folder)] or [self._where]

    def open(self, what: str) -> Servable:
        return self._opener.open(self.name, what)


class ExportedSource:
    """An exported model. What is written in its place later is not looked for."""

    def __init__(self, name: str, where: str, options: Options) -> None:
        self.name, self._where, self._options = name, where, options

    def there(self) -> list[str]:
        return [self._where]

    def open(self, what: str) -> Servable:
        from .exported import open_exported

        opened = open_exported(what, name=self.name, checksums=self._options.checksums)
        try:
            request = Place(what).read("request.json")
            opened.example = from_http(request, "", opened.inputs, opened.outputs).inputs
        except (OSError, Refused) as error:  # an export whose records no request can bring
            log.info("model=%s -> not warmed reason=%r", self.name, str(error))
        return opened


def named(said: str) -> tuple[str, str]:
    """Return the name and the place of NAME=PLACE, or of a PLACE, which has the name in it."""
    name, equals, where = said.partition("=")
    if equals and "/" not in name:
        if not where:
            raise UsageError(f"{said!r} names no place: write NAME=JOB or NAME=PATH.")
        return name, where
    if paths.named_job(said):
        return said, said
    path = Path(said).absolute()
    generic = path.name.startswith("version-") or path.name == "checkpoints"
    if path.name.startswith("version-") and path.parent.name == "checkpoints":
        return path.parent.parent.name, said
    return (path.parent.name if generic else path.name), said


def source_of(name: str, where: str, options: Options) -> Source:
    """Return where the versions of a model come from."""
    if paths.named_job(where) is None and is_exported(where):
        return ExportedSource(name, where, options)
    return CheckpointSource(name, where, options)


class Bringer(Protocol):
    """A source that brings the versions of a model to a repository. One thread calls."""

    name: str
    max_age_s: float  # of what answers, to be ready; 0: any

    def begin(self, repository: Repository) -> None:
        """Bring the first version. Raises EdlError where there is none that is whole."""
        ...

    def look(self) -> None:
        """Bring what is new. Whatever goes wrong is told."""
        ...

    def close(self) -> None: ...


class Watch:
    """A Bringer that looks at a source."""

    max_age_s = 0.0  # it may be long until there is a newer one

    def __init__(self, source: Source, keep: int, now: Callable[[], float]) -> None:
        """`keep`: versions of a model that are opened at first; later ones are, each in turn."""
        self.name = source.name
        self._source, self._keep, self._now = source, keep, now
        self._opened: set[str] = set()
        self._failed: dict[str, tuple[int, float]] = {}  # how often, and when it is tried again

    def begin(self, repository: Repository) -> None:
        """Open what there is. Raises EdlError where nothing is whole."""
        self._repository = repository
        last: EdlError | None = None
        there = self._source.there()
        for what in there[-self._keep :]:
            last = self._tried(what) or last
        # Of older ones the newest that is whole, as everywhere where a checkpoint is named.
        for what in reversed(there[: -self._keep]):
            if self._opened:
                break
            last = self._tried(what) or last
        if not self._opened:
            raise last or UsageError(f"{self.name}: there is nothing to serve")
        self._opened.update(there[: -self._keep])

    def look(self) -> None:
        """Open what is new. Whatever goes wrong is told."""
        try:
            there = self._source.there()
        except (EdlError, OSError) as error:
            log.warning("model=%s -> no look reason=%r", self.name, str(error))
            return
        for what in there[-self._keep :]:
            due = self._failed.get(what, (0, 0.0))[1]
            if what not in self._opened and self._now() >= due:
                self._tried(what)
        self._opened.intersection_update(there)
        self._failed = {what: at for what, at in self._failed.items() if what in there}

    def close(self) -> None:
        """Do nothing: no thread is its own."""

    def _tried(self, what: str) -> EdlError | None:
        """Open one version and let it answer; return what has kept it from that."""
        try:
            with told_of(what):  # of the user's code: this version is none, the others go on
                self._repository.swap(self.name, self._source.open(what))
        except EdlError as error:
            failure = error
        else:
            self._opened.add(what)
            self._failed.pop(what, None)
            return None
        times = self._failed.get(what, (0, 0.0))[0]
        again_s = min(_AGAIN_S * 2**times, _LONGEST_S)
        self._failed[what] = times + 1, self._now() + again_s
        self._repository.model(self.name).fail(Path(what).name, str(failure))
        return failure

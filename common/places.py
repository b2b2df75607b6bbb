"""Places: a folder of this machine or one that fsspec knows by a URL, with whole files in it.

Locally a file is synced and renamed. A store of objects (s3://, gs://, ...) has no rename: it puts
a file whole or not at all, and whoever writes several of them writes last the one that names the
others with their sizes and sha256 (storage.py, ps/snapshots/chain.py).

What fails at a store is tried again until a deadline (stores.py). Several files go at once. A
listing may lack what was just written and show what was removed: whether a file is there is
decided by asking for it by name, never by a listing.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

from .errors import CheckpointError
from .files import FileRecord, Part, discard, record_of, write_file
from .foreign import MOST_JSON_NBYTES, open_plain, read_plain
from .locations import is_local
from .paths import HOME_VARIABLE
from .stores import Asking, at_once, has_folders, open_store

_ASKING = Asking()
_BLOCK_NBYTES = 1 << 20  # larger ones cost page faults
_RANGE_NBYTES = 8 << 20  # of a file that is asked of a store at once
Value = TypeVar("Value")
Item = TypeVar("Item")


class Place:
    """A folder, here or at a store. Raises OSError, StoreError among them, where it fails.

    Places are equal where they have one URL, or one path.
    """

    def __init__(self, where: str | Path | Place, asking: Asking = _ASKING) -> None:
        """Find the place; UsageError where there is no such kind. Nothing is asked or made yet."""
        self.url = str(where)
        if is_local(self.url):
            self.url = str(Path(self.url))
        self._fs: Any = None
        self._root = self.url
        self._asking = asking
        self._is_made = False
        if isinstance(where, Place):
            vars(self).update(vars(where))
        elif not is_local(self.url):
            self.url = self.url.rstrip("/")
            self._fs, self._root = open_store(self.url)
            if self._fs is None:  # file://
                self.url = self._root

    def __truediv__(self, name: str) -> Self:
        """Return the place of that name in this one."""
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        made.url, made._is_made = f"{self.url}/{name}", False
        made._root = f"{self._root.rstrip('/')}/{name}"
        return made

    def __str__(self) -> str:
        return self.url

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Path):  # as which tests and people name a local one
            other = Place(other)
        return isinstance(other, Place) and _real(self) == _real(other)

    def __hash__(self) -> int:
        return hash(_real(self))

    @property
    def is_local(self) -> bool:
        return self._fs is None

    @property
    def path(self) -> Path:
        """The folder of this machine; only a local place has one."""
        assert self.is_local, f"{self.url} is at a store"
        return Path(self._root)

    @property
    def name(self) -> str:
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> Place:
        """The place that this one is in."""
        if self.is_local:
            return Place(self.path.parent)
        made = self / ""
        made.url, made._root = self.url.rpartition("/")[0], self._root.rpartition("/")[0]
        return made

    # -- Writing

    def make(self) -> None:
        """Make the folder where there is none, which most stores do not have."""
        if self.is_local:
            self.path.mkdir(parents=True, exist_ok=True)
        elif not self._is_made and has_folders(self._fs):
            self._ask("written", "", lambda: self._fs.makedirs(self._root, exist_ok=True))
        self._is_made = True

    def write(self, name: str, *parts: Part) -> FileRecord:
        """Write a file that is there whole or not at all; the folder is made where it must be."""
        self.make()
        if self.is_local:
            return write_file(self.path / name, *parts)
        data = b"".join(parts)  # one object is put by one call, or not at all
        self._ask("written", name, lambda: self._fs.pipe_file(f"{self._root}/{name}", data))
        return record_of(name, parts)

    def write_all(self, files: Iterable[tuple[str, Sequence[Part]]]) -> list[FileRecord]:
        """Write these files, several at once where this is a store."""
        return list(self.each(lambda file: self.write(file[0], *file[1]), files))

    def remove(self, names: Sequence[str]) -> None:
        """Remove these files, in this order; one that is not there is none the less removed."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                if self.is_local:
                    (self.path / name).unlink()
                else:
                    path = f"{self._root}/{name}"
                    self._ask("removed", name, lambda: self._fs.rm_file(path))  # noqa: B023

    def remove_all(self, first: Sequence[str] = ()) -> None:
        """Remove the folder with all that is in it; these files before any other."""
        self.remove(first)
        if self.is_local:
            if self.path.exists():
                shutil.rmtree(self.path)
            return
        for _ in self.each(lambda name: self.remove([name]), self.names()):
            pass
        with contextlib.suppress(Exception):  # most stores have no folders, each says so otherwise
            self._fs.rmdir(self._root)

    # -- Reading

    def read(self, name: str, most: int = MOST_JSON_NBYTES) -> bytes:
        """Return a file's bytes. Raises FileNotFoundError where it is not there."""
        if self.is_local:
            return read_plain(self.path / name, most)

        def read() -> tuple[int, bytes]:
            path = f"{self._root}/{name}"
            nbytes = int(self._fs.info(path)["size"] or 0)
            return nbytes, self._fs.cat_file(path) if nbytes <= most else b""

        nbytes, data = self._ask("read", name, read)
        if nbytes > most:
            text = f"{nbytes} bytes, where {most} are believed"
            raise OSError(errno.EFBIG, text, str(self / name))
        return data

    def has(self, name: str) -> bool:
        """Return whether the file is there, of which it is asked by name."""
        return (self.path / name).is_file() if self.is_local else self.size(name) is not None

    def read_checked(self, record: FileRecord) -> bytes:
        """Return a file that is what was written. Raises CheckpointError, which names it."""
        path = self / record.name
        try:
            data = self.read(record.name, record.nbytes)
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} is missing: {error.strerror}") from error
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise CheckpointError(f"{path} is torn: {error.strerror}") from error
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
        if len(data) != record.nbytes:
            raise CheckpointError(f"{path} is torn: {len(data)} bytes instead of {record.nbytes}")
        if hashlib.sha256(data).hexdigest() != record.sha256:
            raise CheckpointError(f"{path} is damaged: its sha256 is not the one written down")
        return data

    def check(self, record: FileRecord) -> None:
        """Compare a file with what was written; no more than a block of it is in memory."""
        self._through(record)

    def copy(self, record: FileRecord, folder: Path) -> Path:
        """Return a checked copy of a file in a folder of this machine, of an earlier call or new.

        Raises CheckpointError where the file is another than was written, or cannot be copied.
        """
        target = folder / record.name
        with contextlib.suppress(OSError):
            if target.stat().st_size == record.nbytes:  # it was checked before it got this name
                return target
        temporary = folder / f".{record.name}.{os.getpid()}.{next(_copies)}.tmp"
        try:
            with _told(target):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                with open(temporary, "wb") as file:
                    self._through(record, file)
                os.replace(temporary, target)
        finally:
            discard(temporary)
        return target

    def _through(self, record: FileRecord, to: BinaryIO | None = None) -> None:
        """Compare a file, block by block, and write it to another one of this machine."""
        path = self / record.name

        def pass_on() -> tuple[int, str]:
            digest, nbytes = hashlib.sha256(), 0
            if to is not None and to.tell():  # another try
                to.seek(0)
                to.truncate()
            with _opened(self, record.name) as file:
                while block := file.read(_BLOCK_NBYTES):
                    digest.update(block)
                    if to is not None:
                        with _told(to.name):
                            to.write(block)
                    nbytes += len(block)
            return nbytes, digest.hexdigest()

        try:
            nbytes, sha256 = pass_on() if self.is_local else self._ask("read", record.name, pass_on)
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} is missing: {error.strerror}") from error
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
        if nbytes != record.nbytes:
            raise CheckpointError(f"{path} is torn: {nbytes} bytes instead of {record.nbytes}")
        if sha256 != record.sha256:
            raise CheckpointError(f"{path} is damaged: its sha256 is not the one written down")

    # -- Listing

    def names(self) -> list[str]:
        """Return what a listing shows, files and folders, sorted; [] where there is no folder."""
        return sorted(self.listing())

    def size(self, name: str) -> int | None:
        """Return how long a file is that is asked for by name; None where it is not there."""
        if self.is_local:
            path = self.path / name
            return path.stat().st_size if path.is_file() else None
        try:
            return int(
                self._ask("read", name, lambda: self._fs.info(f"{self._root}/{name}"))["size"]
            )
        except FileNotFoundError:
            return None

    def listing(self) -> Mapping[str, dict[str, Any]]:
        """Return what a store says of all that is there, by name; {} where there is no folder."""
        if self.is_local:
            try:
                return {entry.name: {} for entry in os.scandir(self.path)}
            except FileNotFoundError:
                return {}

        def ask() -> list[dict[str, Any]]:
            self._fs.invalidate_cache()  # for those that keep more than listings
            found: list[dict[str, Any]] = self._fs.ls(self._root, detail=True)
            return found

        try:
            found = self._ask("listed", "", ask)
        except FileNotFoundError:
            return {}
        return {str(each["name"]).rstrip("/").rpartition("/")[2]: each for each in found}

    def each(self, work: Callable[[Item], Value], items: Iterable[Item]) -> Iterator[Value]:
        """Yield what `work` makes of each, in order; at a store a few are worked on at once."""
        return map(work, items) if self.is_local else at_once(self._fs, work, items)

    def _ask(self, what: str, name: str, call: Callable[[], Value]) -> Value:
        return self._asking.ask(what, f"{self.url}/{name}" if name else self.url, call)


@contextlib.contextmanager
def _told(path: Path | str) -> Iterator[None]:
    """Say of an error of this machine where it is; it is not the store's."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror}: make room, or set {HOME_VARIABLE} to "
            "another folder"
        ) from error


def _real(place: Place) -> str:
    return str(place.path.resolve()) if place.is_local else place.url


def _opened(place: Place, name: str) -> Any:
    if place.is_local:
        return open_plain(place.path / name)
    return place._fs.open(f"{place._root}/{name}", "rb", block_size=_RANGE_NBYTES)


Where = str | Path | Place  # a folder: a path or a URL
_copies = itertools.count()

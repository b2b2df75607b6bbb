"""The files of a path: a file, a folder, a glob, an fsspec URL, or a list with commas between.

A folder is all files below it, sorted; a glob is the files that match, and all files below the
folders that match. Names that begin with "." or "_" are no data (editors, _SUCCESS), unless the
pattern itself spells that. Links to folders are followed; a folder that is reached a second time,
by a link to itself, to one above it or to one that stands there anyway, is left out with a word.
"""

from __future__ import annotations

import glob
import logging
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from ..common.errors import DataError, EdlError, UsageError
from ..common.stores import awaited, reason_of
from .files import DataFile

log = logging.getLogger(__name__)

_MAGIC = re.compile(r"[*?[]")


def expand(path: str) -> list[DataFile]:
    """Return the files that `path` stands for, in a fixed order.

    Raises UsageError where it stands for nothing or names a file twice, DataError where a folder
    holds no file or cannot be listed.
    """
    if not path.strip():
        raise UsageError("The path of the data is empty: give a file, a folder, a glob or a URL.")
    if "," in path and not Path(path).exists():
        parts = [part.strip() for part in path.split(",") if part.strip()]
        files = [file for part in parts for file in expand(part)]
        if twice := [name for name, n in Counter(f.name for f in files).items() if n > 1]:
            raise UsageError(f"{twice[0]} is named twice in {path}: name each file once.")
        return files
    fs, inner = _file_system(path)
    if _is_local(fs):
        return _expanded(fs, inner, path)
    try:
        return awaited("opened", path, lambda: _expanded(fs, inner, path))
    except EdlError:
        raise
    except Exception as error:  # no tuple names the errors of all backends
        raise DataError(f"{path} cannot be opened: {reason_of(error)}.") from error


def _expanded(fs: Any, inner: str, path: str) -> list[DataFile]:
    names = _Names(fs, path)
    if fs.isfile(inner):
        return [names.file(inner, inner.rpartition("/")[0])]
    if fs.isdir(inner):
        found = _below(fs, inner)
        if not found:
            raise DataError(f"The folder {path} holds no data file: put files there.")
        return [names.file(each, inner) for each in found]
    if _MAGIC.search(inner):
        start = _start(inner)
        if matches := _matches(fs, inner, start):
            return [names.file(each, start) for each in matches]
        raise UsageError(f"No file matches {path}: check the pattern.")
    raise UsageError(f"There is no file or folder {path}: check the path.")


@dataclass(frozen=True)
class _Names:
    fs: Any
    given: str

    def file(self, inner: str, root: str) -> DataFile:
        if "://" in self.given:
            return DataFile(self.fs, inner, str(self.fs.unstrip_protocol(inner)), root)
        return DataFile(self.fs, inner, inner, root)


def _file_system(path: str) -> tuple[Any, str]:
    if "://" not in path:
        return LocalFileSystem(), str(Path(path).expanduser().absolute())
    try:
        # aiohttp obeys http_proxy and its like only where it is told to.
        obeys = {"client_kwargs": {"trust_env": True}}
        web = {name: obeys for name in ("http", "https") if f"{name}://" in path}
        fs, inner = fsspec.core.url_to_fs(path, **web)
    except (ImportError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be opened: {error}. Install the fsspec package of that protocol "
            "(s3fs for s3://, gcsfs for gs://) on every machine of the job."
        ) from error
    fs.invalidate_cache()  # this process may have listed it before, and others write there
    return fs, inner


def _below(fs: object, folder: str) -> list[str]:
    """Return the data files below a folder, sorted."""
    try:
        found = _Walk([folder]).files() if _is_local(fs) else _listed(fs, folder)
        return sorted(each for each in found if not _hidden(each, folder))
    except OSError as error:
        raise DataError(f"The folder {folder} cannot be listed: {error}.") from error


def _is_local(fs: object) -> bool:
    return isinstance(fs, LocalFileSystem)


def _listed(fs: Any, folder: str) -> Iterator[str]:
    """Yield the files below a folder of a file system without links, as most of fsspec's are."""
    for path, info in fs.find(folder, detail=True).items():
        if info.get("type") not in ("file", None) and fs.isdir(path):
            raise DataError(
                f"{path} is a link to a folder, which cannot be followed on this file system: "
                "name that folder itself, with a comma between."
            )
        yield path


class _Walk:
    """A walk below folders of this machine: real folders first, then what links lead to."""

    def __init__(self, roots: Sequence[str], hidden: bool = False) -> None:
        self._seen: dict[tuple[int, int], str] = {}
        self._folders = sorted(roots, key=lambda root: (os.path.islink(root), root))
        self._links: list[str] = []
        self._hidden = hidden
        above = {str(each) for root in roots for each in Path(root).resolve().parents}
        self._above = {_identity(each) for each in above}

    def files(self) -> Iterator[str]:
        """Yield every file (and link that leads nowhere), each folder once."""
        for folder in self._folders:
            yield from self._in(folder)
        while self._links:
            link = self._links.pop(0)
            if _identity(link) in self._above:
                log.warning("%s is left out: a link to a folder that holds it.", link)
            else:
                yield from self._in(link)

    def _in(self, folder: str) -> Iterator[str]:
        identity = _identity(folder)
        if identity in self._seen:
            before = self._seen[identity]
            log.warning("%s is left out: the folder is %s, which is read already.", folder, before)
            return
        self._seen[identity] = folder
        folders: list[str] = []
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if not entry.is_dir():
                    if entry.is_file() or entry.is_symlink():
                        yield entry.path
                elif self._hidden or entry.name[:1] not in "._":
                    (self._links if entry.is_symlink() else folders).append(entry.path)
        for each in folders:
            yield from self._in(each)


def _identity(folder: str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _start(pattern: str) -> str:
    """Return the folder before the first wildcard."""
    return _MAGIC.split(pattern)[0].rpartition("/")[0]


def _matches(fs: Any, pattern: str, start: str) -> list[str]:
    """Return the files that match, and those below folders that match; sorted."""
    spelled = {part[:1] for part in pattern.split("/")} & set("._")
    try:
        found = _globbed(pattern, bool(spelled)) if _is_local(fs) else fs.glob(pattern)
        there = [each for each in found if not _hidden(each, start, spelled)]
        files = {each for each in there if fs.isfile(each)}
        folders = [each for each in there if each not in files]
        if _is_local(fs):
            below = {each for each in _Walk(folders).files() if not _hidden(each, start, spelled)}
            return sorted(files | below)
        return sorted(files.union(*(_below(fs, each) for each in folders)))
    except OSError as error:
        raise DataError(f"{pattern} cannot be listed: {error}.") from error
    except ValueError as error:
        raise UsageError(f"The pattern {pattern} cannot be read: {error}.") from error


def _globbed(pattern: str, hidden: bool) -> Iterable[str]:
    """Return files and folders of this machine that match; with `**` the files alone."""
    before, star, _ = f"{pattern}/".partition("/**/")
    if not star:
        return glob.glob(pattern, include_hidden=True)
    # Python's ** follows a cycle of links as far as the system lets it.
    fits = re.compile(fsspec.utils.glob_translate(pattern))
    roots = glob.glob(before, include_hidden=True) if _MAGIC.search(before) else [before or "/"]
    walk = _Walk([root for root in roots if os.path.isdir(root)], hidden)
    return [each for each in walk.files() if fits.match(each)]


def _hidden(path: str, folder: str, spelled: Collection[str] = ()) -> bool:
    below = path[len(folder.rstrip("/")) + 1 :]
    return any(part.startswith((".", "_")) and part[0] not in spelled for part in below.split("/"))

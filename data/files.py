"""Paths to files: one spelling for local paths and fsspec URLs, and the cache beside a job.

A path is a file, a folder (all files below it, sorted), a glob, or a list of those with commas
between. Names that begin with "." or "_" are no data (editors, _SUCCESS). What is cached is keyed
by everything that the file system tells of a file (path, size, times), written aside and renamed.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from ..common.errors import DataError, UsageError

JOB_DIR_VARIABLE = "EDL_JOB_DIR"
_COPY_NBYTES = 1 << 20


@dataclass(frozen=True)
class DataFile:
    """A file of any file system. `path` is what `fs` takes, `name` what the user reads."""

    fs: Any
    path: str
    name: str

    @property
    def is_local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    def open(self) -> BinaryIO:
        """The bytes, seekable. Raises DataError where the file cannot be opened."""
        try:
            if self.is_local:
                return open(self.path, "rb")
            return cast(BinaryIO, self.fs.open(self.path, "rb"))
        except OSError as error:
            raise DataError(f"{self.name} cannot be read: {error}.") from error

    def nbytes(self) -> int:
        """Its size. Raises DataError where it is empty or cannot be read."""
        try:
            nbytes = int(self.fs.size(self.path))
        except OSError as error:
            raise DataError(f"{self.name} cannot be read: {error}.") from error
        if not nbytes:
            raise DataError(f"{self.name} is empty: remove it or put records into it.")
        return nbytes

    def folder(self) -> str:
        """The name of the folder that holds it."""
        return self.path.rstrip("/").rpartition("/")[0].rpartition("/")[2]


def expand(path: str) -> list[DataFile]:
    """The files that `path` stands for, in a fixed order.

    Raises UsageError where it stands for nothing or names a file twice, DataError where a folder
    holds no file.
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
    names = _Names(fs, path)
    if fs.isfile(inner):
        return [names.file(inner)]
    if fs.isdir(inner):
        found = [names.file(each) for each in sorted(fs.find(inner)) if _is_data(each, inner)]
        if not found:
            raise DataError(f"The folder {path} holds no data file: put files there.")
        return found
    if any(sign in inner for sign in "*?["):
        matches = sorted(each for each in fs.glob(inner) if fs.isfile(each))
        if matches:
            return [names.file(each) for each in matches]
        raise UsageError(f"No file matches {path}: check the pattern.")
    raise UsageError(f"There is no file or folder {path}: check the path.")


@dataclass(frozen=True)
class _Names:
    fs: Any
    given: str

    def file(self, inner: str) -> DataFile:
        if "://" in self.given:
            return DataFile(self.fs, inner, str(self.fs.unstrip_protocol(inner)))
        return DataFile(self.fs, inner, inner)


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
    return fs, inner


def _is_data(path: str, folder: str) -> bool:
    below = path[len(folder.rstrip("/")) + 1 :]
    return not any(part[:1] in "._" for part in below.split("/"))


def cached(file: DataFile, kind: str, make: Callable[[Path], None]) -> Path | None:
    """Where `make` has put something derived from `file`, made once for the job.

    None outside of a job (EDL_JOB_DIR is not set). Concurrent makers do the work twice at worst:
    the rename is atomic.
    """
    job_dir = os.environ.get(JOB_DIR_VARIABLE)
    if not job_dir:
        return None
    folder = Path(job_dir) / "index"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file.fs.ukey(file.path)}.{kind}"
    if not path.exists():
        handle, partial = tempfile.mkstemp(dir=folder, suffix=".tmp")
        os.close(handle)
        try:
            make(Path(partial))
            os.replace(partial, path)
        finally:
            Path(partial).unlink(missing_ok=True)
    return path


class Seekable:
    """`file` itself, or the decompressed copy of a .gz file, since records are read by offset.

    The copy stands in the job's cache, or outside of a job in a temporary file that goes with
    this object.
    """

    def __init__(self, file: DataFile) -> None:
        self.file = file
        if not file.path.endswith(".gz"):
            return
        path = cached(file, "unpacked", lambda to: _decompress(file, to))
        if path is None:
            self._temporary = tempfile.NamedTemporaryFile(prefix="edl-unpacked-")  # noqa: SIM115
            path = Path(self._temporary.name)
            _decompress(file, path)
        self.file = DataFile(LocalFileSystem(), str(path), file.name)


def _decompress(file: DataFile, to: Path) -> None:
    try:
        with file.open() as packed, gzip.open(packed) as source, to.open("wb") as target:
            shutil.copyfileobj(source, target, _COPY_NBYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file.name} cannot be decompressed: {error}.") from error

"""A file of any file system, what is known of it while it is read, and the cache beside a job.

What a file's index was made of is compared at each open: its size, time and inode, in a job those
that its first process saw. So data that is rewritten while a job runs is an error, never other
records in silence. What is cached is keyed by the same, written aside and renamed.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from fsspec.implementations.cached import CachingFileSystem
from fsspec.implementations.local import LocalFileSystem
from numpy.typing import NDArray

from ..common.errors import DataError
from ..common.extras import install
from ..common.stores import awaited
from . import ranges

JOB_DIR_VARIABLE = "EDL_JOB_DIR"
_COPY_NBYTES = 1 << 20
_BUFFER_NBYTES = 4 << 20  # of what is read piece by piece; fsspec's own is 5 MiB
# What file systems tell of a file that is another one when its content is.
_TELLING = "mtime LastModified last_modified updated modified created ETag etag generation md5Hash"


class EmptyFile(DataError):
    """A file of no bytes or no records: left out where others have some."""


@dataclass(eq=False)
class DataFile:
    """A file of any file system. `path` is what `fs` takes, `name` what the user reads.

    `root` is the folder that was given, or that of the file or the glob that was.
    """

    fs: Any
    path: str
    name: str
    root: str = ""
    _seen: list[Any] | None = field(default=None, init=False, repr=False)

    @property
    def is_local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    @property
    def _in_ranges(self) -> bool:
        """Tell whether it is in an object store or the like, not in a cache on this machine."""
        return self.fs.async_impl and not isinstance(self.fs, CachingFileSystem)

    def at_once(self, nbytes: int) -> int:
        """Return how much to read at once of a whole file: `nbytes`, or more from afar."""
        return ranges.AT_ONCE * ranges.RANGE_NBYTES if self._in_ranges else nbytes

    def open(self, buffering: int = -1, ahead: Sequence[ranges.Span] = ()) -> BinaryIO:
        """Open the bytes, seekable; of a file in an object store have those of `ahead` come.

        Raises DataError where they cannot be opened or are others by now.
        """
        try:
            if not self.is_local:
                self._compare(told := self._told())
                if not self._in_ranges:
                    return cast(BinaryIO, self.fs.open(self.path, "rb"))
                if ahead:
                    return cast(BinaryIO, ranges.Ahead(self.fs, self.path, told[0], ahead))
                raw = ranges.Ranges(self.fs, self.path, told[0])
                return cast(BinaryIO, io.BufferedReader(raw, _BUFFER_NBYTES) if buffering else raw)
            stream = open(self.path, "rb", buffering)  # noqa: SIM115 (the caller closes it)
        except OSError as error:
            raise DataError(f"{self.name} cannot be read: {error}.") from error
        with contextlib.ExitStack() as undo:
            undo.callback(stream.close)
            self._compare(_stamp(os.fstat(stream.fileno())))
            undo.pop_all()
        return stream

    @contextlib.contextmanager
    def reading(self) -> Iterator[Callable[[int, int], NDArray[np.uint8]]]:
        """Give a function of (offset, how many) for those bytes, fewer at the file's end."""
        with self.open(buffering=0) as stream:
            descriptor = stream.fileno() if self.is_local else None

            def read(offset: int, nbytes: int) -> NDArray[np.uint8]:
                data, there = np.empty(nbytes, np.uint8), 0
                while there < nbytes:
                    if descriptor is not None:
                        more = os.preadv(descriptor, [data.data[there:]], offset + there)
                    else:
                        stream.seek(offset + there)
                        more = cast(Any, stream).readinto(data[there:])
                    if not more:
                        return data[:there]
                    there += more
                return data

            yield read

    def nbytes(self) -> int:
        """Return the size.

        Raises EmptyFile where the file is empty, DataError where it cannot be read.
        """
        nbytes = int(self.stamp()[0])
        if not nbytes:
            raise EmptyFile(f"{self.name} is empty: remove it or put records into it.")
        return nbytes

    def stamp(self) -> list[Any]:
        """Return a mark of this content, the size first. Raises DataError as `open` does."""
        try:
            seen = _stamp(os.stat(self.path)) if self.is_local else self._told()
        except OSError as error:
            raise DataError(f"{self.name} cannot be read: {error}.") from error
        self._compare(seen)
        return seen

    def folder(self) -> str:
        """Return the name of the folder that holds the file."""
        return self.path.rstrip("/").rpartition("/")[0].rpartition("/")[2]

    def _told(self) -> list[Any]:
        self.fs.invalidate_cache(self.path)  # a listing of before would tell of what was then
        info = awaited("opened", self.name, lambda: self.fs.info(self.path))
        size = info.get("size")
        if size is None:
            raise OSError("its server does not tell its size")
        return [int(size), *(str(info[name]) for name in _TELLING.split() if name in info)]

    def _compare(self, seen: list[Any]) -> None:
        if self._seen is None:
            _compare_in_job(self, seen)
            self._seen = seen
        elif self._seen != seen:
            raise _changed(self, self._seen, seen)


def _stamp(status: os.stat_result) -> list[Any]:
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _changed(file: DataFile, before: list[Any], now: list[Any], remedy: str = "") -> DataError:
    sizes = f"{before[0]:,} bytes then, {now[0]:,} now" if before[0] != now[0] else "as large"
    return DataError(
        f"{file.name} has changed since its records were counted ({sizes}): the records of a job "
        f"must stay as they are while it runs; start a new job for the new data{remedy}."
    )


def _compare_in_job(file: DataFile, seen: list[Any]) -> None:
    """Compare with what the job's first process saw of the file, or be the first."""
    job_dir = os.environ.get(JOB_DIR_VARIABLE)
    if not job_dir or file.path.startswith(job_dir):  # what the job itself has unpacked
        return
    told = seen[:2]  # another machine may number its files otherwise
    path = _cache(job_dir) / f"{hashlib.sha256(file.name.encode()).hexdigest()[:40]}.seen"
    try:
        with path.open("x") as stream:
            json.dump(told, stream)
    except FileExistsError:
        try:
            before = json.loads(path.read_text())
        except ValueError:  # being written at this moment by another process
            return
        if _in_whole_seconds(before) != _in_whole_seconds(told):
            remedy = f", or remove {path} if it still has the same records in the same order"
            raise _changed(file, before, told, remedy) from None


def forget_seen(job_dir: Path) -> None:
    """Let a job's processes take its files as they are now: the data has been compared."""
    for path in (job_dir / "index").glob("*.seen"):
        path.unlink(missing_ok=True)


def _in_whole_seconds(seen: list[Any]) -> list[Any]:
    """Return it as all requests of a store tell it: some tell a time finer in a listing."""
    return [re.sub(r"\.\d+", "", each) if isinstance(each, str) else each for each in seen]


def _cache(job_dir: str) -> Path:
    folder = Path(job_dir) / "index"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def cached(file: DataFile, kind: str, make: Callable[[Path], None]) -> Path | None:
    """Return where `make` has put something derived from `file`, made once for the job.

    None outside of a job (EDL_JOB_DIR is not set). Concurrent makers do the work twice at worst:
    the rename is atomic.
    """
    folder = cache_folder()
    return None if folder is None else kept(file, kind, make, folder)


def cache_folder() -> Path | None:
    """Return where a job's processes keep what they derive of the data; None outside of a job."""
    job_dir = os.environ.get(JOB_DIR_VARIABLE)
    return _cache(job_dir) if job_dir else None


def kept(file: DataFile, kind: str, make: Callable[[Path], None], folder: Path) -> Path:
    """Return where in `folder` `make` has put something derived from `file`.

    It is made unless it is there.
    """
    key = json.dumps([str(file.fs.protocol), file.path, file.stamp()])
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()}.{kind}"
    if not path.exists():
        handle, partial = tempfile.mkstemp(dir=folder, suffix=".tmp")
        os.close(handle)
        try:
            make(Path(partial))
            os.replace(partial, path)
        finally:
            Path(partial).unlink(missing_ok=True)
    return path


class Derived:
    """A file that `make` has written from `file`, in the job's cache or else a temporary one.

    The temporary one goes with `file`. No descriptor is held.
    """

    def __init__(self, file: DataFile, kind: str, make: Callable[[Path], None]) -> None:
        path = cached(file, kind, make)
        if path is not None:
            self.file = DataFile(LocalFileSystem(), str(path), file.name)
            return
        handle, name = tempfile.mkstemp(prefix="edl-unpacked-")
        os.close(handle)
        self.file = DataFile(LocalFileSystem(), name, file.name)
        weakref.finalize(self.file, Path(name).unlink, missing_ok=True)
        make(Path(name))


class Seekable(Derived):
    """Return `file` itself, or the decompressed copy of a .gz, .bz2, .xz or .zst.

    Records are read by offset.
    """

    def __init__(self, file: DataFile) -> None:
        self.file = file
        if file.path.lower().endswith(UNPACKED_SUFFIXES):
            super().__init__(file, "unpacked", lambda to: _decompress(file, to))


def _zstd(packed: BinaryIO) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(
            f".zst is unpacked with pyarrow, which is not installed: {install('parquet')}."
        ) from error
    return pyarrow.CompressedInputStream(packed, "zstd")


_UNPACKERS: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _zstd,
}
UNPACKED_SUFFIXES = tuple(_UNPACKERS)


def _decompress(file: DataFile, to: Path) -> None:
    unpacker = _UNPACKERS["." + file.path.lower().rpartition(".")[2]]
    try:
        with file.open() as packed, unpacker(packed) as source, to.open("wb") as target:
            shutil.copyfileobj(source, target, _COPY_NBYTES)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{file.name} cannot be decompressed: {error}.") from error

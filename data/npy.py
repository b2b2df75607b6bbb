""".npy and .npz: arrays read by offset, in one read of the range.

A .npy is one column named "data" (a structured array: its fields); a .npz has its members as
columns, of equal first dimension. A member that is stored (np.savez) is read by offset like a .npy,
after its checksum was compared once; a compressed one (np.savez_compressed) is unpacked first, onto
the disk and not into memory. Nothing is unpickled, nothing mapped, no descriptor kept. An array has
no missing values; `missing=COLUMN:nan` makes a column of whole numbers float64, as in every table.

Two members NAME and NAME.lengths are one column, a list of any length for each record: all values
one after the other, and how many each record has.
"""

from __future__ import annotations

import lzma
import math
import os
import shutil
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from ..common.errors import DataError, RecordError
from ..common.ragged import Ragged
from .array_columns import ArrayColumns, type_of_array
from .declared import declared
from .exact import Values
from .file_reader import FileReader, check_columns, names_of, pairs_of
from .files import DataFile, Derived, EmptyFile, cached
from .missing import Missing
from .reader import Columns
from .schema import NO_SCHEMA, Schema, Type

_LOCAL_HEADER_NBYTES = 30  # of a zip member; the lengths of name and extra field stand at 26
_COPY_NBYTES = 1 << 20
_LENGTHS = ".lengths"
_HEADER_NBYTES = 1 << 24  # a structured array names all of its fields there
# What zipfile raises for an archive that is none, torn, encrypted or packed in an unknown way.
_CORRUPT = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, RuntimeError,
    NotImplementedError, ValueError,
)  # fmt: skip


def npy_reader(
    files: Sequence[DataFile],
    columns: str | Sequence[str] | None = None,
    missing: str | Mapping[str, Any] | None = None,
    dtypes: str | Mapping[str, str] | None = None,
    schema: Schema = NO_SCHEMA,
) -> FileReader:
    """Read the column "data", or the fields of a structured array."""
    return _reader(NpyFile, files, columns, missing, dtypes, schema)


def npz_reader(
    files: Sequence[DataFile],
    columns: str | Sequence[str] | None = None,
    missing: str | Mapping[str, Any] | None = None,
    dtypes: str | Mapping[str, str] | None = None,
    schema: Schema = NO_SCHEMA,
) -> FileReader:
    """Read the members as columns."""
    return _reader(NpzFile, files, columns, missing, dtypes, schema)


def _reader(
    kind: Any,
    files: Sequence[DataFile],
    columns: str | Sequence[str] | None,
    missing: str | Mapping[str, Any] | None,
    dtypes: str | Mapping[str, str] | None,
    schema: Schema,
) -> FileReader:
    wanted, chosen, types = tuple(names_of(columns)), Missing.parse(missing), pairs_of(dtypes)
    known = declared(schema, types, chosen)
    openers = {f.name: partial(kind, f, wanted, tuple(types), chosen) for f in files}
    return FileReader(openers, known, chosen)


_ReadAt = Callable[[int, int], NDArray[np.uint8]]


@dataclass(frozen=True)
class _Layout:
    """An array within a file: its first byte, shape and dtype."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape[1:])


class _Array:
    """Rows of an array that stands in a file as it is."""

    def __init__(self, file: DataFile, layout: _Layout) -> None:
        self._file, self._layout = file, layout
        self.records, self._row_nbytes = layout.shape[0], layout.row_nbytes
        there = (file.nbytes() - layout.offset) // max(layout.row_nbytes, 1)
        # Fewer where the file is cut off.
        self._there = max(0, min(self.records, there)) if layout.row_nbytes else self.records

    def read(self, numbers: NDArray[np.int64], read: _ReadAt | None = None) -> NDArray[Any]:
        """Return the rows; `read` reads in the file where it is open already."""
        if read is None:
            with self._file.reading() as here:
                return self.read(numbers, here)
        first, last = (int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else (0, 0)
        if last > self._there:
            missing = int(numbers[numbers >= self._there][0])
            reason = "the file is cut off before it: write the file again"
            raise RecordError(self._file.name, missing, reason)
        nbytes = (last - first) * self._row_nbytes
        data = read(self._layout.offset + first * self._row_nbytes, nbytes)
        if len(data) < nbytes:
            raise DataError(f"{self._file.name} became shorter while it was read: start a new job.")
        # np.frombuffer knows no items of no bytes, as in an array of shape (N, 0).
        rows = np.ndarray((last - first, *self._layout.shape[1:]), self._layout.dtype, data.data)
        return rows if len(numbers) == last - first else rows[numbers - first]


def _bounds(counts: NDArray[Any], values: int, name: str, source: str) -> NDArray[np.int64]:
    """Return where the values of each record begin, by how many each has.

    Raises DataError where these are not the `values` that there are.
    """
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts < 0).any():
        raise DataError(
            f"{source}: {name}.lengths must be whole numbers, one for each record: how many of the "
            f"values of {name} are its own."
        )
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    if bounds[-1] != values:
        raise DataError(
            f"{source}: {name} has {values} values, and {name}.lengths tells of {bounds[-1]}: "
            "write both of the same records."
        )
    return bounds


class NpyFile:
    """A .npy file."""

    def __init__(
        self, file: DataFile, columns: tuple[str, ...], dtypes: tuple[str, ...], missing: Missing
    ) -> None:
        file.nbytes()
        with file.open() as stream:
            layout = _layout(stream, file.name)
        self._array = _Array(file, layout)
        self._fields = layout.dtype.names
        there = self._fields or ("data",)
        missing.check(file.name, there)
        check_columns(file.name, dtypes, there)
        self.names = check_columns(file.name, columns, there)
        inner = {n: layout.dtype[n] if self._fields else layout.dtype for n in self.names}
        types = {
            n: type_of_array(file.name, n, each, layout.shape[1:]) for n, each in inner.items()
        }
        self._columns = ArrayColumns(file, types)
        self.records = self._array.records
        self.stored, self.hold = self._columns.stored, self._columns.hold

    def read(self, numbers: NDArray[np.int64]) -> Columns:
        rows = self._array.read(numbers)
        arrays = {n: rows if self._fields is None else rows[n] for n in self.names}
        return Columns({n: self._columns.column(n, a, numbers) for n, a in arrays.items()})


class NpzFile:
    """A .npz file; its members are checked, or unpacked, at first use."""

    def __init__(
        self, file: DataFile, columns: tuple[str, ...], dtypes: tuple[str, ...], missing: Missing
    ) -> None:
        file.nbytes()
        self._file = file
        self._members: dict[str, tuple[_Array, Derived | None]] = {}
        self._starts: dict[str, NDArray[np.int64]] = {}  # of lists
        self._lock = threading.Lock()
        try:
            with file.open() as stream, zipfile.ZipFile(stream) as archive:
                infos = {
                    info.filename.removesuffix(".npy"): info
                    for info in archive.infolist()
                    if info.filename.endswith(".npy")
                }
                lists = {each for each in infos if each + _LENGTHS in infos}
                there = tuple(n for n in infos if n.removesuffix(_LENGTHS) not in lists - {n})
                self.names = check_columns(file.name, columns, there)
                self._lists = {name: name + _LENGTHS for name in self.names if name in lists}
                self._infos = {name: infos[name] for name in (*self.names, *self._lists.values())}
                self._layouts = {
                    name: self._member_layout(stream, archive, info)
                    for name, info in self._infos.items()
                }
        except _CORRUPT as error:
            raise DataError(f"{file.name} is no .npz archive, or a torn one: {error}.") from error
        if not infos:
            raise EmptyFile(f"{file.name} holds no array: remove it or put records into it.")
        missing.check(file.name, there)
        check_columns(file.name, dtypes, there)
        self._columns = ArrayColumns(file, {name: self._type(name) for name in self.names})
        self.stored = self._columns.stored
        lengths = {name: self._layouts[self._lists.get(name, name)].shape[0] for name in self.names}
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"The members of {file.name} differ in their first dimension: {lengths}. Choose "
                "those that belong together with --data_reader_params columns=a|b."
            )
        self.records = next(iter(lengths.values()), 0)

    def hold(self, schema: Schema) -> None:
        """Take the types of the columns, and find where lists begin. Raises DataError."""
        self._columns.hold(schema)
        for name, lengths in self._lists.items():
            array, _ = self._member(lengths)
            counts = array.read(np.arange(array.records))
            values = self._layouts[name].shape[0]
            self._starts[name] = _bounds(counts, values, name, self._file.name)

    def _type(self, name: str) -> Type:
        layout = self._layouts[name]
        found = type_of_array(self._file.name, name, layout.dtype, layout.shape[1:])
        if name not in self._lists:
            return found
        if found.shape:
            raise DataError(
                f"{self._file.name}: {name} has {name}.lengths beside it, and its values are "
                "arrays: a list is of single values."
            )
        return replace(found, lists=True)

    def read(self, numbers: NDArray[np.int64]) -> Columns:
        arrays = {}
        with self._file.reading() as read:
            for name in self.names:
                rows = self._rows(name, numbers, read)
                arrays[name] = self._columns.column(name, rows, numbers)
        return Columns(arrays)

    def _rows(self, name: str, numbers: NDArray[np.int64], read: _ReadAt) -> Values:
        array, unpacked = self._member(name)
        if unpacked is not None:
            with unpacked.file.reading() as its_own:
                return self._of(name, array, numbers, its_own)
        return self._of(name, array, numbers, read)

    def _of(self, name: str, array: _Array, numbers: NDArray[np.int64], read: _ReadAt) -> Values:
        if name not in self._lists:
            return array.read(numbers, read)
        if not len(numbers):
            return Ragged(array.read(numbers, read), np.zeros(1, np.int64))
        first, last = int(numbers[0]), int(numbers[-1]) + 1
        bounds = self._starts[name][first : last + 1]
        values = array.read(np.arange(bounds[0], bounds[-1]), read)
        rows = Ragged(values, bounds - bounds[0])
        return rows if len(numbers) == last - first else rows[numbers - first]

    def _member(self, name: str) -> tuple[_Array, Derived | None]:
        """Return the member's array, and its unpacked copy if it has one.

        Raises DataError where its content is not what was written.
        """
        with self._lock:
            if name not in self._members:
                layout, info = self._layouts[name], self._infos[name]
                kind = f"{zlib.crc32(info.filename.encode()):08x}-{info.header_offset}"
                if info.compress_type == zipfile.ZIP_STORED:
                    sound = f"{kind}.sound"
                    if cached(self._file, sound, lambda _to: self._copy(name)) is None:
                        self._copy(name)
                    self._members[name] = _Array(self._file, layout), None
                else:
                    unpacked = Derived(self._file, f"{kind}.npy", lambda to: self._copy(name, to))
                    self._members[name] = _Array(unpacked.file, layout), unpacked
            return self._members[name]

    def _copy(self, name: str, to: Path | None = None) -> None:
        """Read a member whole, as zipfile does: it compares the checksum at the end."""
        info = self._infos[name]
        if to is not None and info.file_size > (free := shutil.disk_usage(to.parent).free):
            raise DataError(
                f"The member {name!r} of {self._file.name} has {info.file_size:,} bytes when it is "
                f"unpacked, and {to.parent} has room for {free:,}: save it with np.savez."
            )
        try:
            with (
                self._file.open() as stream,
                zipfile.ZipFile(stream) as archive,
                archive.open(info) as member,
                open(to or os.devnull, "wb") as target,
            ):
                shutil.copyfileobj(member, target, _COPY_NBYTES)
        except _CORRUPT as error:
            raise DataError(
                f"The member {name!r} of {self._file.name} is corrupt: {error}."
            ) from error
        except OSError as error:
            raise DataError(
                f"The member {name!r} of {self._file.name} cannot be unpacked: {error}."
            ) from error

    def _member_layout(
        self, stream: BinaryIO, archive: zipfile.ZipFile, info: zipfile.ZipInfo
    ) -> _Layout:
        """Return the member's layout: in the archive where it is stored, else in its copy."""
        source = f"the member {info.filename} of {self._file.name}"
        with archive.open(info) as member:
            layout = _layout(member, source)
        holds = (info.file_size - layout.offset) // layout.row_nbytes if layout.row_nbytes else None
        if holds is not None and holds < layout.shape[0]:
            raise DataError(
                f"{source} claims {layout.shape[0]} rows and has {holds}: write the file again."
            )
        if info.compress_type != zipfile.ZIP_STORED:
            return layout
        stream.seek(info.header_offset)
        header = stream.read(_LOCAL_HEADER_NBYTES)
        name_nbytes, extra_nbytes = struct.unpack_from("<HH", header, 26)
        before = info.header_offset + _LOCAL_HEADER_NBYTES + name_nbytes + extra_nbytes
        return replace(layout, offset=before + layout.offset)


def _layout(stream: Any, source: str) -> _Layout:
    """Read a .npy header. Raises DataError for a scalar, for Fortran order and for objects."""
    try:
        version = npy_format.read_magic(stream)
        read = (
            npy_format.read_array_header_1_0
            if version == (1, 0)
            else npy_format.read_array_header_2_0
        )
        shape, fortran, dtype = read(stream, max_header_size=_HEADER_NBYTES)
        if version == (3, 0) and dtype.names:  # numpy has no public reader of its UTF-8
            dtype.names = tuple(name.encode("latin-1").decode() for name in dtype.names)
    except (*_CORRUPT, SyntaxError, UnicodeError) as error:
        raise DataError(f"{source} is no .npy array: {error}.") from error
    if dtype.hasobject:
        raise DataError(
            f"{source} holds pickled Python objects, which are never loaded: save numbers, or "
            "strings with dtype=str."
        )
    if min(shape, default=0) < 0:
        raise DataError(f"{source} claims a shape of {shape}: write the file again.")
    if not shape or (fortran and len(shape) > 1):
        what = "is a single value" if not shape else "is in Fortran order"
        raise DataError(f"{source} {what}: save an array whose first dimension is the records.")
    return _Layout(stream.tell(), shape, dtype)

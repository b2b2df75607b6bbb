""".npy and .npz: arrays read by offset, memory-mapped where the file is local.

A .npy is one column named "data" (a structured array: its fields); a .npz has its members as
columns, of equal first dimension. A member that is stored (np.savez) is read by offset like a .npy;
a compressed one (np.savez_compressed) is unpacked whole at its first use. Nothing is unpickled.
"""

from __future__ import annotations

import struct
import threading
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from ..common.errors import DataError, RecordError
from .file_reader import FileReader, check_columns, names_of
from .files import DataFile
from .reader import Columns

_LOCAL_HEADER_NBYTES = 30  # of a zip member; the lengths of name and extra field stand at 26


def npy_reader(files: Sequence[DataFile], columns: str | Sequence[str] | None = None) -> FileReader:
    """The column "data", or the fields of a structured array; `columns`: those wanted, of all."""
    return FileReader({f.name: partial(NpyFile, f, tuple(names_of(columns))) for f in files})


def npz_reader(files: Sequence[DataFile], columns: str | Sequence[str] | None = None) -> FileReader:
    """The members as columns; `columns`: those wanted, of all."""
    return FileReader({f.name: partial(NpzFile, f, tuple(names_of(columns))) for f in files})


@dataclass(frozen=True)
class _Layout:
    """An array within a file: its first byte, shape and dtype."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_nbytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))


class _Array:
    """Rows of an array that stands in a file as it is."""

    def __init__(self, file: DataFile, layout: _Layout) -> None:
        self._file, self._layout = file, layout
        self.records = layout.shape[0]
        there = (file.nbytes() - layout.offset) // max(layout.row_nbytes, 1)
        self._there = max(0, min(self.records, there))  # fewer where the file is cut off
        self._map: NDArray[Any] | None = None
        if file.is_local and self._there and layout.row_nbytes:
            shape = (self._there, *layout.shape[1:])
            self._map = np.memmap(
                file.path, layout.dtype, mode="r", offset=layout.offset, shape=shape
            )

    def read(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        if cut := numbers[numbers >= self._there].tolist():
            reason = "the file is cut off before it: write the file again"
            raise RecordError(self._file.name, cut[0], reason)
        if self._map is not None:
            return np.asarray(self._map[numbers])
        layout = self._layout
        first, last = (int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else (0, 0)
        with self._file.open() as stream:
            stream.seek(layout.offset + first * layout.row_nbytes)
            data = stream.read((last - first) * layout.row_nbytes)
        rows = np.frombuffer(data, layout.dtype).reshape(last - first, *layout.shape[1:])
        return rows[numbers - first]


class NpyFile:
    """One .npy file."""

    def __init__(self, file: DataFile, columns: tuple[str, ...]) -> None:
        file.nbytes()
        with file.open() as stream:
            layout = _layout(stream, file.name)
        self._array = _Array(file, layout)
        self._fields = layout.dtype.names
        self._wanted = check_columns(file.name, columns, self._fields or ("data",))
        self.records = self._array.records

    def read(self, numbers: NDArray[np.int64]) -> Columns:
        rows = self._array.read(numbers)
        if self._fields is None:
            return Columns({"data": rows})
        return Columns({name: np.ascontiguousarray(rows[name]) for name in self._wanted})


class NpzFile:
    """One .npz file; its members are opened at first use."""

    def __init__(self, file: DataFile, columns: tuple[str, ...]) -> None:
        file.nbytes()
        self._file = file
        self._unpacked: dict[str, NDArray[Any]] = {}
        self._lock = threading.Lock()
        try:
            with file.open() as stream, zipfile.ZipFile(stream) as archive:
                infos = {
                    info.filename.removesuffix(".npy"): info
                    for info in archive.infolist()
                    if info.filename.endswith(".npy")
                }
                self._wanted = check_columns(file.name, columns, tuple(infos))
                self._infos = {name: infos[name] for name in self._wanted}
                layouts = {
                    name: self._member_layout(stream, archive, info)
                    for name, info in self._infos.items()
                }
        except (zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{file.name} is no .npz archive, or a torn one: {error}.") from error
        lengths = {name: layout.shape[0] for name, layout in layouts.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"The members of {file.name} differ in their first dimension: {lengths}. Choose "
                "those that belong together with --data_reader_params columns=a|b."
            )
        self.records = next(iter(lengths.values()), 0)
        self._stored = {
            name: _Array(file, layout) for name, layout in layouts.items() if layout.offset
        }

    def read(self, numbers: NDArray[np.int64]) -> Columns:
        return Columns({name: self._read_member(name, numbers) for name in self._wanted})

    def _read_member(self, name: str, numbers: NDArray[np.int64]) -> NDArray[Any]:
        if name in self._stored:
            return self._stored[name].read(numbers)
        with self._lock:
            if name not in self._unpacked:
                self._unpacked[name] = self._unpack(name)
        return self._unpacked[name][numbers]

    def _unpack(self, name: str) -> NDArray[Any]:
        try:
            with self._file.open() as stream, zipfile.ZipFile(stream) as archive:
                with archive.open(self._infos[name]) as member:
                    array: NDArray[Any] = npy_format.read_array(member, allow_pickle=False)
                return array
        except (zipfile.BadZipFile, zlib.error, ValueError, EOFError) as error:
            raise DataError(
                f"The member {name!r} of {self._file.name} is corrupt: {error}."
            ) from error

    def _member_layout(
        self, stream: BinaryIO, archive: zipfile.ZipFile, info: zipfile.ZipInfo
    ) -> _Layout:
        """The member's layout; its offset is 0 where it must be unpacked."""
        source = f"the member {info.filename} of {self._file.name}"
        if info.compress_type != zipfile.ZIP_STORED:
            with archive.open(info) as member:
                layout = _layout(member, source)
            return _Layout(0, layout.shape, layout.dtype)
        stream.seek(info.header_offset)
        header = stream.read(_LOCAL_HEADER_NBYTES)
        name_nbytes, extra_nbytes = struct.unpack_from("<HH", header, 26)
        stream.seek(info.header_offset + _LOCAL_HEADER_NBYTES + name_nbytes + extra_nbytes)
        return _layout(stream, source)


def _layout(stream: Any, source: str) -> _Layout:
    """Read a .npy header. Raises DataError for a scalar, for Fortran order and for objects."""
    try:
        version = npy_format.read_magic(stream)
        read = (
            npy_format.read_array_header_1_0
            if version == (1, 0)
            else npy_format.read_array_header_2_0
        )
        shape, fortran, dtype = read(stream)
    except (ValueError, EOFError) as error:
        raise DataError(f"{source} is no .npy array: {error}.") from error
    if dtype.hasobject:
        raise DataError(
            f"{source} holds pickled Python objects, which are never loaded: save numbers, or "
            "strings with dtype=str."
        )
    if not shape or (fortran and len(shape) > 1):
        what = "is a single value" if not shape else "is in Fortran order"
        raise DataError(f"{source} {what}: save an array whose first dimension is the records.")
    return _Layout(stream.tell(), shape, dtype)

"""RecordIO, ElasticDL's own format: chunks of length-prefixed records.

    uint32 magic 0x01020304 | crc | compressor | nbytes of the body | records in it | body

All are little-endian; the body, unpacked, is records of (uint32 length | data), and the checksum is
CRC-32 of the body as it stands in the file. That is what Go's recordio and the package pyrecordio
write (compressor 0: none, 1: snappy in frames, 2: gzip). The later package recordio, all Python,
writes `magic | records | crc | compressor | nbytes`, with CRC-32C and compressor 1 (none), 2 (plain
snappy) or 3 (gzip). A file's first chunk tells which it is.

Headers are read once to index the file. A chunk whose checksum is wrong breaks its own records;
what follows a broken header cannot be found, and is counted as one broken record.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError, RecordError
from ..common.extras import install
from .example import parse_example
from .features import reader_of, wanted
from .file_reader import FileReader
from .files import DataFile, Seekable
from .kernels import masked_crc32c
from .schema import NO_SCHEMA, Schema

_MAGIC = 0x01020304
_HEADER = struct.Struct("<5I")
_LENGTH = struct.Struct("<I")
_SNAPPY_STREAM = b"\xff\x06\x00\x00sNaPpY"
_UNPACKED_NBYTES = 1 << 30  # of a chunk; writers begin a new one at some MiB


def recordio_reader(
    files: Sequence[DataFile],
    raw: bool | str = False,
    columns: str | Sequence[str] | None = None,
    dtypes: str | Mapping[str, str] | None = None,
    missing: str | Mapping[str, Any] | None = None,
    schema: Schema = NO_SCHEMA,
) -> FileReader:
    """Read records as tf.train.Example, as of a TFRecord; `raw`: as bytes, unparsed."""
    return reader_of(RecordioFile, files, raw, wanted(schema, columns, dtypes, missing))


@dataclass(frozen=True)
class _Chunk:
    offset: int  # of the body
    nbytes: int
    crc: int
    compressor: int
    records: int


@dataclass(frozen=True)
class _Layout:
    """One of the two ways in which headers are written."""

    fields: tuple[int, int, int, int]  # where crc, compressor, nbytes and records stand
    checksum: Callable[[bytes], int]
    unpackers: dict[int, tuple[Callable[[bytes], bytes], int]]  # and how much one byte can become

    def chunk(self, offset: int, header: tuple[int, ...]) -> _Chunk | None:
        crc, compressor, nbytes, records = (header[i] for i in self.fields)
        if header[0] != _MAGIC or compressor not in self.unpackers:
            return None
        if records * _LENGTH.size > nbytes * self.unpackers[compressor][1]:
            return None
        return _Chunk(offset + _HEADER.size, nbytes, crc, compressor, records)


class RecordioFile:
    """A RecordIO file, indexed by chunk."""

    def __init__(self, file: DataFile, raw: bool) -> None:
        file.nbytes()
        self._raw = raw
        self._seekable = Seekable(file)
        self._file = self._seekable.file
        self._nbytes = self._file.nbytes()
        with self._file.open() as stream:
            self._layout = _layout_of(stream, file.name)
            self._chunks = list(_chunks(stream, self._nbytes, self._layout))
        packed = {chunk.compressor for chunk in self._chunks if chunk is not None}
        if any(self._layout.unpackers[each][0] in (_unsnap, _unsnap_frames) for each in packed):
            _pyarrow()
        counts = [0 if chunk is None else chunk.records for chunk in self._chunks]
        self._bounds = np.cumsum([0, *(count or 1 for count in counts)], dtype=np.int64)
        self.records = int(self._bounds[-1])
        self._last: tuple[int, list[memoryview]] = -1, []

    def read(self, numbers: NDArray[np.int64]) -> list[Any]:
        found: list[Any] = []
        chunks = np.searchsorted(self._bounds, numbers, side="right") - 1
        for place in np.unique(chunks).tolist():
            mine = numbers[chunks == place]
            last, records = self._last
            if last != place:  # a chunk is of several tasks, one after another
                records = self._records(self._chunks[place], int(mine[0]))
                self._last = place, records
            for number in mine.tolist():
                found.append(self._record(records[number - int(self._bounds[place])], number))
        return found

    def _records(self, chunk: _Chunk | None, asked: int) -> list[memoryview]:
        """Return the records of a chunk. Raises RecordError for the one that was asked for."""
        if chunk is None:
            raise RecordError(
                self._file.name, asked,
                "a chunk's header is corrupt or cut off; what follows cannot be found",
            )  # fmt: skip
        nbytes = min(chunk.nbytes, max(0, self._nbytes - chunk.offset))
        with self._file.reading() as read:
            body = read(chunk.offset, nbytes).tobytes()
        if len(body) < chunk.nbytes:
            raise RecordError(self._file.name, asked, "the file is cut off within its chunk")
        if self._layout.checksum(body) != chunk.crc:
            raise RecordError(
                self._file.name, asked, "the checksum of its chunk is wrong: the data is corrupt"
            )
        unpack, _ = self._layout.unpackers[chunk.compressor]
        try:
            return list(_split(unpack(body), chunk.records))
        except (ValueError, zlib.error) as error:
            raise RecordError(self._file.name, asked, f"its chunk is corrupt: {error}") from error

    def _record(self, data: memoryview, number: int) -> Any:
        if self._raw:
            return bytes(data)
        try:
            return parse_example(bytes(data))
        except ValueError as error:
            reason = f"it is no tf.train.Example ({error}); raw=true gives the bytes"
            raise RecordError(self._file.name, number, reason) from error


def _layout_of(stream: BinaryIO, name: str) -> _Layout:
    """Return the layout under which the first chunk's checksum is right.

    That is Go's where it is under neither.
    """
    data = stream.read(_HEADER.size)
    header = _HEADER.unpack(data) if len(data) == _HEADER.size else (0,) * 5
    fitting = [layout for layout in (_GO, _PYTHON) if layout.chunk(0, header)]
    if header[0] != _MAGIC:
        raise DataError(
            f"{name} is no RecordIO of ElasticDL, which begins with the bytes 04 03 02 01 (that of "
            "MXNet is another format)."
        )
    if not fitting:
        raise DataError(
            f"{name} begins with a header that is corrupt, or packed by a compressor that RecordIO "
            "has not: write it again."
        )
    for layout in fitting if len(fitting) > 1 else ():
        chunk = layout.chunk(0, header)
        assert chunk is not None, "it is one of those that fit"
        stream.seek(chunk.offset)
        if layout.checksum(stream.read(min(chunk.nbytes, _UNPACKED_NBYTES))) == chunk.crc:
            return layout
    return fitting[0]


def _chunks(stream: BinaryIO, size: int, layout: _Layout) -> Iterator[_Chunk | None]:
    """Yield every chunk with records; None where a header is broken: the rest cannot be found."""
    offset = 0
    while offset < size:
        stream.seek(offset)
        data = stream.read(_HEADER.size)
        chunk = layout.chunk(offset, _HEADER.unpack(data)) if len(data) == _HEADER.size else None
        if chunk is None:
            yield None
            return
        if chunk.records:
            yield chunk
        offset = chunk.offset + chunk.nbytes


def _split(body: bytes, records: int) -> Iterator[memoryview]:
    offset, view = 0, memoryview(body)
    for _ in range(records):
        if offset + _LENGTH.size > len(body):
            raise ValueError(f"it ends before its {records} records do")
        start = offset + _LENGTH.size
        offset = start + _LENGTH.unpack_from(body, offset)[0]
        if offset > len(body):
            raise ValueError("a record is longer than its chunk")
        yield view[start:offset]


def _gunzip(body: bytes) -> bytes:
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    data = unpacker.decompress(body, _UNPACKED_NBYTES)
    if not unpacker.eof:
        raise ValueError(f"its gzip ends early, or has more than {_UNPACKED_NBYTES:,} bytes")
    return data


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(
            f"Snappy is unpacked with pyarrow, which is not installed: {install('parquet')}."
        ) from error
    return pyarrow


def _unsnap(body: bytes) -> bytes:
    """Unpack plain snappy: its length as a varint, then what is packed."""
    nbytes = 0
    for place, byte in enumerate(body[:5]):
        nbytes |= (byte & 127) << 7 * place
        if byte < 128:
            break
    if nbytes > _UNPACKED_NBYTES:
        raise ValueError(f"it claims {nbytes:,} bytes")
    try:
        return bytes(_pyarrow().Codec("snappy").decompress(body, nbytes).to_pybytes())
    except OSError as error:
        raise ValueError(f"its snappy cannot be unpacked: {error}") from error


def _unsnap_frames(body: bytes) -> bytes:
    """Unpack snappy's framing.

    That is (kind, uint24 length), and within a frame of data its own checksum.
    """
    if not body.startswith(_SNAPPY_STREAM):
        return _unsnap(body)
    offset, parts = 0, []
    while offset < len(body):
        kind, nbytes = body[offset], int.from_bytes(body[offset + 1 : offset + 4], "little")
        frame = body[offset + 4 : offset + 4 + nbytes]
        if len(frame) < nbytes or offset + 4 > len(body):
            raise ValueError("a frame of its snappy is cut off")
        offset += 4 + nbytes
        if kind in (0, 1):
            parts.append(frame[4:] if kind else _unsnap(frame[4:]))
            if masked_crc32c(parts[-1]) != int.from_bytes(frame[:4], "little"):
                raise ValueError("the checksum of a frame of its snappy is wrong")
        elif kind < 128:
            raise ValueError(f"a frame of its snappy has the unknown kind {kind}")
    return b"".join(parts)


def _crc32c(data: bytes) -> int:
    crc = (masked_crc32c(data) - 0xA282EAD8) & 0xFFFFFFFF  # kernels.py has it as TFRecord masks it
    return (crc >> 17 | crc << 15) & 0xFFFFFFFF


_GO = _Layout(
    (1, 2, 3, 4), zlib.crc32, {0: (bytes, 1), 1: (_unsnap_frames, 24), 2: (_gunzip, 1032)}
)
_PYTHON = _Layout((2, 3, 4, 1), _crc32c, {1: (bytes, 1), 2: (_unsnap, 24), 3: (_gunzip, 1032)})

"""TFRecord: length-prefixed records with CRC-32C checksums, and tf.train.Example inside them.

    uint64 length | uint32 masked crc of the length | data | uint32 masked crc of the data

The lengths are read once to index the file. A wrong checksum of the data breaks that record alone.
A wrong length, or a file that is cut off, breaks one record too, the last of the file as far as can
be told: what follows cannot be found.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import RecordError
from .example import parse_example
from .examples import Examples
from .features import reader_of, wanted
from .file_reader import FileReader
from .files import DataFile, Seekable, cached
from .kernels import masked_crc32c, sound_frames, walk_frames
from .schema import NO_SCHEMA, Schema

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_FRAME_NBYTES = _HEADER.size + _FOOTER.size
_CHUNK_NBYTES = 1 << 18  # of long records more is read than their headers


def tfrecord_reader(
    files: Sequence[DataFile],
    raw: bool | str = False,
    columns: str | Sequence[str] | None = None,
    dtypes: str | Mapping[str, str] | None = None,
    missing: str | Mapping[str, Any] | None = None,
    schema: Schema = NO_SCHEMA,
) -> FileReader:
    """Read records as {feature: numpy array, or list of bytes}; `raw`: as bytes, unparsed.

    With `columns`, `dtypes` or a schema they are columns (`features.py`).
    """
    return reader_of(TfrecordFile, files, raw, wanted(schema, columns, dtypes, missing))


class TfrecordFile:
    """A TFRecord file, indexed.

    `_offsets[i]` is the first byte of record i, the last is the end.
    """

    def __init__(self, file: DataFile, raw: bool) -> None:
        file.nbytes()
        self._raw, self._examples = raw, Examples()
        self._seekable = Seekable(file)
        self._file = self._seekable.file

        def save(to: Path) -> None:
            with to.open("wb") as stream:
                np.save(stream, _offsets(self._file))

        path = cached(self._file, "tfrecord.npy", save)
        self._offsets: NDArray[np.int64] = (
            _offsets(self._file) if path is None else np.load(path, allow_pickle=False)
        )
        self.records = len(self._offsets) - 1

    def read(self, numbers: NDArray[np.int64]) -> list[Any]:
        if not len(numbers):
            return []
        first, last = int(numbers[0]), int(numbers[-1])
        low, high = int(self._offsets[first]), int(self._offsets[last + 1])
        with self._file.reading() as read:
            block = read(low, high - low).tobytes()
        begins, ends = self._offsets[numbers] - low, self._offsets[numbers + 1] - low
        whole = len(block) == high - low
        if whole and sound_frames(np.frombuffer(block, np.uint8), begins, ends):
            inner = begins + _HEADER.size, ends - _FOOTER.size
            if self._raw:
                bounds = zip(*(each.tolist() for each in inner), strict=True)
                return [block[begin:end] for begin, end in bounds]
            with contextlib.suppress(ValueError):  # found again below, with its number
                return list(self._examples.parse(block, *inner))
        frames = memoryview(block)
        places = zip(begins.tolist(), ends.tolist(), numbers.tolist(), strict=True)
        return [self._record(frames[begin:end], number) for begin, end, number in places]

    def _record(self, frame: memoryview, number: int) -> Any:
        name = self._file.name
        if len(frame) < _FRAME_NBYTES:
            raise RecordError(name, number, "the file is cut off within it")
        nbytes, length_crc = _HEADER.unpack_from(frame)
        if masked_crc32c(frame[:8]) != length_crc:
            raise RecordError(name, number, "its length is corrupt; no later record can be found")
        if nbytes != len(frame) - _FRAME_NBYTES:
            raise RecordError(name, number, "the file is cut off within it")
        data = frame[_HEADER.size : -_FOOTER.size]
        if masked_crc32c(data) != _FOOTER.unpack_from(frame, len(frame) - _FOOTER.size)[0]:
            raise RecordError(name, number, "its checksum is wrong: the data is corrupt")
        if self._raw:
            return bytes(data)
        try:
            return parse_example(bytes(data))
        except ValueError as error:
            reason = f"it is no tf.train.Example ({error}); raw=true gives the bytes"
            raise RecordError(name, number, reason) from error


def _offsets(file: DataFile) -> NDArray[np.int64]:
    """Return the first byte of each record, and the end of the last."""
    size, offset = file.nbytes(), 0
    nbytes = file.at_once(_CHUNK_NBYTES)
    parts, ends = [np.zeros(1, np.int64)], np.empty(nbytes // _FRAME_NBYTES + 1, np.int64)
    with file.reading() as read:
        while offset < size:
            chunk = read(offset, min(nbytes, size - offset))
            found, corrupt = walk_frames(chunk, offset, size, ends)
            parts.append(ends[:found].copy())
            if corrupt or not found:  # what follows cannot be found
                parts.append(np.array([size], np.int64))
                break
            offset = int(ends[found - 1])
    return np.concatenate(parts)

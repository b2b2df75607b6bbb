"""A writer of TensorBoard's event files, without TensorBoard: it may be installed elsewhere.

A record is its length (uint64), the masked CRC-32C of that, the bytes, and theirs; the bytes are a
protobuf message Event: 1 wall_time (double), 2 step (int64), 3 file_version (string), 5 summary,
whose 1 is a value with 1 tag (string) and 2 simple_value (float), or 8 a tensor of one string
(1 type, 2 shape, 8 the string) and 9 metadata (1 plugin: 1 its name).
"""

from __future__ import annotations

import logging
import math
import os
import socket
import struct
import time
from pathlib import Path

from .errors import UsageError

log = logging.getLogger(__name__)

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _float(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:  # of a double
        return struct.pack("<f", math.copysign(math.inf, value))


def head(wall: float) -> bytes:
    """Return what a file begins with. `wall`: seconds since 1970, here and below."""
    return _record(_bytes(3, b"brain.Event:2"), 0, wall)


def scalar(tag: str, value: float, step: int, wall: float) -> bytes:
    """Return the record of a point of a curve."""
    point = _bytes(1, tag.encode()) + b"\x15" + _float(value)
    return _record(_bytes(5, _bytes(1, point)), step, wall)


def text(tag: str, words: str, step: int, wall: float) -> bytes:
    """Return the record of a text, which is shown as Markdown."""
    tensor = b"\x08\x07" + _bytes(2, _bytes(2, b"\x08\x01")) + _bytes(8, words.encode())
    told = _bytes(8, tensor) + _bytes(9, _bytes(1, _bytes(1, b"text")))
    return _record(_bytes(5, _bytes(1, _bytes(1, tag.encode()) + told)), step, wall)


def _record(what: bytes, step: int, wall: float) -> bytes:
    event = b"\x09" + struct.pack("<d", wall) + b"\x10" + _varint(step) + what
    length = struct.pack("<Q", len(event))
    return b"".join(part + struct.pack("<I", _masked_crc(part)) for part in (length, event))


def name_of_file(now: float) -> str:
    """Return a name that TensorBoard takes for one of such a file."""
    return f"events.out.tfevents.{now:.0f}.{socket.gethostname()}.{os.getpid()}.edl"


class EventFile:
    """A new file of scalars in `folder`.

    What cannot be written is told once, and the job goes on.
    """

    def __init__(self, folder: Path) -> None:
        self._lost = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(folder / name_of_file(time.time()), "ab", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise UsageError(f"--output: {folder} cannot be written: {error.strerror}.") from error
        self._write(head(time.time()))

    def add(self, tag: str, value: float, step: int) -> None:
        self._write(scalar(tag, value, step, time.time()))

    def close(self) -> None:
        self._file.close()

    def _write(self, record: bytes) -> None:
        try:
            self._file.write(record)
        except OSError as error:
            if not self._lost:
                log.warning("scalars -> lost file=%s error=%s", self._file.name, error)
            self._lost = True

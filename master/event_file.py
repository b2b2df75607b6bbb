"""A writer of TensorBoard's event files, without TensorBoard: it may be installed elsewhere.

A record is its length (uint64), the masked CRC-32C of that, the bytes, and theirs; the bytes are a
protobuf message Event: 1 wall_time (double), 2 step (int64), 3 file_version (string), 5 summary,
whose 1 is a value with 1 tag (string) and 2 simple_value (float).
"""

from __future__ import annotations

import logging
import math
import os
import socket
import struct
import time
from pathlib import Path

from ..common.errors import UsageError

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


class EventFile:
    """A new file of scalars in `folder`.

    What cannot be written is told once, and the job goes on.
    """

    def __init__(self, folder: Path) -> None:
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.edl"
        self._lost = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(folder / name, "ab", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise UsageError(f"--output: {folder} cannot be written: {error.strerror}.") from error
        self._write(_bytes(3, b"brain.Event:2"), 0)

    def add(self, tag: str, value: float, step: int) -> None:
        scalar = _bytes(1, tag.encode()) + b"\x15" + _float(value)
        self._write(_bytes(5, _bytes(1, scalar)), step)

    def close(self) -> None:
        self._file.close()

    def _write(self, what: bytes, step: int) -> None:
        event = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _varint(step) + what
        length = struct.pack("<Q", len(event))
        crcs = (struct.pack("<I", _masked_crc(part)) for part in (length, event))
        parts = zip((length, event), crcs, strict=True)
        try:
            self._file.write(b"".join(part + crc for part, crc in parts))
        except OSError as error:
            if not self._lost:
                log.warning("scalars -> lost file=%s error=%s", self._file.name, error)
            self._lost = True

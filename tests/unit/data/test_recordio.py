"""ElasticDL's RecordIO, by a writer of its own: both layouts of headers, all ways of packing."""

from __future__ import annotations

import gzip
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from edl.common.errors import DataError, RecordError
from edl.data.open import open_reader

pytestmark = pytest.mark.fast

MAGIC = bytes([4, 3, 2, 1])
RECORDS = [f"record {i}".encode() * (i % 5) for i in range(23)]
CHUNKS = [RECORDS[:1], RECORDS[1:12], RECORDS[12:]]


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of RFC 3720, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def framed(data: bytes) -> bytes:
    """Return Snappy's framing format: the stream's name, then half packed, half plain."""
    out = b"\xff\x06\x00\x00sNaPpY\xfe\x02\x00\x00pp"  # with padding, which is passed over
    half = len(data) // 2
    for kind, part in ((0, data[:half]), (1, data[half:])):
        crc = crc32c(part)
        crc = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        body = struct.pack("<I", crc) + (part if kind else snappy(part))
        out += bytes([kind]) + len(body).to_bytes(3, "little") + body
    return out


def snappy(data: bytes) -> bytes:
    return bytes(pa.Codec("snappy").compress(data, asbytes=True))


def go(records: list[bytes], packing: str) -> bytes:
    number = {"plain": 0, "snappy": 1, "gzip": 2}[packing]
    body = pack(records, {"plain": bytes, "snappy": framed, "gzip": gzip.compress}[packing])
    return MAGIC + struct.pack("<4I", zlib.crc32(body), number, len(body), len(records)) + body


def python(records: list[bytes], packing: str) -> bytes:
    number = {"plain": 1, "snappy": 2, "gzip": 3}[packing]
    body = pack(records, {"plain": bytes, "snappy": snappy, "gzip": gzip.compress}[packing])
    return MAGIC + struct.pack("<4I", len(records), crc32c(body), number, len(body)) + body


def pack(records: list[bytes], packer: Callable[[bytes], bytes]) -> bytes:
    return packer(b"".join(struct.pack("<I", len(each)) + each for each in records))


every_way = pytest.mark.parametrize("packing", ["plain", "snappy", "gzip"])
both_layouts = pytest.mark.parametrize("chunk", [go, python])


@every_way
@both_layouts
def test_any_range_is_what_was_written(
    tmp_path: Path, chunk: Callable[..., bytes], packing: str
) -> None:
    path = tmp_path / "data.recordio"
    path.write_bytes(b"".join(chunk(part, packing) for part in CHUNKS))
    reader = open_reader(str(path), raw=True)

    assert [23] == [source.records for source in reader.sources()]
    for start, end in ((0, 23), (0, 1), (5, 14), (22, 23), (7, 7)):
        assert RECORDS[start:end] == reader.read(str(path), start, end)
    assert RECORDS[3:5] + RECORDS[6:8] == reader.read(str(path), 3, 8, skip=[5])


def test_records_are_parsed_as_examples(tmp_path: Path) -> None:
    path = tmp_path / "part-00000"
    feature = b"\x1a\x03\x0a\x01\x07"  # an Int64List of 7
    entry = b"\x0a\x01a\x12" + bytes([len(feature)]) + feature
    features = b"\x0a" + bytes([len(entry)]) + entry
    path.write_bytes(go([b"\x0a" + bytes([len(features)]) + features, b"no example"], "plain"))
    reader = open_reader(str(path), format="recordio")

    assert [7] == reader.read(str(path), 0, 1)[0]["a"].tolist()
    with pytest.raises(RecordError, match="record 1: it is no tf.train.Example .*raw=true"):
        reader.read(str(path), 0, 2)


@every_way
def test_broken_chunk_breaks_its_own_records(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "data.recordio"
    chunks = [go(part, packing) for part in CHUNKS]
    torn = bytearray(chunks[1])
    torn[-3] ^= 1
    path.write_bytes(chunks[0] + torn + chunks[2])
    reader = open_reader(str(path), raw=True)

    with pytest.raises(RecordError, match="record 1: the checksum of its chunk is wrong"):
        reader.read(str(path), 0, 23)
    assert [RECORDS[0], *RECORDS[12:]] == reader.read(str(path), 0, 23, skip=range(1, 12))


def test_what_follows_a_broken_header_is_one_broken_record(tmp_path: Path) -> None:
    path = tmp_path / "data.recordio"
    good = go(CHUNKS[1], "plain")
    path.write_bytes(good + b"?" + good[1:] + good)
    reader = open_reader(str(path), raw=True)

    assert 12 == reader.sources()[0].records
    with pytest.raises(RecordError, match="record 11: a chunk's header is corrupt"):
        reader.read(str(path), 0, 12)


@pytest.mark.parametrize("cut", [1, 60, 250])
def test_cut_off_file_has_broken_records_at_its_end(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "data.recordio"
    path.write_bytes(b"".join(go(part, "plain") for part in CHUNKS)[:-cut])
    reader = open_reader(str(path), raw=True)

    with pytest.raises(RecordError, match="record 12: .*cut off"):
        reader.read(str(path), 0, reader.sources()[0].records)
    assert RECORDS[:12] == reader.read(str(path), 0, 12)


@pytest.mark.parametrize("records", [2, 40, 2**31])
def test_header_that_claims_what_the_chunk_has_not(tmp_path: Path, records: int) -> None:
    path = tmp_path / "data.recordio"
    body = b"\xff\xff\x00\x00abcd" * 3
    path.write_bytes(MAGIC + struct.pack("<4I", zlib.crc32(body), 0, len(body), records) + body)

    with pytest.raises(DataError, match="longer than its chunk|header that is corrupt"):
        open_reader(str(path), raw=True).read(str(path), 0, 1)


@pytest.mark.parametrize(
    "data", [b"\x0a\x23\xd7\xce" * 9, b"x", MAGIC + struct.pack("<4I", 0, 9, 9, 9)]
)
def test_file_that_is_no_recordio_is_an_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "data.recordio"
    path.write_bytes(data)

    with pytest.raises(DataError, match=r"is no RecordIO of ElasticDL|header that is corrupt"):
        open_reader(str(path)).sources()


def test_snappy_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data.recordio").write_bytes(go(RECORDS, "snappy"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(DataError, match=r"Snappy .*pip install '.\[parquet\]'"):
        open_reader(str(tmp_path / "data.recordio")).sources()

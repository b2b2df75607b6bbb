"""One suite that every reader passes: counts, ranges, skips, order, broken records, errors."""

from __future__ import annotations

import gzip
import pickle
import random
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from edl.common.errors import DataError, RecordError, UsageError
from edl.data.kernels import masked_crc32c
from edl.data.open import open_reader
from edl.data.reader import Columns, schema_of

pytestmark = pytest.mark.fast

N = 1200


def names(n: int) -> list[str]:
    return [f"Zoë {i}" if i % 3 else f'日本 "{i}",\nline' for i in range(n)]


# -- One maker per format: it writes N records below the folder and returns the path.


def make_csv(folder: Path, sep: str = ",", suffix: str = "csv") -> Path:
    path = folder / f"data.{suffix}"
    rows = [sep.join(("number", "half", "name"))]
    for i, name in enumerate(names(N)):
        quoted = name.replace('"', '""')
        rows.append(sep.join((str(i), str(i / 2), f'"{quoted}"')))
    data = ("\r\n".join(rows) + "\r\n").encode()
    path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    return path


def make_parquet(folder: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    columns = {"number": np.arange(N), "half": np.arange(N) / 2, "name": names(N)}
    path = folder / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=100)
    return path


def make_npy(folder: Path) -> Path:
    np.save(folder / "data.npy", np.arange(N * 6, dtype=np.float32).reshape(N, 2, 3))
    return folder / "data.npy"


def make_structured_npy(folder: Path) -> Path:
    array = np.zeros(N, dtype=[("number", "i8"), ("half", "f4")])
    array["number"], array["half"] = np.arange(N), np.arange(N) / 2
    np.save(folder / "data.npy", array)
    return folder / "data.npy"


def make_npz(folder: Path, save: Callable[..., None] = np.savez) -> Path:
    picture = np.arange(N * 4, dtype=np.uint8).reshape(N, 2, 2)
    save(folder / "data.npz", number=np.arange(N), name=np.array(names(N)), picture=picture)
    return folder / "data.npz"


def varint(number: int) -> bytes:
    out = b""
    while number >= 128:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def message(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def example(features: dict[str, bytes]) -> bytes:
    entries = (message(1, name.encode()) + message(2, body) for name, body in features.items())
    return message(1, b"".join(message(1, entry) for entry in entries))


def frame(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return (
        head
        + struct.pack("<I", masked_crc32c(head))
        + data
        + struct.pack("<I", masked_crc32c(data))
    )


def make_tfrecord(folder: Path) -> Path:
    path = folder / "data.tfrecord"
    with path.open("wb") as stream:
        for i, name in enumerate(names(N)):
            integers = message(3, message(1, varint(i) + varint((1 << 64) - 1 - i)))
            floats = message(2, message(1, struct.pack("<2f", i, i / 2)))
            texts = message(1, message(1, name.encode()))
            stream.write(frame(example({"number": integers, "half": floats, "name": texts})))
    return path


def make_idx(folder: Path) -> Path:
    images = np.arange(N * 12, dtype=np.uint8).tobytes()
    labels = bytes(i % 10 for i in range(N))
    (folder / "x-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, N) + labels)
    path = folder / "x-images-idx3-ubyte"
    path.write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, N, 4, 3) + images)
    return path


def make_images(folder: Path) -> Path:
    from PIL import Image

    for i in range(60):
        path = folder / "pictures" / ("chat" if i % 2 else "Hündchen") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.full((4, 5, 3), i, dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return folder / "pictures"


def make_text(folder: Path) -> Path:
    for i, name in enumerate(names(60)):
        path = folder / "texts" / f"class{i % 3}" / f"{i}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name, encoding="utf-8")
    return folder / "texts"


# -- One breaker per format: it breaks a record and returns which records cannot be read any more.


def break_line(path: Path) -> list[int]:
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\r\n517", b"\r\nmany"))
    return [517]


def cut_off(path: Path) -> list[int]:
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    return [N - 1]


def flip_data_of_record(path: Path) -> list[int]:
    data = bytearray(path.read_bytes())
    data[data.index("Zoë 517".encode())] ^= 1
    path.write_bytes(data)
    return [517]


def break_row_group(path: Path) -> list[int]:
    import pyarrow.parquet

    metadata = pyarrow.parquet.ParquetFile(path).metadata
    column = metadata.row_group(5).column(2)
    start = column.dictionary_page_offset or column.data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 30] = b"\xff" * 30
    path.write_bytes(data)
    return list(range(500, 600))


def break_one_file(path: Path) -> list[int]:
    reader = open_reader(str(path))
    (source,) = reader.sources()
    records = reader.read(source.name, 0, source.records)
    assert isinstance(records, Columns)
    Path(records["path"][17]).write_bytes(b"\xff\xfe\xff")
    return [17]


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[Path], Path]
    records: int = N
    params: dict[str, Any] = field(default_factory=dict)
    column: str = ""  # one that can be chosen with columns=
    damage: Callable[[Path], list[int]] | None = None


CASES = [
    Case("csv", make_csv, column="half", damage=break_line),
    Case("csv.gz", lambda d: make_csv(d, ",", "csv.gz"), column="name"),
    Case("tsv", lambda d: make_csv(d, "\t", "tsv"), column="name", damage=break_line),
    Case(
        "csv ;",
        lambda d: make_csv(d, ";", "txt"),
        params={"format": "csv", "sep": ";"},
        damage=break_line,
    ),
    Case("parquet", make_parquet, column="name", damage=break_row_group),
    Case("npy", make_npy, damage=cut_off),
    Case("npy, structured", make_structured_npy, column="half", damage=cut_off),
    Case("npz", make_npz, column="name"),
    Case("npz, compressed", lambda d: make_npz(d, np.savez_compressed), column="name"),
    Case("tfrecord", make_tfrecord, damage=flip_data_of_record),
    Case("tfrecord, cut off", make_tfrecord, damage=cut_off),
    Case("tfrecord, raw", make_tfrecord, params={"raw": "true"}, damage=flip_data_of_record),
    Case("idx", make_idx, damage=cut_off),
    Case("images", make_images, records=60, damage=break_one_file),
    Case("text", make_text, records=60, damage=break_one_file),
]
every_format = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
with_columns = pytest.mark.parametrize(
    "case", [c for c in CASES if c.column], ids=lambda case: case.name
)
breakable = pytest.mark.parametrize(
    "case", [c for c in CASES if c.damage], ids=lambda case: case.name
)


def plain(records: Any) -> Any:
    """Return records as lists, so that they can be compared."""
    if isinstance(records, Columns):
        return {name: records[name].tolist() for name in records.names}
    return [
        {k: v if isinstance(v, list) else v.tolist() for k, v in record.items()}
        if isinstance(record, dict)
        else record
        for record in records
    ]


def choose(records: Any, numbers: list[int]) -> Any:
    if isinstance(records, dict):
        return {name: [column[i] for i in numbers] for name, column in records.items()}
    return [records[i] for i in numbers]


def read_all(path: str | Path, **params: Any) -> tuple[Any, str, Any]:
    """Return (reader, source, all records)."""
    reader = open_reader(str(path), **params)
    (source,) = reader.sources()
    return reader, source.name, plain(reader.read(source.name, 0, source.records))


@every_format
def test_records_are_counted(case: Case, tmp_path: Path) -> None:
    reader = open_reader(str(case.make(tmp_path)), **case.params)

    assert [case.records] == [source.records for source in reader.sources()]


@every_format
def test_any_range_equals_its_part_of_the_whole(case: Case, tmp_path: Path) -> None:
    reader, source, whole = read_all(case.make(tmp_path), **case.params)
    rng = random.Random(1)
    ranges = [sorted(rng.choices(range(case.records + 1), k=2)) for _ in range(12)]

    for start, end in [*ranges, (0, 1), (case.records - 1, case.records), (5, 5)]:
        expected = choose(whole, list(range(start, end)))
        assert expected == plain(reader.read(source, start, end))


@every_format
def test_skipped_records_are_left_out(case: Case, tmp_path: Path) -> None:
    reader, source, whole = read_all(case.make(tmp_path), **case.params)

    left = plain(reader.read(source, 3, 20, skip={3, 7, 8, 19, 40}))

    assert choose(whole, [i for i in range(3, 20) if i not in (3, 7, 8, 19)]) == left


@every_format
def test_when_all_are_skipped_nothing_is_left(case: Case, tmp_path: Path) -> None:
    reader, source, whole = read_all(case.make(tmp_path), **case.params)

    assert choose(whole, []) == plain(reader.read(source, 3, 5, skip=[3, 4]))


@every_format
def test_order_is_the_same_in_a_second_reader(case: Case, tmp_path: Path) -> None:
    path = case.make(tmp_path)

    assert read_all(path, **case.params)[2] == read_all(path, **case.params)[2]


@every_format
def test_range_beyond_the_end_is_an_error(case: Case, tmp_path: Path) -> None:
    reader, source, _ = read_all(case.make(tmp_path), **case.params)

    with pytest.raises(DataError, match=f"has {case.records} records"):
        reader.read(source, 0, case.records + 1)


@breakable
def test_broken_record_is_named_and_can_be_skipped(case: Case, tmp_path: Path) -> None:
    path = case.make(tmp_path)
    before, _, whole = read_all(path, **case.params)
    assert case.damage is not None
    broken = case.damage(path)
    reader = open_reader(str(path), schema=schema_of(before), **case.params)
    (source,) = reader.sources()

    with pytest.raises(RecordError) as raised:
        reader.read(source.name, 0, case.records)
    left = plain(reader.read(source.name, 0, case.records, skip=broken))

    assert (source.name, broken[0]) == (raised.value.source, raised.value.record)
    assert choose(whole, [i for i in range(case.records) if i not in broken]) == left


@every_format
def test_empty_file_is_an_error(case: Case, tmp_path: Path) -> None:
    path = case.make(tmp_path)
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    for file in files:
        file.write_bytes(b"")
    reader = open_reader(str(path), **case.params)

    def read() -> None:
        (source,) = reader.sources()
        reader.read(source.name, 0, 1)

    with pytest.raises(DataError):
        read()


@every_format
def test_missing_file_is_a_usage_error(case: Case, tmp_path: Path) -> None:
    path = case.make(tmp_path)

    with pytest.raises(UsageError, match="no file or folder"):
        open_reader(f"{path}.absent", **case.params)


@with_columns
def test_only_the_wanted_column_is_read(case: Case, tmp_path: Path) -> None:
    path = case.make(tmp_path)
    _, _, whole = read_all(path)

    assert {case.column: whole[case.column]} == read_all(path, columns=[case.column])[2]


@with_columns
def test_missing_column_is_named_with_those_there_are(case: Case, tmp_path: Path) -> None:
    path = case.make(tmp_path)

    with pytest.raises(DataError, match=rf"no column 'absent'; it has .*{case.column}"):
        open_reader(str(path), columns=f"{case.column}|absent").sources()


@every_format
def test_memory_file_system_reads_the_same(case: Case, tmp_path: Path) -> None:
    path = case.make(tmp_path)
    _, _, local = read_all(path, **case.params)
    fs = fsspec.filesystem("memory")
    fs.put(str(tmp_path), "/case", recursive=True)
    try:
        _, _, remote = read_all(f"memory://case/{path.name}", **case.params)
    finally:
        fs.rm("/case", recursive=True)

    for records in (local, remote):
        if isinstance(records, dict) and "path" in records:
            records["path"] = [Path(each).name for each in records["path"]]
    assert local == remote


@every_format
def test_pickled_reader_reads_the_same(case: Case, tmp_path: Path) -> None:
    reader, source, whole = read_all(case.make(tmp_path), **case.params)

    copy = pickle.loads(pickle.dumps(reader))

    assert whole == plain(copy.read(source, 0, case.records))


@every_format
def test_several_threads_read_the_same(case: Case, tmp_path: Path) -> None:
    path = case.make(tmp_path)
    _, source, whole = read_all(path, **case.params)
    fresh = open_reader(str(path), **case.params)
    starts = list(range(0, case.records - 10, max(1, case.records // 8)))

    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda s: plain(fresh.read(source, s, s + 10)), starts))

    assert [choose(whole, list(range(s, s + 10))) for s in starts] == parts


@every_format
def test_job_keeps_the_index_and_reads_the_same(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = case.make(tmp_path)
    _, _, whole = read_all(path, **case.params)
    monkeypatch.setenv("EDL_JOB_DIR", str(tmp_path / "job"))

    twice = [read_all(path, **case.params)[2] for _ in range(2)]

    assert [whole, whole] == twice

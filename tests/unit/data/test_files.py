"""Folders as they are on real machines: links, empty parts, keys, packings, changing data."""

from __future__ import annotations

import bz2
import gzip
import json
import logging
import lzma
import os
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from edl.common.errors import DataError, RecordError, UsageError
from edl.data import paths
from edl.data.kernels import masked_crc32c
from edl.data.open import open_reader
from edl.data.reader import Columns

pytestmark = pytest.mark.fast


def names(path: str | Path, **params: Any) -> list[str]:
    return [Path(source.name).name for source in open_reader(str(path), **params).sources()]


def everything(path: str | Path, **params: Any) -> dict[str, list[Any]]:
    reader = open_reader(str(path), **params)
    parts = [reader.read(source.name, 0, source.records) for source in reader.sources()]
    assert all(isinstance(part, Columns) for part in parts)
    return {n: [v for part in parts for v in part[n].tolist()] for n in parts[0].names}  # type: ignore


def npy(path: Path, *values: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.array(values, dtype=np.int64))
    return path


def parquet(path: Path, values: Any, kind: pa.DataType | None = None, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pa.table({"x": pa.array(values, kind)}), path, **options)
    return path


# -- Links


@pytest.mark.parametrize("prefix", ["", "file://"])
@pytest.mark.parametrize("below", ["", "/**/*.npy", "/*/*.npy", "/*", "/**"])
def test_links_to_folders_are_followed(tmp_path: Path, prefix: str, below: str) -> None:
    npy(tmp_path / "elsewhere" / "b.npy", 2)
    npy(tmp_path / "elsewhere" / "deep" / "c.npy", 3)
    npy(tmp_path / "data" / "own" / "a.npy", 1)
    (tmp_path / "data" / "link").symlink_to("../elsewhere")

    found = names(f"{prefix}{tmp_path}/data{below}")

    assert ["a.npy", "b.npy", "c.npy"] == sorted(
        {*found, *(["c.npy"] if below == "/*/*.npy" else [])}
    )
    assert len(found) == len(set(found))


@pytest.mark.parametrize("below", ["", "/**/*.npy", "/*"])
def test_cycles_and_second_ways_to_a_folder_are_left_out_with_a_word(
    tmp_path: Path, below: str, caplog: pytest.LogCaptureFixture
) -> None:
    npy(tmp_path / "beside.npy", 9)
    npy(tmp_path / "data" / "a" / "a.npy", 1)
    npy(tmp_path / "data" / "b" / "b.npy", 2)
    (tmp_path / "data" / "a" / "up").symlink_to("../..")
    (tmp_path / "data" / "a" / "self").symlink_to(".")
    (tmp_path / "data" / "a" / "b").symlink_to("../b")
    (tmp_path / "data" / "b" / "a").symlink_to("../a")
    (tmp_path / "data" / "latest").symlink_to("b")

    with caplog.at_level(logging.WARNING):
        found = names(f"{tmp_path}/data{below}")

    assert ["a.npy", "b.npy"] == found
    assert "latest is left out" in caplog.text
    assert "up is left out" in caplog.text


@pytest.mark.parametrize("suffix", ["png", "txt"])
def test_class_folders_may_be_links(tmp_path: Path, suffix: str) -> None:
    from PIL import Image

    for name in ("cat", "dog"):
        folder = tmp_path / "store" / f"{name}-v2"
        folder.mkdir(parents=True)
        if suffix == "png":
            Image.new("RGB", (2, 2)).save(folder / "1.png")
        else:
            (folder / "1.txt").write_text("words")
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / name).symlink_to(folder)

    for path in (tmp_path / "data", f"{tmp_path}/data/*/*.{suffix}"):
        read = everything(path)
        assert ["cat", "dog"] == sorted(Path(each).parent.name for each in read["path"])

    assert {0, 1} == set(read["label"])


def test_folder_that_cannot_be_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npy(tmp_path / "a.npy", 1)

    def refuse(folder: str) -> None:
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(paths.os, "scandir", refuse)

    with pytest.raises(DataError, match="cannot be listed: .*Permission denied"):
        open_reader(str(tmp_path))


def test_glob_takes_the_files_below_folders_that_match_and_no_hidden_ones(tmp_path: Path) -> None:
    npy(tmp_path / "day=1" / "a.npy", 1)
    npy(tmp_path / "day=2" / "b.npy", 2)
    npy(tmp_path / "other" / "c.npy", 3)
    npy(tmp_path / "day=1" / ".ipynb_checkpoints" / "a.npy", 4)
    npy(tmp_path / "day=1" / "_temporary" / "d.npy", 5)

    assert {"data": [1, 2], "day": [1, 2]} == everything(f"{tmp_path}/day=*")
    assert ["a.npy", "b.npy", "c.npy"] == names(f"{tmp_path}/**/*.npy", partitions="false")
    assert ["d.npy"] == names(f"{tmp_path}/day=1/_temporary/*.npy")


# -- Data that changes


def rewritten(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file anew in place, as later as file systems can tell."""
    write(path)
    os.utime(path, ns=(1, 10**18))


FRAME = b"".join((
    bytes([4, 0, 0, 0, 0, 0, 0, 0]), masked_crc32c(bytes([4] + [0] * 7)).to_bytes(4, "little"),
    b"data", masked_crc32c(b"data").to_bytes(4, "little"),
))  # fmt: skip
CHANGES: dict[str, Callable[[Path, int], Any]] = {
    "npy": lambda path, n: npy(path, *range(n)),
    "npz": lambda path, n: np.savez(path, a=np.arange(n)),
    "parquet": lambda path, n: parquet(path, list(range(n)), pa.int64(), row_group_size=10),
    "tfrecord": lambda path, n: path.write_bytes(FRAME * n),
    "csv": lambda path, n: path.write_text("a\n" + "1\n" * n),
}


@pytest.mark.parametrize("n", [100, 60])
@pytest.mark.parametrize("suffix", CHANGES)
def test_data_that_was_rewritten_is_an_error_at_the_next_read(
    tmp_path: Path, suffix: str, n: int
) -> None:
    path = tmp_path / f"data.{suffix}"
    CHANGES[suffix](path, 100)
    reader = open_reader(str(path), **({"raw": True} if suffix == "tfrecord" else {}))
    (source,) = reader.sources()

    rewritten(path, lambda path: CHANGES[suffix](path, n))

    with pytest.raises(DataError, match="has changed since its records were counted") as raised:
        reader.read(source.name, 30, 50)
    assert not isinstance(raised.value, RecordError)


def test_file_put_in_the_place_of_another_is_noticed(tmp_path: Path) -> None:
    path, other = npy(tmp_path / "data.npy", 1, 2), npy(tmp_path / "other.npy", 3, 4)
    for each in (path, other):
        os.utime(each, ns=(1, 10**18))
    reader = open_reader(str(path))
    reader.sources()

    os.replace(other, path)

    with pytest.raises(DataError, match="has changed"):
        reader.read(str(path), 0, 2)


def test_worker_of_a_job_notices_what_changed_before_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_JOB_DIR", str(tmp_path / "job"))
    path = npy(tmp_path / "data" / "data.npy", *range(100))
    open_reader(str(path)).sources()

    rewritten(path, lambda path: npy(path, *range(1, 101)))
    late = open_reader(str(path))

    with pytest.raises(DataError, match=r"has changed .*, or remove .*/job/index/\w+\.seen"):
        late.read(str(path), 0, 100)


def test_a_time_that_a_store_told_of_more_finely_in_a_listing_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_JOB_DIR", str(tmp_path))
    fsspec.filesystem("memory").pipe("/stamped/a.csv", b"v\n1\n")
    open_reader("memory://stamped").sources()
    (seen,) = (tmp_path / "index").glob("*.seen")
    size, told = json.loads(seen.read_text())
    assert "." in told

    seen.write_text(json.dumps([size, told.partition(".")[0] + "+00:00"]))

    assert [1] == [each.records for each in open_reader("memory://stamped").sources()]


def test_link_whose_target_changes_is_noticed(tmp_path: Path) -> None:
    path = npy(tmp_path / "a.npy", *range(100))
    (tmp_path / "link.npy").symlink_to(path)
    reader = open_reader(str(tmp_path / "link.npy"))
    (source,) = reader.sources()

    rewritten(path, lambda path: npy(path, *range(1, 101)))

    with pytest.raises(DataError, match="has changed"):
        reader.read(source.name, 0, 100)


# -- Many and empty files


@pytest.mark.parametrize("suffix", ["npy", "npz", "csv.gz", "parquet", "npz, compressed"])
def test_no_reader_keeps_descriptors(tmp_path: Path, suffix: str) -> None:
    for i in range(40):
        path = tmp_path / f"{i:03}.{suffix[:7].partition(',')[0]}"
        if suffix == "csv.gz":
            path.write_bytes(gzip.compress(b"a\n1\n"))
        elif suffix == "npz, compressed":
            np.savez_compressed(path, a=np.arange(1))
        else:
            CHANGES[suffix](path, 1)
    npy(tmp_path / "once" / "warm.npy", 1)  # what is imported and compiled keeps some
    before = len(os.listdir("/proc/self/fd"))
    reader = open_reader(f"{tmp_path}/0*")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)

    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 24, limit[1]))
    try:
        for source in reader.sources():
            reader.read(source.name, 0, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)

    assert len(os.listdir("/proc/self/fd")) < before + 20


@pytest.mark.parametrize("content", ["no bytes", "no rows"])
@pytest.mark.parametrize("suffix", ["npy", "npz", "parquet", "tfrecord"])
def test_empty_parts_among_others_are_left_out_with_a_word(
    tmp_path: Path, suffix: str, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    if (suffix, content) == ("tfrecord", "no rows"):
        pytest.skip("a TFRecord without records has no bytes")
    for name, n in (("part-0", 0), ("part-1", 3), ("part-2", 0)):
        path = tmp_path / f"{name}.{suffix}"
        CHANGES[suffix](path, n)
        if not n and content == "no bytes":
            path.write_bytes(b"")
    (tmp_path / "_SUCCESS").write_bytes(b"")
    params = {"raw": True} if suffix == "tfrecord" else {}

    with caplog.at_level(logging.WARNING):
        found = names(tmp_path, **params)

    assert [f"part-1.{suffix}"] == found
    assert "2 of 3 files have no records and are left out" in caplog.text
    (tmp_path / f"part-1.{suffix}").unlink()
    with pytest.raises(DataError, match="like each of 2 files.* has no records"):
        names(tmp_path, **params)


# -- Packed files


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [
        ("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress),
        ("zst", lambda data: pa.Codec("zstd").compress(data, asbytes=True)),
    ],
)  # fmt: skip
def test_packed_csv_is_read_and_a_torn_one_named(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"data.csv.{suffix.upper() if suffix == 'gz' else suffix}"
    packed = pack(b"a,b\n1,x\n2,y\n" * 1 + b"3,z\n" * 500)
    path.write_bytes(packed)

    assert [1, 2, 3] == everything(path)["a"][:3]
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match="cannot be decompressed"):
        everything(path)


@pytest.mark.parametrize("name", ["data.csv.zip", "data.parquet.gz", "data.csv.lz4", "x.npz.xz"])
def test_file_packed_in_a_way_that_is_not_read_is_named_and_not_left_out(
    tmp_path: Path, name: str
) -> None:
    npy(tmp_path / "good.npy", 1)
    (tmp_path / name).write_bytes(b"x")

    with pytest.raises(DataError, match=f"{name} is packed as .*unpack it"):
        open_reader(str(tmp_path))


def test_zst_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    (tmp_path / "data.tfrecord.zst").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(DataError, match=r"pip install '.\[parquet\]'"):
        open_reader(str(tmp_path / "data.tfrecord.zst")).sources()


# -- .npz that claims more than it has


def forged(path: Path, rows: int, compression: int = zipfile.ZIP_STORED) -> Path:
    """A member of 100 rows that claims `rows`, and another behind it."""
    import io

    body = io.BytesIO()
    np.save(body, np.arange(100))
    data = body.getvalue().replace(b"(100,)", f"({rows},)".encode())
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("a.npy", data)
        archive.writestr("b.npy", data)
    return path


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_member_that_claims_more_rows_than_it_has_is_an_error(
    tmp_path: Path, compression: int
) -> None:
    with pytest.raises(DataError, match="claims 140 rows and has 100"):
        everything(forged(tmp_path / "data.npz", 140, compression))


@pytest.mark.parametrize("in_job", [False, True])
def test_stored_member_with_a_wrong_checksum_is_an_error(
    tmp_path: Path, in_job: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_job:
        monkeypatch.setenv("EDL_JOB_DIR", str(tmp_path / "job"))
    path = tmp_path / "data.npz"
    np.savez(path, a=np.arange(50_000))
    data = bytearray(path.read_bytes())
    data[300_000] ^= 1
    path.write_bytes(data)

    with pytest.raises(DataError, match="member 'a' .* is corrupt: Bad CRC"):
        everything(path)


def test_compressed_member_is_unpacked_onto_the_disk(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "data.npz", a=np.zeros(1 << 22))
    reader = open_reader(str(tmp_path / "data.npz"))
    (source,) = reader.sources()

    import tracemalloc

    reader.read(source.name, 0, 1)  # what is imported by the way
    tracemalloc.start()
    reader = open_reader(str(tmp_path / "data.npz"))
    records = reader.read(source.name, 7, 9)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert isinstance(records, Columns)
    assert [0, 0] == records["a"].tolist()
    assert peak < 8 << 20  # of the 32 MiB that it has


# -- Memory file systems


def test_folders_of_other_file_systems_know_keys_and_globs() -> None:
    fs = fsspec.filesystem("memory")
    try:
        for day in (1, 2):
            with fs.open(f"/table/day={day}/part.csv", "wb") as stream:
                stream.write(f"a\n{day}\n".encode())

        for path in ("memory://table", "memory://table/day=*", "memory://table/**/*.csv"):
            assert {"a": [1, 2], "day": [1, 2]} == everything(path)
    finally:
        fs.rm("/table", recursive=True)


# -- Keys


def test_keys_of_folders_are_columns_however_the_data_is_named(tmp_path: Path) -> None:
    for year, city, value in ((2023, "K%C3%B6ln", 1), (2024, "007", 2)):
        parquet(tmp_path / f"year={year}" / f"city={city}" / "part.parquet", [value])
    both = {"x": [1, 2], "year": [2023, 2024], "city": ["Köln", "007"]}
    last = {name: values[1:] for name, values in both.items()}

    assert both == everything(tmp_path)
    assert both == everything(f"{tmp_path}/year=*/*/*.parquet")
    assert last == everything(tmp_path / "year=2024")
    assert last == everything(
        tmp_path / "year=2024" / "city=007" / "part.parquet", dtypes="city:str"
    )
    assert {"city": ["Köln", "007"]} == everything(tmp_path, columns="city")
    assert {"city": ["Köln", "007"], "x": [1, 2]} == everything(tmp_path, columns=["city", "x"])
    assert ["2023", "2024"] == everything(tmp_path, partitions="year:str")["year"]
    assert {"x": [1, 2]} == everything(tmp_path, partitions=False)


def test_key_without_a_value_is_missing(tmp_path: Path) -> None:
    for day in ("1", "__HIVE_DEFAULT_PARTITION__"):
        npy(tmp_path / f"day={day}" / "part.npy", 5)

    with pytest.raises(DataError, match=r"folder day= without a value: .*missing=day:-1"):
        open_reader(str(tmp_path))
    assert {"data": [5, 5], "day": [1, 0]} == everything(tmp_path, missing="day:0|data:-1")
    assert "nan" == repr(everything(tmp_path, missing="day:nan")["day"][1])


def test_files_of_other_keys_or_a_column_of_that_name_are_errors(tmp_path: Path) -> None:
    parquet(tmp_path / "x=1" / "part.parquet", [1])

    with pytest.raises(
        DataError, match=r"has a column 'x' and lies in a folder x=.*partitions=false"
    ):
        names(tmp_path)
    with pytest.raises(UsageError, match="not 'integer'"):
        open_reader(str(tmp_path), partitions="x:integer")
    parquet(tmp_path / "plain.parquet", [1])
    with pytest.raises(
        DataError, match="key=value folders .*(none, above .* x|x, above .* none): name data"
    ):
        open_reader(str(tmp_path))


# -- Arrow types that have one outcome, or one sentence


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.list_(pa.float32(), 2), [[1, 2], None, [3, None]],
         "[[1.0, 2.0], [nan, nan], [3.0, nan]]"),
        (pa.list_(pa.string(), 2), [None, ["a", None]], "[['', ''], ['a', '']]"),
        (pa.list_(pa.list_(pa.float32(), 1), 2), [[[1], [2]], None],
         "[[[1.0], [2.0]], [[nan], [nan]]]"),
        (pa.time32("s"), [3, None], "[datetime.timedelta(seconds=3), None]"),
    ],
)  # fmt: skip
def test_list_with_missing_rows(tmp_path: Path, kind: Any, values: Any, expected: str) -> None:
    read = everything(parquet(tmp_path / "data.parquet", values, kind))

    assert expected == repr(read["x"])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.list_(pa.int64())), [[1]]), (pa.struct([("a", pa.int64())]), {"a": 1}),
        (pa.map_(pa.string(), pa.int64()), [("a", 1)]), (pa.null(), None),
    ],
)  # fmt: skip
def test_type_without_a_place_in_a_table_is_one_sentence(
    tmp_path: Path, kind: Any, value: Any
) -> None:
    path = parquet(tmp_path / "data.parquet", [value], kind)

    with pytest.raises(DataError, match=r"column 'x' has the type .*columns=a\|b"):
        open_reader(str(path)).sources()


@pytest.mark.parametrize(("data", "why"), [(b"\xff", "is no UTF-8"), (b"a\0", "ends with a NUL")])
def test_text_that_numpy_cannot_hold_is_a_broken_record(
    tmp_path: Path, data: bytes, why: str
) -> None:
    array = pa.array([b"good", data], pa.binary()).view(pa.string())
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pa.table({"x": array}), path)
    reader = open_reader(str(path))

    with pytest.raises(RecordError, match=f"record 1: column 'x': its text {why}"):
        reader.read(str(path), 0, 2)
    assert "good" == reader.read(str(path), 0, 2, skip=[1])["x"][0]  # type: ignore[call-overload]


def test_one_sentence_names_all_columns_and_what_to_paste(tmp_path: Path) -> None:
    table = pa.table({
        "user": pa.array([1, None]), "flag": pa.array([None, True]),
        "big": pa.array([None, 2**63], pa.uint64()), "age": pa.array([1.5, None]),
    })  # fmt: skip
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(table, path)

    with pytest.raises(DataError) as raised:
        open_reader(str(path)).sources()

    assert "'user', 'flag', 'big': say" in str(raised.value)
    (pasted,) = [p for p in str(raised.value).split("'") if p.startswith("missing=user:-1")]
    read = everything(path, missing=pasted.removeprefix("missing="))
    assert [[1, -1], [False, True], [0, 2**63]] == [read[n] for n in ("user", "flag", "big")]


def test_files_of_one_data_set_may_differ_in_nulls_and_width_and_not_in_type(
    tmp_path: Path,
) -> None:
    parquet(tmp_path / "a.parquet", [1, None], pa.int8(), write_statistics=False)
    parquet(tmp_path / "b.parquet", [2**53 + 1], pa.int64())
    reader = open_reader(str(tmp_path), missing="*:-1")

    dtypes = {str(reader.read(s.name, 0, s.records)["x"].dtype) for s in reader.sources()}  # type: ignore

    assert {"int64"} == dtypes

"""The particulars of CSV: quotes, types, the index."""

from __future__ import annotations

import csv
import gzip
import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.common.errors import DataError, RecordError, UsageError
from edl.data import csv as edl_csv
from edl.data import csv_dialect, csv_scan
from edl.data.open import open_reader
from edl.data.reader import Columns

pytestmark = pytest.mark.fast


def write(folder: Path, text: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(path: Path, skip: tuple[int, ...] = (), **params: Any) -> dict[str, list[Any]]:
    reader = open_reader(str(path), **params)
    (source,) = reader.sources()
    records = reader.read(source.name, 0, source.records, skip)
    assert isinstance(records, Columns)
    return {name: records[name].tolist() for name in records.names}


nasty = st.text(alphabet='ab ,"\n\r日é;', max_size=6)


@settings(max_examples=examples(150), deadline=None)
@given(
    rows=st.lists(st.tuples(nasty, nasty), min_size=1, max_size=30),
    chunk=st.integers(1, 40),
    ends=st.sampled_from(["\n", "\r\n"]),
    seed=st.integers(0, 9),
)
def test_whatever_the_csv_module_writes_is_read_in_any_range(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str]],
    chunk: int,
    ends: str,
    seed: int,
) -> None:
    stream = io.StringIO(newline="")
    # The module leaves a lone \r of unix files unquoted: quote all, as it cannot read that itself.
    writer = csv.writer(stream, lineterminator=ends, quoting=csv.QUOTE_ALL)
    writer.writerows([("x", "y"), *rows])
    path = write(tmp_path_factory.mktemp("csv"), stream.getvalue())
    start, end = sorted(random.Random(seed).choices(range(len(rows) + 1), k=2))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_scan, "CHUNK_NBYTES", chunk)
        for module in (edl_csv, csv_scan):
            patch.setattr(module, "STRIDE", 4)
        reader = open_reader(str(path), dtypes="x:str|y:str")
        (source,) = reader.sources()
        records = reader.read(source.name, start, end)

    assert isinstance(records, Columns)
    # numpy's fixed-width strings end at trailing NULs only, so all else must be equal.
    assert rows[start:end] == list(zip(records["x"].tolist(), records["y"].tolist(), strict=True))


def test_quote_within_an_unquoted_field_is_text(tmp_path: Path) -> None:
    path = write(tmp_path, 'name,size\nscreen,5" wide\nboard,"6"" wide"\n')

    assert {"name": ["screen", "board"], "size": ['5" wide', '6" wide']} == read(path)


def test_blank_lines_are_no_records(tmp_path: Path) -> None:
    assert {"a": [1, 2]} == read(write(tmp_path, "\n\na\r\n\r\n1\n\n2\n\n\n"))


def test_last_line_needs_no_newline_and_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    assert {"a": [1, 2]} == read(write(tmp_path, b"\xef\xbb\xbfa\n1\n2"))


def test_types_are_inferred(tmp_path: Path) -> None:
    path = write(tmp_path, "i,f,missing,text,id\n1,1.5,,x,99999999999999999999\n2,2,3.5,1_0,1\n")

    (source,) = (reader := open_reader(str(path))).sources()
    records = reader.read(source.name, 0, 2)

    assert isinstance(records, Columns)
    kinds = {name: records[name].dtype.kind for name in records.names}
    assert {"i": "i", "f": "f", "missing": "f", "text": "U", "id": "U"} == kinds
    np.testing.assert_array_equal([np.nan, 3.5], records["missing"])


def test_given_types_win(tmp_path: Path) -> None:
    path = write(tmp_path, "zip,age\n00501,1\n10001,2\n")

    assert {"zip": ["00501", "10001"], "age": [1.0, 2.0]} == read(
        path, dtypes="zip:str|age:float64"
    )


def test_all_files_have_the_same_types(tmp_path: Path) -> None:
    write(tmp_path, "a,b\n1.5,x\n", "0.csv")
    write(tmp_path, "b,a\n7,2\n", "1.csv")
    reader = open_reader(str(tmp_path))

    second = reader.read(reader.sources()[1].name, 0, 1)

    assert isinstance(second, Columns)
    assert {"a": [2.0], "b": ["7"]} == {name: second[name].tolist() for name in second.names}


def test_file_without_a_column_of_the_first_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a,b\n1,x\n", "0.csv")
    write(tmp_path, "a\n1\n", "1.csv")

    with pytest.raises(DataError, match=r"1\.csv has no column 'b'"):
        open_reader(str(tmp_path)).sources()


def test_file_without_header_has_numbered_or_given_names(tmp_path: Path) -> None:
    path = write(tmp_path, "1,x\n2,y\n")

    assert {"c0": [1, 2], "c1": ["x", "y"]} == read(path, header="false")
    assert {"n": [1, 2], "t": ["x", "y"]} == read(path, header=False, names="n|t")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1", "it has 1 fields, not 2"),
        ("1,2,3", "it has 3 fields, not 2"),
        ("x,2", "'x' is no int64"),
        ("99999999999999999999,2", "is no int64"),
        ('"1"2,2', "cannot be parsed"),
        ("1\r,2", "cannot be parsed"),
    ],
)
def test_broken_line_is_named_with_its_reason(tmp_path: Path, line: str, reason: str) -> None:
    good = "".join(f"{i},{i}\n" for i in range(300))
    path = write(tmp_path, f"a,b\n{good}{line}\n{good}")

    with pytest.raises(RecordError, match="record 300") as raised:
        read(path, dtypes="a:int64|b:int64")

    assert reason in raised.value.reason
    assert 600 == len(read(path, skip=(300,), dtypes="a:int64|b:int64")["a"])


def test_text_that_is_no_utf8_is_a_broken_record(tmp_path: Path) -> None:
    path = write(tmp_path, "a\nö\n".encode() + b"\xff\n" + b"b\n")

    with pytest.raises(RecordError, match="record 1"):
        read(path)

    assert {"a": ["ö", "b"]} == read(path, skip=(1,))
    assert ["Ã¶", "ÿ", "b"] == read(path, encoding="latin-1")["a"]


def test_quote_that_is_never_closed_breaks_the_last_record(tmp_path: Path) -> None:
    path = write(tmp_path, 'a\nx\n"y\nz\n')

    with pytest.raises(RecordError, match="record 1"):
        read(path)

    assert {"a": ["x"]} == read(path, skip=(1,))


def test_header_alone_is_no_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no records"):
        read(write(tmp_path, "a,b\n"))


def test_column_named_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'a' twice"):
        read(write(tmp_path, "a,a\n1,2\n"))


def test_torn_gz_is_an_error(tmp_path: Path) -> None:
    packed = gzip.compress(b"a\n" + bytes(1000))

    with pytest.raises(DataError, match="cannot be decompressed"):
        read(write(tmp_path, packed[:-9], "data.csv.gz"))


@pytest.mark.parametrize(
    "params", [{"sep": ",,"}, {"sep": '"'}, {"dtypes": "a:klingon"}, {"encoding": "klingon"}]
)
def test_impossible_parameter_is_a_usage_error(tmp_path: Path, params: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        read(write(tmp_path, "a\n1\n"), **params)


def test_a_range_reads_only_its_part_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "a\n" + "".join(f"{i + 10**8}\n" for i in range(100_000)))
    reader = open_reader(str(path))
    (source,) = reader.sources()
    seen = []
    scan = csv_dialect.scan_csv
    monkeypatch.setattr(
        csv_dialect, "scan_csv", lambda chunk, *rest: seen.append(len(chunk)) or scan(chunk, *rest)
    )

    records = reader.read(source.name, 70_000, 70_010)

    assert isinstance(records, Columns)
    assert [10**8 + i for i in range(70_000, 70_010)] == records["a"].tolist()
    assert 0 < sum(seen) <= 2 * 256 * 10


def test_job_scans_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_JOB_DIR", str(tmp_path / "job"))
    scans = []
    scan = csv_scan.scan
    monkeypatch.setattr(csv_scan, "scan", lambda *a: scans.append(1) or scan(*a))
    path = write(tmp_path, "a\n1\n2\n")

    assert [{"a": [1, 2]}] * 2 == [read(path), read(path)]
    assert 1 == len(scans)

    write(tmp_path, "a\n1\n2\n3\n")
    with pytest.raises(DataError, match="has changed since its records were counted"):
        read(path)

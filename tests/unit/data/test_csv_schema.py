"""CSV and the types of its columns: of other data, declared, and by keys of folders."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.csv_types import read, types, write

from edl.common.errors import DataError, RecordError, UsageError
from edl.data import csv_scan
from edl.data.csv_seen import Watch
from edl.data.open import open_reader
from edl.data.reader import schema_of
from edl.data.schema import SEEN, Field, Schema, Type

pytestmark = pytest.mark.fast


# -- Other data


def test_ids_of_other_data_are_texts_as_in_the_training_data(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", "user,y\nA0,10\n0,0\n")
    seen = schema_of(open_reader(str(tmp_path / "train.csv")))
    write(tmp_path / "test.csv", "user,y\n0,10\n1,10\n")

    assert {"user": "text", "y": "int64"} == {each.name: str(each.type) for each in seen}
    assert seen.notes()[0].startswith("user: text, since 'A0' is no number (record 0 of ")
    records = read(tmp_path / "test.csv", seen)
    assert (["0", "1"], [10, 10]) == (records["user"].tolist(), records["y"].tolist())


def test_leading_zeros_make_a_text_and_are_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "user,zip\n7,12345\n7,02215\n70,1\n")

    (note,) = schema_of(open_reader(path)).notes()
    assert f"zip: text, since 02215 has a leading zero (record 1 of {path})" == note
    assert ["12345", "02215", "1"] == read(path)["zip"].tolist()
    assert [12345, 2215, 1] == read(path, dtypes="zip:int64")["zip"].tolist()


@pytest.mark.parametrize("chunk", [7, 64, 1 << 20])
def test_the_record_that_decides_is_named_wherever_the_file_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(csv_scan, "CHUNK_NBYTES", chunk)
    write(tmp_path / "0.csv", "a,b\n" + "1,1\n" * 30)
    path = write(tmp_path / "1.csv", "a,b\n" + "1,1\n" * 40 + "01,1\n2,A\n02,B\n")

    assert [
        f"a: text, since 01 has a leading zero (record 40 of {path})",
        f"b: text, since 'A' is no number (record 41 of {path})",
    ] == schema_of(open_reader(str(tmp_path))).notes()


@pytest.mark.parametrize("params", [{}, {"escape": "\\"}])  # by the kernel, and by Python
@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (
            "int64",
            "A0",
            "'A0' is no int64, as the column is in the training data, but text: .*text",
        ),
        ("int64", "07", "'07' is no int64, .* but a number with a leading zero: say dtypes=u:text"),
        ("int64", "1.5", "is no int64, .* but float64: say dtypes=u:float64"),
        ("int64", "9223372036854775808", "is no int64, .* but uint64, which it cannot hold"),
        ("uint64", "-1", "'-1' is no uint64, .* but int64, which it cannot hold"),
        ("uint64", "00", "'00' is no uint64"),
        ("float64", "00.5", "'00.5' is no float64, .* leading zero"),
        ("float64", "9007199254740993", "but int64, which it would round: say dtypes=u:int64"),
        ("float32", "16777217", "'16777217' is no float32"),
        ("bool", "1", "'1' is no bool, .* but int64"),
        ("bool", "", "has no value, and is of bools.*missing=u:-1|"),
        ("int64", "NA", "has no value, and is of whole numbers.*missing=u:-1"),
    ],
)
def test_what_the_schema_of_other_data_cannot_hold_is_a_broken_record(
    tmp_path: Path, params: dict[str, str], kind: str, value: str, reason: str
) -> None:
    good = "true" if kind == "bool" else "1"
    path = write(tmp_path / "a.csv", f"u,x\n{good},1\n{value},1\n")
    schema = Schema((Field("u", Type(kind), found=SEEN), Field("gone", Type("text"), found=SEEN)))

    with pytest.raises(RecordError, match=f"record 1: column 'u'.*{reason}"):
        read(path, schema, **params)
    reader = open_reader(path, schema=schema, **params)
    records: Any = reader.read(path, 0, 2, skip=[1])
    assert Type(kind).dtype == records["u"].dtype
    assert np.int64 == records["x"].dtype  # of which the schema says nothing


def test_columns_that_are_known_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.csv", "a,b\n1,x\n")
    looked: list[set[str]] = []
    look = Watch.look
    monkeypatch.setattr(
        Watch, "look", lambda self, *a: looked.append({*self.splits}) or look(self, *a)
    )

    open_reader(path, dtypes="a:int64", schema=Schema((Field("b", Type("text")),))).sources()
    assert not looked
    assert {"a": "int64", "b": "text"} == types(path, dtypes="a:int64")
    assert [{"b"}] == looked


def test_what_a_job_has_seen_of_a_file_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_JOB_DIR", str(tmp_path / "job"))
    path = write(tmp_path / "a.csv", "a,b\n1,x\nA,\n")
    first = schema_of(open_reader(path))
    monkeypatch.setattr(csv_scan, "scan", None)

    assert first == schema_of(open_reader(path))
    assert first.notes() == schema_of(open_reader(path)).notes() != []


def test_a_longer_record_than_is_looked_at_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_scan, "_LONGEST_NBYTES", 50)
    monkeypatch.setattr(csv_scan, "CHUNK_NBYTES", 16)
    path = write(tmp_path / "a.csv", "a,b\n1,2\n" + '3,"' + "x" * 500 + '"\n5,6\n7,0.5\n')

    schema = schema_of(open_reader(path))
    assert {"a": "int64", "b": "float64"} == {each.name: str(each.type) for each in schema}
    with pytest.raises(RecordError, match="record 1: column 'b'"):
        read(path)


def test_bytes_that_are_no_text_say_nothing_of_the_types(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,ü\n1,x\n".encode() + b"\xff,y\n" + "2,ü\nA,z\n".encode())

    schema = schema_of(open_reader(path))
    assert ["text", "text"] == [str(each.type) for each in schema]
    assert f"a: text, since 'A' is no number (record 3 of {path})" == schema.notes()[0]


# -- Declared types


@pytest.mark.parametrize("params", [{}, {"escape": "\\"}])
@pytest.mark.parametrize(
    ("word", "text", "expected"),
    [
        ("uint64", "18446744073709551615", np.uint64(2**64 - 1)),
        ("int8", "-128", np.int8(-128)),
        ("float32", "0.1", np.float32("0.1")),
        # Halfway between two float32 but for its last digit, which the nearest float64 has not.
        ("float32", "1.00000017881393432617187500000000001", np.float32(1.0000002)),
        ("float32", "1.00000017881393432617187499999999999", np.float32(1.0000001)),
        ("float16", "2048", np.float16(2048)),
        ("bool", "True", np.True_),
        ("bool", "false", np.False_),
        ("bytes", "ü", "ü".encode()),
        ("date", "2024-02-29", np.datetime64("2024-02-29")),
        ("timestamp", "2024-01-31 12:30", np.datetime64("2024-01-31T12:30:00", "us")),
        ("timestamp", "2024-01-31T12:30:00.1234560", np.datetime64("2024-01-31T12:30:00.123456")),
        ("timestamp in UTC", "2024-01-31T12:30:00+05:30", np.datetime64("2024-01-31T07:00", "us")),
        ("timestamp in UTC", "1969-12-31T23:59:59.5Z", np.datetime64(-500_000, "us")),
        ("duration", "P1DT2H3M4.5S", np.timedelta64(93_784_500_000, "us")),
        ("duration", "-PT0.000001S", np.timedelta64(-1, "us")),
        ("decimal", "0.10", 0.1),
        ("list of int64", "1;2", [1, 2]),
        ("list of 2 float64", "1;2", [1.0, 2.0]),
        ("list of date", "2024-02-29;2024-03-01", [date(2024, 2, 29), date(2024, 3, 1)]),
    ],
)  # fmt: skip
def test_declared_types_are_had_exactly(
    tmp_path: Path, params: dict[str, str], word: str, text: str, expected: Any
) -> None:
    path = write(tmp_path / "a.csv", f"a,b\n{text},1\n")
    split = {"split": "a:;"} if "list" in word else {}

    (value,) = read(path, dtypes=f"a:{word}", **split, **params)["a"]

    assert str(Type.parse(word)) == types(path, dtypes=f"a:{word}", **split)["a"]
    if isinstance(expected, list):
        assert expected == value.tolist()
    else:
        assert (type(expected), expected) == (type(value), value) or word in ("bytes", "decimal")
        assert expected == value


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("uint64", "18446744073709551616"), ("uint64", "-1"), ("int8", "128"), ("int64", "1e3"),
        ("float32", "1e39"), ("float32", "16777217"), ("float16", "2049"), ("float32", "1_0"),
        ("bool", "0"), ("bool", "tRUE"), ("date", "2024-02-30"), ("date", "2024-1-1"),
        ("timestamp", "2024-01-31T12:30Z"),
        ("timestamp", "2024-01-31T12:30:00.1234567"), ("timestamp", "2024-01-31T25:00"),
        ("timestamp in UTC", "2024-01-31T12:30"), ("timestamp in UTC", "2024-01-31T12:30+25"),
        ("duration", "P1Y"), ("duration", "PT"), ("duration", "5"), ("duration", "P300000000D"),
        ("decimal", "0.1000000000000000000001"), ("decimal", "x"), ("list of int64", "1;x"),
        ("list of int64", "1;"), ("list of 2 int64", "1"),
    ],
)  # fmt: skip
def test_what_a_declared_type_cannot_hold_is_a_broken_record(
    tmp_path: Path, word: str, text: str
) -> None:
    path = write(tmp_path / "a.csv", f"a,b\n{text},1\n")
    split = {"split": "a:;"} if "list" in word else {}

    with pytest.raises(RecordError, match="record 0: column 'a'"):
        read(path, dtypes=f"a:{word}", **split)


def test_declared_types_that_no_csv_has_or_that_contradict_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a\n1\n")

    with pytest.raises(UsageError, match="'klingon'"):
        open_reader(path, dtypes="a:klingon")
    with pytest.raises(UsageError, match="'a' is int64, and the schema text"):
        open_reader(path, dtypes="a:int64", schema=Schema((Field("a", Type("text")),)))
    with pytest.raises(DataError, match="'a' is list of int64, .*say split=a:SIGN"):
        read(path, dtypes="a:list of int64")
    with pytest.raises(DataError, match="split= makes it a list"):
        read(path, dtypes="a:int64", split="a:;")
    with pytest.raises(DataError, match="which .* cannot have: it is CSV"):
        read(path, dtypes="a:picture RGB of 8 bits 2 x 2")


# -- Keys of folders


def test_keys_of_folders_have_the_types_of_the_training_data(tmp_path: Path) -> None:
    write(tmp_path / "train/shop=7/city=007/a.csv", "x\n1\n")
    write(tmp_path / "train/shop=A/city=1/a.csv", "x\n1\n")
    path = write(tmp_path / "test/shop=8/city=2/a.csv", "x\n1\n")
    seen = schema_of(open_reader(str(tmp_path / "train")))

    assert {"x": "int64", "shop": "text", "city": "text"} == {f.name: str(f.type) for f in seen}
    assert "city: text, since 007 has a leading zero (the folder city=007)" in seen.notes()
    assert {"x": "int64", "shop": "int64", "city": "int64"} == types(path)
    records = read(path, seen)
    assert ("8", "2") == (records["shop"][0], records["city"][0])
    whole = Schema((Field("shop", Type("int64"), found=SEEN),))
    with pytest.raises(DataError, match="shop=A, which is no int64, as in the training data"):
        open_reader(str(tmp_path / "train"), schema=whole)
    assert ["city"] == [f.name for f in schema_of(open_reader(path, columns="city"))]


def test_a_mark_at_the_begin_is_no_letter_of_the_first_name(tmp_path: Path) -> None:
    marked = write(tmp_path / "a.csv", b'\xef\xbb\xbf"a",b\n1,2\n')
    assert {"a": "int64", "b": "int64"} == types(marked)
    for encoding in ("utf-16-le", "utf-16-be"):
        data = "\ufeff".encode(encoding) + 'a,b\n1,"ü"\n'.encode(encoding)
        path = write(tmp_path / f"{encoding}.csv", data)
        with pytest.raises(DataError, match="is UTF-16, by its byte order mark: say .*=utf-16"):
            types(path)
        assert {"a": "int64", "b": "text"} == types(path, encoding="utf-16")

"""CSV as it is found: exact numbers, missing values, wide files, dialects, likely mistakes."""

from __future__ import annotations

import pickle
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.common.errors import DataError, EdlError, RecordError, UsageError
from edl.data import csv_head
from edl.data.csv_dialect import Dialect
from edl.data.open import open_reader
from edl.data.reader import Columns, schema_of

pytestmark = pytest.mark.fast

BIG = "9007199254740993"  # 2^53 + 1


def write(folder: Path, text: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def columns(path: Path, source: int = 0, **params: Any) -> Columns:
    reader = open_reader(str(path), **params)
    found = reader.sources()[source]
    records = reader.read(found.name, 0, found.records)
    assert isinstance(records, Columns)
    return records


def values(path: Path, source: int = 0, **params: Any) -> dict[str, list[Any]]:
    records = columns(path, source, **params)
    return {name: records[name].tolist() for name in records.names}


# -- numbers


@pytest.mark.parametrize("row", ["", "NA", "nan", "\\N", "?"])
def test_missing_whole_numbers_are_refused_in_one_sentence_that_helps(
    tmp_path: Path, row: str
) -> None:
    path = write(tmp_path, f"id,n,y\n{BIG},1,1\n9007199254740992,{row},0\n{row},3,1\n")

    with pytest.raises(DataError, match="'id', 'n'") as raised:
        values(path)

    assert "record 2" in str(raised.value)
    assert "missing=id:-1|n:-1" in str(raised.value)
    assert "id:nan|n:nan" in str(raised.value)
    both = values(path, missing="id:-1|n:nan")
    assert [int(BIG), 9007199254740992, -1] == both["id"]
    np.testing.assert_array_equal([1, np.nan, 3], both["n"])
    assert {"y": [1, 0, 1]} == values(path, columns="y")


def test_type_of_a_whole_number_column_does_not_depend_on_the_file(tmp_path: Path) -> None:
    write(tmp_path, "id\n5\n7\n", "0.csv")
    write(tmp_path, f"id\n{BIG}\n\n" + '""\n', "1.csv")

    for missing, kind in (("id:-1", np.int64), ("*:-1", np.int64), ("id:nan", np.float64)):
        assert kind == columns(tmp_path, missing=missing)["id"].dtype
    assert [int(BIG), -1] == values(tmp_path, 1, missing="id:-1")["id"]
    with pytest.raises(DataError, match=r"1\.csv misses whole numbers of 'id' .*in record 1"):
        values(tmp_path, 1)
    with pytest.raises(RecordError, match=r"1\.csv: record 1: column 'id' has no value"):
        values(tmp_path, 1, dtypes="id:int64")
    with pytest.raises(RecordError, match=r"1\.csv: record 0: column 'id': '9007199254740993'"):
        values(tmp_path, 1, missing="id:nan")


@pytest.mark.parametrize("number", [BIG, "-" + BIG, BIG + ".0", "99999999999999999999", "1e999"])
def test_number_that_float64_cannot_hold_is_broken_and_never_rounded(
    tmp_path: Path, number: str
) -> None:
    path = write(tmp_path, "f\n0.5\n9007199254740992\n1e300\n" + f"0.5\n{number}\n" + "0.5\n" * 9)

    with pytest.raises(RecordError, match=f"record 4: column 'f': '{number}' is no float64"):
        values(path, dtypes="f:float64")
    assert ["U", number] == [(f := columns(path)["f"]).dtype.kind, f[4]]


@pytest.mark.parametrize(
    ("word", "kind"),
    [("1_000", "U"), ("１", "U"), ("1.5", "f"), ("inf", "f"), ("0x1", "U"), ("x", "U"),
     ("1" * 20, "u"), ("2" * 20, "U"), ("01", "U")],
)  # fmt: skip
def test_one_value_far_below_decides_and_is_broken_where_the_type_is_declared(
    tmp_path: Path, word: str, kind: str
) -> None:
    path = write(tmp_path, "a\n" + "1\n" * 10_001 + f"{word}\n")

    column = columns(path)["a"]
    assert (kind, 10_002) == (column.dtype.kind, len(column))
    assert word == column[-1] if kind == "U" else float(word) == column[-1]
    if word == "01":  # who declares whole numbers takes it as one
        assert 1 == columns(path, dtypes="a:int64")["a"][-1]
        return
    with pytest.raises(RecordError, match=f"record 10001: column 'a': '{word}' is no int64") as e:
        values(path, dtypes="a:int64")
    assert ("dtypes=a:float64" in str(e.value)) == (word in ("1.5", "inf"))


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ("inf nan Inf", "U"), ("nan NaN", "U"), ("Infinity Bob", "U"), ("1 inf", "f"),
        ("1 nan 0.5", "f"), ("-inf 0.5", "f"), ("1_0 2_0", "U"), (f"{BIG} 1", "i"),
        (f"{BIG} {BIG} 0.5", "U"), ("99999999999999999999 1", "U"), ("x NA", "U"),
        ("? 1.5 ?", "f"), ("? x", "U"),
        ("-9223372036854775808 9223372036854775807", "i"), ("1 9223372036854775808", "u"),
    ],
)  # fmt: skip
def test_what_makes_a_column_of_numbers(tmp_path: Path, fields: str, kind: str) -> None:
    column = columns(write(tmp_path, "n\n" + "\n".join(fields.split()) + "\n"))["n"]

    assert kind == column.dtype.kind
    if kind == "U":
        assert fields.split() == column.tolist()


def test_missing_is_chosen_for_floats_texts_and_columns_without_any_value(tmp_path: Path) -> None:
    path = write(tmp_path, "f,t,e,u\n0.5,x,,\nNA,,,\n,NA,,\n")

    assert {"f": [0.5, -1, -1], "t": ["x", "none", "NA"], "e": [-9] * 3, "u": [""] * 3} == values(
        path, missing="f:-1|t:none|e:-9"
    )
    assert [np.int64, np.float64] == [
        columns(path, missing=f"e:{each}")["e"].dtype for each in ("-9", "nan")
    ]


def test_missing_and_dtypes_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave out one"):
        values(write(tmp_path, "a\n1\n"), dtypes="a:int64", missing="a:nan")
    with pytest.raises(DataError, match="'b', which"):
        values(write(tmp_path, "a\n1\n"), missing="b:1")


def test_fractions_in_a_later_file_make_all_files_float64(tmp_path: Path) -> None:
    write(tmp_path, "a\n1\n2\n", "0.csv")
    write(tmp_path, "a\n3\n2.5\n", "1.csv")

    assert [[1.0, 2.0], [3.0, 2.5]] == [values(tmp_path, n)["a"] for n in (0, 1)]
    assert np.float64 == columns(tmp_path, 0)["a"].dtype
    (note,) = schema_of(open_reader(str(tmp_path))).notes()
    assert re.fullmatch(r"a: float64, since 2\.5 is no whole number \(record 1 of .*1\.csv\)", note)


def test_texts_in_a_later_file_make_all_files_text(tmp_path: Path) -> None:
    write(tmp_path, "a\n1\n2\n", "0.csv")
    write(tmp_path, "a\n3\nA7\n", "1.csv")

    assert [["1", "2"], ["3", "A7"]] == [values(tmp_path, n)["a"] for n in (0, 1)]
    (note,) = schema_of(open_reader(str(tmp_path))).notes()
    assert re.fullmatch(r"a: text, since 'A7' is no number \(record 1 of .*1\.csv\)", note)


def test_text_that_would_lose_its_end_is_broken(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="record 1: column 't'.*NUL"):
        values(write(tmp_path, b"t\na\0b\na\0\n"))


# -- wide files, many files


@pytest.mark.parametrize("width", [23_000, 30_000])  # 1 MiB ends in the first row, in the header
def test_head_is_read_as_far_as_it_goes(tmp_path: Path, width: int) -> None:
    r = random.Random(0)
    names = [f"a-name-of-forty-letters-which-is-long-{i:06}" for i in range(width)]
    rows = [[str(r.getrandbits(40)) for _ in names] for _ in range(2)]
    path = write(tmp_path, "\n".join(",".join(row) for row in (names, *rows)) + "\n")
    assert path.stat().st_size > 1 << 20

    records = columns(path)

    assert tuple(names) == records.names
    assert all(records[name].dtype == np.int64 for name in names)
    assert [int(row[-1]) for row in rows] == records[names[-1]].tolist()


def test_opening_costs_as_much_for_each_column_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparisons of names are counted, not time: within lists they would be n^2 / 2."""

    class Name(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    names = [Name(f"n{i}") for i in range(3000)]
    path = write(tmp_path, ",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    parse = Dialect.parse
    monkeypatch.setattr(
        Dialect, "parse", lambda *a: [[Name(each) for each in row] for row in parse(*a)]
    )

    open_reader(str(path), columns=[Name(name) for name in names]).sources()

    assert Name.compared <= 20 * len(names)


def test_head_of_the_first_file_is_parsed_once_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(12):
        write(tmp_path, "a,b\n" + f"{i},x\n" * (500 if i == 0 else 1), f"{i:02}.csv")
    read: list[tuple[str, int]] = []
    head = csv_head.read_head
    monkeypatch.setattr(
        csv_head, "read_head", lambda name, *rest: read.append(name) or head(name, *rest)
    )

    assert 12 == len(open_reader(str(tmp_path)).sources())
    assert 12 == len(read) == len(set(read))


def test_reader_that_was_opened_can_be_pickled(tmp_path: Path) -> None:
    path = write(tmp_path, "a\n1\n".encode("utf-16"))
    reader = open_reader(str(path), encoding="utf-16")
    (source,) = reader.sources()

    again = pickle.loads(pickle.dumps(reader))

    assert [1] == again.read(source.name, 0, 1)["a"].tolist()


def test_files_without_records_say_nothing_of_types(tmp_path: Path) -> None:
    write(tmp_path, "", "0.csv")
    write(tmp_path, "a,b\n", "1.csv")
    write(tmp_path, "a,b\n1.5,x\n", "2.csv")
    write(tmp_path, "", "3.csv")
    write(tmp_path, "b,a\n7,8\n", "4.csv")
    reader = open_reader(str(tmp_path))

    sources = reader.sources()

    assert ["2.csv", "4.csv"] == [Path(source.name).name for source in sources]
    last = reader.read(sources[1].name, 0, 1)
    assert {"a": [8.0], "b": ["7"]} == {name: last[name].tolist() for name in last.names}


# -- dialects


@pytest.mark.parametrize(
    ("text", "params", "expected"),
    [
        ("a,b,\n1,x,\n2,y,\n", {}, {"a": [1, 2], "b": ["x", "y"]}),
        ("a,b\n1,x,\n2,y,\n", {}, {"a": [1, 2], "b": ["x", "y"]}),
        (",a,,b\n1,2,3,4\n", {}, {"c0": [1], "a": [2], "c2": [3], "b": [4]}),
        (",a,,b\n1,2,3,4\n", {"columns": "b"}, {"b": [4]}),
        ("a,a,b\n1,2,3\n", {"columns": "b"}, {"b": [3]}),
        ("a,b\n1,2\n", {"names": "x|y", "header": "true"}, {"x": [1], "y": [2]}),
        ("a,b,\n1,2,\n", {"names": "x|y", "header": "true"}, {"x": [1], "y": [2]}),
        ("a, b\n1, x\n", {"skip_blanks": "true"}, {"a": [1], "b": ["x"]}),
        ('a, b\n1, "x, y"\n', {"skip_blanks": "true"}, {"a": [1], "b": ["x, y"]}),
        ("#?\na\n#1\n2\n", {"comment": "#"}, {"a": [2]}),
        ('a,b\n"#1",2\n"x\n#y",3\n', {"comment": "#"}, {"a": ["#1", "x\n#y"], "b": [2, 3]}),
        ("a,b\nx\\,y,1\n", {"escape": "\\"}, {"a": ["x,y"], "b": [1]}),
        ('a,b\n"x\\"y\nz",1\n', {"escape": "\\"}, {"a": ['x"y\nz'], "b": [1]}),
        ("a\\\nb,c\n1,2\n", {"escape": "\\"}, {"a\nb": [1], "c": [2]}),
        ("a,b\n'x,y',1\n", {"quote": "'"}, {"a": ["x,y"], "b": [1]}),
        ('a,b\n"x,1\n"y,2\n', {"quote": "none"}, {"a": ['"x', '"y'], "b": [1, 2]}),
        ('a,b\r1,x\r2,"y\nz"\r', {}, {"a": [1, 2], "b": ["x", "y\nz"]}),
        ('"a\nb",c\r1,2\r', {}, {"a\nb": [1], "c": [2]}),
        ('a,"b\rc"\n1,2\n', {}, {"a": [1], "b\rc": [2]}),
        ("\ufeffa,b\n1,é\n", {"encoding": "utf-8-sig"}, {"a": [1], "b": ["é"]}),
    ],
)
def test_dialects(
    tmp_path: Path, text: str, params: dict[str, str], expected: dict[str, list[Any]]
) -> None:
    assert expected == values(write(tmp_path, text), **params)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "gbk", "shift_jis", "cp500"])
def test_encodings_whose_bytes_are_not_ascii(tmp_path: Path, encoding: str) -> None:
    text = "id|name\n" + "".join(
        f'{i}|{"日本語" if encoding != "cp500" else "é"}|"x"\n' for i in range(3)
    )
    text = text.replace("id|name", "id|name|q")

    read = values(write(tmp_path, text.encode(encoding)), sep="|", encoding=encoding)

    assert ([0, 1, 2], ["x"] * 3) == (read["id"], read["q"])


def test_what_cannot_be_decoded_breaks_its_record_in_any_encoding(tmp_path: Path) -> None:
    path = write(tmp_path, "a\n日\n".encode("gbk") + b"\xff\xff\n" + "本\n".encode("gbk"))
    reader = open_reader(str(path), encoding="gbk")
    (source,) = reader.sources()

    with pytest.raises(RecordError, match="record 1: it has bytes that are no gbk"):
        reader.read(source.name, 0, 3)

    assert ["日", "本"] == reader.read(source.name, 0, 3, skip=(1,))["a"].tolist()


def test_field_may_be_longer_than_the_csv_module_likes(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b\n" + f"{'x' * 200_000},1\n" + "y,2\n")

    assert [200_000, 1] == [len(each) for each in values(path)["a"]]


def test_long_texts_do_not_take_their_length_times_all_records(tmp_path: Path) -> None:
    path = write(tmp_path, "a\n" + "x" * 1_000_000 + "\n" + "y\n" * 200)

    column = columns(path)["a"]

    assert object == column.dtype
    assert [1_000_000, *[1] * 200] == [len(each) for each in column]


# -- sentences


@pytest.mark.parametrize(
    ("text", "params", "sentence"),
    [
        ("39, 0, x, 0\n1, 2, y, 3\n", {}, "header=false"),
        (
            "x, 0,y, 0\nx,1,y,2\n",
            {},
            "'39' for a name|twice.*header=false|for a name.*header=false",
        ),
        ("x,y,x\na,b,c\n", {}, "'x' twice: if its first line is a record.*header=false"),
        ("5.1,3.5,setosa\n4,3,x\n", {}, "'5.1' for a name.*header=false.*header=true"),
        ("1,2\n3,4\n", {}, "header=false"),
        ("a,b\n1,2\n", {"names": "x|y"}, "header=true.*header=false"),
        ("a,b\n1,2\n", {"names": "x", "header": True}, "names has 1 names, .* 2 fields"),
        ("a,b\n1,2,3\n4,5,6\n", {}, "2 names and records of 3 fields.*c,header=true"),
        ("1,2\n4,5\n", {"names": "x", "header": False}, "records of 2 fields.*names=a.b.c, or"),
        ("a,b\n1,2\n".encode("utf-16"), {}, "is UTF-16.*encoding=utf-16"),
        ("a,b\n1,2\n".encode("utf-32"), {}, "is UTF-32.*encoding=utf-32"),
        ("a,b\n1,2\n".encode("utf-16-le"), {}, "NULs.*utf-16-le"),
        ("a\n1\n", {"encoding": "hex"}, "no encoding 'hex'"),
        ("a\n1\n", {"sep": ""}, "sep must be one"),
        ("a\n1\n", {"sep": ";", "comment": ";"}, "must be unlike"),
        ("a\n1\n", {"skip_blanks": "perhaps"}, "true or false"),
        ("a\n1\n", {"missing": "a"}, "COLUMN:VALUE"),
        ('a,b\n1,x\n2, "y, z"\n', {}, "record 1: it has 3 fields, not 2; say skip_blanks"),
    ],
)
def test_mistake_is_one_sentence_that_says_what_to_do(
    tmp_path: Path, text: str | bytes, params: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(EdlError, match=sentence):
        values(write(tmp_path, text), **params)


@pytest.mark.parametrize("header", ["0,1,2", "country,1990,1991", "x1,x2,x3", "q1,0.5,n"])
def test_names_may_be_numbers(tmp_path: Path, header: str) -> None:
    path = write(tmp_path, f"{header}\n7,8,9\n")
    params = {"header": True} if "0.5" in header else {}

    assert dict(zip(header.split(","), ([7], [8], [9]), strict=True)) == values(path, **params)


def test_file_without_the_end_of_a_line_is_no_csv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_head, "_LIMIT_NBYTES", 1 << 21)

    with pytest.raises(DataError, match="No line of .* ends within"):
        values(write(tmp_path, b'"' + b"x" * (5 << 20)))

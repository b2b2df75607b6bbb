"""Examples as columns: where columns are named, features of TFRecord and RecordIO come so."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.common.errors import DataError, RecordError, UsageError
from edl.common.ragged import Ragged
from edl.data.kernels import masked_crc32c
from edl.data.open import open_reader
from edl.data.reader import schema_of
from edl.data.schema import Field, Schema, Type

Record = dict[str, bytes]


def varint(number: int) -> bytes:
    number, out = number & (1 << 64) - 1, b""
    while number >= 128:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def message(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def ints(*values: int) -> bytes:
    return message(3, message(1, b"".join(map(varint, values))))


def floats(*values: float) -> bytes:
    return message(2, message(1, struct.pack(f"<{len(values)}f", *values)))


def texts(*values: bytes) -> bytes:
    return message(1, b"".join(message(1, each) for each in values))


def example(record: Record) -> bytes:
    entries = (message(1, name.encode()) + message(2, body) for name, body in record.items())
    return message(1, b"".join(message(1, entry) for entry in entries))


def sequence(name: str, *steps: bytes) -> bytes:
    steps_ = b"".join(message(1, step) for step in steps)
    return message(2, message(1, message(1, name.encode()) + message(2, steps_)))


def write(path: Path, *records: Record | bytes) -> str:
    bodies = [each if isinstance(each, bytes) else example(each) for each in records]
    if path.suffix == ".recordio":
        body = b"".join(struct.pack("<I", len(each)) + each for each in bodies)
        head = struct.pack("<5I", 0x01020304, zlib.crc32(body), 0, len(body), len(bodies))
        path.write_bytes(head + body)
        return str(path)
    with path.open("wb") as stream:
        for body in bodies:
            head = struct.pack("<Q", len(body))
            for part in (head, body):
                stream.write(part + struct.pack("<I", masked_crc32c(part)))
    return str(path)


def read(path: str | Path, **params: Any) -> list[Any]:
    reader = open_reader(str(path), **params)
    return [reader.read(each.name, 0, each.records) for each in reader.sources()]


def types(path: str | Path, **params: Any) -> dict[str, str]:
    return {each.name: str(each.type) for each in schema_of(open_reader(str(path), **params))}


@pytest.mark.parametrize("suffix", ["tfrecord", "recordio"])
@settings(max_examples=examples(60), deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(data=st.data())
def test_columns_are_what_was_written(suffix: str, data: Any, tmp_path: Path) -> None:
    number = st.integers(-(2**63), 2**63 - 1)
    rows = data.draw(st.lists(st.fixed_dictionaries({
        "i": st.none() | number, "f": st.none() | st.floats(width=32),
        "t": st.none() | st.text(max_size=4).filter(lambda text: "\0" not in text),
        "l": st.none() | st.lists(number, max_size=3),
        "w": st.none() | st.lists(st.binary(max_size=3), max_size=3),
    }), min_size=1, max_size=9))  # fmt: skip
    made = {
        "i": ints, "f": floats, "t": lambda text: texts(text.encode()), "l": lambda v: ints(*v),
        "w": lambda v: texts(*v),
    }  # fmt: skip
    path = write(tmp_path / f"a.{suffix}", *(
        {"always": ints(1), **{n: made[n](v) for n, v in row.items() if v is not None}}
        for row in rows
    ))  # fmt: skip
    wanted = "i:int64|f:float32|t:text|l:list of int64|w:list of bytes"
    skip = data.draw(st.sets(st.integers(0, 9), max_size=2))
    left = [row for n, row in enumerate(rows) if n not in skip]

    found: Any = open_reader(path, columns="i|f|t|l|w", dtypes=wanted, missing="i:-7").read(
        path, 0, len(rows), skip
    )

    def column(name: str, missing: Any) -> list[Any]:
        return [missing if row[name] is None else row[name] for row in left]

    assert ("i", "f", "t", "l", "w") == found.names
    assert (column("i", -7), np.int64) == (found["i"].tolist(), found["i"].dtype)
    assert np.array(column("f", np.nan), np.float32).tobytes() == found["f"].tobytes()
    assert (column("t", ""), "U") == (found["t"].tolist(), found["t"].dtype.kind)
    assert (column("l", []), np.int64) == (found["l"].tolist(), found["l"].values.dtype)
    assert column("w", []) == found["w"].tolist()


def test_one_value_in_every_record_is_single_and_any_other_number_a_list(tmp_path: Path) -> None:
    write(tmp_path / "a.tfrecord", {"a": ints(1), "b": ints(1), "c": texts(b"x")}, {"a": ints(2)})
    write(tmp_path / "b.tfrecord", {"a": ints(3), "b": ints(1, 2), "c": texts(b"\xff")})

    first, second = read(tmp_path, columns="a|b|c")

    assert types(tmp_path, columns="a|b|c") == {"a": "int64", "b": "list of int64", "c": "bytes"}
    assert ([1, 2], [3]) == (first["a"].tolist(), second["a"].tolist())
    assert isinstance(first["b"], Ragged)
    assert ([[1], []], [[1, 2]]) == (first["b"].tolist(), second["b"].tolist())
    assert ([b"x", b""], [b"\xff"]) == (first["c"].tolist(), second["c"].tolist())
    with pytest.raises(RecordError, match=r"b\.tfrecord: record 0: .*xff' is no UTF-8"):
        read(tmp_path, columns="c", dtypes="c:text")


def test_without_columns_records_are_dicts_as_before(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", {"a": ints(1)})

    ((record,),) = read(path)

    assert [1] == record["a"].tolist()
    assert not len(schema_of(open_reader(path)))


def test_what_cannot_be_a_column_is_one_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", {"a": ints(1)}, {"a": floats(1), "n": ints(1)})

    with pytest.raises(DataError, match="the feature 'a' is float32 and int64, of record to"):
        open_reader(path, columns="a").sources()
    with pytest.raises(DataError, match="no column 'absent'; it has 'a', 'n'"):
        open_reader(path, columns="absent").sources()
    with pytest.raises(RecordError, match=r"record 0: column 'n' misses a value: .*missing=n:nan"):
        read(path, columns="n")
    (mixed,) = read(path, columns="a", schema=Schema((Field("a", Type("float64")),)))
    assert [1.0, 1.0] == mixed["a"].tolist()
    with pytest.raises(RecordError, match="record 1: column 'a' is int64, and here it is float32"):
        read(path, columns="a", schema=Schema((Field("a", Type("int64")),)))
    with pytest.raises(UsageError, match="raw=true gives bytes, which have no columns"):
        open_reader(path, columns="a", raw=True)


def test_a_schema_makes_columns_and_is_held(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", {"v": floats(1, 2, 3, 4), "n": ints(1)})
    shaped = Schema((Field("v", Type("float64", shape=(2, 2))), Field("n", Type("float64"))))

    (records,) = read(path, schema=shaped)
    with pytest.raises(RecordError, match="record 0: column 'n' is text, and here it is int64"):
        read(path, columns="n", dtypes="n:text")
    with pytest.raises(RecordError, match="'v' is list of 3 float32, and here is 4 values"):
        read(path, columns="v", schema=Schema((Field("v", Type("float32", shape=(3,))),)))

    assert ([[[1, 2], [3, 4]]], np.float64) == (records["v"].tolist(), records["v"].dtype)
    assert ([1], np.float64) == (records["n"].tolist(), records["n"].dtype)


def test_a_broken_record_is_named_and_the_others_tell_the_types(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", {"a": ints(1)}, b"junk", {"a": ints(2)})
    reader = open_reader(path, columns="a")

    with pytest.raises(RecordError, match=r"record 1: it is no tf\.train\.Example"):
        reader.read(path, 0, 3)
    assert [1, 2] == reader.read(path, 0, 3, skip=[1])["a"].tolist()  # type: ignore[call-overload]


def test_the_pass_over_the_records_is_made_once_for_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.tfrecord", {"a": ints(1)}, {"a": ints(1, 2)})
    monkeypatch.setenv("EDL_JOB_DIR", str(tmp_path / "job"))
    open_reader(path, columns="a").sources()
    monkeypatch.setattr("edl.data.features.FeatureFile._scan", None)

    assert [[[1], [1, 2]]] == [each["a"].tolist() for each in read(path, columns="a")]


def test_feature_lists_of_a_sequence_example_are_there(tmp_path: Path) -> None:
    context = example({"c": ints(7)})
    path = write(
        tmp_path / "a.tfrecord",
        context + sequence("s", ints(1), ints(2)), context + sequence("s"),
        sequence("s", ints(3)) + context,
    )  # fmt: skip
    wide = write(tmp_path / "wide.tfrecord", sequence("s", floats(1, 2), floats(3)))

    (dicts,) = read(path)
    (columns,) = read(path, columns="c|s")
    ((record,),) = read(wide)

    assert [[1, 2], [], [3]] == [np.concatenate([[], *each["s"]]).tolist() for each in dicts]
    assert [7, 7, 7] == columns["c"].tolist()
    assert [[1, 2], [], [3]] == columns["s"].tolist()
    assert [[1, 2], [3]] == [step.tolist() for step in record["s"]]
    with pytest.raises(DataError, match="feature list 's' have several values each"):
        read(wide, columns="s")

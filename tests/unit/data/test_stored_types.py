"""What formats store of types: equal values in other physical types are the same, or refused.

The oracle is the list of Python values that was drawn, and pyarrow's and numpy's own of them.
"""

from __future__ import annotations

import datetime
import decimal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.common.errors import DataError, RecordError, UsageError
from edl.common.ragged import Ragged
from edl.data.open import open_reader
from edl.data.reader import schema_of
from edl.data.schema import STORED, Field, Schema, Type
from edl.nn import hash64

EPOCH = datetime.datetime(1970, 1, 1)
DAY = datetime.datetime(2024, 1, 2, 3, 4, 5)
S, US = 10**6, 1


def texts(size: int = 4) -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=size)


@dataclass(frozen=True)
class Column:
    """Values of one meaning: the Arrow types that can store them, and the numpy values they are."""

    kinds: Sequence[pa.DataType]
    values: st.SearchStrategy[Any]
    type: str
    become: Callable[[Any], Any] = lambda value: value
    missing: Any = None
    write: Callable[[Any], Any] = lambda value: value  # as pyarrow takes them


def moments(zone: str | None) -> list[pa.DataType]:
    return [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns")]


small = st.integers(-128, 127)
lists = [pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.int8())]
strings = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
COLUMNS = {
    "whole": Column(
        [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.decimal128(3, 0),
         pa.dictionary(pa.int32(), pa.int64())],
        small, "int64", missing="refused"),
    "float": Column([pa.float16(), pa.float32(), pa.float64()],
                    st.sampled_from([0.0, 1.5, -0.25, 1024.0]), "float64", missing=float("nan")),
    "text": Column(strings, texts(), "text", missing=""),
    "bytes": Column([pa.binary(), pa.large_binary(), pa.binary_view()], st.binary(max_size=3),
                    "bytes", missing=b""),
    "moment": Column(moments("UTC"), st.integers(-(2**31), 2**31), "timestamp in UTC",
                     lambda s: np.datetime64(s * S, "us"), np.datetime64("NaT"),
                     lambda s: EPOCH + datetime.timedelta(seconds=s)),
    "local": Column(moments(None), st.integers(-(2**31), 2**31), "timestamp",
                    lambda s: np.datetime64(s * S, "us"), np.datetime64("NaT"),
                    lambda s: EPOCH + datetime.timedelta(seconds=s)),
    "time": Column([pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")],
                   st.integers(0, 86399), "duration", lambda s: np.timedelta64(s * S, "us"),
                   np.timedelta64("NaT"), lambda s: (EPOCH + datetime.timedelta(seconds=s)).time()),
    "span": Column([pa.duration(unit) for unit in ("s", "ms", "us", "ns")],
                   st.integers(-(2**31), 2**31), "duration",
                   lambda s: np.timedelta64(s * S, "us"), np.timedelta64("NaT"),
                   lambda s: datetime.timedelta(seconds=s)),
    "ids": Column(lists, st.lists(small, max_size=3), "list of int64", list, []),
    "words": Column([pa.list_(kind) for kind in strings[:3]], st.lists(texts(), max_size=3),
                    "list of text", list, []),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder() -> Any:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def write(path: Path, **columns: pa.Array) -> Path:
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path


def read(reader: Any) -> list[Any]:
    """Return the records of all sources."""
    return [reader.read(each.name, 0, each.records) for each in reader.sources()]


def rows(values: Any) -> list[Any]:
    """Return values as numpy has them, so that a bit more would be seen."""
    if isinstance(values, Ragged):
        return values.tolist()
    return [each.tobytes() if values.dtype.kind in "fMm" else each.item() for each in values] if (
        values.dtype.kind != "O"
    ) else values.tolist()  # fmt: skip


def expected(column: Column, values: Sequence[Any]) -> list[Any]:
    found = [column.missing if value is None else column.become(value) for value in values]
    if isinstance(column.missing, float):
        return [np.float64(value).tobytes() for value in found]
    if isinstance(column.missing, np.datetime64 | np.timedelta64):
        unit = "M8[us]" if isinstance(column.missing, np.datetime64) else "m8[us]"
        return [np.array(value, unit).tobytes() for value in found]
    return found


@settings(max_examples=examples(120), deadline=None)
@given(data=st.data())
def test_parts_of_other_physical_types_give_the_same_bits(data: Any, folder: Path) -> None:
    name = data.draw(st.sampled_from(sorted(COLUMNS)))
    column = COLUMNS[name]
    one = column.values if column.missing == "refused" else st.none() | column.values
    parts = data.draw(st.lists(st.lists(one, max_size=4), min_size=1, max_size=3).filter(any))
    for path in folder.glob("*.parquet"):
        path.unlink()
    wide = False
    for n, values in enumerate(parts):
        kind = data.draw(st.sampled_from(list(column.kinds)))
        if not values or all(each is None for each in values):
            kind = data.draw(st.sampled_from([pa.null(), kind]))
        elif pa.types.is_decimal(kind):
            values = [None if each is None else decimal.Decimal(each) for each in values]
        wide |= kind == pa.float64()
        made = [None if each is None else column.write(each) for each in values]
        kept = made if not pa.types.is_float16(kind) else [
            None if each is None else np.float16(each) for each in made
        ]  # fmt: skip
        write(folder / f"{n}.parquet", x=pa.array(kept, kind))
    if all(each is None for values in parts for each in values):
        return  # no file says of what
    declared = Schema((Field("x", Type("float64")),)) if name == "float" else Schema()

    reader = open_reader(str(folder), schema=declared)
    found = [records["x"] for records in read(reader)]

    assert column.type == str(schema_of(reader)["x"].type)
    there = [values for values in parts if values]
    assert [expected(column, values) for values in there] == [rows(each) for each in found]


def test_equal_instants_of_any_unit_have_one_hash(tmp_path: Path) -> None:
    for kind in moments(None):
        write(tmp_path / f"{kind.unit}.parquet", t=pa.array([DAY], kind))

    found = np.concatenate([records["t"] for records in read(open_reader(str(tmp_path)))])

    assert np.dtype("M8[us]") == found.dtype
    assert {DAY} == set(found.tolist())
    assert 1 == len(set(hash64("t", found).tolist()))


def test_nanoseconds_that_are_no_whole_microseconds_are_broken_records(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", t=pa.array([1000, 1001, 2000], pa.timestamp("ns")))
    reader = open_reader(str(path))

    with pytest.raises(RecordError, match=r"record 1: column 't' is timestamp, and .*001 is no"):
        reader.read(str(path), 0, 3)
    left = reader.read(str(path), 0, 3, skip=[1])
    assert [1, 2] == left["t"].astype(np.int64).tolist()  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (pa.array([1]), pa.array(["a"]), "int64 in .*text in"),
        (pa.array([DAY], pa.timestamp("s")), pa.array([DAY], pa.timestamp("us", "UTC")),
         "timestamp in .*timestamp in UTC in"),
        (pa.array([DAY]), pa.array([DAY.date()]), "timestamp in .*date in"),
        (pa.array([[1]]), pa.array([1]), "list of int64 in .*int64 in"),
        (pa.array([True]), pa.array(["true"]), "bool in .*text in"),
        (pa.array([[1, 2]], pa.list_(pa.int8(), 2)), pa.array([[1]], pa.list_(pa.int8(), 1)),
         "list of 2 int8 in .*list of 1 int8 in"),
    ],
)  # fmt: skip
def test_another_type_is_refused_before_the_start_by_both_files(
    tmp_path: Path, one: pa.Array, other: pa.Array, told: str
) -> None:
    write(tmp_path / "a.parquet", x=one)
    write(tmp_path / "b.parquet", x=other)

    with pytest.raises(DataError, match=rf"column 'x' is {told} .*b\.parquet: write both"):
        open_reader(str(tmp_path)).sources()


def test_a_part_without_rows_says_nothing_and_a_column_of_nulls_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", n=pa.array([], pa.null()), other=pa.array([], pa.null()))
    write(tmp_path / "b.parquet", n=pa.array([None, None], pa.null()))
    write(tmp_path / "c.parquet", n=pa.array([1.5]))

    found = [records["n"].tolist() for records in read(open_reader(str(tmp_path)))]
    with pytest.raises(DataError, match=r"'n' has the type null, each value is missing.*dtypes=n:"):
        open_reader(str(tmp_path / "b.parquet")).sources()
    with pytest.raises(DataError, match=r"misses values .*missing=n:nan"):
        open_reader(str(tmp_path / "b.parquet"), dtypes="n:int64").sources()

    assert ["[nan, nan]", "[1.5]"] == [repr(each) for each in found]
    (records,) = read(open_reader(str(tmp_path / "b.parquet"), dtypes="n:text"))
    assert ["", ""] == records["n"].tolist()


def test_validation_data_is_brought_to_the_schema_of_the_training_data_or_refused(
    tmp_path: Path,
) -> None:
    train = write(tmp_path / "train.parquet", x=pa.array([1.5]), i=pa.array(["007"]))
    schema = schema_of(open_reader(str(train)))
    good = write(tmp_path / "a.parquet", x=pa.array([1, 2], pa.int8()), i=pa.array([b"7", b"8"]))
    bad = write(tmp_path / "b.parquet", x=pa.array([1]), i=pa.array([7]))

    (records,) = read(open_reader(str(good), schema=schema))
    with pytest.raises(DataError, match=r"'i' is int64 in .*b\.parquet, and text in the training"):
        open_reader(str(bad), schema=schema).sources()

    assert [([1.0, 2.0], "float64"), (["7", "8"], "<U1")] == [
        (records[name].tolist(), str(records[name].dtype)) for name in ("x", "i")
    ]


def test_numbers_become_text_only_where_a_user_has_declared_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", i=pa.array([7]))
    seen = Schema((Field("i", Type("text"), found=STORED),))

    (records,) = read(open_reader(str(path), dtypes="i:str"))
    with pytest.raises(DataError, match="'i' is int64 in"):
        open_reader(str(path), schema=seen).sources()

    assert ["7"] == records["i"].tolist()


# -- Lists


def test_lists_of_one_length_and_of_any_take_each_other(tmp_path: Path) -> None:
    ragged = pa.array([[1, 2], [3, 4], [5], None], pa.list_(pa.int32()))
    path = str(write(tmp_path / "a.parquet", x=ragged))
    fixed = write(tmp_path / "b.parquet", x=pa.array([[1, 2], None], pa.list_(pa.uint8(), 2)))

    reader = open_reader(path, dtypes="x:list of 2 float32", missing="x:0.5")
    with pytest.raises(RecordError, match="record 2: .* is list of 2 float32, and .* list of 1"):
        reader.read(path, 0, 4)
    arrays: Any = reader.read(path, 0, 4, skip=[2])
    (lists_,) = read(open_reader(str(fixed), dtypes="x:list of int64"))

    assert np.float32 == arrays["x"].dtype
    assert [[1, 2], [3, 4], [0.5, 0.5]] == arrays["x"].tolist()
    assert ([[1, 2], []], np.int64) == (lists_["x"].tolist(), lists_["x"].values.dtype)


@settings(max_examples=examples(60), deadline=None)
@given(values=st.lists(st.none() | st.lists(st.none() | texts(6), max_size=4), min_size=1),
       data=st.data())  # fmt: skip
def test_a_list_column_is_what_pyarrow_has(values: list[Any], data: Any, folder: Path) -> None:
    path = folder / "lists.parquet"
    table = pa.table({"x": pa.array(values, pa.list_(pa.string()))})
    pyarrow.parquet.write_table(table, path, row_group_size=data.draw(st.integers(1, 5)))
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(values))] * 2)))
    skip = data.draw(st.sets(st.integers(0, len(values)), max_size=3))

    found: Any = open_reader(str(path)).read(str(path), start, end, skip)

    kept = [values[i] for i in range(start, end) if i not in skip]
    assert isinstance(found["x"], Ragged)
    assert [[each or "" for each in row or []] for row in kept] == found["x"].tolist()
    assert found["x"].values.flags.writeable
    assert 0 == found["x"].offsets[0]


def test_elements_keep_the_width_of_floats_and_have_the_missing_value(tmp_path: Path) -> None:
    floats = pa.array([[1.5, None]], pa.list_(pa.float32()))
    whole = pa.array([[2**53 + 1, None]], pa.list_(pa.int64()))
    unsigned = pa.array([[2**63]], pa.list_(pa.uint64()))
    path = str(write(tmp_path / "a.parquet", f=floats, w=whole, u=unsigned))

    found: Any = open_reader(path, missing="w:-1").read(path, 0, 1)
    with pytest.raises(RecordError, match=r"column 'w' misses a value: .*missing=w:"):
        open_reader(path).read(path, 0, 1)
    with pytest.raises(RecordError, match=r"column 'w' is list of float64|'w' is float64, and 90"):
        open_reader(path, missing="w:nan").read(path, 0, 1)

    assert [np.float32, np.int64, np.uint64] == [found[n].values.dtype for n in "fwu"]
    assert "[[1.5, nan]]" == repr(found["f"].tolist())
    assert [[2**53 + 1, -1]] == found["w"].tolist()


# -- numpy


WHOLE = ["i1", "u1", ">i2", "i4", "u4", ">i8"]


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_members_of_any_width_give_the_same_bits(data: Any, folder: Path) -> None:
    parts = data.draw(st.lists(st.lists(st.integers(0, 127), min_size=1, max_size=4),
                               min_size=1, max_size=3))  # fmt: skip
    for path in folder.glob("*.npz"):
        path.unlink()
    for n, values in enumerate(parts):
        unit = data.draw(st.sampled_from(["s", "ms", "us", "ns", "h"]))
        seconds = np.array(values) * 3600
        lengths = np.array([len(values), *[0] * (len(values) - 1)])
        np.savez(
            folder / f"{n}.npz",
            whole=np.array(values, data.draw(st.sampled_from(WHOLE))),
            time=seconds.astype("M8[s]").astype(f"M8[{unit}]"),
            span=seconds.astype("m8[s]").astype(f"m8[{unit}]"),
            word=np.array([f"{v}" for v in values], data.draw(st.sampled_from([">U9", "<U3"]))),
            **{"ids": np.array(values, data.draw(st.sampled_from(WHOLE))), "ids.lengths": lengths},
        )

    reader = open_reader(str(folder / "*.npz"))
    found = read(reader)

    types = {each.name: str(each.type) for each in schema_of(reader)}
    assert types == {
        "whole": "int64", "time": "timestamp", "span": "duration", "word": "text",
        "ids": "list of int64",
    }  # fmt: skip
    for values, records in zip(parts, found, strict=True):
        times = (np.array(values) * 3600).astype("M8[s]")
        assert (values, np.int64) == (records["whole"].tolist(), records["whole"].dtype)
        assert times.astype("M8[us]").tobytes() == records["time"].tobytes()
        assert times.astype("M8[us]").tobytes() == records["span"].tobytes()
        assert [f"{v}" for v in values] == records["word"].tolist()
        assert [values, *[[]] * (len(values) - 1)] == records["ids"].tolist()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_lists_of_npz_are_members_of_values_and_lengths(tmp_path: Path, save: Any) -> None:
    path = tmp_path / "a.npz"
    save(path, **{"g": np.array(["a", "b", "c"]), "g.lengths": [2, 0, 1], "y": np.arange(3)})

    reader = open_reader(str(path))
    (records,) = read(reader)

    assert ("g", "y") == records.names
    assert [["a", "b"], [], ["c"]] == records["g"].tolist()
    assert [[], ["c"]] == reader.read(str(path), 1, 3)["g"].tolist()  # type: ignore[call-overload]
    assert [["a", "b"], ["c"]] == reader.read(str(path), 0, 3, skip=[1])["g"].tolist()  # type: ignore[call-overload]
    save(path, **{"g": np.arange(3), "g.lengths": [2, 2, 0]})
    with pytest.raises(DataError, match=r"g has 3 values, and g\.lengths tells of 4"):
        open_reader(str(path)).sources()


def test_what_no_schema_can_say_is_refused_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", z=np.array([1j]), t=np.array([1500], "M8[ns]"), s=np.array([b"a"]))
    path = str(tmp_path / "a.npz")

    with pytest.raises(DataError, match="'z' holds complex128, which is no type of a column"):
        open_reader(path).sources()
    with pytest.raises(RecordError, match="record 0: column 't' is timestamp, and .* is no whole"):
        open_reader(path, columns="t").read(path, 0, 1)
    assert [b"a"] == open_reader(path, columns="s").read(path, 0, 1)["s"].tolist()  # type: ignore[call-overload]


@pytest.mark.parametrize("suffix", ["parquet", "npz"])
def test_dtypes_knows_the_words_of_a_schema_and_names_them(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    if suffix == "npz":
        np.savez(path, x=np.array([1, 2]))
    else:
        write(path, x=pa.array([1, 2]))

    (records,) = read(open_reader(str(path), dtypes="x:float32"))
    with pytest.raises(UsageError, match="dtypes knows text, bool, int64, .*not 'number'"):
        open_reader(str(path), dtypes="x:number")
    with pytest.raises(DataError, match="'x' is int64 in .*timestamp as it was declared"):
        open_reader(str(path), dtypes="x:timestamp").sources()
    with pytest.raises(UsageError, match="dtypes says that 'x' is float32, and the schema int64"):
        open_reader(str(path), dtypes="x:float32", schema=Schema((Field("x", Type("int64")),)))

    assert np.float32 == records["x"].dtype

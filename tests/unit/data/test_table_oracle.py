"""Generated tables: what readers give is what pyarrow's and numpy's own values say, or is refused.

The oracle never asks edl how a type is read: it takes the Python values that were written, and says
by a few lines of plain Python what each must become.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.common.errors import DataError, RecordError
from edl.common.ragged import Ragged
from edl.data.kernels import masked_crc32c
from edl.data.open import open_reader
from edl.data.reader import Columns


def cases(number: int) -> settings:
    ok = [HealthCheck.function_scoped_fixture]  # each case writes its one file anew
    return settings(max_examples=examples(number), deadline=None, suppress_health_check=ok)


# -- Parquet


@dataclass(frozen=True)
class Kind:
    """An Arrow type: how values of it are made, and what they become. `refuses`: missing ones."""

    arrow: pa.DataType
    values: st.SearchStrategy[Any]
    dtype: str
    become: Callable[[Any], Any] = lambda value: value
    missing: Any = None
    refuses: bool = False


def ints(bits: int, signed: bool = True) -> st.SearchStrategy[int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    near = [n for n in (2**53 - 1, 2**53, 2**53 + 1, low, high, 0, 1) if low <= n <= high]
    return st.sampled_from(near) | st.integers(low, high)


def epoch(value: datetime.date) -> int:
    return (value - datetime.date(1970, 1, 1)).days


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
dates = st.dates(datetime.date(1700, 1, 1), datetime.date(2200, 1, 1))
small = st.decimals(-(10**9), 10**9, places=4, allow_nan=False)
NAN, NAT = float("nan"), np.iinfo(np.int64).min

KINDS = {
    "int8": Kind(pa.int8(), ints(8), "int64", refuses=True),
    "int64": Kind(pa.int64(), ints(64), "int64", refuses=True),
    "uint32": Kind(pa.uint32(), ints(32, False), "int64", refuses=True),
    "uint64": Kind(pa.uint64(), ints(64, False), "uint64", refuses=True),
    "bool": Kind(pa.bool_(), st.booleans(), "bool", refuses=True),
    "float": Kind(pa.float32(), st.floats(width=32), "float32", missing=NAN),
    "double": Kind(pa.float64(), st.floats(), "float64", missing=NAN),
    "string": Kind(pa.string(), texts, "str", missing=""),
    "large_string": Kind(pa.large_string(), texts, "str", missing=""),
    "string_view": Kind(pa.string_view(), texts, "str", missing=""),
    "dictionary": Kind(pa.dictionary(pa.int32(), pa.string()), texts, "str", missing=""),
    "binary": Kind(pa.binary(), st.binary(max_size=4), "object", missing=b""),
    "decimal whole": Kind(pa.decimal128(18, 0), ints(59).map(decimal.Decimal), "int64", int,
                          refuses=True),
    "decimal": Kind(pa.decimal128(15, 4), small, "float64", float, NAN),
    "date": Kind(pa.date32(), dates, "datetime64[D]", epoch, NAT),
    "timestamp": Kind(pa.timestamp("us", "UTC"), ints(50), "datetime64[us]", missing=NAT),
    "pixels": Kind(pa.list_(pa.uint8(), 2), st.tuples(ints(8, False), ints(8, False)), "uint8",
                   list, refuses=True),
    "vector": Kind(pa.list_(pa.float32(), 2), st.tuples(*[st.floats(width=32)] * 2), "float32",
                   list, [NAN, NAN]),
    "ids": Kind(pa.list_(pa.int64()), st.lists(ints(64), max_size=3), "list of int64", list, []),
}  # fmt: skip


@dataclass
class Table:
    kinds: dict[str, Kind]
    values: dict[str, list[Any]]
    rows: int
    group: int
    statistics: bool
    columns: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        arrays = {n: pa.array(v, self.kinds[n].arrow) for n, v in self.values.items()}
        pyarrow.parquet.write_table(
            pa.table(arrays), path, row_group_size=self.group, write_statistics=self.statistics
        )


@st.composite
def tables(draw: Any) -> Table:
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4, unique=True))
    rows = draw(st.integers(1, 9))
    values = {}
    for name in names:
        one = KINDS[name].values
        each = draw(st.sampled_from([one, st.none() | one]))
        values[name] = draw(st.lists(each, min_size=rows, max_size=rows))
    wanted = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    return Table(
        {name: KINDS[name] for name in names}, values, rows, draw(st.integers(1, 5)),
        draw(st.booleans()), wanted,
    )  # fmt: skip


def told(values: np.ndarray[Any, Any] | Ragged) -> str:
    if isinstance(values, Ragged):
        return f"list of {told(values.values)}"
    return "str" if values.dtype.kind == "U" else str(values.dtype)


def same(expected: list[Any], values: np.ndarray[Any, Any] | Ragged) -> bool:
    """Tell whether the values are equal, NaN to NaN, and -0.0 not to 0.0."""
    if isinstance(values, Ragged):
        return repr(expected) == repr(values.tolist())
    array = values
    found = (array.view(np.int64) if array.dtype.kind == "M" else array).tolist()
    return repr(expected) == repr(found)


@cases(300)
@given(table=tables(), data=st.data())
def test_parquet_is_what_was_written_or_refused(table: Table, data: Any, tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    table.write(path)
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, table.rows)] * 2)))
    skip = data.draw(st.sets(st.integers(start, end)))
    reader = open_reader(str(path), columns=table.columns)
    lacking = {
        name: [i for i, value in enumerate(table.values[name]) if value is None]
        for name in table.columns
        if table.kinds[name].refuses
    }
    broken = sorted({i for rows in lacking.values() for i in rows})
    flat = [name for name, rows in lacking.items() if rows and name != "pixels"]

    if flat and table.statistics:
        with pytest.raises(DataError, match=f"missing={flat[0]}:") as raised:
            reader.sources()
        assert all(f"{name}:nan" in str(raised.value) for name in flat)
        return
    (source,) = reader.sources()
    asked = [i for i in range(start, end) if i not in skip]
    for number in [i for i in broken if i in asked]:
        with pytest.raises(RecordError, match="misses a value") as raised:
            reader.read(source.name, start, end, skip)
        assert number == raised.value.record  # type: ignore[attr-defined]
        skip, asked = skip | {number}, [i for i in asked if i != number]
    records = reader.read(source.name, start, end, skip)

    assert isinstance(records, Columns)
    assert tuple(table.columns) == records.names
    for name in table.columns:
        kind, values = table.kinds[name], [table.values[name][i] for i in asked]
        expected = [kind.missing if v is None else kind.become(v) for v in values]
        assert kind.dtype == told(records[name])
        assert same(expected, records[name]), (name, expected, records[name])


@cases(130)
@given(values=st.lists(st.none() | ints(64), min_size=1, max_size=6), statistics=st.booleans())
def test_chosen_values_stand_for_missing_ones_and_nothing_is_rounded(
    values: list[int | None], statistics: bool, tmp_path: Path
) -> None:
    path = tmp_path / "data.parquet"
    table = pa.table({"id": pa.array(values, pa.int64())})
    pyarrow.parquet.write_table(table, path, write_statistics=statistics)
    inexact = [i for i, v in enumerate(values) if v is not None and int(float(v)) != v]
    whole = open_reader(str(path), missing="*:-7")
    floats = open_reader(str(path), missing={"id": "nan"})

    exact = whole.read(str(path), 0, len(values))
    if inexact:
        with pytest.raises(RecordError, match="is float64, and .* would change in it") as raised:
            floats.read(str(path), 0, len(values))
        assert inexact[0] == raised.value.record
    left = floats.read(str(path), 0, len(values), skip=inexact)

    assert isinstance(exact, Columns)
    assert isinstance(left, Columns)
    assert [-7 if v is None else v for v in values] == exact["id"].tolist()
    assert "int64" == str(exact["id"].dtype)
    assert "float64" == str(left["id"].dtype)
    kept = [NAN if v is None else float(v) for i, v in enumerate(values) if i not in inexact]
    assert repr(kept) == repr(left["id"].tolist())


@cases(130)
@given(value=st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**8),
                         max_value=10**8, places=20))  # fmt: skip
def test_decimal_is_the_nearest_float_or_refused(value: decimal.Decimal, tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pa.table({"d": pa.array([value], pa.decimal128(38, 20))}), path)
    reader = open_reader(str(path))

    if decimal.Decimal(repr(float(value))) == value:
        assert [float(value)] == reader.read(str(path), 0, 1)["d"].tolist()  # type: ignore[call-overload]
    else:
        with pytest.raises(RecordError, match="would change in float64: say dtypes=d:text"):
            reader.read(str(path), 0, 1)
    text = open_reader(str(path), dtypes="d:str").read(str(path), 0, 1)
    assert decimal.Decimal(text["d"].tolist()[0]) == value  # type: ignore[call-overload]


# -- numpy


DTYPES = ["<i8", ">i8", "u1", "<u8", "?", "<f4", ">f8", "<U3", "S2", "<M8[us]"]


@cases(130)
@given(data=st.data(), suffix=st.sampled_from(["npy", "npz", "npz, compressed"]))
def test_arrays_are_what_was_saved(data: Any, suffix: str, tmp_path: Path) -> None:
    rows = data.draw(st.integers(1, 8))
    inner = data.draw(st.lists(st.integers(0, 3), max_size=2))
    names = ["data"] if suffix == "npy" else data.draw(
        st.lists(st.sampled_from("abc"), min_size=1, unique=True)
    )  # fmt: skip
    arrays = {}
    for name in names:
        dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
        shape = (rows, *inner)
        seed = data.draw(st.integers(0, 9))
        raw = np.random.default_rng(seed).integers(0, 256, int(np.prod(shape)) * dtype.itemsize)
        if dtype.kind in "?bU":
            raw = raw % 2
        arrays[name] = np.frombuffer(raw.astype(np.uint8).tobytes(), dtype).reshape(shape)
    path = tmp_path / f"data.{suffix[:3]}"
    if suffix == "npy":
        np.save(path, arrays["data"])
    else:
        (np.savez if suffix == "npz" else np.savez_compressed)(path, **arrays)
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, rows)] * 2)))
    skip = data.draw(st.sets(st.integers(0, rows)))
    left = [i for i in range(start, end) if i not in skip]

    reader = open_reader(str(path))
    records = reader.read(reader.sources()[0].name, start, end, skip)

    assert isinstance(records, Columns)
    for name, array in arrays.items():
        kind, alone = array.dtype.kind, array.ndim == 1  # only of many each keeps its width
        wide = {"S": "O", "u": "u8" if array.dtype == np.uint64 else "i8"} if alone else {"S": "O"}
        native = array.astype(wide.get(kind, array.dtype.newbyteorder("=")))[left]
        assert native.dtype == records[name].dtype
        assert native.shape == records[name].shape
        assert native.tolist() == records[name].tolist() if kind in "SM" else (
            native.tobytes() == records[name].tobytes()
        )  # fmt: skip


# -- TFRecord


def frame(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    sums = [struct.pack("<I", masked_crc32c(part)) for part in (head, data)]
    return head + sums[0] + data + sums[1]


@cases(130)
@given(records=st.lists(st.binary(max_size=20), min_size=1, max_size=8), data=st.data())
def test_raw_records_are_what_was_written(records: list[bytes], data: Any, tmp_path: Path) -> None:
    path = tmp_path / "data.tfrecord"
    path.write_bytes(b"".join(map(frame, records)))
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(records))] * 2)))
    skip = data.draw(st.sets(st.integers(0, 8)))

    reader = open_reader(str(path), raw=True)

    assert len(records) == reader.sources()[0].records
    expected = [records[i] for i in range(start, end) if i not in skip]
    assert expected == reader.read(str(path), start, end, skip)

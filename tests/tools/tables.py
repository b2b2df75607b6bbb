"""Drawn tables, and writers of them in each format: by pyarrow, csv, numpy and plain protobuf.

The values are Python's; what a column must become is said by `expected`, in a few lines.
"""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from edl.data.kernels import masked_crc32c

EPOCH = datetime.datetime(1970, 1, 1)
_EDGES = [0, 1, -1, 7, 2**31, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]
_WORDS = [
    "007", "7", "07", "NA", "null", "nan", "", " 7", "7 ", "+7", "1e3", "1_0", "-0", "inf", "True",
    "é", "日本", "a,b", 'say "x"', "line\nend", "tab\there", "\ufeffx", "0x10",
]  # fmt: skip
_letters = st.text(st.characters(codec="utf-8", exclude_characters="\0\r|"), max_size=5)
texts = st.sampled_from(_WORDS) | _letters
elements = texts.filter(lambda text: text.strip() == text and text not in ("", "NA", "null", "nan"))
int64s = st.sampled_from(_EDGES) | st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)
uint64s = st.sampled_from([0, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
float64s = st.sampled_from([0.0, -0.0, 0.1, 1e308, 5e-324, 2.0**53]) | st.floats(
    allow_infinity=False
)
float32s = st.floats(width=32, allow_infinity=False)
moments = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1))
days = st.dates(datetime.date(1700, 1, 1), datetime.date(2200, 1, 1))
spans = st.timedeltas(datetime.timedelta(-999), datetime.timedelta(999))


@dataclass(frozen=True)
class Kind:
    """A type of a schema: its values, its dtype, and the Arrow types that mean the same."""

    values: st.SearchStrategy[Any]
    dtype: str
    arrow: Sequence[Callable[[Sequence[Any]], pa.DataType | None]]
    lists: bool = False
    in_example: str = ""  # of tf.train.Feature


def _always(kind: pa.DataType) -> Callable[[Sequence[Any]], pa.DataType]:
    return lambda _values: kind


def _within(kind: pa.DataType, low: int, high: int) -> Callable[[Sequence[Any]], Any]:
    return lambda values: kind if all(v is None or low <= v < high for v in values) else None


def _seconds(values: Sequence[Any]) -> pa.DataType | None:
    whole = all(v is None or not v.microsecond for v in values)
    return pa.timestamp("s") if whole else None


_WHOLE = [
    _always(pa.int64()),
    _within(pa.int8(), -(2**7), 2**7),
    _within(pa.int32(), -(2**31), 2**31),
    _within(pa.uint16(), 0, 2**16),
    _within(pa.decimal128(18, 0), -(10**18) + 1, 10**18),
]
_TEXT = [
    _always(pa.string()),
    _always(pa.large_string()),
    _always(pa.dictionary(pa.int32(), pa.string())),
]
KINDS = {
    "int64": Kind(int64s, "int64", _WHOLE, in_example="int"),
    "uint64": Kind(uint64s, "uint64", [_always(pa.uint64())]),
    "float64": Kind(float64s, "float64", [_always(pa.float64())]),
    "float32": Kind(float32s, "float32", [_always(pa.float32())], in_example="float"),
    "bool": Kind(st.booleans(), "bool", [_always(pa.bool_())]),
    "text": Kind(texts, "U", _TEXT, in_example="bytes"),
    "bytes": Kind(texts.map(str.encode), "O", [_always(pa.binary())], in_example="bytes"),
    "date": Kind(days, "M8[D]", [_always(pa.date32()), _always(pa.date64())]),
    "timestamp": Kind(moments, "M8[us]", [_always(pa.timestamp("us")), _seconds]),
    "duration": Kind(spans, "m8[us]", [_always(pa.duration("us"))]),
    "list of int64": Kind(
        st.lists(int64s, max_size=4),
        "int64",
        [_always(pa.list_(pa.int64())), _always(pa.large_list(pa.int64()))],
        lists=True,
        in_example="int",
    ),
    "list of float64": Kind(
        st.lists(float64s, max_size=4), "float64", [_always(pa.list_(pa.float64()))], lists=True
    ),
    "list of text": Kind(
        st.lists(elements, max_size=4),
        "U",
        [_always(pa.list_(pa.string())), _always(pa.list_(pa.dictionary(pa.int8(), pa.string())))],
        lists=True,
        in_example="bytes",
    ),
}


@dataclass(frozen=True)
class Table:
    """A table: the name of each column's Kind, and its values, for each part of the data."""

    kinds: dict[str, str]
    parts: list[dict[str, list[Any]]]
    physical: list[dict[str, int]] = field(default_factory=list)  # which Arrow type, by part

    @property
    def rows(self) -> dict[str, list[Any]]:
        return {name: [v for part in self.parts for v in part[name]] for name in self.kinds}

    def only(self, names: Sequence[str]) -> Table:
        """Return the table with these columns."""
        kinds = {name: self.kinds[name] for name in names}
        parts = [{name: part[name] for name in names} for part in self.parts]
        return Table(kinds, parts, self.physical)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Draw a table of one to three parts, of one to four columns."""
    count = draw(st.integers(1, 4))
    kinds = {f"c{i}": draw(st.sampled_from([*KINDS])) for i in range(count)}
    parts, physical = [], []
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 5))
        parts.append(
            {
                name: draw(st.lists(KINDS[kind].values, min_size=size, max_size=size))
                for name, kind in kinds.items()
            }
        )
        physical.append({name: draw(st.integers(0, 4)) for name in kinds})
    return Table(kinds, parts, physical)


def expected(kind: str, values: Sequence[Any]) -> Any:
    """Return what a column of these values is: an array, or of lists a list of arrays."""
    if KINDS[kind].lists:
        inner = kind.removeprefix("list of ")
        return [expected(inner, each) for each in values]
    if kind == "bytes":
        made = np.empty(len(values), object)
        made[:] = values
        return made
    if kind == "text":
        return np.array(values or [""], np.str_)[: len(values)]
    if kind == "timestamp":
        micros = [(v - EPOCH) // datetime.timedelta(microseconds=1) for v in values]
        return np.array(micros, np.int64).view("M8[us]")
    if kind == "duration":
        micros = [v // datetime.timedelta(microseconds=1) for v in values]
        return np.array(micros, np.int64).view("m8[us]")
    return np.array(values, KINDS[kind].dtype)


# -- the formats


def write_parquet(table: Table, folder: Path) -> Path:
    for number, part in enumerate(table.parts):
        columns = {}
        for name, kind in table.kinds.items():
            fitting = [t for make in KINDS[kind].arrow if (t := make(part[name])) is not None]
            chosen = fitting[table.physical[number][name] % len(fitting)]
            if pa.types.is_decimal(chosen):
                columns[name] = pa.array(list(map(Decimal, part[name])), chosen)
                continue
            values = pa.array(part[name], _plain(chosen))
            columns[name] = values if values.type == chosen else values.cast(chosen)
        folder.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), folder / f"part{number}.parquet")
    return folder


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind


def spelled(kind: str, value: Any) -> str:
    """Return a value as a field of CSV."""
    if KINDS[kind].lists:
        return "|".join(spelled(kind.removeprefix("list of "), each) for each in value)
    if kind == "bytes":
        return str(value, "utf-8")
    if kind == "bool":
        return "true" if value else "false"
    if kind == "timestamp":
        return str(value.isoformat())
    if kind == "duration":
        whole, rest = divmod(abs(value // datetime.timedelta(microseconds=1)), 10**6)
        return f"{'-' * (value < datetime.timedelta(0))}PT{whole}.{rest:06d}S"  # ISO 8601
    return repr(value) if kind.startswith("float") else str(value)


def csv_of(part: dict[str, list[Any]], kinds: dict[str, str], sep: str = ",") -> bytes:
    text = io.StringIO()
    lines = csv.writer(text, delimiter=sep, lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
    lines.writerow(kinds)
    columns = [[spelled(kind, value) for value in part[name]] for name, kind in kinds.items()]
    lines.writerows(zip(*columns, strict=True))
    return text.getvalue().encode()


def write_csv(table: Table, folder: Path, suffix: str = ".csv") -> Path:
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(table.parts):
        data = csv_of(part, table.kinds, "\t" if ".tsv" in suffix else ",")
        packed = gzip.compress(data, 1) if suffix.endswith(".gz") else data
        (folder / f"part{number}{suffix}").write_bytes(packed)
    return folder


def write_npz(table: Table, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(table.parts):
        arrays: dict[str, Any] = {}
        for name, kind in table.kinds.items():
            values = expected(kind, part[name])
            if KINDS[kind].lists:
                arrays[name] = np.concatenate(
                    [expected(kind.removeprefix("list of "), []), *values]
                )
                arrays[f"{name}.lengths"] = np.array([*map(len, values)], np.int64)
            else:
                arrays[name] = np.array(part[name], np.bytes_) if kind == "bytes" else values
        np.savez(folder / f"part{number}.npz", **arrays)
    return folder


def example_of(table: Table, row: dict[str, Any]) -> bytes:
    """Return a tf.train.Example, as protobuf writes it."""
    features = b""
    for name, kind in table.kinds.items():
        values = row[name] if KINDS[kind].lists else [row[name]]
        form = KINDS[kind].in_example
        if form == "int":
            inner = _field(3, _field(1, b"".join(_varint(v % 2**64) for v in values)))
        elif form == "float":
            inner = _field(2, _field(1, struct.pack(f"<{len(values)}f", *values)))
        else:
            texts = [v if isinstance(v, bytes) else v.encode() for v in values]
            inner = _field(1, b"".join(_field(1, text) for text in texts))
        features += _field(1, _field(1, name.encode()) + _field(2, inner))
    return _field(1, features)


def _varint(number: int) -> bytes:
    found = bytearray()
    while True:
        number, low = number >> 7, number & 127
        found.append(low | (128 if number else 0))
        if not number:
            return bytes(found)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _examples(table: Table, part: dict[str, list[Any]]) -> list[bytes]:
    rows = zip(*part.values(), strict=True)
    return [example_of(table, dict(zip(part, row, strict=True))) for row in rows]


def write_tfrecord(table: Table, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(table.parts):
        data = b""
        for record in _examples(table, part):
            head = struct.pack("<Q", len(record))
            data += head + struct.pack("<I", masked_crc32c(head))
            data += record + struct.pack("<I", masked_crc32c(record))
        (folder / f"part{number}.tfrecord").write_bytes(data)
    return folder


def write_recordio(table: Table, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(table.parts):
        records = _examples(table, part)
        body = b"".join(struct.pack("<I", len(each)) + each for each in records)
        head = struct.pack("<5I", 0x01020304, zlib.crc32(body), 0, len(body), len(records))
        (folder / f"part{number}.recordio").write_bytes(head + body)
    return folder

"""The tables of docs/data.md, from the code: by signatures, and by reading tiny files of each type.

`python tests/tools/data_tables.py` writes them into the page; tests/unit/docs compares them.
"""

from __future__ import annotations

import datetime
import decimal
import inspect
import logging
import re
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from PIL import Image

from edl.common.errors import EdlError
from edl.common.ragged import Ragged
from edl.data.open import _MODULES, _SUFFIXES, PARAMETERS, TABLES, maker, open_reader
from edl.data.reader import Columns

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data.md"
DAY, HOUR = datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 2, 3)
ARROW: list[tuple[str, pa.DataType, Any]] = [
    ("int8 to int64, uint8 to uint32", pa.int32(), 1),
    ("uint64", pa.uint64(), 1),
    ("bool", pa.bool_(), True),
    ("float16", pa.float16(), np.float16(1)),
    ("float32", pa.float32(), 1.5),
    ("float64", pa.float64(), 1.5),
    ("decimal, scale 0", pa.decimal128(12, 0), decimal.Decimal(1)),
    ("decimal, other scales", pa.decimal128(12, 2), decimal.Decimal("1.25")),
    ("string, large_string, string_view", pa.string_view(), "a"),
    ("binary, large_, _view, fixed_size_", pa.large_binary(), b"a"),
    ("dictionary of strings", pa.dictionary(pa.int32(), pa.string()), "a"),
    ("date32, date64", pa.date64(), DAY),
    ("timestamp of s, ms, us, ns (any zone: UTC)", pa.timestamp("ms", "Europe/Berlin"), HOUR),
    ("time32, time64 (since midnight)", pa.time64("us"), datetime.time(1)),
    ("duration", pa.duration("ms"), datetime.timedelta(1)),
    ("fixed_size_list of uint8", pa.list_(pa.uint8(), 3), [1, 2, 3]),
    ("fixed_size_list of float32", pa.list_(pa.float32(), 3), [1, 2, 3]),
    ("fixed_size_list of those", pa.list_(pa.list_(pa.float32(), 3), 2), [[1, 2, 3]] * 2),
    ("list, large_list of whole numbers", pa.list_(pa.int16()), [1, 2]),
    ("list, large_list of float32", pa.list_(pa.float32()), [1, 2]),
    ("list, large_list of strings", pa.list_(pa.string()), ["a"]),
    ("list of lists", pa.list_(pa.list_(pa.int64())), [[1]]),
    ("struct", pa.struct([("a", pa.int64())]), {"a": 1}),
    ("map", pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    ("null", pa.null(), None),
]
CSV = [
    ("whole numbers", "1"), ("whole numbers beyond int64", "9223372036854775808"),
    ("whole numbers beyond 64 bits", "99999999999999999999"), ("numbers", "1.5"),
    ("numbers with a leading zero", "007"), ("true, false", "true"), ("anything else", "a"),
    ("lists of whole numbers, `split=COLUMN:;`", "1;2"), ("lists of anything else", "a;b"),
]  # fmt: skip
NUMPY = ["int8", "uint64", "bool", "float32", ">f8", "U1", "S1", "M8[s]", "M8[D]", "m8[s]"]


def types() -> str:
    """Return a line per reader and type."""
    logging.disable(logging.WARNING)
    lines = ["| reader | column | becomes | a missing value | with `missing=COLUMN:nan` |"]
    lines.append("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for reader, label, write in _columns():
            full, part = (
                Path(folder) / f"{n}.{reader.partition(',')[0]}" for n in ("full", "part")
            )
            write(full, False)
            cells = [_outcome(full)]
            if write(part, True) and not cells[0].startswith("refused"):
                cells += [_value(part), _outcome(full, missing="x:nan")]
            elif cells[0].startswith("refused"):
                cells += ["", ""]
            else:
                cells += ["there is none", _outcome(full, missing="*:nan")]
            lines.append(f"| {reader} | {label} | {' | '.join(cells)} |")
        for reader, label, value in _others(Path(folder)):
            lines.append(f"| {reader} | {label} | {_told(value)} | there is none | |")
    logging.disable(logging.NOTSET)
    return "\n".join(lines)


def _columns() -> Iterator[tuple[str, str, Callable[[Path, bool], bool]]]:
    """Yield (reader, column, writer of a file with or without a missing value, False if not)."""
    for label, text in CSV:
        yield "csv, tsv", label, partial(_csv, text)
    for label, kind, value in ARROW:
        yield "parquet", label, partial(_parquet, kind, value)
    for code in NUMPY:
        label = "float64, other byte order" if code[0] == ">" else _name(np.dtype(code))
        yield "npy, npz", label, partial(_npy, code)
    yield "npy, npz", "uint8 [N, 2]", partial(_npy, "2u1")
    yield "npz", "members NAME and NAME.lengths", _npz_lists


def _others(folder: Path) -> Iterator[tuple[str, str, Any]]:
    """Yield (reader, column or feature, its value) of the formats that know no missing value."""
    examples = folder / "x.recordio"
    lists = {"Int64List": b"\x1a\x03\x0a\x01\x07", "FloatList": b"\x12\x06\x0a\x04\0\0\x80?"}
    for label, feature in {**lists, "BytesList": b"\x0a\x03\x0a\x01a"}.items():
        entry = b"\x0a\x01x\x12" + bytes([len(feature)]) + feature
        features = b"\x0a" + bytes([len(entry)]) + entry
        body = b"\x0a" + bytes([len(features)]) + features
        body = len(body).to_bytes(4, "little") + body
        head = struct.pack("<5I", 0x01020304, zlib.crc32(body), 0, len(body), 1)
        examples.write_bytes(head + body)
        records = open_reader(str(examples)).read(str(examples), 0, 1)
        assert not isinstance(records, Columns)
        record = records[0]
        yield "tfrecord, recordio", f"feature of {label}", record["x"]
        columns = open_reader(str(examples), columns="x").read(str(examples), 0, 1)
        assert isinstance(columns, Columns)
        yield "the same, with `columns=`", f"{label}, one value", columns["x"]
    images = folder / "x-images-idx3-ubyte"
    images.write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, 1, 2, 3) + bytes(6))
    (folder / "x-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, 1) + b"\1")
    for reader in ("images", "text"):
        (folder / reader / "class").mkdir(parents=True)
    (folder / "deep" / "class").mkdir(parents=True)
    Image.new("RGB", (3, 2)).save(folder / "images" / "class" / "x.png")
    Image.new("I;16", (3, 2)).save(folder / "deep" / "class" / "x.png")
    (folder / "text" / "class" / "x.txt").write_text("words")
    for reader, path in (("idx", images), ("images", folder / "images"), ("text", folder / "text")):
        opened = open_reader(str(path))
        for label, column in opened.read(opened.sources()[0].name, 0, 1).items():  # type: ignore
            yield reader, label, column
    deep = open_reader(str(folder / "deep"))
    records = deep.read(deep.sources()[0].name, 0, 1)
    assert isinstance(records, Columns)
    yield "images", "image of 16 bits", records["image"]


def _csv(text: str, path: Path, missing: bool) -> bool:
    path.write_text(f"x,y\n{text},1\n{'' if missing else text},1\n")
    return True


def _parquet(kind: pa.DataType, value: Any, path: Path, missing: bool) -> bool:
    table = pa.table({"x": pa.array([value, None if missing else value], kind)})
    pyarrow.parquet.write_table(table, path, write_statistics=False)
    return True


def _npy(code: str, path: Path, missing: bool) -> bool:
    many = code == "2u1"
    np.save(path, np.ones((2, 2) if many else 2, "i1").astype(code.removeprefix("2" * many)))
    return not missing


def _npz_lists(path: Path, missing: bool) -> bool:
    members: dict[str, Any] = {"x": np.ones(2, "i1"), "x.lengths": np.ones(2, "i1")}
    np.savez(path, **members)
    return not missing


def _read(path: Path, **params: Any) -> np.ndarray[Any, Any] | Ragged:
    if path.suffix == ".csv" and ";" in path.read_text():
        params["split"] = "x:;"
    reader = open_reader(str(path), **params)
    (source,) = reader.sources()
    records = reader.read(source.name, 0, 2)
    assert isinstance(records, Columns)
    column: np.ndarray[Any, Any] | Ragged = next(iter(records.values()))
    return column


def _outcome(path: Path, **params: Any) -> str:
    try:
        array = _read(path, **params)
    except EdlError:
        return "refused, by name"
    return _told(array)


def _told(value: Any) -> str:
    """Tell a column, or a feature of one record, for a cell."""
    if isinstance(value, list):
        return "a list of bytes"
    if isinstance(value, Ragged):
        return f"Ragged of `{_name(value.values.dtype)}`"
    shape = f" [N, {', '.join(map(str, value.shape[1:]))}]" if value.ndim > 1 else ""
    if value.dtype == object:
        inner = value[0]
        return f"object: {type(inner).__name__}"
    return f"`{_name(value.dtype)}`{shape}"


def _value(path: Path) -> str:
    try:
        value = _read(path)[1]
    except EdlError:
        return "refused, by name"
    if isinstance(value, np.ndarray) and not value.size:
        return "an empty array"
    if isinstance(value, np.ndarray):
        return f"all {value.ravel()[0]}"
    return {"": "the empty text", b"": "no bytes"}.get(value) or str(value)


def _name(dtype: np.dtype[Any]) -> str:
    return {"U": "str", "S": "bytes"}.get(dtype.kind, str(dtype))


def parameters() -> str:
    """Return a line per parameter and default."""
    of: dict[tuple[str, str], list[str]] = {("format", "by suffix"): ["all"]}
    for name in _MODULES:
        for each in list(inspect.signature(maker(name)).parameters.values())[1:]:
            if each.name == "schema":  # which is no parameter of a user's
                continue
            of.setdefault((each.name, repr(each.default).strip("'")), []).append(name)
    of["partitions", "True"] = list(TABLES)
    lines = ["| parameter | of | default | what it says |", "|---|---|---|---|"]
    for (name, default), formats in of.items():
        default = {"None": "", "": ""}.get(default, f"`{default}`").replace(
            "`by suffix`", "by suffix"
        )
        said = PARAMETERS[name].replace("|", r"\|")
        lines.append(f"| `{name}` | {', '.join(formats)} | {default} | {said} |")
    return "\n".join(lines)


def suffixes() -> str:
    """Return a line per format."""
    lines = ["| format | suffixes |", "|---|---|"]
    for name in _MODULES:
        told = " ".join(f"`{suffix}`" for suffix, each in _SUFFIXES.items() if each == name)
        lines.append(f"| `{name}` | {told} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """Return the page with its tables as they are now."""
    for name, make in (("suffixes", suffixes), ("types", types), ("parameters", parameters)):
        block = f"<!-- {name}: python tests/tools/data_tables.py -->\n{make()}\n<!-- end -->"
        text, n = re.subn(
            rf"<!-- {name}: .*?<!-- end -->", block.replace("\\", r"\\"), text, flags=re.DOTALL
        )
        assert n == 1, name
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))

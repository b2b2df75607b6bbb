"""The readers' kernels on bytes, beside Python's own reading of the same."""

from __future__ import annotations

import random
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.data import csv as edl_csv
from edl.data import tfrecord
from edl.data.csv_columns import Parser
from edl.data.csv_dialect import Dialect
from edl.data.csv_types import Column
from edl.data.example import parse_example
from edl.data.examples import Examples
from edl.data.kernels import csv_state, masked_crc32c, scan_csv
from edl.data.missing import Missing
from edl.data.open import open_reader
from edl.data.reader import Columns
from edl.data.schema import Type

DIALECT = Dialect(",", '"', "", "", False, "utf-8")


def parsed(texts: list[str], kind: str) -> Any:
    """Return a column of these fields by the kernel alone: a doubt is an error."""
    fill = Missing({}).fill("x", np.dtype(kind))
    data = "".join(f"{text},\n" for text in texts).encode()
    starts = np.append(DIALECT.records(data), len(data))
    column = Sure("x", Type(kind), fill)
    columns = Parser(DIALECT, ["x", "y"], {"x": column}, False).parse(data, starts[:-1], starts[1:])
    assert columns is not None
    return columns["x"]


class Sure(Column):
    """A column that Python is not asked to convert."""

    def singles(self, values: Any, plain: bool = False) -> Any:
        raise AssertionError(f"a doubt: {values}")


def floats(r: random.Random) -> str:
    digits = r.randint(1, 18)
    number = str(r.randint(10 ** (digits - 1), 10**digits - 1))
    point = r.randint(0, digits)
    text = f"{number[:point]}.{number[point:]}"
    power = r.randint(-280, -point) if r.random() < 0.5 else 0
    sign, exponent = r.choice(("", "-", "+")), f"e{power}" if power else ""
    return f"{sign}{text}{exponent}" if point < 16 else f"{sign}0.{number}"


def halfway(r: random.Random) -> str:
    """Return a number between two neighbours, or nearly so: the hardest to round."""
    below = r.randint(1 << 52, (1 << 53) - 1)
    return f"{(2 * below + 1) * 5 + r.choice((-1, 0, 0, 1))}e{-(1 + r.randint(0, 3))}"


def significant(text: str) -> str:
    return re.sub(r"e.*|\D", "", text).lstrip("0")


@pytest.mark.parametrize("make", [floats, halfway, lambda r: repr(r.gauss(0, 1))])
def test_floats_are_the_nearest(make: Any) -> None:
    r = random.Random(1)
    texts = [text for _ in range(20_000) if len(significant(text := make(r))) <= 18]
    texts = [text for text in texts if 0 < abs(float(text)) < 2**53]
    doubts: list[str] = []

    class Counted(Column):
        def singles(self, values: Any, plain: bool = False) -> Any:
            doubts.extend(values)
            return np.array([float(value) for value in values])

    column = Counted("x", Type("float64"), Missing({}).fill("x", np.dtype("float64")))
    data = "".join(f"{text}\n" for text in texts).encode()
    starts = np.append(DIALECT.records(data), len(data))
    got = Parser(DIALECT, ["x"], {"x": column}, False).parse(data, starts[:-1], starts[1:])

    assert got is not None
    assert np.array([float(text) for text in texts]).tobytes() == got["x"].tobytes()
    assert len(texts) > 5_000
    assert len(doubts) <= len(texts) // 100


def test_whole_numbers_zeros_and_short_fractions_are_sure() -> None:
    texts = [
        f"{sign}{n}" for n in (0, 7, 12345678, 123456789, 10**18 - 1) for sign in ("", "-", "+")
    ]

    assert [int(text) for text in texts] == parsed(texts, "int64").tolist()
    texts += ["-0", ".5", "5.", "-12.345678", "0.001", "1e5", "1E-7", "-0.0"]
    texts = [text for text in texts if abs(float(text)) < 2**53]
    assert np.array([float(text) for text in texts]).tobytes() == parsed(texts, "float64").tobytes()


def test_plain_tables_are_read_without_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(edl_csv.CsvFile, "_read")
    text = 'n,x,t,unread\r\n5,,"say ""hi""",ab\r\n-7,NA,größe 日🙂 so,"a\nb"\r\n\r\n8,1e3,,\r\n'
    (tmp_path / "data.csv").write_bytes(text.encode())
    reader = open_reader(str(tmp_path / "data.csv"), columns="t|n|x")
    source = reader.sources()[0]

    records = reader.read(source.name, 0, 3)

    assert isinstance(records, Columns)
    assert ["t", "n", "x"] == list(records)
    texts = np.array(['say "hi"', "größe 日🙂 so", ""])
    assert (texts.dtype, texts.tolist()) == (records["t"].dtype, records["t"].tolist())
    assert [5, -7, 8] == records["n"].tolist()
    assert np.array_equal([np.nan, np.nan, 1000.0], records["x"], equal_nan=True)


@pytest.mark.parametrize("quote", ['"', ""])
def test_records_begin_where_they_do_however_the_file_is_cut(quote: str) -> None:
    r = random.Random(2)
    signs = Dialect(",", quote, "\\", "#", False, "utf-8").signs
    for _ in range(300):
        data = "".join(r.choice('aaaaaaaabc,"\n\r#\\') for _ in range(r.randint(1, 200))).encode()
        single, state, out = [], csv_state(), np.empty(300, np.int64)
        for place in range(len(data)):  # a byte has no seven others to be passed over with
            chunk = np.frombuffer(data[place : place + 1], np.uint8)
            single += out[: scan_csv(chunk, place, signs, state, out)].tolist()
        cut, cut_state, at = [], csv_state(), 0
        while at < len(data):
            chunk = np.frombuffer(data[at : at + r.randint(1, 64)], np.uint8)
            cut += out[: scan_csv(chunk, at, signs, cut_state, out)].tolist()
            at += len(chunk)

        assert single == cut, data
        assert state.tolist() == cut_state.tolist(), data


def varint(number: int) -> bytes:
    out = b""
    number &= (1 << 64) - 1
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(tag: int, body: bytes) -> bytes:
    return bytes([tag]) + varint(len(body)) + body


def example(r: random.Random) -> bytes:
    """Return an example as protobuf writes it, packed or not, features in any order or lacking."""
    entries = []
    for name in r.sample([b"a", b"b", b"label", "größe".encode()], r.randint(1, 4)):
        n = r.randint(0, 3)
        ints = [varint(r.choice((0, 5, 300, -1, 2**63 - 1))) for _ in range(n)]
        reals = [struct.pack("<f", r.gauss(0, 1)) for _ in range(n)]
        texts = b"".join(field(10, b"x" * r.choice((0, 3, 200))) for _ in range(n))
        lists = {
            10: texts,
            18: r.choice((field(10, b"".join(reals)), b"".join(b"\x0d" + each for each in reals))),
            26: r.choice((field(10, b"".join(ints)), b"".join(b"\x08" + each for each in ints))),
        }
        kind = r.choice(tuple(lists))
        entries.append(field(10, field(10, name) + field(18, field(kind, lists[kind]))))
    return field(10, b"".join(entries))


def told(parse: Any) -> Any:
    try:
        return [
            {name: each if isinstance(each, list) else (each.dtype, each.tobytes())
             for name, each in one.items()}
            for one in parse()
        ]  # fmt: skip
    except ValueError:
        return "broken"


def test_examples_are_parsed_as_one_by_one_broken_ones_too() -> None:
    r = random.Random(3)
    broken = 0
    for _ in range(1500):
        pieces = [bytearray(example(r)) for _ in range(r.randint(1, 4))]
        if r.random() < 0.6:
            piece = r.choice(pieces)
            for _ in range(r.randint(1, 2)):
                piece[r.randrange(len(piece))] = r.choice((0, 1, 8, 10, 13, 18, 26, 127, 128, 255))
        ends = np.cumsum([len(piece) for piece in pieces])
        begins = np.append(0, ends[:-1])
        data = b"".join(pieces)
        examples = Examples()
        list(examples.parse(first := example(r), np.array([0]), np.array([len(first)])))

        wanted = told(lambda pieces=pieces: [parse_example(bytes(piece)) for piece in pieces])
        got = told(lambda: list(examples.parse(data, begins, ends)))  # noqa: B023

        assert wanted == got, pieces
        broken += wanted == "broken"
    assert 100 < broken < 1400


def test_headers_are_found_across_the_chunks_of_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tfrecord, "_CHUNK_NBYTES", 40)
    bodies = [b"x" * n for n in (0, 1, 23, 24, 25, 300, 7)]
    parts = []
    for body in bodies:
        head = struct.pack("<Q", len(body))
        sums = [struct.pack("<I", masked_crc32c(each)) for each in (head, body)]
        parts.append(head + sums[0] + body + sums[1])
    (tmp_path / "data.tfrecord").write_bytes(b"".join(parts))

    reader = open_reader(str(tmp_path / "data.tfrecord"), raw=True)
    source = reader.sources()[0]

    assert len(bodies) == source.records
    assert bodies == reader.read(source.name, 0, len(bodies))

"""Generated tables, read as Python's csv with int and Decimal reads them, and as pyarrow does.

The oracles are told each column's type by how it was made; the reader has to find it out, or is
told, too: then whole numbers may have plus signs and leading zeros. (What types are found is the
matter of test_csv_types.py.)
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import random
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.common.errors import DataError, RecordError
from edl.data.open import open_reader
from edl.data.reader import Columns

NULLS = ("", "NA", "N/A", "null", "NULL", "nan", "NaN", "None", "?")
NAMES = ("user", "an item", "größe", "y", '5" disk', "x,y", "日")
numbers = itertools.count()


@pytest.fixture(autouse=True, scope="module")
def _pipe() -> None:
    """Let pyarrow make the pipe for signals that it keeps from its first read on."""
    pyarrow.csv.read_csv(io.BytesIO(b"a\n1\n"))


def whole(r: random.Random) -> str:
    """Return an int64 as text, near what float64 and int64 can hold."""
    power = r.choice((0, 3, 31, 52, 53, 54, 62, 63))
    number = r.choice((1, -1)) * (1 << power) + r.randint(-3, 3)
    number = max(-(2**63), min(2**63 - 1, number))
    return r.choice(("{}", "{}", "{}", " {}")).format(number)


def spelled(r: random.Random) -> str:
    """Return one that is spelled in another way, too."""
    return r.choice(("{}", "{}", "{:+}", "{:03}")).format(int(whole(r)))


def fraction(r: random.Random) -> str:
    value = r.choice((r.uniform(-9, 9), r.gauss(0, 1) * 10 ** r.randint(-300, 300), 0.5))
    return r.choice((repr(value), f"{value:.6e}", f"{value:.3f}" if abs(value) < 1e9 else "1.5"))


def word(r: random.Random) -> str:
    some = ("inf", "nan", "Infinity", "NA", "1_000", "１２", "0x1f", "9" * 20, "1.2.3", "--", "")
    return r.choice((*some, "é" * r.randint(1, 4), 'say "hi"', "two\nlines", "a,b;c\td", "#5"))


MAKE = {"int64": whole, "float64": fraction, "str": word}


@dataclass
class Table:
    """A table as text fields, with the type that each column has by its making."""

    names: list[str]
    kinds: list[str]
    rows: list[list[str]]

    @classmethod
    def make(cls, r: random.Random, nulls: float, declared: bool = False) -> Table:
        n, width = r.randint(1, 12), r.randint(1, 5)
        kinds = [r.choice(tuple(MAKE)) for _ in range(width)]
        columns = []
        for kind in kinds:
            made = spelled if declared and kind == "int64" else MAKE[kind]
            column = [made(r) for _ in range(n)]
            if kind != "str":
                column = [r.choice(NULLS) if r.random() < nulls else each for each in column]
            column[r.randrange(n)] = {"int64": whole(r), "float64": "0.5", "str": "a word"}[kind]
            columns.append(column)
        if width == 1:  # an empty line would be none
            columns = [[each or "a" for each in columns[0]]] if kinds == ["str"] else columns
            columns = [[each if each.strip() else "NA" for each in columns[0]]]
        return cls(r.sample(NAMES, width), kinds, [list(row) for row in zip(*columns, strict=True)])

    def column(self, name: str) -> list[str]:
        return [row[self.names.index(name)] for row in self.rows]

    def gaps(self, kind: str) -> list[str]:
        return [
            name
            for name, each in zip(self.names, self.kinds, strict=True)
            if each == kind and any(value.strip() in NULLS for value in self.column(name))
        ]


def is_text(values: list[str]) -> bool:
    """Tell whether enough values are words that no rule about numbers could take for some."""
    return sum(value.strip("+-.0123456789 eE") != "" for value in values) * 5 > len(values)


@given(
    seed=st.integers(0, 2**32),
    sep=st.sampled_from([",", ";", "\t", "|"]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "gbk"]),
    escape=st.booleans(),
    extra=st.sampled_from(["", "trailing", "comments", "blanks", "blank lines"]),
    nulls=st.sampled_from([0.0, 0.0, 0.3]),
    choice=st.sampled_from(["", "-1", "nan"]),
    declared=st.booleans(),
)
@settings(max_examples=examples(500), deadline=None)
def test_table_is_what_csv_and_int_and_decimal_make_of_it(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int, sep: str, end: str, encoding: str, escape: bool, extra: str, nulls: float,
    choice: str, declared: bool,
) -> None:  # fmt: skip
    declared &= choice != "nan"
    table = Table.make(random.Random(seed), nulls, declared)
    if encoding == "gbk":
        table.names = [name.replace("ö", "o").replace("ß", "s") for name in table.names]
    text = written(table, sep, end, escape, extra, random.Random(seed))
    path = saved(tmp_path_factory, text, encoding)
    params = {"sep": sep, "encoding": encoding, "header": True}
    params |= {"escape": "\\"} if escape else {}
    params |= {"comment": "#"} if extra == "comments" else {}
    params |= {"skip_blanks": True} if extra == "blanks" else {}
    gaps = table.gaps("int64")
    params |= {"dtypes": dict(zip(table.names, table.kinds, strict=True))} if declared else {}
    if gaps and not choice and not declared:
        with pytest.raises(DataError) as raised:
            read(path, params)
        assert all(repr(name) in str(raised.value) for name in gaps)
        return
    if choice:
        params["missing"] = dict.fromkeys(gaps or table.names[:0], choice)

    got = read(path, params, broken=(broken := set()))

    n = len(table.names)
    inexact = set()  # or without a whole number
    for name, kind in zip(table.names, table.kinds, strict=True):
        as_float = kind == "float64" or (name in gaps and choice == "nan")
        for place, value in enumerate(table.column(name)):
            if kind == "int64" and not choice and value.strip() in NULLS:
                inexact.add(place)
            elif as_float and value.strip() not in NULLS:
                exact = Decimal(float(value)) == Decimal(value.strip())
                if "." not in value and "e" not in value and not exact:
                    inexact.add(place)
    assert inexact == broken
    kept = [row for place, row in enumerate(table.rows) if place not in broken]
    if not kept:
        return
    for place in range(n):
        name, kind = table.names[place], table.kinds[place]
        values = [row[place] for row in kept]
        column = got[name]
        if kind == "str":
            if is_text(table.column(name)):
                assert column.dtype.kind == "U"
                assert values == column.tolist()
            continue
        numbers = [None if value.strip() in NULLS else Decimal(value.strip()) for value in values]
        if kind == "int64" and not (name in gaps and choice == "nan"):
            assert column.dtype == np.int64
            assert [-1 if each is None else int(each) for each in numbers] == column.tolist()
        else:
            assert column.dtype == np.float64
            expected = [float("nan") if each is None else float(each) for each in numbers]
            np.testing.assert_array_equal(expected, column)


def written(table: Table, sep: str, end: str, escape: bool, extra: str, r: random.Random) -> str:
    """Return the table as a file of this dialect, from which Python's csv reads the same."""
    stream = io.StringIO(newline="")
    # Where "\r" ends a line the module leaves a lone "\n" unquoted, and could not read that itself.
    some = csv.QUOTE_ALL if end == "\r" else r.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    writer = csv.writer(
        stream, delimiter=sep, lineterminator=end, doublequote=not escape,
        escapechar="\\" if escape else None, quoting=some,
    )  # fmt: skip
    lines = []
    rows = [table.names, *table.rows]
    for row in rows:
        stream.seek(0)
        stream.truncate()
        writer.writerow([*row, ""] if extra == "trailing" else row)
        lines.append(stream.getvalue())
        if extra == "comments" and row is not rows[0]:
            lines += [f"# it's \"no{sep} record{end}"] * r.randint(0, 2)
        if extra == "blank lines":
            lines += [end] * r.randint(0, 2)
    if extra == "comments":  # a first field that looks like one is quoted by nobody
        lines = [line if not line.startswith("#5") else f'"#5"{line[2:]}' for line in lines]
    if extra == "blanks" and len(table.names) > 1:
        lines = [blanks_after(line, sep) for line in lines]
    parsed = list(
        csv.reader(
            io.StringIO("".join(line for line in lines if not line.startswith("# ")), newline="")
            if end != "\r"
            else "".join(line for line in lines if not line.startswith("# ")).splitlines(True),
            delimiter=sep, doublequote=not escape, escapechar="\\" if escape else None,
            skipinitialspace=extra == "blanks",
        )
    )  # fmt: skip
    if end != "\r":  # the oracle of the oracle
        width = len(table.names)
        fields = [[value.strip(" ") for value in row[:width]] for row in parsed if row]
        assert fields == [[value.strip(" ") for value in row] for row in rows]
    return "".join(lines)


def blanks_after(line: str, sep: str) -> str:
    """Return the line with blanks before its fields, not within quotes: for `skip_blanks`."""
    quoted, out = False, []
    for before, letter in itertools.pairwise(f" {line}"):
        out.append(letter)
        quoted ^= letter == '"' and before != "\\"
        if letter == sep and not quoted:
            out.append("  ")
    return "".join(out)


def saved(factory: pytest.TempPathFactory, text: str, encoding: str) -> Path:
    path = factory.getbasetemp() / f"table-{next(numbers)}.csv"
    data = text.encode(encoding)
    path.write_bytes(codecs.BOM_UTF8 + data if encoding == "utf-8" and len(text) % 2 else data)
    return path


def read(
    path: Path, params: dict[str, object], broken: set[int] | None = None
) -> dict[str, np.ndarray]:
    """Read all columns without the broken records, and remove the file.

    The broken records' numbers are added to `broken`.
    """
    try:
        reader = open_reader(str(path), **params)
        (source,) = reader.sources()
        skip: set[int] = set() if broken is None else broken
        while True:
            try:
                records = reader.read(source.name, 0, source.records, skip)
            except RecordError as error:
                record = error.record
            else:
                assert isinstance(records, Columns)
                return {name: records[name] for name in records.names}
            assert broken is not None
            assert record not in skip
            skip.add(record)
    finally:
        path.unlink()


@given(
    seed=st.integers(0, 2**32),
    sep=st.sampled_from([",", ";", "\t"]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    nulls=st.sampled_from([0.0, 0.2]),
)
@settings(max_examples=examples(300), deadline=None)
def test_table_is_what_pyarrow_makes_of_it(
    tmp_path_factory: pytest.TempPathFactory, seed: int, sep: str, end: str, nulls: float
) -> None:
    table = Table.make(random.Random(seed), nulls)
    table.rows = [[value.strip().lstrip("+") for value in row] for row in table.rows]
    text = written(table, sep, end, False, "", random.Random(seed))
    arrow_types = {"int64": pyarrow.int64(), "float64": pyarrow.float64(), "str": pyarrow.string()}
    expected = pyarrow.csv.read_csv(
        io.BytesIO(text.encode()),
        parse_options=pyarrow.csv.ParseOptions(delimiter=sep, newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={
                name: arrow_types[kind]
                for name, kind in zip(table.names, table.kinds, strict=True)
            },
            null_values=list(NULLS),
        ),
    )  # fmt: skip
    gaps = dict.fromkeys(table.gaps("int64"), "-7")

    got = read(
        saved(tmp_path_factory, text, "utf-8"),
        {"sep": sep, "header": True, "missing": gaps},
        broken=(broken := set()),
    )

    kept = np.array([i for i in range(len(table.rows)) if i not in broken])
    for name, kind in zip(table.names, table.kinds, strict=True):
        column = expected.column(name).take(kept)
        if kind == "int64":
            assert column.fill_null(-7).to_pylist() == got[name].tolist()
        elif kind == "float64":
            np.testing.assert_array_equal(
                column.cast("float64").fill_null(np.nan).to_numpy(), got[name]
            )
        elif is_text(table.column(name)):
            assert column.to_pylist() == got[name].tolist()

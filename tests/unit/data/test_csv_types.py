"""The types of CSV columns, by all records of all files, beside an oracle of plain Python."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.csv_types import (
    SIGNS,
    SORTS,
    blanks_around,
    expected_type,
    expected_values,
    fields_of,
    missing,
    read,
    types,
    write,
    written,
)
from tools.turns import examples

from edl.common.errors import DataError, UsageError
from edl.common.ragged import Ragged
from edl.data import csv as edl_csv
from edl.data import csv_scan
from edl.data.csv_types import Column
from edl.data.open import open_reader
from edl.data.reader import schema_of

numbers = itertools.count()


@settings(max_examples=examples(150), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    parts=st.integers(1, 3),
    chunk=st.integers(1, 60) | st.just(1 << 20),
    dialect=st.sampled_from(["", "", "escape", "skip_blanks", "comment", "na_values"]),
    encoding=st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16"]),
    broken=st.booleans(),
)
def test_types_and_values_are_those_of_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, seed: int, end: str, parts: int, chunk: int,
    dialect: str, encoding: str, broken: bool,
) -> None:  # fmt: skip
    r = random.Random(seed)
    rows, names = r.randint(1, 12), [f"c{i}" for i in range(r.randint(1, 4))]
    signs = SIGNS if dialect == "na_values" else []
    columns = {name: fields_of(r, rows) for name in names}
    if dialect != "skip_blanks" and r.random() < 0.3:
        columns = {n: [blanks_around(r, each) for each in fs] for n, fs in columns.items()}
    table = list(zip(*columns.values(), strict=True))
    bounds = sorted([0, *r.choices(range(rows + 1), k=parts - 1), rows])
    folder = tmp_path_factory.getbasetemp() / f"types-{next(numbers)}"
    folder.mkdir()
    bad: list[set[int]] = []
    for part, (low, high) in enumerate(itertools.pairwise(bounds)):
        lines, wrong, number = [",".join(names)], set(), itertools.count()
        for row in table[low:high]:
            if broken and r.random() < 0.2:
                wrong.add(next(number))
                lines.append(",".join(["007x"] * (len(names) + 1)))
            next(number)
            escape = "\\" if dialect == "escape" else ""
            lines.append(
                ",".join(written(r, each, escape, dialect == "skip_blanks") for each in row)
            )
            if dialect == "comment":
                lines += ["#007,it's"] * r.randint(0, 1)
        bad.append(wrong)
        text = "".join(line + end for line in lines)
        text = text if r.random() < 0.7 else text.removesuffix(end)
        (folder / f"{part}.csv").write_bytes(text.encode(encoding))
    kinds = {name: expected_type(fields, signs) for name, fields in columns.items()}
    gaps = [n for n in names if any(missing(each, signs) for each in columns[n])]
    lacking = [name for name in gaps if "int" in kinds[name]]
    params: dict[str, Any] = {"encoding": encoding, "header": True}
    params |= {"na_values": signs} if signs else {}
    params |= {"escape": {"escape": "\\"}, "skip_blanks": {"skip_blanks": True},
               "comment": {"comment": "#"}}.get(dialect, {})  # fmt: skip

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_scan, "CHUNK_NBYTES", chunk)
        for module in (edl_csv, csv_scan):
            patch.setattr(module, "STRIDE", 4)
        if lacking:
            with pytest.raises(DataError, match="misses whole numbers") as raised:
                open_reader(str(folder), **params).sources()
            assert repr(lacking[0]) in str(raised.value) or parts > 1
        reader = open_reader(str(folder), missing=dict.fromkeys(lacking, "7"), **params)
        found = schema_of(reader)
        got: dict[str, list[Any]] = {name: [] for name in names}
        for source in reader.sources():
            skip = bad[int(Path(source.name).stem)]
            records: Any = reader.read(source.name, 0, source.records, skip)
            for name in names:
                assert found[name].type.dtype.kind == records[name].dtype.kind
                got[name] += records[name].tolist()

    assert kinds == {each.name: str(each.type) for each in found}
    for name in names:
        assert repr(expected_values(columns[name], kinds[name], signs)) == repr(got[name])


# -- Lists


@settings(max_examples=examples(80), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    sign=st.sampled_from([";", "|", " ", ","]),
    chunk=st.integers(1, 60) | st.just(1 << 20),
    escape=st.booleans(),
)
def test_lists_are_those_of_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, seed: int, sign: str, chunk: int, escape: bool
) -> None:
    r = random.Random(seed)
    lists = [[each for each in fields_of(r, r.randint(1, 5)) if sign not in each] for _ in range(9)]
    if r.random() < 0.5:  # of one sort
        make = SORTS[r.choice(("whole", "fraction", "near", "zeroed", "name"))]
        lists = [[make(r) for _ in range(r.randint(0, 5))] for _ in range(9)]
        lists = [[each for each in row if sign not in each] for row in lists]
    lists = [row for row in lists if row != [""]]
    fields = [each for row in lists for each in row]
    kind = expected_type(fields, [])
    rows = [f"{written(r, sign.join(row), chr(92) * escape, False)},1\n" for row in lists]
    folder = tmp_path_factory.getbasetemp() / f"lists-{next(numbers)}"
    path = write(folder / "a.csv", "g,y\n" + "".join(rows) + "0,1\n")
    kind = expected_type([*fields, "0"], [])
    lacking = {"missing": "g:7"} if "int" in kind and any(missing(f, []) for f in fields) else {}
    params: dict[str, Any] = {
        "split": {"g": sign},
        **({"escape": "\\"} if escape else {}),
        **lacking,
    }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_scan, "CHUNK_NBYTES", chunk)
        found = types(path, **params)
        records = read(path, **params)

    assert {"g": f"list of {kind}", "y": "int64"} == found
    assert isinstance(records["g"], Ragged)
    expected = [expected_values(row, kind, []) for row in [*lists, ["0"]]]
    assert repr(expected) == repr(records["g"].tolist())


def test_lists_of_plain_records_are_read_without_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(edl_csv.CsvFile, "_read")
    monkeypatch.setattr(Column, "singles", None)
    path = write(
        tmp_path / "a.tsv", 'g\tn\tf\nDrama|Film ""noir""\t1 2\t0.5\n"a ""b""|ü"\t-3\t1:2\n\t\t\n'
    )

    records = read(path, split="g:pipe|n:blank|f:colon")

    assert [["Drama", 'Film ""noir""'], ['a "b"', "ü"], []] == records["g"].tolist()
    assert [[1, 2], [-3], []] == records["n"].tolist()
    assert [[0.5], [1.0, 2.0], []] == records["f"].tolist()


@pytest.mark.parametrize("split", ["g", "g:", "g:ab", 'g:"', "g:\n", {"g": "é"}])
def test_split_that_is_no_sign_is_refused(tmp_path: Path, split: Any) -> None:
    with pytest.raises(UsageError, match="COLUMN:SIGN|name:type"):
        open_reader(write(tmp_path / "a.csv", "g\n1\n"), split=split)


def test_split_of_a_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no column 'h'"):
        open_reader(write(tmp_path / "a.csv", "g\n1\n"), split="h:;").sources()

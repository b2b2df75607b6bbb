"""One value, all ways of the files: every format, every physical type, every mode gives its bits.

Tables are drawn, written in each format by libraries that are not ours (tools/tables.py), and read
by the readers that training, evaluation and prediction have. What a column is is decided once: by
the Parquet files, or over all records of the CSV; then every other file is brought to it.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from tools import tables as made
from tools.turns import examples

from edl.common.errors import DataError, RecordError
from edl.common.hashing import hash64
from edl.common.ragged import Ragged
from edl.data.open import open_reader
from edl.data.reader import Columns, schema_of
from edl.data.schema import Field, Schema, Type
from edl.proto import master_pb2 as pb
from edl.worker.task_reader import Lease, TaskReader

TABLES = 3000  # of `make test-all` and of every commit: the issue's own number
SHARES = 6  # tests that share them, so that they run side by side


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder in memory where there is one: each table is some twenty small files."""
    where = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    path = Path(tempfile.mkdtemp(dir=where))
    yield path
    shutil.rmtree(path)


def bits(column: Any) -> Any:
    """Return what is equal where two columns have the same bits, one NaN like another."""
    if isinstance(column, Ragged):
        return [bits(row) for row in column]
    if isinstance(column, list):
        return [bits(np.asarray(row)) for row in column]
    if column.dtype.kind in "UO":
        return column.tolist()
    same = np.where(np.isnan(column), np.nan, column) if column.dtype.kind == "f" else column
    return column.dtype.str, np.ascontiguousarray(same).tobytes()


def whole(reader: Any) -> Columns:
    """Return all records of a reader, source by source."""
    parts = [reader.read(s.name, 0, s.records) for s in reader.sources()]
    names = parts[0].names
    return Columns({n: joined([part[n] for part in parts]) for n in names})


def joined(columns: Sequence[Any]) -> Any:
    if isinstance(columns[0], Ragged):
        return Ragged.concatenated(columns)
    return np.concatenate(columns)


def check(table: made.Table, reader: Any, way: str) -> None:
    """Compare what a reader reads with the drawn values, and the ids that `hash64` makes of it."""
    found = whole(reader)
    for name, kind in table.kinds.items():
        wanted = made.expected(kind, table.rows[name])
        assert bits(found[name]) == bits(wanted), (way, name, kind)
        assert isinstance(found[name], Ragged) == made.KINDS[kind].lists, (way, name)


def ids(column: Any) -> Any:
    hashed = hash64("c", column)
    return bits(hashed)


# -- the schema is that of the Parquet files


@pytest.mark.parametrize("share", range(SHARES))
def test_one_value_by_every_format(folder: Path, share: int) -> None:
    numbers = iter(range(10**9))

    @settings(max_examples=TABLES // SHARES)
    @given(made.tables())
    def one(table: made.Table) -> None:
        here = folder / str(next(numbers))
        here.mkdir()
        every_format(table, here)
        shutil.rmtree(here)

    one()


def every_format(table: made.Table, folder: Path) -> None:
    training = open_reader(str(made.write_parquet(table, folder / "parquet")))
    training.sources()
    schema = schema_of(training)
    assert {each.name: str(each.type) for each in schema} == table.kinds
    check(table, training, "parquet")
    held = Schema.from_json(schema.to_json())  # as a job carries it
    split = {n: "|" for n, kind in table.kinds.items() if made.KINDS[kind].lists}
    params = {"split": split} if split else {}
    for suffix in (".csv", ".tsv", ".csv.gz"):
        path = made.write_csv(table, folder / suffix[1:], suffix)
        check(table, open_reader(str(path), schema=held, **params), suffix)
    check(table, open_reader(str(made.write_npz(table, folder / "npz")), schema=held), "npz")
    in_example = [n for n, kind in table.kinds.items() if made.KINDS[kind].in_example]
    if in_example:
        less, columns = table.only(in_example), "|".join(in_example)
        for write, way in ((made.write_tfrecord, "tfrecord"), (made.write_recordio, "recordio")):
            reader = open_reader(str(write(less, folder / way)), schema=held, columns=columns)
            check(less, reader, way)


# -- the schema is that of the CSV files, found over all records of all parts


def seen(values: Sequence[str]) -> str:
    """Return the type of a CSV column of these fields, from the rules as docs/data.md has them."""
    there = [v.strip() for v in values if not missing(v)]
    if not there:
        return "text"
    if all(re.fullmatch(r"0|-?[1-9][0-9]*", v) for v in there):
        numbers = [int(v) for v in there]
        if all(-(2**63) <= n < 2**63 for n in numbers):
            return "int64"
        if all(0 <= n < 2**64 for n in numbers):
            return "uint64"
    return "float64" if all(map(is_float, there)) and any(map(has_digit, there)) else "text"


def missing(text: str) -> bool:
    word = text.strip()
    known = ("", "NA", "N/A", "n/a", "#N/A", "null", "NULL", "None", r"\N", "?")
    return word in known or word.lstrip("+-").lower() == "nan"


def has_digit(text: str) -> bool:
    return any(letter.isdigit() for letter in text)


def is_float(text: str) -> bool:
    if re.fullmatch(r"[+-]?inf(inity)?", text, re.IGNORECASE):
        return True
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        return False
    if re.match(r"[+-]?0[0-9]", text):
        return False
    try:
        number = Decimal(text)
    except InvalidOperation:
        return False
    near = float(text)
    if near in (float("inf"), float("-inf")):
        return False
    is_whole = re.fullmatch(r"[+-]?[0-9]+(\.0*)?", text) is not None
    return not is_whole or Decimal(near) == number


@settings(max_examples=examples(900))
@given(made.tables())
def test_a_csv_column_is_what_all_of_its_records_say(table: made.Table) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reader = open_reader(str(made.write_csv(table, folder / "csv")))
        found = {each.name: str(each.type) for each in schema_of(reader)}
    fields = {
        name: [made.spelled(kind, value) for value in table.rows[name]]
        for name, kind in table.kinds.items()
    }
    assert found == {name: seen(values) for name, values in fields.items()}


# -- the modes of a job


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_training_evaluation_and_prediction_get_the_same_bits(folder: Path, form: str) -> None:
    """S1: parts and files of digits only, under a training file with texts."""
    kinds = {"user": "text", "score": "float64"}
    training = made.Table(
        kinds, [{"user": ["A0", "7", "007"], "score": [0.5, 1.0, 2.0]}], [dict.fromkeys(kinds, 0)]
    )
    digits = made.Table(
        kinds, [{"user": ["7", "0", "007"], "score": [1.0, 2.0, 3.0]}], [dict.fromkeys(kinds, 0)]
    )
    write = made.write_parquet if form == "parquet" else made.write_csv
    reader = open_reader(str(write(training, folder / "training")))
    reader.sources()
    held = schema_of(reader)
    other = open_reader(str(write(digits, folder / "other")), schema=held)
    (source,) = other.sources()
    seen_by: dict[str, Any] = {}

    def feed(records: Any, mode: str) -> tuple[Any, Any]:
        seen_by[mode] = hash64("user", records["user"]), records["score"]
        return None, None

    for kind in (pb.TRAIN, pb.EVALUATE, pb.PREDICT):
        tasks = TaskReader({kind: other}, feed, minibatch=8, seed=0, shuffle=False)
        task = pb.Task(id=1, kind=kind, source=source.name, start=0, end=3)
        list(tasks.read(Lease(task), 0))
    wanted = hash64("user", np.array(["7", "0", "007"])), np.array([1.0, 2.0, 3.0])
    assert {"train", "evaluate", "predict"} == set(seen_by)
    for found in seen_by.values():
        assert [bits(each) for each in found] == [bits(each) for each in wanted]


# -- what cannot be had is refused


@pytest.mark.parametrize(
    ("kind", "values", "told"),
    [
        ("int64", ["1", "x"], "'x'"),
        ("int64", ["1", "007"], None),  # declared: a number is a number
        ("int64", ["9223372036854775808"], "9223372036854775808"),
        ("uint64", ["-1"], "-1"),
        ("float64", ["9007199254740993"], "9007199254740993"),
        ("bool", ["true", "yes"], "'yes'"),
        ("timestamp", ["2020-01-01T00:00:00.0000001"], "2020-01-01T00:00:00.0000001"),
        ("date", ["2020-02-30"], "2020-02-30"),
    ],
)
def test_a_csv_value_that_is_not_of_the_type_is_named(
    folder: Path, kind: str, values: list[str], told: str | None
) -> None:
    path = folder / "a.csv"
    path.write_text("c\n" + "\n".join(values) + "\n")
    held = Schema((Field("c", Type.parse(kind)),))
    reader = open_reader(str(path), schema=held)
    if told is None:
        assert len(whole(reader)) == len(values)
        return
    with pytest.raises((RecordError, DataError)) as error:
        whole(reader)
    said = str(error.value)
    assert all(word in said for word in ("'c'", told.strip("'"), kind)), said


def test_parts_whose_types_never_meet_are_refused_by_name(folder: Path) -> None:
    """S1's half of Parquet: int64 in one part and a string in another."""
    kinds = {"user": "int64"}
    made.write_parquet(made.Table(kinds, [{"user": [1, 2]}], [{"user": 0}]), folder / "p")
    other = made.Table({"user": "text"}, [{"user": ["1"]}], [{"user": 0}])
    written = made.write_parquet(other, folder / "q") / "part0.parquet"
    written.rename(folder / "p" / "part1.parquet")
    reader = open_reader(str(folder / "p"))
    with pytest.raises(DataError) as error:
        reader.sources()
    told = str(error.value)
    assert all(word in told for word in ("part0", "part1", "'user'", "int64", "text"))

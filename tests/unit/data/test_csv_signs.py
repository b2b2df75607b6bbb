"""Signs of a user's own for missing values: a file reads as one with nothing in their places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.common.errors import DataError, EdlError, RecordError, UsageError
from edl.common.values import convert
from edl.data.csv_signs import Signs
from edl.data.open import open_reader

SIGNS = "-|unknown|-999|–"
SLOW = {"escape": "\\"}  # what the kernel leaves to Python


def read(path: Path, **params: Any) -> dict[str, Any]:
    reader = open_reader(str(path), **params)
    (source,) = reader.sources()
    found: Any = reader.read(source.name, 0, source.records)
    return {name: found[name] for name in found}


def write(folder: Path, text: str) -> Path:
    path = folder / "data.csv"
    path.write_text(text)
    return path


whole = st.one_of(st.integers(-1000, 1000).map(str), st.sampled_from([*SIGNS.split("|"), "-999 "]))
fraction = st.one_of(
    st.floats(-9, 9).map(repr), st.sampled_from([*SIGNS.split("|"), "-999.0", "-9.99e2"])
)
text = st.sampled_from([*SIGNS.split("|"), "a", "unknown ", "-1", "é", "NA", ""])


@settings(max_examples=examples(60))
@given(
    rows=st.lists(st.tuples(whole, fraction, text), min_size=1, max_size=40),
    slow=st.booleans(),
    fills=st.sampled_from(["", "n:-7", "n:-7|f:0.5|t:none"]),
)
def test_a_file_reads_as_one_with_nothing_in_place_of_the_signs(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str, str]],
    slow: bool,
    fills: str,
) -> None:
    folder = tmp_path_factory.mktemp("signs")
    signs = SIGNS.split("|")

    def told(row: tuple[str, str, str], blank: bool) -> str:
        numbers = ["" if blank and _is_sign(each) else each for each in row[:2]]
        return ",".join([*numbers, "" if blank and row[2] in signs else row[2], "1"])

    def _is_sign(field: str) -> bool:
        return field.strip() in signs or float(field) == -999

    files = [
        write(
            folder, "n,f,t,x\n1,0.5,a,1\n" + "".join(f"{told(row, blank)}\n" for row in rows)
        ).rename(folder / f"{blank}.csv")
        for blank in (False, True)
    ]
    params = {
        **(SLOW if slow else {}),
        "missing": fills,
        "dtypes": "n:int64|f:float64|t:str",
    }
    try:
        expected: Any = read(files[1], **params)
    except EdlError as error:
        expected = type(error)

    if isinstance(expected, dict):
        found = read(files[0], na_values=SIGNS, **params)
        for name, column in expected.items():
            np.testing.assert_array_equal(column, found[name])
            assert column.dtype.kind == found[name].dtype.kind
    else:
        with pytest.raises(expected):
            read(files[0], na_values=SIGNS, **params)


def test_a_column_with_signs_is_of_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "age,pay,job\n-,1.5,x\n41,unknown,-\n-,-999,y\n")

    plain = read(path)
    found = read(path, na_values="-|unknown|-999", missing="age:-1|job:none")

    assert ["U", "U", "U"] == [plain[name].dtype.kind for name in ("age", "pay", "job")]
    assert [-1, 41, -1] == found["age"].tolist()
    np.testing.assert_array_equal([1.5, np.nan, np.nan], found["pay"])
    assert ["x", "none", "y"] == found["job"].tolist()


def test_a_whole_number_that_misses_is_told_before_a_job_starts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="misses whole numbers of 'n' .*record 1.*missing=n:-1"):
        read(write(tmp_path, "n,y\n1,1\n-999,2\n"), na_values=-999)


def test_a_whole_number_that_misses_far_below_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "n\n" + "1\n" * 20_000 + "-999\n")

    with pytest.raises(DataError, match="misses whole numbers of 'n'.*missing=n:-1"):
        read(path, na_values="-999")
    with pytest.raises(RecordError, match="'n' has no value.*missing=n:-1"):
        read(path, na_values="-999", dtypes="n:int64")


@pytest.mark.parametrize("said", ["-|-999", ["-", -999], ("-", "-999")])
def test_signs_are_written_as_elsewhere(said: Any) -> None:
    signs = Signs.parse(said)

    assert {"-", "-999"} == set(signs.texts)
    assert [True, True, True, False] == [signs.has(each) for each in ("-", "-999.0", " -999", "9")]
    assert Signs() == Signs.parse(None) == Signs.parse("")


def test_the_flag_of_the_command_line_is_a_number_or_a_text() -> None:
    one = convert("na_values=-999", dict[str, Any], "--data_reader_params")
    several = convert("sep=tab,na_values=-|?|n.a.", dict[str, Any], "--data_reader_params")

    assert Signs.parse(one["na_values"]).has("-999")
    assert {"-", "?", "n.a."} == set(Signs.parse(several["na_values"]).texts)


def test_what_is_no_sign_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "n\n1\n")

    with pytest.raises(UsageError, match="na_values is texts or numbers .* not {'n': '-'}"):
        read(path, na_values={"n": "-"})
    with pytest.raises(UsageError, match="na_value"):
        read(path, na_value="-")

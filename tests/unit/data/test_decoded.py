"""Row groups of Parquet are decoded once for all who read them, and kept within a limit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from edl.common.errors import UsageError
from edl.data import decoded, parquet
from edl.data.open import open_reader

ROWS, GROUP = 1000, 100


@pytest.fixture(params=["whole", "in batches"])
def path(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a table's path; a column with a dictionary has row groups decoded as a whole."""
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 40)
    numbers = list(range(ROWS))
    table = pyarrow.table(
        {
            "n": numbers,
            "small": pyarrow.array([n % 100 for n in numbers], pyarrow.int8()),
            "x": [None if n % 7 == 0 else n / 2 for n in numbers],
            "t": [
                None if n % 5 == 0 else f"größe {n}" if n % 11 == 0 else f"t{n}" for n in numbers
            ],
            "d": pyarrow.array([f"w{n % 3}" for n in numbers]).dictionary_encode(),
        }
    )
    if request.param == "in batches":
        table = table.set_column(4, "d", table["d"].cast(pyarrow.string()))
    pyarrow.parquet.write_table(table, tmp_path / "data.parquet", row_group_size=GROUP)
    return str(tmp_path / "data.parquet")


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of the row groups that were decoded."""
    seen: list[int] = []
    whole = pyarrow.parquet.ParquetFile.read_row_group
    batches = pyarrow.parquet.ParquetFile.iter_batches

    def read(self: Any, group: int, **rest: Any) -> Any:
        seen.append(group)
        return whole(self, group, **rest)

    def read_batches(self: Any, size: int, row_groups: list[int], **rest: Any) -> Any:
        seen.extend(row_groups)
        return batches(self, size, row_groups, **rest)

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "read_row_group", read)
    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", read_batches)
    return seen


def read_shuffled(path: str, **params: Any) -> None:
    """Read all of it in tasks of 30 records, in a random order, and compare it."""
    reader = open_reader(path, **params)
    name = reader.sources()[0].name
    starts = np.random.default_rng(1).permutation(np.arange(0, ROWS, 30)).tolist()
    for start in starts:
        end = min(start + 30, ROWS)
        records: Any = reader.read(name, start, end, skip=[start + 3])
        numbers = [n for n in range(start, end) if n != start + 3]
        words = [f"größe {n}" if n % 11 == 0 else f"t{n}" for n in numbers]
        assert numbers == records["n"].tolist()
        assert [n % 100 for n in numbers] == records["small"].tolist()
        floats = [np.nan if n % 7 == 0 else n / 2 for n in numbers]
        assert np.array_equal(floats, records["x"], equal_nan=True)
        texts = ["" if n % 5 == 0 else word for n, word in zip(numbers, words, strict=True)]
        assert (texts, "U") == (records["t"].tolist(), records["t"].dtype.kind)
        assert [f"w{n % 3}" for n in numbers] == records["d"].tolist()
        whole: Any = reader.read(name, start, end)
        whole["n"][:] = -1  # whoever writes into what he was given changes it for himself
        assert numbers == reader.read(name, start, end, skip=[start + 3])["n"].tolist()  # type: ignore[call-overload]


@pytest.mark.parametrize("in_a_job", [True, False])
def test_each_row_group_is_decoded_once(
    path: str, decodes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_a_job: bool
) -> None:
    if in_a_job:
        monkeypatch.setenv("EDL_JOB_DIR", str(tmp_path / "job"))

    read_shuffled(path)
    if in_a_job:
        read_shuffled(path)  # another process of the job

    assert list(range(ROWS // GROUP)) == sorted(decodes)


def test_the_limit_holds_and_what_was_used_last_stays(
    path: str, decodes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_JOB_DIR", str(tmp_path / "job"))
    monkeypatch.setattr(decoded, "_MAPPED", 1)
    limit = 12_000
    cache_gib = limit / (1 << 30)
    reader = open_reader(path, cache_gib=cache_gib)
    name = reader.sources()[0].name

    for group in (0, 1, 0, 2, 0, 3, 0, 4, 0):
        reader.read(name, group * GROUP, group * GROUP + 1)
    kept = [each.stat().st_size for each in (tmp_path / "job" / "index").glob("*.arrow")]

    assert [0, 1, 2, 3, 4] == decodes
    assert 2 <= len(kept) < 5
    assert sum(kept) <= 1.5 * limit  # the files have heads beside the bytes that are counted
    read_shuffled(path, cache_gib=cache_gib)


def test_a_disk_that_cannot_be_written_is_told_once_and_memory_holds_them(
    path: str, decodes: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    read_shuffled(path, cache_gib=0)

    assert list(range(ROWS // GROUP)) == sorted(decodes)
    assert 1 == sum("stay in memory" in each.message for each in caplog.records)


@pytest.mark.parametrize("path", ["in batches"], indirect=True)
def test_a_disk_that_fills_in_the_midst_of_a_row_group_has_it_decoded_again_in_memory(
    path: str, decodes: list[int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = pyarrow.RecordBatchFileWriter.write_batch

    def fails(self: Any, batch: Any) -> None:
        if batch.column(0)[0].as_py() % GROUP:  # the second of its group
            raise OSError(28, "No space left on device")
        write(self, batch)

    monkeypatch.setattr(pyarrow.RecordBatchFileWriter, "write_batch", fails)

    read_shuffled(path)

    assert sorted([*range(ROWS // GROUP)] * 2) == sorted(decodes)
    assert 1 == sum("stay in memory" in each.message for each in caplog.records)


def test_a_torn_file_of_the_cache_is_passed_over(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_JOB_DIR", str(tmp_path / "job"))
    read_shuffled(path)
    for each in (tmp_path / "job" / "index").glob("*.arrow"):
        each.write_bytes(each.read_bytes()[:-100])

    read_shuffled(path)


def test_what_a_killed_process_left_half_written_goes(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_JOB_DIR", str(tmp_path / "job"))
    index = tmp_path / "job" / "index"
    index.mkdir(parents=True)
    old, new = index / "old.tmp", index / "new.tmp"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))

    read_shuffled(path)

    assert [new] == list(index.glob("*.tmp"))


def test_a_limit_that_is_no_number_is_a_usage_error(path: str) -> None:
    with pytest.raises(UsageError, match="cache_gib must be a number of GiB, not 'all'"):
        open_reader(path, cache_gib="all")

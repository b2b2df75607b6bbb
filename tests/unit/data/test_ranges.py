"""An object store is read in long ranges, several at once, and no longer than was asked for."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from fsspec.asyn import AsyncFileSystem
from hypothesis import given
from hypothesis import strategies as st

from edl.common.errors import DataError, RecordError
from edl.data import ranges
from edl.data.csv import csv_reader
from edl.data.files import DataFile
from edl.data.open import open_reader
from edl.data.parquet import parquet_reader

pytestmark = pytest.mark.fast

TEXT = "n,t\n" + "".join(f"{n},t{n}\n" for n in range(5000))


class Store(AsyncFileSystem):
    """A store of one object; it notes what is asked for, and the most requests at once."""

    cachable = False

    def __init__(self, data: bytes, heeds: bool = True, cut: int = 0) -> None:
        super().__init__()
        self.data, self.heeds, self.cut = data, heeds, cut
        self.asked: list[tuple[int, int]] = []
        self.fails_at = self.stalls_at = -1  # asked for a range that holds this byte
        self.ended = 0  # stalls that were not waited for any longer
        self.under_way = self.most = 0

    async def _info(self, path: str, **rest: Any) -> dict[str, Any]:
        return {"name": path, "size": len(self.data), "type": "file", "ETag": "1"}

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **rest: Any) -> bytes:
        self.asked.append((start, end))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        if start <= self.stalls_at < end:
            try:
                await asyncio.sleep(3600)
            finally:
                self.ended += 1
        await asyncio.sleep(0)
        self.under_way -= 1
        if start <= self.fails_at < end:
            raise OSError(5, "the store is out of order")
        return self.data[start : end - self.cut] if self.heeds else self.data


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "RANGE_NBYTES", 1000)
    monkeypatch.setattr(ranges, "AT_ONCE", 4)


@pytest.mark.parametrize("heeds", [True, False])
def test_a_csv_is_read_in_ranges_at_once(heeds: bool) -> None:
    store = Store(TEXT.encode(), heeds)
    reader = csv_reader([DataFile(store, "data.csv", "far://data.csv")])
    name = reader.sources()[0].name
    opened, store.asked = store.asked, []

    records: Any = reader.read(name, 3000, 3010)

    assert list(range(3000, 3010)) == records["n"].tolist()
    assert [f"t{n}" for n in range(3000, 3010)] == records["t"].tolist()
    assert 4 == store.most
    assert 1000 == max(end - start for start, end in opened)
    assert sum(end - start for start, end in store.asked) < 6000


def test_bytes_that_are_lacking_are_an_error() -> None:
    store = Store(TEXT.encode(), cut=1)

    with pytest.raises((DataError, OSError), match="999 bytes came where 1000 were asked for"):
        csv_reader([DataFile(store, "data.csv", "far://data.csv")]).sources()


def test_a_file_from_afar_can_be_sought_in() -> None:
    data = np.arange(5000, dtype=np.uint16).tobytes()
    file = DataFile(Store(data), "x", "far://x")

    with file.open() as stream:
        assert data[-10:] == (stream.seek(-10, 2), stream.read())[1]
        assert data[7:2010] == (stream.seek(7), stream.read(2003))[1]
        assert 2010 == stream.tell()
    with file.reading() as read:
        assert data[9000:] == read(9000, 5000).tobytes()


ROWS, GROUP = 3000, 700


def table() -> Any:
    """Return columns of most kinds, some with missing values, one with a dot in its name."""
    r = np.random.default_rng(1)
    numbers = np.arange(ROWS)
    lists = [None if n % 9 == 0 else list(range(n % 4)) for n in range(ROWS)]
    return pyarrow.table(
        {
            "n": numbers,
            "x": pyarrow.array(r.normal(size=ROWS), mask=numbers % 7 == 0),
            "f": r.normal(size=ROWS).astype(np.float32),
            "flag": numbers % 3 == 0,
            "word": [f"größe {n}" if n % 5 else None for n in numbers % 50],
            "long": ["ab" * (n % 40) + str(n) for n in range(ROWS)],
            "blob": [bytes([n % 256]) * (n % 3) for n in range(ROWS)],
            "day": pyarrow.array(numbers.astype("M8[D]")),
            "lists": pyarrow.array(lists, pyarrow.list_(pyarrow.int32())),
            "vector": pyarrow.FixedSizeListArray.from_arrays(r.normal(size=3 * ROWS), 3),
            "a.b": numbers * 2,
        }
    )


def parquet(made: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(made, file, row_group_size=GROUP, **options)
    return file.getvalue()


WRITTEN = pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dictionary": False, "compression": "none"},
        {"data_page_version": "2.0", "compression": "zstd", "write_page_index": True},
        {"data_page_size": 200, "store_schema": False},
    ],
    ids=["default", "plain", "second-version", "small-pages"],
)
CHOSEN = pytest.mark.parametrize("columns", [None, ["n", "long"], ["lists"], ["a.b", "x", "word"]])


@WRITTEN
@CHOSEN
def test_parquet_from_afar_is_what_it_is_locally_and_what_pyarrow_reads(
    columns: list[str] | None, options: dict[str, Any], tmp_path: Path
) -> None:
    made = table()
    data = parquet(made, **options)
    (tmp_path / "data.parquet").write_bytes(data)
    local = open_reader(str(tmp_path / "data.parquet"), columns=columns)
    store = Store(data)
    reader = parquet_reader([DataFile(store, "x.parquet", "far://x.parquet")], columns=columns)
    opened = reader.sources()[0]
    oracle = pyarrow.parquet.read_table(io.BytesIO(data), columns=columns)

    for start, end in [(2900, 3000), (0, 30), (650, 2200), (0, ROWS)]:
        mine: Any = reader.read(opened.name, start, end)
        theirs: Any = local.read(local.sources()[0].name, start, end)
        rows = oracle.slice(start, end - start)
        assert list(theirs) == list(mine) == oracle.column_names
        for name in mine:
            kinds = [getattr(each, "values", each).dtype for each in (theirs[name], mine[name])]
            assert kinds[0] == kinds[1]
            for a, b in zip(theirs[name], mine[name], strict=True):
                assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
            if name in ("n", "f", "a.b", "flag", "day"):
                assert rows.column(name).to_pylist() == mine[name].tolist()
            elif name == "vector" and pyarrow.types.is_fixed_size_list(rows.column(name).type):
                flat = rows.column(name).combine_chunks().flatten().to_numpy()
                assert flat.tobytes() == mine[name].tobytes()
            elif name in ("lists", "vector"):
                wanted = [each or [] for each in rows.column(name).to_pylist()]
                assert wanted == [each.tolist() for each in mine[name]]
            elif name == "x":
                wanted = [
                    np.nan if each is None else each for each in rows.column(name).to_pylist()
                ]
                assert np.array_equal(wanted, mine[name], equal_nan=True)
            else:
                empty = b"" if name == "blob" else ""
                wanted = [empty if each is None else each for each in rows.column(name).to_pylist()]
                assert wanted == mine[name].tolist()


@WRITTEN
@CHOSEN
def test_the_chunks_of_a_row_group_come_at_once_and_nothing_else_does(
    columns: list[str] | None, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "_GAP_NBYTES", 0)
    data = parquet(table(), **options)
    store = Store(data)
    reader = parquet_reader([DataFile(store, "x.parquet", "far://x.parquet")], columns=columns)
    name = reader.sources()[0].name
    store.asked, store.most = [], 0

    reader.read(name, GROUP, GROUP + 1)
    group = pyarrow.parquet.ParquetFile(io.BytesIO(data)).metadata.row_group(1)
    chunks = [group.column(i) for i in range(group.num_columns)]
    mine = [
        c
        for c in chunks
        if columns is None or c.path_in_schema.removesuffix(".list.element") in columns
    ]

    assert sum(each.total_compressed_size for each in mine) == sum(b - a for a, b in store.asked)
    assert min(4, len(store.asked)) == store.most
    assert max(end - start for start, end in store.asked) <= 1000
    assert sorted(store.asked) == store.asked


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 3000)), max_size=12))
def test_what_is_asked_for_holds_all_that_is_wanted_and_little_else(
    wanted: list[tuple[int, int]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "RANGE_NBYTES", 1000)
        patch.setattr(ranges, "_GAP_NBYTES", 100)
        spans = [(start, start + nbytes) for start, nbytes in wanted]

        parts = ranges.cut(spans)

    asked = {byte for part in parts for byte in range(*part)}
    needed = {byte for span in spans for byte in range(*span)}
    assert sum(end - start for start, end in parts) == len(asked)  # none twice
    assert needed <= asked
    assert all(0 < end - start <= 1000 for start, end in parts)
    between = sorted(asked - needed)
    runs = np.split(between, np.flatnonzero(np.diff(between) > 1) + 1)
    assert all(len(run) <= 100 for run in runs)


def test_what_nobody_has_named_is_asked_for_when_it_is_read() -> None:
    data = np.arange(5000, dtype=np.uint16).tobytes()
    file = DataFile(Store(data), "x", "far://x")

    with file.open(ahead=[(100, 2500), (4000, 4100)]) as stream:
        for start, nbytes in [
            (0, 50),
            (100, 10),
            (90, 30),
            (100, 2400),
            (2000, 3000),
            (4050, 9999),
        ]:
            assert start == stream.seek(start)
            assert data[start : start + nbytes] == bytes(stream.read(nbytes))
            assert min(len(data), start + nbytes) == stream.tell()
        stream.seek(9000)
        assert data[9000:] == bytes(stream.read())


def test_a_store_that_fails_in_the_midst_of_a_row_group_is_told_and_asked_again() -> None:
    data = parquet(table(), compression="none")
    store = Store(data)
    reader = parquet_reader([DataFile(store, "x.parquet", "far://x.parquet")])
    name = reader.sources()[0].name
    store.fails_at = len(data) // 2
    group = next(n for n in range(4) if _holds(data, n, store.fails_at))

    with pytest.raises(RecordError, match="cannot be decoded.*the store is out of order"):
        reader.read(name, group * GROUP, group * GROUP + 1)
    store.fails_at = -1
    records: Any = reader.read(name, group * GROUP, group * GROUP + 2)

    assert [group * GROUP, group * GROUP + 1] == records["n"].tolist()


def _holds(data: bytes, group: int, at: int) -> bool:
    metadata = pyarrow.parquet.ParquetFile(io.BytesIO(data)).metadata.row_group(group)
    first, last = metadata.column(0), metadata.column(metadata.num_columns - 1)
    return bool(first.data_page_offset <= at < last.data_page_offset + last.total_compressed_size)


def test_what_comes_short_in_a_row_group_is_told() -> None:
    data = parquet(table(), compression="none")
    store = Store(data)
    reader = parquet_reader([DataFile(store, "x.parquet", "far://x.parquet")])
    name = reader.sources()[0].name
    store.cut = 1

    with pytest.raises(RecordError, match="999 bytes came where 1000 were asked for"):
        reader.read(name, 0, 1)


def test_what_is_still_on_its_way_is_not_waited_for_when_the_file_is_closed() -> None:
    data = bytes(5000)
    store = Store(data)
    store.stalls_at = 3500
    file = DataFile(store, "x", "far://x")

    with file.open(ahead=[(0, 5000)]) as stream:
        assert data[:3000] == bytes(stream.read(3000))

    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), store.loop).result(60)
    assert 1 == store.ended

"""An object store is read in long ranges, several at once, and no longer than was asked for."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from fsspec.asyn import AsyncFileSystem

from edl.common.errors import DataError
from edl.data import ranges
from edl.data.csv import csv_reader
from edl.data.files import DataFile

TEXT = "n,t\n" + "".join(f"{n},t{n}\n" for n in range(5000))


class Store(AsyncFileSystem):
    """A store of one object; it notes what is asked for, and the most requests at once."""

    cachable = False

    def __init__(self, data: bytes, heeds: bool = True, cut: int = 0) -> None:
        super().__init__()
        self.data, self.heeds, self.cut = data, heeds, cut
        self.asked: list[tuple[int, int]] = []
        self.under_way = self.most = 0

    async def _info(self, path: str, **rest: Any) -> dict[str, Any]:
        return {"name": path, "size": len(self.data), "type": "file", "ETag": "1"}

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **rest: Any) -> bytes:
        self.asked.append((start, end))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
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

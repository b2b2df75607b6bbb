"""Data in memory is written once, and read as what it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from edl.api import memory
from edl.api.memory import is_place, place_of, write
from edl.common.errors import UsageError
from edl.data.open import open_reader

pytestmark = pytest.mark.fast

pa = pytest.importorskip("pyarrow")


def read(path: Path) -> dict[str, Any]:
    reader = open_reader(str(path))
    (source,) = reader.sources()
    records = reader.read(source.name, 0, source.records)
    return {name: records[name] for name in records}


def test_arrays_of_any_shape_come_back_as_they_were(tmp_path: Path) -> None:
    columns = {
        "label": np.arange(5),
        "name": np.array(["a", "b", "c", "d", "ü"]),
        "row": np.arange(15, dtype=np.float32).reshape(5, 3),
        "image": torch.arange(40, dtype=torch.uint8).reshape(5, 2, 4),
        "strided": np.arange(10.0)[::2],
    }

    records, nbytes = write(columns, tmp_path / "d.parquet", "training_data")

    found = read(tmp_path / "d.parquet")
    assert (5, (tmp_path / "d.parquet").stat().st_size) == (records, nbytes)
    for name, value in columns.items():
        assert np.array_equal(np.asarray(value), found[name]), name


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return torch.full((2,), float(index)), index


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ({"a": n, "b": [n, n]} for n in range(5000))


def test_datasets_of_torch_are_written_by_their_items(tmp_path: Path) -> None:
    triples = TensorDataset(*(torch.arange(4) * n for n in (1, 2, 3)))
    written = {}
    for name, data in (("pairs", Pairs()), ("stream", Stream()), ("triples", triples)):
        write(data, tmp_path / f"{name}.parquet", "training_data")
        written[name] = read(tmp_path / f"{name}.parquet")

    assert [[0, 0], [1, 1], [2, 2]] == written["pairs"]["x"].tolist()
    assert [0, 1, 2] == written["pairs"]["y"].tolist()
    assert [4999, 4999] == written["stream"]["b"][-1].tolist()
    assert {"0": 2, "1": 4, "2": 6} == {n: int(v[2]) for n, v in written["triples"].items()}


def test_tables_and_frames_are_written_as_they_are(tmp_path: Path) -> None:
    class Frame:  # as polars' is
        def to_arrow(self) -> Any:
            return pa.table({"a": [1, 2]})

    for data in (pa.table({"a": [1, 2]}), Frame()):
        assert 2 == write(data, tmp_path / "d.parquet", "training_data")[0]
        assert [1, 2] == read(tmp_path / "d.parquet")["a"].tolist()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"a": np.zeros(2), "b": np.zeros(3)}, "its columns are not of one length: a 2, b 3."),
        ({"a": np.zeros(0)}, "validation_data has no records."),
        ([], "validation_data has no records."),
        ([{"a": 1}, {"b": 1}], "its items have not the same parts: a."),
        (np.zeros(3), "validation_data is a ndarray: give a path or URL, a DataFrame, a dict of"),
        (3, "validation_data is a int: give a path or URL, a DataFrame, a dict of"),
        ({"a": [object()]}, "validation_data cannot be written as Parquet: "),
    ],
)
def test_what_is_no_data_is_one_sentence(tmp_path: Path, data: Any, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        write(data, tmp_path / "d.parquet", "validation_data")

    assert sentence in str(refused.value)


def test_more_than_2_gib_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pa.table({"a": pa.array(np.zeros(1))})

    class Huge:  # a table that only says so
        def to_arrow(self) -> Any:
            class Table:
                num_rows, num_columns, nbytes = 1, 1, (2 << 30) + 1

            return Table()

    with pytest.raises(UsageError, match="has 2.0 GiB in memory, and what is above 2 GiB is not"):
        write(Huge(), tmp_path / "d.parquet", "training_data")
    monkeypatch.setattr(memory, "LIMIT_NBYTES", 100)
    with pytest.raises(UsageError, match="above 2 GiB"):
        write(Stream(), tmp_path / "d.parquet", "training_data")
    assert (1, []) == (whole.num_rows, list(tmp_path.iterdir()))


def test_paths_are_places_and_told_as_flags_are() -> None:
    assert [True, True, False] == [is_place(each) for each in ("a.csv", [Path("a"), "b"], {"a": 1})]
    assert "a,s3://b/c" == place_of([Path("a"), "s3://b/c"])

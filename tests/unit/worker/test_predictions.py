"""Outputs of any shape become one array each, by name or place, beside their records."""

import csv
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edl.common.errors import DataError, DefinitionError, UsageError
from edl.common.ragged import Ragged
from edl.data.schema import Schema
from edl.nn.outputs import arrays_of
from edl.worker.id_columns import Ids, of_records
from edl.worker.predictions import check_output, joined, write

Pair = namedtuple("Pair", ["y", "x"])


@dataclass
class Output:
    logits: torch.Tensor
    loss: None = None


Y, X = torch.arange(8.0), torch.ones(8, 3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("outputs", "shapes"),
    [
        (Y, {"output": (8,)}),
        (list(range(8)), {"output": (8,)}),
        ((Y, X), {"output_0": (8,), "output_1": (8, 3)}),
        ([Y, None], {"output_0": (8,)}),
        ({"a": Y, 1: (X, {"b": Y})}, {"a": (8,), "1.0": (8, 3), "1.1.b": (8,)}),
        (Pair(Y, X), {"y": (8,), "x": (8, 3)}),
        (Output(X), {"logits": (8, 3)}),
        (X.to_sparse(), {"output": (8, 3)}),
        (torch.ones(8, dtype=torch.bfloat16), {"output": (8,)}),
    ],
    ids=["tensor", "list", "tuple", "none", "nested", "named", "dataclass", "sparse", "bfloat16"],
)
def test_each_output_is_an_array_of_its_own(outputs, shapes):
    assert shapes == {name: array.shape for name, array in arrays_of(outputs, 8).items()}


def test_float64_and_complex_outputs_keep_their_type():
    arrays = arrays_of((X, X[:, 0] * 1j), 8)

    assert ["float64", "complex128"] == [array.dtype.name for array in arrays.values()]


@pytest.mark.parametrize(
    ("outputs", "sentence"),
    [
        ((Y, torch.tensor(0.5)), r"'output_1' has the shape \[\] for 8 records"),
        (torch.ones(2, 8), r"'output' has the shape \[2, 8\] for 8 records"),
        ({"a": "text"}, "'a' is a str, which is no array"),
        (None, "returns no tensor"),
        ({"1": Y, 1: Y}, "two outputs are named '1'"),
    ],
)
def test_what_has_no_row_for_each_record_is_refused_by_name(outputs, sentence):
    with pytest.raises(DefinitionError, match=sentence):
        arrays_of(outputs, 8)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (
            [{"a": np.ones((2, 3))}, {"a": np.ones((2, 4))}],
            r"shape \[4\] in one .* \[3\] in another",
        ),
        ([{"a": np.ones(2)}, {"b": np.ones(2)}], "outputs a of one minibatch and b of another"),
    ],
)
def test_minibatches_that_do_not_fit_together_are_refused(parts, sentence):
    with pytest.raises(DefinitionError, match=sentence):
        joined(parts)


arrays = st.sampled_from(["float32", "float64", "int64", "bool"]).flatmap(
    lambda dtype: st.lists(
        st.floats(width=32, allow_nan=False) if dtype.startswith("f") else st.integers(0, 1),
        min_size=12,
        max_size=12,
    ).map(lambda values: np.array(values, dtype))
)


@given(
    arrays, st.sampled_from([(4,), (4, 3), (2, 2, 3)]), st.sampled_from(["npy", "csv", "parquet"])
)
def test_what_is_read_back_is_what_was_written(tmp_path_factory, values, shape, form):
    out = tmp_path_factory.mktemp("out")
    array = values[: int(np.prod(shape))].reshape(shape)
    numbers = np.arange(100, 100 + len(array))

    for _ in range(2):  # again is the same
        write(out, 7, "a, b.csv", numbers, {"y/1": array, "z": array}, form)

    folder = out / "predictions"
    if form == "npy":
        assert [("a, b.csv", n) for n in numbers] == np.load(
            folder / "records-00000007.npy"
        ).tolist()
        for name in ("part-00000007.y%2F1.npy", "part-00000007.z.npy"):
            np.testing.assert_array_equal(array, np.load(folder / name), strict=True)
        return
    if form == "parquet":
        table = pq.read_table(folder / "part-00000007.parquet").to_pydict()
        assert ["a, b.csv"] * len(array) == table["source"]
        assert numbers.tolist() == table["record"]
        assert array.tolist() == table["y/1"] == table["z"]
        return
    with open(folder / "part-00000007.csv", newline="") as file:
        header, *rows = csv.reader(file)
    places = [",".join(map(str, place)) for place in np.ndindex(shape[1:])]
    names = [f"{n}[{p}]" if p else n for n in ("y/1", "z") for p in places]
    assert ["source", "record", *names] == header
    flat = array.reshape(len(array), -1)
    for row, number, expected in zip(rows, numbers, flat, strict=True):
        assert ["a, b.csv", str(number)] == row[:2]
        read = [text == "True" for text in row[2:]] if array.dtype == bool else row[2:]
        np.testing.assert_array_equal([*expected, *expected], np.array(read).astype(array.dtype))


def test_another_jobs_predictions_are_not_mixed_with_these(tmp_path):
    check_output(tmp_path, "csv")
    write(tmp_path, 1, "s", np.arange(1), {"output": np.zeros(1)}, "csv")

    with pytest.raises(UsageError, match="another job: name another --output"):
        check_output(tmp_path, "npy")


RAW = {
    "user": np.array(["a,b", "007"]),
    "n": np.array([2**63, 1], np.uint64),
    "at": np.array(["2026-11-29T12:00:00", "NaT"], "M8[us]"),
}
ZONED = Schema.from_json({"columns": {"at": "timestamp in UTC"}})


def test_columns_of_the_data_stand_beside_the_outputs_as_they_are(tmp_path):
    outputs = {"output": np.ones(2, np.float32)}
    for form in ("csv", "parquet", "npy"):
        write(tmp_path, 0, "a", np.arange(2), outputs, form, Ids(RAW, ZONED))

    folder = tmp_path / "predictions"
    with open(folder / "part-00000000.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert ["source", "record", "user", "n", "at", "output"] == list(rows[0])
    assert ["a,b", "9223372036854775808", "2026-11-29T12:00:00.000000Z"] == [*rows[0].values()][2:5]
    assert ["007", "1", ""] == [*rows[1].values()][2:5]
    table = pq.read_table(folder / "part-00000000.parquet")
    assert ["string", "uint64", "timestamp[us, tz=UTC]"] == [
        str(table.schema.field(name).type) for name in RAW
    ]
    assert ["a,b", "007"] == table["user"].to_pylist()
    assert [2**63, 1] == np.load(folder / "ids-00000000.n.npy").tolist()
    assert ["a,b", "007"] == np.load(folder / "ids-00000000.user.npy").tolist()


def test_lists_and_bytes_among_them_are_columns_of_parquet(tmp_path):
    lists = Ragged.rows_of([["a"], [], ["b", "c"]])
    of_two = np.arange(6).reshape(3, 2)
    objects = np.array([b"a\0", b"", b"b"], object)
    outputs = {"output": np.ones(3, np.float32)}
    ids = Ids({"tags": lists, "pair": of_two, "raw": objects})

    write(tmp_path, 0, "a", np.arange(3), outputs, "parquet", ids)

    table = pq.read_table(tmp_path / "predictions" / "part-00000000.parquet")
    assert [["a"], [], ["b", "c"]] == table["tags"].to_pylist()
    assert of_two.tolist() == table["pair"].to_pylist()
    assert [b"a\0", b"", b"b"] == table["raw"].to_pylist()
    for name in ids.columns:
        one = Ids({name: ids.columns[name]})
        with pytest.raises(UsageError, match=f"{name}: .*--prediction_format parquet"):
            write(tmp_path, 1, "a", np.arange(3), outputs, "csv", one)


def test_an_output_of_the_same_name_is_refused(tmp_path):
    with pytest.raises(DefinitionError, match="both called 'user'"):
        write(tmp_path, 0, "a", np.arange(2), {"user": np.ones(2)}, "csv", Ids(RAW))


def test_columns_of_records_that_are_dicts_are_taken_by_their_keys():
    records = [{"a": b"x\0", "l": [1, 2]}, {"a": b"y", "l": []}]

    found = of_records(records, ["a", "l"])

    assert [b"x\0", b"y"] == found["a"].tolist()
    assert [[1, 2], []] == found["l"].tolist()
    with pytest.raises(DataError, match="--id_columns b: .*no such column; they have 'a', 'l'"):
        of_records(records, ["b"])
    with pytest.raises(DataError, match="records are bytes, which have no columns"):
        of_records([b""], ["a"])

"""Which columns a feed reads, and records out of a request's columns."""

import numpy as np
import pytest

from edl.common.errors import UsageError
from edl.data.reader import Columns
from edl.model_zoo import census_wide_deep, deepfm
from edl.serve.columns import Asked, asked
from edl.serve.servable import Column

NUMBERS = np.arange(6)
TABLE = Columns(
    {
        "user": NUMBERS,
        "score": NUMBERS / 2,
        "name": np.array(["a", "b", "c", "d", "e", "f"]),
        "pixels": np.zeros((6, 2, 3), np.uint8),
        "label": NUMBERS % 2,
        "never": NUMBERS,
    }
)


def features(records):
    return {"ids": records["user"] * 2, "name": np.char.str_len(records["name"])}


def through(found, inputs):
    """Return what feed gets of a request, by way of JSON, as from a file."""
    import json

    return Asked.from_json(json.loads(json.dumps(found.to_json()))).records(inputs)


def test_the_columns_that_feed_reads_are_asked_for_and_no_others():
    def feed(records, mode):
        return {**features(records), "p": records["pixels"]}, None

    expected = (
        Column("user", "INT64", ()),
        Column("name", "BYTES", ()),
        Column("pixels", "UINT8", (2, 3)),
    )
    assert expected == asked(feed, TABLE).columns


@pytest.mark.parametrize(
    "label",
    [
        lambda records: records.get("label"),
        lambda records: records["label"],
        lambda records: records["label"].astype(np.float32),
    ],
)
def test_a_label_is_not_asked_for(label):
    """Broken once: the column that only labels depend on is asked for."""

    def feed(records, mode):
        return features(records), label(records)

    found = asked(feed, TABLE)
    assert ["user", "name"] == [column.name for column in found.columns]
    request = {name: TABLE[name] for name in ("user", "name")}
    made, _ = feed(through(found, request), "predict")
    np.testing.assert_array_equal(made["ids"], TABLE["user"] * 2)


def test_what_features_are_made_of_is_asked_for_though_labels_are_made_of_it_too():
    def feed(records, mode):
        return {"score": records["score"] > 2}, records["score"]

    assert (Column("score", "FP64", ()),) == asked(feed, TABLE).columns


def test_a_request_is_as_the_training_data_was():
    """Texts come as bytes, and feed gets the type of text that it has had."""

    def feed(records, mode):
        return features(records), None

    found = asked(feed, TABLE)
    names = np.array([b"x", "y\u00e4".encode()], object)
    records = through(found, {"user": np.array([1, 2]), "name": names})

    assert ["x", "y\u00e4"] == records["name"].tolist()
    assert records["name"].dtype.kind == "U"
    with pytest.raises(UsageError, match="no UTF-8: send texts"):
        through(found, {"user": np.array([1]), "name": np.array([b"\xff"], object)})


def test_times_and_lists_are_brought_as_texts_and_arrays():
    lists = np.empty(2, object)
    lists[:] = [np.array([1, 2]), np.array([3])]
    when = np.array(["2024-01-01T10", "2024-01-02T11"], "datetime64[s]")
    table = Columns({"when": when, "seen": lists})

    def feed(records, mode):
        hours = records["when"].astype(np.int64)
        return {"hours": hours, "seen": np.stack([sum(x) for x in records["seen"]])}, None

    found = asked(feed, table)
    assert (Column("when", "BYTES", ()), Column("seen", "INT64", (-1,))) == found.columns
    request = {
        "when": np.array([b"2024-01-02T11"], object),
        "seen": np.array([[4, 5, 6]]),
    }
    records = through(found, request)
    assert [when[1]] == records["when"]
    assert [4, 5, 6] == records["seen"][0].tolist()
    with pytest.raises(UsageError, match="no time as .*: send times as"):
        through(found, {**request, "when": np.array([b"soon"], object)})


def test_records_that_are_dicts_or_bytes_have_columns_too():
    dicts = [{"x": np.array([n, 1.0]), "y": np.array([n % 2]), "z": b"t"} for n in range(4)]

    def feed(records, mode):
        x = np.stack([record["x"] for record in records])
        return x, None if mode == "predict" else 0

    found = asked(feed, dicts)
    assert (Column("x", "FP64", (2,)),) == found.columns
    values, _ = feed(through(found, {"x": np.array([[7.0, 1.0]])}), "predict")
    assert [[7.0, 1.0]] == values.tolist()

    def of_bytes(records, mode):
        return np.array([len(record) for record in records]), None

    found = asked(of_bytes, [b"one", b"three"])
    assert (Column("record", "BYTES", ()),) == found.columns
    assert [4] == of_bytes(through(found, {"record": np.array([b"four"])}), "predict")[0].tolist()


@pytest.mark.parametrize("definition", [deepfm, census_wide_deep])
def test_definitions_of_the_zoo(definition):
    texts = getattr(definition, "CATEGORIES", ())
    others = getattr(definition, "COLUMNS", ())
    numbers = (*getattr(definition, "NUMBERS", ()), *others)
    if texts:
        numbers = (*numbers, "capital_gain", "capital_loss")
    table = {name: np.array(["a", "b"]) for name in texts}
    table |= {name: np.array([30, 40]) for name in (*numbers, "label")}

    found = asked(definition.feed, Columns(table)).columns

    expected = {**dict.fromkeys(texts, "BYTES"), **dict.fromkeys(numbers, "INT64")}
    assert expected == {column.name: column.datatype for column in found}

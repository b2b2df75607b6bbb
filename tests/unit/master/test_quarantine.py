"""A broken record is one record, however often it is found."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from edl.master.books.plan import Kind
from edl.master.books.quarantine import by_record, count
from edl.master.books.task import Quarantine

DATA = {Kind.TRAIN: "/train", Kind.EVALUATE: "/valid", Kind.PREDICT: "/predict"}
FOUND = st.builds(
    Quarantine,
    task=st.integers(1, 9),
    source=st.sampled_from(["/a.csv", "s3://b", "part-0"]),
    records=st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True).map(tuple),
    error=st.sampled_from(["ValueError: x", "NonFinite"]),
    kind=st.sampled_from([Kind.TRAIN, Kind.EVALUATE, Kind.PREDICT]),
    epoch=st.integers(0, 3),
)


@given(st.lists(FOUND, max_size=12))
def test_each_record_is_named_once_with_all_places_where_it_was_found(found):
    rows = by_record(found, DATA)

    names = {Kind.TRAIN: "training", Kind.EVALUATE: "evaluation", Kind.PREDICT: "prediction"}
    places = defaultdict(set)
    for each in found:
        for record in each.records:
            whose = each.kind if each.source == "part-0" else None
            places[whose, each.source, record].add((names[each.kind], each.epoch))
    assert len(places) == count(rows)
    told = sorted(
        (row["source"], record, sorted((w["kind"], w["epoch"]) for w in row["where"]))
        for row in rows
        for record in row["records"]
    )
    assert sorted((s, r, sorted(where)) for (_, s, r), where in places.items()) == told
    assert all(row["records"] == sorted(set(row["records"])) for row in rows)


def test_one_bad_record_of_two_epochs_and_an_evaluation_is_one_line():
    found = [
        Quarantine(3, "/a.csv", (7,), "ValueError: x", Kind.TRAIN, 0),
        Quarantine(9, "/a.csv", (7,), "ValueError: x", Kind.EVALUATE, 0),
        Quarantine(5, "/a.csv", (7,), "ValueError: x", Kind.TRAIN, 1),
    ]

    (row,) = by_record(found, DATA)

    assert ("/a.csv", [7], "ValueError: x", 3) == tuple(
        row[name] for name in ("source", "records", "error", "task")
    )
    assert [("training", 0), ("evaluation", 0), ("training", 1)] == [
        (where["kind"], where["epoch"]) for where in row["where"]
    ]

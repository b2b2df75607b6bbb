"""What tells a cut of the counting job from a mixture, and a consumer that follows from another."""

import dataclasses

import pytest

from edl.chaos import followed
from edl.common import deltas, storage
from edl.common.deltas import About, Name
from edl.common.places import Place

COURSE = followed.Course(records=8, epochs=2, minibatch=2, servers=2)
STATE = followed.Published(
    *("job", "cut-1", 1, 8),
    ids=[5, 4, 0, 1, 2, 3],
    counts=[1.0, 1.0, 2.0, 2.0, 1.0, 1.0],
    answers=[1.0, 1.0, 2.0, 2.0, 1.0, 1.0],
    seen=[8.0, 8.0],
    reader=7,
)
LAST = followed.Published(
    *("job", "cut-2", 2, 16),
    ids=[*range(8)],
    counts=[2.0] * 8,
    answers=[2.0] * 8,
    seen=[16.0, 16.0],
    reader=7,
)
NEWEST = About("job", "cut-2", 2, records=16)


def rows(**counts):
    """Return changes of STATE that have other rows, as many records in all."""
    ids = [int(name[1:]) for name in counts]
    values = [float(value) for value in counts.values()]
    return {"ids": ids, "counts": values, "answers": values}


def test_a_cut_is_one():
    assert "" == COURSE.why_no_cut(STATE)
    assert "" == COURSE.why_no_cut(LAST)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"seen": [8.0, 6.0]}, "its rows count 8 records, its manifest 8, its servers [6.0, 8.0]"),
        ({"records": 6}, "its rows count 8 records, its manifest 6"),
        (rows(r0=2, r1=2), "its rows count 4 records"),
        (rows(r0=2, r1=1, r2=2, r3=1, r4=1, r5=1), "a minibatch is there in part"),
        (rows(r0=3, r1=3, r2=1, r3=1), "a record is counted 3 times in 2 epochs"),
        (rows(r0=1.5, r1=1.5, r2=2, r3=2, r4=0.5, r5=0.5), "in 2 epochs"),
        ({"answers": [1.0, 1.0, 2.0, 2.0, 1.0, 0.0]}, "answers with other rows"),
        ({"ids": [5, 5, 0, 1, 2, 3]}, "a row is there twice"),
        ({"ids": [9, 4, 0, 1, 2, 3]}, "of no record"),
        ({"ids": [-1, 4, 0, 1, 2, 3]}, "of no record"),
    ],
)
def test_a_mixture_is_found(changed, why):
    mixed = dataclasses.replace(STATE, **changed)

    assert why in COURSE.why_no_cut(mixed)
    assert [f"cut 1 is a mixture: {COURSE.why_no_cut(mixed)}"] == COURSE.badly_followed(
        [mixed, LAST], NEWEST
    )


def test_pushes_that_wait_for_their_version_are_in_no_row_of_a_cut():
    """On each server one push waits: of records 4 and 5 on one, of 2 and 3 on the other."""
    course = dataclasses.replace(COURSE, waiting=1)
    waits = dataclasses.replace(STATE, **rows(r0=2, r1=2, r2=1, r4=1), seen=[6.0, 6.0], records=8)

    assert "" == course.why_no_cut(waits)
    assert "its rows count 6 records" in COURSE.why_no_cut(waits)
    for changed in (
        {"seen": [4.0, 4.0]},
        {"seen": [7.0, 7.0]},
        {"seen": [6.0, 8.0]},
        {"seen": [8.0, 8.0]},
        {"seen": [10.0, 10.0]},
        rows(r0=2, r1=2, r2=1, r4=1, r6=1),
        rows(r0=1),
    ):
        assert course.why_no_cut(dataclasses.replace(waits, **changed)), changed


def test_whoever_reads_cut_after_cut_follows_also_where_it_is_started_again():
    turned = {name: getattr(STATE, name)[::-1] for name in ("ids", "counts", "answers")}
    again = dataclasses.replace(STATE, reader=8, **turned)
    last = dataclasses.replace(LAST, reader=8)

    assert [] == COURSE.badly_followed([STATE, LAST], NEWEST)
    assert [] == COURSE.badly_followed([STATE, LAST, again, last], NEWEST)


def test_a_consumer_that_does_not_follow_is_found():
    other = dataclasses.replace(STATE, reader=8, ids=[7, 6, 0, 1, 2, 3])
    short = dataclasses.replace(NEWEST, cut="cut-1", number=1, records=8)

    assert ["a consumer went back from cut 2 to 1"] == COURSE.badly_followed(
        [LAST, STATE, dataclasses.replace(LAST, reader=9)], NEWEST
    )
    assert ["cut 1 was read twice, with other rows"] == COURSE.badly_followed(
        [STATE, other, LAST], NEWEST
    )
    assert ["the consumer is at cut 1, and the last one is 2"] == COURSE.badly_followed(
        [STATE], NEWEST
    )
    assert ["the last cut has 8 records, and the job 16"] == COURSE.badly_followed([STATE], short)
    assert 1 == len(COURSE.badly_followed([], None))


def test_states_are_read_as_they_were_published_the_newest_first(tmp_path):
    for state in (STATE, LAST):
        followed.publish(tmp_path, state)

    assert [LAST, STATE] == [*followed.read(tmp_path)]


def test_the_newest_cut_is_one_that_is_whole(tmp_path):
    root = Place(tmp_path)
    assert followed.newest(root) is None
    place = root / str(Name(2))
    storage.write_manifest(
        place, version=9, num_shards=1, num_slots=1, files=[], model={}, books=NEWEST.as_books()
    )
    (tmp_path / str(deltas.Name(3, 2))).mkdir()

    assert NEWEST == followed.newest(root)

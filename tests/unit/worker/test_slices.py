"""The members' slices of a minibatch: together all of it, once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.data.views import view_seeds
from edl.proto import master_pb2 as pb
from edl.worker.group.slices import SliceReader
from edl.worker.task_reader import Lease, TaskReader

pytestmark = pytest.mark.fast


class Numbers:
    """Records that are their own numbers; remembers what was read."""

    def __init__(self):
        self.read_records = []

    def read(self, source, start, end, skip=frozenset()):
        records = [r for r in range(start, end) if r not in skip]
        self.read_records += records
        return records


def feed(records, mode):
    return np.array(records), mode


def slices(task, rank, shares, *, minibatch=8, most=0, least=1, **adapted):
    reader = Numbers()
    readers = {pb.TRAIN: reader, pb.EVALUATE: reader}
    whole = TaskReader(readers, feed, minibatch=minibatch, seed=3, shuffle=True, least=least)
    sliced = SliceReader(whole, rank=rank, shares=shares, most=most)
    vars(sliced).update(adapted)
    return list(sliced.read(Lease(task, task.position), task.position)), reader


def task_of(size, position=0, skips=(), boundaries=()):
    return pb.Task(
        id=5, kind=pb.TRAIN, start=100, end=100 + size, position=position, skips=skips,
        boundaries=boundaries, epoch=1,
    )  # fmt: skip


def counted(piece):
    return [int(r) for features, _, count, _ in piece.parts if count for r in features]


@given(
    size=st.integers(1, 40),
    shares=st.integers(1, 6),
    most=st.integers(0, 4),
    data=st.data(),
)
def test_all_slices_are_the_minibatch_whoever_trains(size, shares, most, data):
    position = data.draw(st.integers(0, size - 1))
    skips = data.draw(st.sets(st.integers(0, size - 1), max_size=5))
    boundaries = data.draw(st.lists(st.integers(0, size), max_size=2))
    task = task_of(size, position, sorted(skips), boundaries)

    alone, _ = slices(task, 0, 1)
    members = [slices(task, rank, shares, most=most)[0] for rank in range(shares)]

    for number, whole in enumerate(alone):
        pieces = [pieces[number] for pieces in members]
        assert {(p.start, p.end, p.total) for p in pieces} == {(whole.start, whole.end, whole.used)}
        assert [r for piece in pieces for r in counted(piece)] == counted(whole)
        assert sum(piece.used for piece in pieces) == whole.total
        sizes = [piece.used for piece in pieces if piece.used]
        assert not sizes or max(sizes) - min(sizes) <= 1
        assert whole.total < 2 or min(sizes) >= 2  # batch normalisation needs two
        if most > 1 and whole.total > 1:
            assert all(len(part[0]) >= 2 for piece in pieces for part in piece.parts)
            assert all(part[2] <= most + 1 for piece in pieces for part in piece.parts)


@given(size=st.integers(1, 40), most=st.integers(0, 4), least=st.integers(1, 2), data=st.data())
def test_teachers_are_told_which_records_they_are_asked_about(size, most, least, data):
    """Broken once: SliceReader tells those of the whole span with each part."""
    skips = data.draw(st.sets(st.integers(0, size - 1), max_size=size))
    told = []

    def ask(features, labels, seen):
        told.append((features.tolist(), seen.records.tolist(), seen.source, seen.view))

    for views, view in ((1, 0), (3, 1), (2, 1)):
        reader = TaskReader(
            {pb.TRAIN: Numbers()}, feed, minibatch=8, seed=3, shuffle=True, least=least, ask=ask
        )
        reader.views = views
        task = task_of(size, skips=sorted(skips))
        task.epoch, task.source = 7, "s"
        for each in (reader, SliceReader(reader, rank=0, shares=2, most=most)):
            told.clear()
            list(each.read(Lease(task), 0))

            assert all(fed == records for fed, records, *_ in told)
            assert {("s", view)} >= {(source, seen) for _, _, source, seen in told}
            assert bool(told) == (len(skips) < size)


def test_feed_draws_the_same_again_after_as_many_epochs_as_there_are_views():
    """Broken once: TaskReader.seen takes the epoch for the view."""

    def feed(records, mode):
        return dict(zip(records, view_seeds(len(records)).tolist(), strict=True)), mode

    drawn = []
    for epoch in range(5):
        reader = TaskReader({pb.TRAIN: Numbers()}, feed, minibatch=8, seed=3, shuffle=True)
        reader.views = 2
        task = task_of(20)
        task.epoch = epoch
        drawn.append({})
        for each in (reader, SliceReader(reader, rank=0, shares=2, most=3)):
            for batch in each.read(Lease(task), 0):
                for features, *_ in getattr(batch, "parts", [(batch.features,)]):
                    assert features.items() <= {**features, **drawn[-1]}.items()
                    drawn[-1].update(features)

    assert 20 == len(drawn[0])
    assert drawn[0] == drawn[2] == drawn[4]
    assert drawn[1] == drawn[3]
    assert not drawn[0].items() & drawn[1].items()


@given(size=st.integers(1, 40), shares=st.integers(1, 6))
def test_a_latecomer_has_no_slice_but_something_to_compute_on(size, shares):
    pieces, _ = slices(task_of(size), shares, shares)

    for piece in pieces:
        assert piece.used == 0
        assert piece.total > 0
        assert [count for _, _, count, _ in piece.parts] == [0]
        assert 2 == len(piece.parts[0][0]) or size == 1


def test_a_member_reads_its_own_slices_only():
    read = [slices(task_of(32), rank, 2)[1].read_records for rank in range(2)]

    assert [16, 16] == [len(records) for records in read]
    assert set(range(100, 132)) == set(read[0]) | set(read[1])


def test_a_large_slice_comes_in_parts():
    pieces, _ = slices(task_of(16), 0, 1, minibatch=16, most=6)

    assert [5, 5, 6] == [count for _, _, count, _ in pieces[0].parts]


def test_an_adaptive_minibatch_is_that_of_train_tasks():
    """An evaluation is computed whole by one worker: it stays as it is."""
    train, evaluate = (task_of(32), pb.Task(id=6, kind=pb.EVALUATE, end=32))

    found = [slices(task, 0, 1, train_minibatch=16)[0] for task in (train, evaluate)]

    assert [[16] * 2, [8] * 4] == [[piece.used for piece in pieces] for pieces in found]


def test_slices_of_which_noise_is_measured_come_in_two_parts():
    task = task_of(42, skips=[*range(8, 16), 40])  # the second minibatch has nothing
    pieces, _ = slices(task, 0, 1, splits=lambda number: number != 1)

    assert [[4, 4], [], [8], [4, 4], [4, 4], [1]] == [
        [count for _, _, count, _ in piece.parts] for piece in pieces
    ]


def test_a_minibatch_whose_records_are_all_quarantined_has_no_parts():
    pieces, _ = slices(task_of(8, skips=range(8)), 0, 2)

    assert [(0, [])] == [(piece.total, piece.parts) for piece in pieces]


def test_what_is_left_alone_by_a_quarantine_is_computed_on_twice_and_counts_once():
    task = task_of(8, skips=range(7))
    (mine,), _ = slices(task, 0, 2, least=2)
    (other,), _ = slices(task, 1, 2, least=2)

    assert [(2, 1)] == [(len(part[0]), part[2]) for part in mine.parts]
    assert [(2, 0)] == [(len(part[0]), part[2]) for part in other.parts]

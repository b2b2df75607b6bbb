from __future__ import annotations

import pytest
import torch
from torch.utils.data import IterableDataset

from edl.common.errors import UsageError
from edl.integrations.loader import ElasticDataLoader
from edl.integrations.passes import Batches

RECORDS = torch.arange(22)


def loader(rank=0, replicas=1, **arguments):
    return ElasticDataLoader(RECORDS, Batches(6, 2), (rank, replicas), seed=1, **arguments)


def read(*loaders):
    return [sorted(torch.cat(micros).tolist()) for micros in zip(*loaders, strict=True)]


def test_replicas_read_what_one_does_each_record_once():
    alone = [record for micro in read(loader()) for record in micro]
    both = [record for micro in read(loader(0, 2), loader(1, 2)) for record in micro]

    assert RECORDS.tolist() == sorted(alone) == sorted(both)


def test_it_begins_in_the_middle_once_and_its_length_stays_that_of_a_pass():
    whole = loader()
    whole.set_epoch(3)
    expected = read(whole)
    resumed = loader()
    resumed.load_state_dict({"epoch": 3, "step": 2})

    assert expected[6:] == read(resumed)
    assert len(expected) == len(resumed)
    resumed.set_epoch(3)
    assert expected == read(resumed)


def test_other_replicas_go_on_at_the_same_step():
    one, two = loader(shuffle=False), [loader(rank, 2, shuffle=False) for rank in (0, 1)]
    for each in two:
        each.load_state_dict({"epoch": 0, "step": 2})
    rest = [record for micro in read(*two) for record in micro]

    assert list(range(12, 22)) == sorted(rest)
    assert [0, 1] == next(iter(one)).tolist()


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(3)


def test_a_stream_is_refused():
    with pytest.raises(UsageError, match="a dataset with a length"):
        ElasticDataLoader(Stream(), Batches(6, 2), (0, 1))

"""The ids of a batch as tensors."""

import pytest
import torch

from edl.nn.embedding import PADDING
from edl.worker.servers.ids import unique


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (2, 0), (2, 3, 2)])
def test_places_have_the_shape_of_the_ids(shape):
    ids = torch.randint(0, 5, shape)

    found = unique([ids])

    (lookup,) = found.lookups
    assert shape == tuple(lookup.places.shape)
    assert torch.equal(ids, torch.from_numpy(found.ids_U)[lookup.places.long()])


def test_padding_is_left_out_of_a_lookup():
    ids = torch.tensor([[5, PADDING], [PADDING, 3], [5, 5]])

    found = unique([ids, torch.tensor([3, 8])])

    assert [5, 3, 8] == found.ids_U.tolist()
    assert [[5, 3, 5, 5], [3, 8]] == [lookup.given.tolist() for lookup in found.lookups]
    assert [[0, 1, 0, 0], [1, 2]] == [lookup.places.tolist() for lookup in found.lookups]


def test_ids_that_are_no_run_of_memory_are_taken_as_they_read():
    ids = torch.arange(12).reshape(3, 4).T

    assert ids.reshape(-1).tolist() == unique([ids]).ids_U.tolist()

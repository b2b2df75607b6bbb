"""What is moved to a device keeps its type."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from edl.worker.device import to_device

Pair = namedtuple("Pair", ["y", "x"])
Y = torch.ones(2)


@pytest.mark.parametrize(
    "values",
    [Pair(Y, Y), (Y, None), [Y], OrderedDict(y=Y), {"y": (Y, "text")}, pack_sequence([Y]), None, 3],
    ids=lambda values: type(values).__name__,
)
def test_outputs_of_any_type_stay_what_they_are_and_move(values):
    assert to_device(values, torch.device("cpu")) is values
    moved = to_device(values, torch.device("meta"))

    assert type(moved) in (type(values), dict)
    if isinstance(moved, Pair):
        assert ["meta", "meta"] == [part.device.type for part in moved]

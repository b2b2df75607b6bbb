"""A forward's changes of buffers are what has other bits, and can be taken back."""

import math

import pytest
import torch
from torch import nn

from edl.common.errors import DefinitionError
from edl.nn.buffers import Buffers, NonFinite, _bits, add_changes


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([0.0, -0.0, -math.inf, math.nan]))
        self.register_buffer("mean", torch.tensor([1.0, 2.0]))
        self.register_buffer("wave", torch.tensor([1 + 1j]))
        self.register_buffer("seen", torch.tensor(3, dtype=torch.uint8))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("places", torch.arange(3).expand(2, -1))  # which none can write to
        self.register_buffer("graph", torch.eye(2).to_sparse(), persistent=False)
        self.register_buffer("cache", torch.zeros(1), persistent=False)


def begun():
    module = Module()
    buffers = Buffers(module)
    buffers.begin()
    return module, buffers


def test_nothing_has_changed_where_no_bit_has():
    _, buffers = begun()

    assert ["mask", "mean", "wave", "seen", "flags", "places", "cache"] == buffers.names
    assert not any(buffers.changed())
    assert [None] * 7 == buffers.changes()


def test_changes_in_place_and_by_another_tensor_are_found_taken_back_and_added():
    module, buffers = begun()
    first = [buffer.clone() for buffer in buffers.now()]
    held = module.mean
    module.mask[0] = 5.0
    module.mean = 0.5 * module.mean
    module.wave.mul_(2)
    module.seen -= 4  # 255
    module.flags.logical_not_()
    wanted = [buffer.clone() for buffer in buffers.now()]

    changes = buffers.changes()
    buffers.restore()

    assert held is module.mean
    for was, now in zip(first, buffers.now(), strict=True):
        assert torch.equal(_bits(was), _bits(now))
    add_changes(buffers.now(), changes)
    for expected, now in zip(wanted, buffers.now(), strict=True):
        assert torch.equal(_bits(expected), _bits(now))


@pytest.mark.parametrize(("name", "value"), [("mask", [0, 0, 1, 0]), ("mean", [math.inf, 0])])
def test_a_change_that_cannot_be_added_up_is_named(name, value):
    module, buffers = begun()
    getattr(module, name).copy_(torch.tensor(value))

    with pytest.raises(NonFinite, match=f"changes the buffer '{name}' from .* begin with a finite"):
        buffers.changes()


def test_only_what_is_not_saved_may_get_another_shape():
    module, buffers = begun()
    module.cache = torch.ones(5)

    assert not any(buffers.changed())
    buffers.restore()
    add_changes(buffers.now(), [None] * 6 + [torch.ones(1)])
    assert [1.0] * 5 == module.cache.tolist()

    module.mean = torch.ones(3)
    with pytest.raises(DefinitionError, match=r"float32\[3\] of the buffer 'mean'.*float32\[2\]"):
        buffers.changed()

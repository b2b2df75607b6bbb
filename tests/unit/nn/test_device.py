"""Data moved to a device keeps its type, and what is drawn there is torch.manual_seed's."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from edl.nn.device import seed_step, to_device

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


@pytest.mark.parametrize("number", [0, 7, 2**63 - 1])
def test_draws_are_those_of_torchs_seed_and_nothing_is_queued_for_other_devices(
    monkeypatch, number
):
    """Broken once: with torch.manual_seed, which queues the seed for CUDA."""
    torch.manual_seed(number)
    expected = torch.rand(5)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", pytest.fail)

    seed_step(number, torch.device("cpu"))

    assert torch.equal(torch.rand(5), expected)


def test_a_step_on_cuda_seeds_the_device_and_the_host(monkeypatch):
    torch.manual_seed(3)
    expected = torch.rand(5)
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed", seeded.append)

    seed_step(3, torch.device("cuda:0"))

    assert seeded == [3]
    assert torch.equal(torch.rand(5), expected)


def test_only_copies_to_a_device_are_not_waited_for(monkeypatch):
    """Whoever reads on the host does not wait for the device: evaluations were of half a batch."""
    asked = []
    monkeypatch.setattr(torch.Tensor, "to", lambda _y, on, non_blocking: asked.append(non_blocking))

    to_device({"y": Y}, torch.device("cuda:0"))
    to_device({"y": Y}, torch.device("cpu"))

    assert asked == [True, False]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_outputs_are_all_there_once_they_are_on_the_host():
    on_host = torch.arange(1 << 20, dtype=torch.float32)
    values = on_host.cuda()
    for _ in range(5):
        torch.cuda._sleep(50_000_000)  # cycles: the device is busy while the host goes on
        assert torch.equal(on_host + 1, to_device(values + 1, torch.device("cpu")))

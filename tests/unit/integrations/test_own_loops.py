"""The sampler of edl.launch in loops with accelerate and Lightning Fabric."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from edl.common.errors import UsageError
from edl.common.order import order
from edl.launch import Sampler


@pytest.mark.parametrize("processes", [1, 2])
def test_a_loader_that_accelerate_has_made_is_refused(processes):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is missing")
    sampler = Sampler(20, 4)
    own = DataLoader(range(20), batch_sampler=sampler)
    prepared = accelerate.data_loader.prepare_data_loader(
        own, num_processes=processes, process_index=0
    )
    for state in accelerate.state.PartialState, accelerate.state.GradientState:
        state._reset_state()  # which this has made for all of the process

    with pytest.raises(UsageError, match=r"as in accelerator\.prepare\(model, optimizer\)"):
        next(sampler.count(prepared))


def test_a_loader_that_fabric_has_set_up_keeps_the_position():
    fabric = pytest.importorskip("lightning.fabric", reason="lightning is missing")
    sampler = Sampler(20, 4)
    sampler.load_state_dict({**sampler.state_dict(), "epoch": 2, "position": 8})
    own = DataLoader(range(20), batch_sampler=sampler)
    made = fabric.Fabric(accelerator="cpu", devices=1)
    loader = made.setup_dataloaders(own, use_distributed_sampler=False)
    batches = [batch.tolist() for batch in sampler.count(loader)]

    assert order(0, 2, 0, 20, True).tolist()[8:] == [each for batch in batches for each in batch]
    assert (2, 20) == (sampler.epoch, sampler.position)

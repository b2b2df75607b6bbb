"""A loop of one's own with accelerate or Lightning Fabric: `own_loop.py FOLDER LIBRARY SAVES`.

Run by `edl launch`. SAVES: `own`, where the library saves its state, which a state of edl.launch
names together with the position; `edl`, where edl.launch saves all.
"""

import os
import sys
from pathlib import Path

import torch
from launched import books
from torch.utils.data import DataLoader, TensorDataset

import edl.launch

folder, (library, saves) = Path(sys.argv[1]), sys.argv[2:]
torch.set_num_threads(1)
inputs, targets, model, optimizer = books.regression()
dataset = TensorDataset(inputs, targets, torch.arange(books.RECORDS))
sampler = edl.launch.Sampler(books.RECORDS, books.BATCH, seed=books.SEED)
loader = DataLoader(dataset, batch_sampler=sampler)

if library == "accelerate":
    from accelerate import Accelerator

    accelerator = Accelerator()
    model, optimizer = accelerator.prepare(model, optimizer)
    backward, whole = accelerator.backward, accelerator.unwrap_model(model)
    load_own = accelerator.load_state

    def save_own(where):
        accelerator.save_state(where)
        accelerator.wait_for_everyone()  # each rank writes its random states
else:
    from lightning.fabric import Fabric

    fabric = Fabric(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["EDL_NUM_NODES"]),
    )
    fabric.launch()
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)
    backward, whole = fabric.backward, model

    def load_own(where):
        fabric.load(where, {"model": model, "optimizer": optimizer})

    def save_own(where):
        fabric.save(where, {"model": model, "optimizer": optimizer})


state, progress = edl.launch.load()
if state:
    sampler.load_state_dict(state["sampler"])
    if saves == "own":
        load_own(progress["where"])
    else:
        whole.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
ledger = books.Books(folder)
step = progress.get("step", 0)
for epoch in range(sampler.epoch, books.EPOCHS):
    sampler.set_epoch(epoch)
    for pixels, expected, records in sampler.count(loader):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(pixels), expected)
        backward(loss * sampler.weight)
        optimizer.step()
        step += 1
        if saves == "own":
            save_own(where := str(folder / f"state-{step}"))
            edl.launch.save({"sampler": sampler}, step=step, where=where)
        else:
            kept = {"model": whole, "optimizer": optimizer, "sampler": sampler}
            edl.launch.save(kept, step=step)
        ledger.saw(records)
        ledger.stepped(step)
if os.environ["RANK"] == "0":
    torch.save(whole.state_dict(), folder / "elastic.pt")

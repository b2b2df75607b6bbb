"""A small network on digits trained by Lightning: elastic, or in one process (`plain`)."""

import logging
import sys
import warnings
from pathlib import Path

import torch
from launched import books
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import nn

folder = Path(sys.argv[1])
plain = sys.argv[2:] == ["plain"]
torch.set_num_threads(1)
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
found = load_digits()
PIXELS = torch.tensor(found.data, dtype=torch.float32) / 16
DIGITS = torch.tensor(found.target)


class Digits(torch.utils.data.Dataset):
    """The first digits, each with its number."""

    def __len__(self):
        return books.RECORDS

    def __getitem__(self, index):
        return PIXELS[index], DIGITS[index], index


class Network(LightningModule):
    """A network whose records are noted."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))

    def training_step(self, batch, batch_idx):
        pixels, digits, records = batch
        ledger.saw(records)
        return nn.functional.cross_entropy(self.layers(pixels), digits)

    def validation_step(self, batch, batch_idx):
        self.log("loss", nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, books.STEPS)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Notes(Callback):
    """A callback that notes each step, and when was validated."""

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step > self.step:
            self.step = trainer.global_step
            ledger.stepped(self.step)

    def on_train_start(self, trainer, *args):
        self.step = trainer.global_step

    def on_validation_end(self, trainer, *args):
        if trainer.is_global_zero and not trainer.sanity_checking:
            with open(folder / ("validated-plain" if plain else "validated"), "a") as file:
                print(trainer.global_step, file=file)


class Ledger(books.Books):
    """The books of the elastic one."""

    def stepped(self, step):
        if not plain:
            super().stepped(step)


ledger = Ledger(folder)
seed_everything(3, verbose=False)
common = {
    "accelerator": "cpu",
    "max_epochs": books.EPOCHS,
    "gradient_clip_val": 0.5,
    "check_val_every_n_epoch": 1,
    "val_check_interval": 1.0,
    "num_sanity_val_steps": 0,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "default_root_dir": str(folder),
}
checked = torch.utils.data.DataLoader(Digits(), batch_size=9)
model = Network()
if plain:
    trainer = Trainer(callbacks=[Notes()], devices=1, **common)
    loader = torch.utils.data.DataLoader(Digits(), batch_size=books.BATCH, sampler=books.Order())
else:
    from edl.integrations.lightning import EdlCallback, EdlEnvironment

    elastic = EdlCallback(books.BATCH, per_replica=2, save_every=3)
    loader = elastic.loader(Digits(), seed=books.SEED)
    places = EdlEnvironment()
    trainer = Trainer(
        callbacks=[Notes(), elastic],
        plugins=[places],
        strategy="ddp",
        devices=places.local_world_size,
        use_distributed_sampler=False,
        **common,
    )
trainer.fit(model, loader, checked)
if trainer.is_global_zero:
    torch.save(model.state_dict(), folder / ("plain.pt" if plain else "elastic.pt"))
    print("steps", trainer.global_step, "epochs", trainer.current_epoch)

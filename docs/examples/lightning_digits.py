"""Lightning's Trainer, elastic: scikit-learn's digits, which come with it.

    edl launch --nodes 1:4 --job_name digits docs/examples/lightning_digits.py
    edl scale digits 2

The accuracy at the end is that of the records that it has not seen.
"""

from __future__ import annotations

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from edl.integrations.lightning import EdlCallback, EdlEnvironment


class Digits(LightningModule):
    """A network of one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        pixels, digits = batch
        return nn.functional.cross_entropy(self.layers(pixels), digits)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        pixels, digits = batch
        right = (self.layers(pixels).argmax(1) == digits).float().mean()
        self.log("accuracy", right, batch_size=len(digits), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--epochs", type=int, default=20)
    given = arguments.parse_args()

    seed_everything(0)
    found = load_digits()
    pixels = torch.tensor(found.data, dtype=torch.float32) / 16
    records = TensorDataset(pixels, torch.tensor(found.target))
    places = EdlEnvironment()
    elastic = EdlCallback(batch_size=64, per_replica=32, save_every=50)
    trainer = Trainer(
        strategy="ddp",
        devices=places.local_world_size,
        plugins=[places],
        callbacks=[elastic],
        use_distributed_sampler=False,
        max_epochs=given.epochs,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(
        Digits(),
        elastic.loader(Subset(records, range(1500))),
        DataLoader(Subset(records, range(1500, len(records))), batch_size=99),
    )
    if trainer.is_global_zero:
        accuracy = float(trainer.callback_metrics.get("accuracy", torch.tensor(float("nan"))))
        print(f"accuracy {accuracy:.3f} after {trainer.global_step} steps")


if __name__ == "__main__":
    main()

"""Models for Lightning's Trainer. Apart from the tests of it: to import Lightning takes seconds."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule


class Net(LightningModule):
    automatic = True

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.automatic_optimization = self.automatic

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Manual(Net):
    automatic = False

"""The state of a loader, the same on all replicas: its place, its batch, whom its loops train."""

from __future__ import annotations

import dataclasses
import json
from typing import BinaryIO

from . import checkpoint
from .batch_size import Batch
from .newest import LoopModels


class LoaderState(checkpoint.State):
    """The place of a loader: the loops that are done, and where the one that runs stands."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.epoch: int | None = None
        self.loops_done = 0  # in that epoch
        self.index = 0
        self.end_index = 0
        self.batch: Batch | None = None
        self.models = LoopModels()
        checkpoint.load_state(self)

    def save(self, fileobj: BinaryIO) -> None:
        values = {
            "epoch": self.epoch,
            "loops_done": self.loops_done,
            "index": self.index,
            "end_index": self.end_index,
            "batch": dataclasses.asdict(self.batch) if self.batch else None,
            "models": list(self.models.by_loop.items()),
        }
        fileobj.write(json.dumps(values).encode())

    def load(self, fileobj: BinaryIO) -> None:
        values = json.loads(fileobj.read())
        self.epoch, self.loops_done = values["epoch"], values["loops_done"]
        self.index, self.end_index = values["index"], values["end_index"]
        self.batch = Batch(**values["batch"]) if values["batch"] else None
        self.models.by_loop = dict(values.get("models", []))  # which older ones did not write

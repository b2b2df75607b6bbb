"""What the servers must know of a model: plain data, no torch.

A worker derives it from the user's module; every worker of a job derives the same one.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass

from . import optimizers

DTYPES = ("float32", "bfloat16", "float16")
ROUNDINGS = ("nearest", "stochastic")
CHUNK_ELEMENTS = 1 << 20  # 4 MiB of float32: the unit of placement, transfer and locking


@dataclass(frozen=True)
class DenseSpec:
    """A dense tensor. `kind` is "parameter", or "buffer" (running statistics: pushes add a change)."""

    name: str
    shape: tuple[int, ...]
    kind: str = "parameter"

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_chunks(self) -> int:
        return -(-self.elements // CHUNK_ELEMENTS)


@dataclass(frozen=True)
class TableSpec:
    """An embedding table: int64 ids, rows of `dim`, made at first touch.

    `initializer`: "zeros", "uniform" (on [-scale, scale]) or "normal" (standard deviation scale).
    `dtype`: what the servers keep a weight as, "float32", "bfloat16" or "float16"; the arithmetic
    and the optimizer's state are float32. `rounding` to 16 bits after each update: "nearest" or
    "stochastic", which keeps the mean of steps that are too small for the nearest.
    """

    name: str
    dim: int
    initializer: str = "uniform"
    scale: float = 0.05
    dtype: str = "float32"
    rounding: str = "nearest"


@dataclass(frozen=True)
class ModelSpec:
    """Everything that Init tells a shard."""

    dense: tuple[DenseSpec, ...]
    tables: tuple[TableSpec, ...]
    optimizer: optimizers.Optimizer
    seed: int = 0

    @property
    def of_servers(self) -> ModelSpec:
        """What servers hold of it in a hybrid job: the tables."""
        return dataclasses.replace(self, dense=())

    def to_json(self) -> str:
        return json.dumps(
            {
                "dense": [dataclasses.asdict(d) for d in self.dense],
                "tables": [dataclasses.asdict(t) for t in self.tables],
                "optimizer": optimizers.to_dict(self.optimizer),
                "seed": self.seed,
            },
            sort_keys=True,
        )

    @classmethod
    def from_json(cls, text: str) -> ModelSpec:
        values = json.loads(text)
        return cls(
            dense=tuple(
                DenseSpec(d["name"], tuple(d["shape"]), d["kind"]) for d in values["dense"]
            ),
            tables=tuple(TableSpec(**t) for t in values["tables"]),
            optimizer=optimizers.from_dict(values["optimizer"]),
            seed=values["seed"],
        )

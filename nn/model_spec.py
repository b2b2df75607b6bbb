"""Specs of a model for the servers: plain data, no torch.

A worker derives it from the user's module; every worker of a job derives the same one.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass

from ..common.errors import CheckpointError, EdlError
from ..common.foreign import must_be, parse
from . import by_name
from .optimizers import Optimizer

DTYPES = ("float32", "bfloat16", "float16")
ROUNDINGS = ("nearest", "stochastic")
MOST_DIM = 1 << 20  # of a row; frames.py has the same
MOST_ELEMENTS = 1 << 40  # of a dense tensor: 4 TiB
CHUNK_ELEMENTS = 1 << 20  # 4 MiB of float32: the unit of placement, transfer and locking
_VALUES = {
    "dense": [{"name": str, "shape": [int], "kind": str}],
    "tables": [{"name": str, "dim": int}],
    "optimizer": {"name": str},
}


@dataclass(frozen=True)
class DenseSpec:
    """A dense tensor.

    `kind` is "parameter", or "buffer" (running statistics: pushes add a change).
    """

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
    optimizer: by_name.Optimizers
    seed: int = 0

    @property
    def dense_optimizer(self) -> Optimizer:
        """Return the one optimizer of all dense tensors.

        Raises DefinitionError where they have several.
        """
        names = [dense.name for dense in self.dense if dense.kind == "parameter"]
        return by_name.of_all(self.optimizer, names)

    @property
    def of_servers(self) -> ModelSpec:
        """Return the part of the model that servers hold in a hybrid job: the tables."""
        return dataclasses.replace(self, dense=())

    def to_json(self) -> str:
        return json.dumps(
            {
                "dense": [dataclasses.asdict(d) for d in self.dense],
                "tables": [dataclasses.asdict(t) for t in self.tables],
                "optimizer": by_name.to_dict(self.optimizer),
                "seed": self.seed,
            },
            sort_keys=True,
        )

    @classmethod
    def of_checkpoint(cls, model: dict[str, object], where: object) -> ModelSpec:
        """Return the model that the manifest of the checkpoint `where` names.

        Raises CheckpointError where it is none, as in the state of a script.
        """
        try:
            return cls.from_json(json.dumps(model))
        except ValueError as error:
            raise CheckpointError(
                f"{where} is no checkpoint of `edl train`: it has no model: {error}"
            ) from error

    @classmethod
    def from_json(cls, text: str) -> ModelSpec:
        """Return the model that `to_json` wrote.

        Raises ValueError where it is none: it may be a stranger's.
        """
        values = parse(text)
        must_be(values, _VALUES)
        if type(values.get("seed")) is not int:
            raise ValueError(f"the seed is {values.get('seed')!r}, not a whole number")
        try:
            optimizer = by_name.from_dict(values["optimizer"])
            tables = tuple(TableSpec(**t) for t in values["tables"])
        except (KeyError, TypeError, EdlError) as error:
            raise ValueError(f"it has no optimizer or tables that are known: {error}") from error
        spec = cls(
            dense=tuple(
                DenseSpec(d["name"], tuple(d["shape"]), d["kind"]) for d in values["dense"]
            ),
            tables=tables,
            optimizer=optimizer,
            seed=values["seed"],
        )
        spec.check_sizes()
        return spec

    def check_sizes(self) -> None:
        """Raise ValueError where something could not be held anywhere, or is named twice."""
        for dense in self.dense:
            if dense.kind not in ("parameter", "buffer") or dense.elements > MOST_ELEMENTS:
                raise ValueError(f"the dense tensor {dense.name!r} is {dense.kind} {dense.shape}")
        for table in self.tables:
            if not 1 <= table.dim <= MOST_DIM:
                raise ValueError(f"the table {table.name!r} has rows of {table.dim}")
        for named in (self.dense, self.tables):
            names = [each.name for each in named]
            if len(set(names)) < len(names):
                raise ValueError("two tensors or two tables have one name")


def difference(here: ModelSpec, there: ModelSpec) -> str:
    """Return what two models do not have in common, by name, in a few words."""
    parts: list[str] = []
    for kind, mine, theirs in (
        ("tensor", {d.name: d for d in here.dense}, {d.name: d for d in there.dense}),
        ("table", {t.name: t for t in here.tables}, {t.name: t for t in there.tables}),
    ):
        parts += [f"{kind} {name!r} is only here" for name in mine if name not in theirs]
        parts += [f"{kind} {name!r} is only there" for name in theirs if name not in mine]
        for name in mine:
            if name in theirs and mine[name] != theirs[name]:
                parts.append(f"{kind} {name!r} has {_fields(mine[name], theirs[name])}")
        order = [name for name in theirs if name in mine]
        if not parts and [*mine] != order:
            parts.append(f"the {kind}s have another order, as those of a set in each process")
    if len(parts) > _MOST_TOLD:
        parts[_MOST_TOLD:] = [f"and {len(parts) - _MOST_TOLD} more"]
    if here.optimizer != there.optimizer:
        parts.append(f"the optimizer is {here.optimizer} here, {there.optimizer} there")
    if here.seed != there.seed:
        parts.append(f"the seed is {here.seed} here, {there.seed} there")
    return "; ".join(parts)


def another_model(directory: str, mine: ModelSpec, theirs: ModelSpec) -> str:
    """Tell a user whose model is not the checkpoint's; whatever the optimizer is."""
    told = difference(
        dataclasses.replace(mine, optimizer=theirs.optimizer, seed=theirs.seed), theirs
    )
    theirs_dense = {tensor.name for tensor in theirs.dense}
    if any(f"{table.name}.weight" in theirs_dense for table in mine.tables):
        told += "; it was trained with --ps_embedding_threshold 0: say so here too"
    return (
        f"{directory} is a checkpoint of another model than the definition makes: {told} (here: "
        "the definition, there: the checkpoint); give it the model and the --model_params that it "
        "was trained with"
    )


_MOST_TOLD = 4  # of a model that is another one altogether


def _fields(here: DenseSpec | TableSpec, there: DenseSpec | TableSpec) -> str:
    mine, theirs = dataclasses.asdict(here), dataclasses.asdict(there)
    return " and ".join(
        f"{name} {_plain(mine[name])} here, {_plain(theirs[name])} there"
        for name in mine
        if mine[name] != theirs.get(name)
    )


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value

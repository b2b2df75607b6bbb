"""A trained model as programs of torch.export: tensors in, tensors out, and no Python left.

The model's features become inputs by name, flat. Of its tables there are two ways:

- *outside*: each place where the model asks a table for rows, a use, is an input of rows. Which
  ids they are of is nearly always a feature as it is; where the model computes them first, a
  program of its own does that.
- *inside*: a table is a tensor of the program, and its ids are found by a binary search.

Where the shape of a feature is another from batch to batch, it is so for the program too: which
axes those are is found on a few batches. A program is compared with the model on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from ..common.errors import UsageError
from ..nn.embedding import PADDING, Embedding, attach
from ..nn.outputs import arrays_of, leaves
from .columns import datatype
from .export_format import Input, Table, Use, rows_for
from .features import Arrays, Batches, Features, name_of, named, refilled
from .others import quiet, told_as
from .servable import Column
from .table_file import Error

ROWS_ALONE = " (rows and dense values alone are exported by --to rows)"


class _Source:
    """A RowSource that answers by a function, and notes what it was asked for."""

    whole = True
    lasting = False

    def __init__(self, answer: Callable[[int, Embedding, Tensor], Tensor]) -> None:
        self._answer = answer
        self.asked: list[tuple[Embedding, Tensor]] = []

    def rows(self, table: Embedding, ids: Tensor) -> Tensor:
        self.asked.append((table, ids))
        return self._answer(len(self.asked) - 1, table, ids)


def _use(number: int, table: Embedding, ids: str) -> Use:
    size = getattr(table, "num_embeddings", 0)
    nothing = getattr(table, "padding_idx", None) if size else PADDING
    return Use(f"rows_{number}", table.name, ids, size, -1 if nothing is None else nothing)


def _outputs(outputs: Any) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, value in leaves(outputs, ""):
        if not isinstance(value, Tensor):
            raise UsageError(f"the model's output {name!r} is a {type(value).__name__}, no tensor")
        found[name] = value.float() if value.dtype == torch.bfloat16 else value
    return found


class Program(nn.Module):
    """The model as a function of flat tensors, to be traced: features, then the rows of each use.

    `wanted`: "outputs", or "ids", those of uses whose ids are no feature.
    """

    def __init__(self, model: nn.Module, like: Features, ids_of: Sequence[int] | None) -> None:
        super().__init__()
        self.model = model
        self._like = [like]  # in a list: its tensors are no part of the program
        self._features = len(named(like))
        self._ids_of = ids_of

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = tensors[self._features :]

        def answer(number: int, table: Embedding, ids: Tensor) -> Tensor:
            if self._ids_of is None:
                return given[number]
            return torch.zeros(*ids.shape, table.dim)

        source = _Source(answer)
        attach(self.model, source)
        outputs = self.model(refilled(self._like[0], iter(tensors)))
        if self._ids_of is not None:
            return tuple(source.asked[number][1].long() for number in self._ids_of)
        return tuple(_outputs(outputs).values())


class Inside(nn.Module):
    """The model with its tables inside, as a function of flat tensors."""

    def __init__(self, model: nn.Module, like: Features, held: Mapping[str, Held]) -> None:
        super().__init__()
        self.model = model
        self.tables = nn.ModuleList(held.values())
        self._places = {name: place for place, name in enumerate(held)}
        self._like = [like]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        def answer(number: int, table: Embedding, ids: Tensor) -> Tensor:
            rows: Tensor = self.tables[self._places[table.name]](ids.long())
            nothing = _use(number, table, "").nothing
            return rows.masked_fill((ids == nothing).unsqueeze(-1), 0.0)

        attach(self.model, _Source(answer))
        return tuple(_outputs(self.model(refilled(self._like[0], iter(tensors)))).values())


class Held(nn.Module):
    """A table inside of a program. The row of an id that is not there is zeros.

    `ids`: sorted; None: they are 0, 1, 2, ... `scale`: of int8 rows.
    """

    ids: Tensor | None
    weight: Tensor
    scale: Tensor | None

    def __init__(self, ids: NDArray[np.int64] | None, weight: Tensor, scale: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("ids", None if ids is None else torch.from_numpy(ids))
        last = weight.new_zeros(1, weight.shape[1])
        self.register_buffer("weight", torch.cat([weight, last]))
        self.register_buffer("scale", None if scale is None else torch.cat([scale, scale[:1] * 0]))

    def forward(self, ids: Tensor) -> Tensor:
        count = len(self.weight) - 1
        if count == 0:
            return torch.zeros(*ids.shape, self.weight.shape[1])
        if self.ids is None:
            places = ids
        else:
            at = torch.searchsorted(self.ids, ids).clamp(max=count - 1)
            places = torch.where(self.ids[at] == ids, at, count)
        rows = functional.embedding(places, self.weight).float()
        return rows if self.scale is None else rows * self.scale[places].unsqueeze(-1)


class Model:
    """A trained model that is to be traced, with batches of features and its answers to them."""

    def __init__(self, model: nn.Module, batches: Batches, tables: Mapping[str, Table]) -> None:
        """Run the model on all batches, as the job does. Raises EdlError."""
        self.model, self.batches = model, batches
        self.inputs = self._inputs()
        self.answers = self.answered(tables)
        self.uses = self._uses(tables)
        self.outputs = tuple(
            Column(name, datatype(array.dtype), array.shape[1:])
            for name, array in self.answers[0].items()
        )

    def answered(self, tables: Mapping[str, Table]) -> list[Arrays]:
        """Return what the model answers to each batch with rows out of these tables."""

        def answer(number: int, table: Embedding, ids: Tensor) -> Tensor:
            found = rows_for(_use(number, table, ""), tables[table.name], ids.numpy())
            return torch.from_numpy(found)

        with torch.no_grad():
            found = []
            for features, count in self.batches:
                attach(self.model, _Source(answer))
                found.append(arrays_of(_outputs(self.model(features)), count))
        attach(self.model, None)
        return found

    def _uses(self, tables: Mapping[str, Table]) -> tuple[Use, ...]:
        """Find where the model asks for rows. Raises UsageError where ids depend on rows."""

        def zeros(_: int, table: Embedding, ids: Tensor) -> Tensor:
            return torch.zeros(*ids.shape, table.dim)

        def ones(_: int, table: Embedding, ids: Tensor) -> Tensor:
            return torch.ones(*ids.shape, table.dim)

        seen = []
        for answer in (zeros, ones):
            source = _Source(answer)
            attach(self.model, source)
            with torch.no_grad():
                self.model(self.batches.traced)
            seen.append(source.asked)
        attach(self.model, None)
        names = {id(tensor): name_of(path) for path, tensor in named(self.batches.traced)}
        uses = []
        for number, ((table, ids), (_, other)) in enumerate(zip(*seen, strict=True)):
            if table.name not in tables:
                raise UsageError(f"the model asks for a table {table.name!r} that it has not got")
            if not torch.equal(ids, other):
                raise UsageError(
                    f"ids of the table {table.name!r} are computed of rows of another: such a "
                    "model can be exported by --to rows only"
                )
            uses.append(_use(number, table, names.get(id(ids), f"ids_{number}")))
        return tuple(uses)

    @property
    def computed(self) -> tuple[int, ...]:
        """Return the numbers of the uses whose ids are no feature."""
        features = {each.name for each in self.inputs}
        return tuple(n for n, use in enumerate(self.uses) if use.ids not in features)

    def _inputs(self) -> tuple[Input, ...]:
        """Return the inputs, with the axes whose size changes from batch to batch."""
        found = []
        for place, (path, tensor) in enumerate(named(self.batches.traced)):
            shapes = [named(features)[place][1].shape for features, _ in self.batches]
            counts = [count for _, count in self.batches]
            if {len(shape) for shape in shapes} != {tensor.dim()} or not tensor.dim():
                raise UsageError(f"the feature {name_of(path)!r} has no batch axis")
            if [shape[0] for shape in shapes] != counts:
                raise UsageError(
                    f"the first axis of the feature {name_of(path)!r} is not the batch: its sizes "
                    f"are {[shape[0] for shape in shapes]} for {counts} records"
                )
            sizes = zip(*(shape[1:] for shape in shapes), strict=True)
            shape = tuple(each[0] if len(set(each)) == 1 else -1 for each in sizes)
            if (kind := datatype(torch.empty(0, dtype=tensor.dtype).numpy().dtype)) == "BYTES":
                raise UsageError(f"the feature {name_of(path)!r} is {tensor.dtype}")
            found.append(Input(name_of(path), kind, shape, path))
        names = [each.name for each in found]
        if twice := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"two features are named {twice[0]!r}")
        return tuple(found)

    def dense(self) -> Any:
        """Return the program of the dense part: features, then the rows of each use."""
        tensors = [tensor for _, tensor in named(self.batches.traced)]
        with torch.no_grad():
            source = _Source(lambda _, table, ids: torch.zeros(*ids.shape, table.dim))
            attach(self.model, source)
            self.model(self.batches.traced)
        rows = [torch.rand(*ids.shape, table.dim) for table, ids in source.asked]
        axes = [self._axes(each) for each in self.inputs]
        by_name = dict(zip((each.name for each in self.inputs), axes, strict=True))
        for use, given in zip(self.uses, rows, strict=True):
            axes.append(by_name.get(use.ids) or self._axes_of(given))
        return _exported(Program(self.model, self.batches.traced, None), [*tensors, *rows], axes)

    def ids(self) -> Any:
        """Return the program of the ids that are computed."""
        tensors = [tensor for _, tensor in named(self.batches.traced)]
        program = Program(self.model, self.batches.traced, self.computed)
        return _exported(program, tensors, [self._axes(each) for each in self.inputs])

    def inside(self, held: Mapping[str, Held]) -> Any:
        """Return the program of the model with its tables inside: features."""
        tensors = [tensor for _, tensor in named(self.batches.traced)]
        program = Inside(self.model, self.batches.traced, held)
        return _exported(program, tensors, [self._axes(each) for each in self.inputs])

    def _axes(self, given: Input) -> dict[int, Any]:
        """Return the axes that are of any size, for torch.export."""
        moving = {n: torch.export.Dim.AUTO for n, size in enumerate(given.shape, 1) if size == -1}
        return {0: _BATCH, **moving}

    def _axes_of(self, rows: Tensor) -> dict[int, Any]:
        """Return those of the rows of computed ids: torch finds which ones are."""
        first = {0: _BATCH} if rows.shape[0] == self.batches.count else {0: torch.export.Dim.AUTO}
        return {**first, **dict.fromkeys(range(1, rows.dim() - 1), torch.export.Dim.AUTO)}


_BATCH = torch.export.Dim("batch")


def _exported(program: nn.Module, tensors: list[Tensor], axes: list[dict[int, Any]]) -> Any:
    """Trace a program. Raises UsageError where torch cannot."""
    refused = told_as(UsageError, "torch.export cannot trace the model", ROWS_ALONE)
    with refused, torch.no_grad(), quiet():
        made = torch.export.export(
            program.eval(), tuple(tensors), dynamic_shapes=(tuple(axes),), strict=False
        )
    inputs = [node for node in made.graph.nodes if node.op == "placeholder"][-len(tensors) :]
    for node, wanted in zip(inputs, axes, strict=True):
        shape = node.meta["val"].shape
        for axis in wanted:
            if isinstance(shape[axis], int):
                raise UsageError(
                    f"the model takes features of the size {shape[axis]} only, on an axis that is "
                    f"of another size from batch to batch{ROWS_ALONE}"
                )
    return made


def apart(expected: Sequence[Arrays], found: Sequence[Arrays]) -> Error:
    """Return how far answers are from those that are expected."""
    error = Error()
    for mine, theirs in zip(expected, found, strict=True):
        for name, values in mine.items():
            error.add(values, theirs[name])
    return error

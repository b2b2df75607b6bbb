"""Checks, before anything starts, of what a job could not keep of a model as torch does.

`faults` are refused, each in a sentence; `remarks` are told.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..common.errors import DefinitionError
from .buffers import NonFinite, shape_of
from .embedding import tables

_BAGS = nn.Embedding | nn.EmbeddingBag


def faults(model: nn.Module, strategy: str) -> list[str]:
    """Return the faults of a model for a strategy, a sentence each.

    `strategy` "": of no job.
    """
    return [*_tensors(model), *_modules(model), *_of_strategy(model, strategy)]


def remarks(model: nn.Module, strategy: str) -> list[str]:
    """Return sentences about what is not quite as in one process of torch."""
    found = []
    wide = [name for name, p in model.named_parameters() if p.dtype == torch.float64]
    wide += [name for name, b in model.named_buffers() if b.dtype == torch.float64]
    if wide and strategy in ("allreduce",):
        found.append(
            f"{_list(wide)} {_is(wide)} float64: workers train in it, checkpoints keep float32"
        )
    elif wide:
        found.append(
            f"{_list(wide)} {_is(wide)} float64: servers and checkpoints keep float32, so what "
            "training changes of it has 24 bits (--strategy allreduce trains in float64)"
        )
    norms = [
        name or "the model"
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._NormBase)
        and module.track_running_stats
        and module.momentum is None
    ]
    if norms:
        found.append(
            f"{_list(norms)} {_has(norms)} momentum=None, the mean of all batches, which are "
            "counted by each worker and from 0 after a resume: give a momentum"
        )
    return found


def least_records(model: nn.Module) -> int:
    """Return how many records a forward pass in training mode may need."""
    norms = (isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    return 2 if any(norms) else 1


def check_loss(loss: object) -> None:
    """Raise DefinitionError where no backward pass can begin with the loss."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = shape_of(loss) if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise DefinitionError(
            f"loss returned {what} instead of a scalar tensor (the mean of the batch)"
        )
    if not loss.requires_grad:
        raise DefinitionError(
            "loss does not depend on the outputs by any gradient: nothing would be learnt"
        )


def loss_value(loss: Tensor, labels: object) -> float:
    """Return the loss as a number. Raises NonFinite where it is none."""
    value = float(loss.detach())
    if not math.isfinite(value):
        empty = isinstance(labels, Tensor) and labels.shape[:1] == (0,)
        way_out = ": feed left no record; divide the sum by max(len(labels), 1)" if empty else ""
        raise NonFinite(f"the loss is {value}{way_out}")
    return value


class Weights:
    """A model's parameters around a forward pass, which must not write to trained ones."""

    def __init__(self, model: nn.Module) -> None:
        self._named = list(model.named_parameters())
        self._versions: list[int] = []

    def begin(self) -> None:
        """Remember the parameters, before a forward pass."""
        self._versions = [parameter._version for _, parameter in self._named]

    def check(self) -> None:
        """Check the parameters after a forward pass.

        Raises DefinitionError.
        """
        for (name, parameter), version in zip(self._named, self._versions, strict=True):
            if parameter._version != version and parameter.requires_grad:
                raise DefinitionError(
                    f"the forward writes to the parameter {name!r}, which is each worker's own "
                    "copy: only gradients reach the others; compute another tensor from it and use "
                    "that"
                )


def refuse_tables(names: list[str]) -> str:
    """Return why a model with these tables is none for all-reduce."""
    return (
        f"the model has tables ({', '.join(names)}), which grow with their ids and live on "
        "parameter servers: use --strategy hybrid, or ps; or nn.Embedding, of a fixed number of "
        "rows"
    )


def _of_strategy(model: nn.Module, strategy: str) -> Iterator[str]:
    names = list(tables(model))
    if strategy == "allreduce" and names:
        yield refuse_tables(names)
    if strategy == "hybrid" and not names:
        yield (
            "the model has no tables that live on parameter servers: use --strategy allreduce, or "
            "ps"
        )
    if strategy in ("allreduce", "hybrid") and not any(p.requires_grad for p in model.parameters()):
        yield "the model has no parameter outside of tables to train: use --strategy ps"


def _tensors(model: nn.Module) -> Iterator[str]:
    persistent = set(model.state_dict(keep_vars=True))
    held: list[tuple[str, str, Tensor]] = [("parameter", n, p) for n, p in model.named_parameters()]
    held += [("buffer", n, b) for n, b in model.named_buffers() if n in persistent]
    for kind, name, tensor in held:
        if tensor.layout != torch.strided:
            yield (
                f"the {kind} {name!r} is {str(tensor.layout).removeprefix('torch.')}, which no "
                "checkpoint can hold: make it dense"
                + (", or register it with persistent=False" if kind == "buffer" else "")
            )
        elif kind == "parameter" and tensor.is_complex() and tensor.requires_grad:
            yield (
                f"the parameter {name!r} is complex, and servers and checkpoints keep real "
                "numbers: hold torch.view_as_real of it, and view_as_complex that in the forward"
            )


def _modules(model: nn.Module) -> Iterator[str]:
    for name, module in model.named_modules():
        if (
            isinstance(module, _BAGS)
            and module.max_norm is not None
            and module.weight.requires_grad
        ):
            yield (
                f"{name or 'the model'} ({type(module).__name__}) has max_norm, which changes the "
                "weight in the forward, where it is each worker's own copy: leave it out, and "
                "bound the rows that the forward uses instead"
            )


def _list(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _has(names: list[str]) -> str:
    return "has" if len(names) == 1 else "have"

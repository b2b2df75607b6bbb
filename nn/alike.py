"""The names in a model, compared between two calls of model(): every process makes its own.

Servers, checkpoints and the other workers know values by these names, and by their order.
"""

from __future__ import annotations

from torch import nn

from ..common.errors import DefinitionError
from .buffers import shape_of
from .embedding import tables


def names_in(model: nn.Module) -> dict[str, str]:
    """Return what a model has by name: shapes of tensors, dimensions of tables."""
    held = {name: shape_of(tensor) for name, tensor in model.named_parameters()}
    held |= {name: shape_of(tensor) for name, tensor in model.named_buffers()}
    return held | {f"table {name}": f"dim {table.dim}" for name, table in tables(model).items()}


def check_alike(before: dict[str, str], now: dict[str, str]) -> None:
    """Raise DefinitionError where two calls of model() did not make the same."""
    gone = [name for name in before if name not in now]
    new = [name for name in now if name not in before]
    if gone or new:
        told = f"{gone[0] if gone else None!r} became {new[0] if new else None!r}"
        raise DefinitionError(
            f"the names of what model() makes differ between two calls of it ({told}), but every "
            "worker makes a model of its own, and finds values by these names: let each follow "
            "from the place in the model, and not from a counter of the process (in Keras: give "
            "every layer a name=)"
        )
    if other := [name for name in before if before[name] != now[name]]:
        raise DefinitionError(
            f"{other[0]!r} is {before[other[0]]} of one call of model(), {now[other[0]]} of the "
            "next, but every worker makes a model of its own: let nothing else than the arguments "
            "decide"
        )
    if [*before] != [*now]:
        raise DefinitionError(
            "two calls of model() make the same in another order, but every worker makes a model "
            "of its own: make layers in the order of a list, not of a set"
        )

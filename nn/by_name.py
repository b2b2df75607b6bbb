"""Several optimizers in one model: by the names of tables and dense tensors.

The servers take a rule and a rate for each. All-reduce has one optimizer of torch for all dense
tensors, so it takes this only where they have one (`of_all`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..common.errors import DefinitionError
from . import optimizers
from .optimizers import Optimizer


@dataclass(frozen=True)
class ByName:
    """`default`, but for names like a pattern ("users", "deep.*") its own optimizer.

    A name is a table's, or a dense tensor's as in model.named_parameters(). The first pattern that
    fits decides. `patterns` is a dict. `clip_norm`, which is of all gradients together, is said
    of the default.
    """

    default: Optimizer
    patterns: Mapping[str, Optimizer] | Sequence[tuple[str, Optimizer]] = ()

    def __post_init__(self) -> None:
        given: Any = self.patterns
        pairs = tuple((k, v) for k, v in (given.items() if isinstance(given, Mapping) else given))
        for each in (self.default, *(optimizer for _, optimizer in pairs)):
            if type(each) not in optimizers.OPTIMIZERS.values():  # nor a class derived from one
                raise DefinitionError(f"ByName: {each!r} is no optimizer of edl.nn")
        if any(optimizer.clip_norm for _, optimizer in pairs):
            raise DefinitionError(
                "ByName: clip_norm is of all gradients of a push together: give it to the default"
            )
        if not all(isinstance(pattern, str) for pattern, _ in pairs):
            raise DefinitionError("ByName: a pattern is a text, as of a shell: 'users', 'deep.*'")
        object.__setattr__(self, "patterns", pairs)

    def of(self, name: str) -> Optimizer:
        """Return the optimizer of a table or a dense tensor."""
        for pattern, optimizer in self.pairs:
            if fnmatch.fnmatchcase(name, pattern):
                return optimizer
        return self.default

    def check(self, names: Iterable[str]) -> None:
        """Raise DefinitionError for a pattern that none of all names is like."""
        known = list(names)
        for pattern, _ in self.pairs:
            if not fnmatch.filter(known, pattern):
                raise DefinitionError(
                    f"ByName: the model has no table or parameter like {pattern!r}; it has "
                    f"{', '.join(known)}"
                )

    @property
    def all(self) -> list[Optimizer]:
        """Return the default and all others."""
        return [self.default, *(optimizer for _, optimizer in self.pairs)]

    @property
    def pairs(self) -> tuple[tuple[str, Optimizer], ...]:
        """Return patterns and optimizers, in order."""
        pairs: Any = self.patterns
        return pairs  # type: ignore[no-any-return]


Optimizers = Optimizer | ByName


def optimizer_of(optimizer: Optimizers, name: str) -> Optimizer:
    """Return the optimizer of a table or a dense tensor."""
    return optimizer.of(name) if isinstance(optimizer, ByName) else optimizer


def all_of(optimizer: Optimizers) -> list[Optimizer]:
    """Return all that there are."""
    if not isinstance(optimizer, ByName):
        return [optimizer]
    return [optimizer.default, *(each for _, each in optimizer.pairs)]


def clip_norm(optimizer: Optimizers) -> float:
    """Return the norm to which all gradients of a push are clipped; 0: they are not."""
    return (optimizer.default if isinstance(optimizer, ByName) else optimizer).clip_norm


def of_all(optimizer: Optimizers, names: Iterable[str]) -> Optimizer:
    """Return the one optimizer of all these tensors.

    Raises DefinitionError where they have several.
    """
    if not isinstance(optimizer, ByName):
        return optimizer
    found: dict[Optimizer, str] = {}
    for name in names:
        found.setdefault(optimizer.of(name), name)
    if len(found) > 1:
        raise DefinitionError(
            f"ByName gives {' and '.join(found.values())} different optimizers, and all-reduce has "
            "one for all dense tensors: name tables only, or train on servers (--strategy ps)"
        )
    return next(iter(found), optimizer.default)


def to_dict(optimizer: Optimizers) -> dict[str, Any]:
    """Return the optimizers ready for JSON; `from_dict` reads them back."""
    if not isinstance(optimizer, ByName):
        return optimizers.to_dict(optimizer)
    patterns = [[pattern, optimizers.to_dict(each)] for pattern, each in optimizer.pairs]
    default = optimizers.to_dict(optimizer.default)
    return {"name": ByName.__name__, "default": default, "patterns": patterns}


def from_dict(values: dict[str, Any]) -> Optimizers:
    """Return the optimizers that `to_dict` wrote.

    Raises KeyError, TypeError, DefinitionError where they are none.
    """
    if values["name"] != ByName.__name__:
        return optimizers.from_dict(values)
    try:
        pairs = [(pattern, optimizers.from_dict(each)) for pattern, each in values["patterns"]]
        return ByName(optimizers.from_dict(values["default"]), pairs)
    except ValueError as error:
        raise DefinitionError(f"ByName: no pairs of pattern and optimizer: {error}") from error

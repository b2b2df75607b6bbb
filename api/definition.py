"""The model that is to be trained: a name, a path, a module, or functions written as a module."""

from __future__ import annotations

import difflib
import os
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..common.errors import DefinitionError, UsageError
from ..model_zoo.spec import SIGNATURES
from .source import module_text

_REQUIRED = ("model", "feed", "loss", "optimizer")
_FILE = "definition.py"


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A definition's parts, as functions (docs/model-zoo.md).

    `optimizer` may be a spec of edl.nn itself, `model` a class.
    """

    model: Any
    loss: Any
    optimizer: Any
    feed: Any
    metrics: Any = None
    reader: Any = None
    Callbacks: Any = None
    process_predictions: Any = None
    batch_rule: Any = None
    shard_plan: Any = None
    teacher: Any = None
    teach: Any = None

    @property
    def text(self) -> str:
        """The module that is written of it. Raises DefinitionError for what cannot be."""
        return text_of(parts_of(self))


def parts_in(given: dict[str, Any]) -> dict[str, Any]:
    """Take a definition's functions out of keyword arguments; `batch_rule` is a flag as well."""
    names = [n for n in SIGNATURES if n in given]
    names = [n for n in names if n != "batch_rule" or callable(given[n])]
    parts = {name: given.pop(name) for name in names}
    return {name: part for name, part in parts.items() if part is not None}


def parts_of(definition: object) -> dict[str, Any]:
    """Return the parts of a Definition, a class, or another namespace. Raises DefinitionError."""
    if isinstance(definition, Definition):
        pairs = {field.name: getattr(definition, field.name) for field in fields(definition)}
        return {name: part for name, part in pairs.items() if part is not None}
    if isinstance(definition, Mapping):
        found: dict[str, Any] = dict(definition)
    else:
        names = [name for name in vars(definition) if not name.startswith("_")]
        found = {name: getattr(definition, name) for name in names}
    for name in found:
        if name not in SIGNATURES:
            near = difflib.get_close_matches(name, SIGNATURES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise DefinitionError(
                f"{name!r} is no part of a definition: {', '.join(SIGNATURES)}{hint}"
            )
    return found


def named(definition: object) -> str | None:
    """Return the name or path of a definition, as --model_def has it; None: it is none of these."""
    if isinstance(definition, str | os.PathLike):
        return os.fspath(definition)
    if not isinstance(definition, types.ModuleType):
        return None
    file = getattr(definition, "__file__", None)
    if definition.__name__ == "__main__" or file is None:
        raise DefinitionError(
            f"The module {definition.__name__} has no name by which a job could import it: give "
            "its functions (model=model, loss=loss, ...)."
        )
    return definition.__name__ if definition.__package__ else str(file)


def text_of(parts: Mapping[str, object], about: str = "A definition, as it was typed.") -> str:
    """Return the module of a definition's parts.

    Raises DefinitionError for a part that is lacking, made already, or cannot be written.
    """
    for name in _REQUIRED:
        if parts.get(name) is None:
            raise DefinitionError(f"The definition lacks {name}. Expected: {SIGNATURES[name]}")
    for name, part in parts.items():
        if not callable(part) and name != "optimizer":
            raise DefinitionError(
                f"{name} of the definition is a {type(part).__name__}, and no function. Expected: "
                f"{SIGNATURES[name]}"
            )
        if hasattr(part, "state_dict") and not isinstance(part, type):
            raise DefinitionError(
                f"{name} of the definition is a {type(part).__name__} that is made already, and "
                f"each worker makes its own: give the function or the class that makes it."
            )
    return module_text(parts, about)


def asked(definition: object, given: dict[str, Any]) -> str | dict[str, Any] | None:
    """Return a definition's name or path, or its parts; None: there is none.

    Takes the parts out of `given`. Raises UsageError where it is said twice.
    """
    parts = parts_in(given)
    if parts and definition is not None:
        raise UsageError(
            f"{', '.join(parts)} and a definition: give one or the other (a Definition has parts)."
        )
    if (parts or definition is not None) and given.get("model_def"):
        raise UsageError("--model_def and a definition: leave out one of them.")
    if definition is None:
        return parts or None
    name = named(definition)
    return parts_of(definition) if name is None else name

"""Tables of settings: dataclasses whose fields say what the command line must know."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any

# The most that a number may be where its row says no other: a count of 32 bits, a week of seconds.
MOST = 2**31 - 1
LONGEST_S = 7 * 24 * 3600
COMMANDS = ("train", "evaluate", "predict")


def about(
    help: str,
    group: str,
    *aliases: str,
    choices: tuple[str, ...] = (),
    minimum: int = 0,
    maximum: int | None = None,
    path: bool = False,
    many: bool = False,
    of: tuple[str, ...] = COMMANDS,
) -> dict[str, Any]:
    """Return the metadata of a field, which the command line is made of.

    `minimum` and `maximum` are of numbers; no maximum: MOST, or LONGEST_S of a time. A `path` is
    made absolute, so that a job means the same from anywhere; that of a mapping is a file that
    holds it, which is read at once.
    `many`: several may be given, with commas or one by one. `of`: the commands where it has a
    meaning.
    """
    return {
        "help": help,
        "group": group,
        "aliases": aliases,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
        "path": path,
        "many": many,
        "of": of,
    }


def knob(default: object, *words: str, **more: Any) -> Any:
    """Return a field with a default and what `about` makes of the rest."""
    return field(default=default, metadata=about(*words, **more))


@dataclass(frozen=True)
class Knob:
    """A row of the table, as the command line sees it."""

    name: str
    kind: Any
    default: Any
    help: str
    group: str
    aliases: tuple[str, ...]
    choices: tuple[str, ...]
    minimum: int
    maximum: int | None
    path: bool
    many: bool
    of: tuple[str, ...]

    @property
    def is_file(self) -> bool:
        """Tell whether the value is a mapping, which a file may hold."""
        return self.path and self.kind is not str

    @property
    def most(self) -> int:
        """Return the most that a number may be; numbers that are not whole are times in seconds."""
        if self.maximum is not None:
            return self.maximum
        return LONGEST_S if self.kind is float else MOST


def knobs_of(table: type[Any]) -> tuple[Knob, ...]:
    """Return what a user may set, in the order of the table."""
    kinds = typing.get_type_hints(table)
    defaults = table()
    return tuple(
        Knob(name=f.name, kind=kinds[f.name], default=getattr(defaults, f.name), **f.metadata)
        for f in dataclasses.fields(table)
        if f.metadata["group"] != "internal"
    )

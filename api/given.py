"""Keyword arguments of `edl.train` and its like: the flags by their names, with values."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from ..common.settings import spellings
from ..model_zoo.spec import SIGNATURES
from .memory import is_place, place_of

DATA = ("training_data", "validation_data", "prediction_data")
# Flags of commands that are no settings.
OTHERS: dict[str, Any] = {
    "config": None,
    "kind": "auto",
    "init_dense": None,
    "init_rows": (),
    "init_partial": False,
    "queue": False,
    "priority": None,
    "deadline": None,
    "user": None,
    "max_ps": None,
}


def check_names(caller: str, given: Mapping[str, Any]) -> None:
    """Raise TypeError, as Python does, for a name that no flag and no part of a definition has."""
    known = [*spellings(), *OTHERS, *SIGNATURES]
    if caller in ("evaluate", "predict"):  # they begin with a checkpoint
        known = [name for name in known if not name.startswith("init_")]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else " (`edl train --help` lists them)"
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}{hint}")


def flags_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by the settings' names, each as a flag or a job file would say it.

    (MIN, MAX) workers are MAX, of which MIN are enough to begin with.
    """
    flags: dict[str, Any] = {}
    for spelled, value in given.items():
        name = spellings().get(spelled, spelled)
        if name in flags:
            raise TypeError(f"{spelled!r} and another name of {name!r}: leave out one of them")
        if value is None:
            continue
        if name in DATA and is_place(value):
            value = place_of(value)
        flags[name] = value
    _bounds(flags)
    if isinstance(flags.get("init_rows"), Mapping):
        flags["init_rows"] = tuple(f"{k}={v}" for k, v in flags["init_rows"].items())
    return flags


def defaults_of(given: Mapping[str, Any]) -> list[str]:
    """Return the settings that are None here: their defaults, whatever a job file says."""
    return [spellings().get(name, name) for name, value in given.items() if value is None]


def _bounds(flags: dict[str, Any]) -> None:
    """Put the two numbers of a range where the settings have them."""
    for name in ("num_workers", "num_teachers"):
        value = flags.get(name)
        if not isinstance(value, tuple | list):
            continue
        if len(value) != 2 or value[0] > value[1]:
            raise TypeError(f"{name} is a number or (MIN, MAX), not {value!r}")
        if name == "num_teachers":
            flags[name] = f"{value[0]}:{value[1]}"
            continue
        flags["min_workers"], flags[name] = value

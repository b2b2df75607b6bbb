"""Features and answers as named arrays, whatever dicts, lists and tuples they stand in.

The name of an array is its path: `/key` in a dict, `:3` in a tuple, `;3` in a list, one after the
other; a lone tensor is "".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .frames import Part

_STEP = re.compile(r"/((?:[^/:;\\]|\\.)*)|([:;])(\d+)")
_SPECIAL = re.compile(r"([/:;\\])")


def parts_of(values: Any, what: str) -> list[Part]:
    """Return the tensors and arrays in `values`, each with its path.

    Raises TypeError for anything else, naming it as a part of `what`.
    """
    found: list[Part] = []

    def walk(value: Any, path: str) -> None:
        if isinstance(value, Tensor):
            found.append(part_of(path, value))
        elif isinstance(value, np.ndarray) and value.dtype != object:
            found.append(Part(path, value))
        elif isinstance(value, Mapping):
            for key, each in value.items():
                if not isinstance(key, str):
                    raise TypeError(f"{what} has the key {key!r}, which is no str")
                walk(each, path + step(key))
        elif isinstance(value, list | tuple):
            for number, each in enumerate(value):
                walk(each, f"{path}{';' if isinstance(value, list) else ':'}{number}")
        else:
            where = f" at {path!r}" if path else ""
            raise TypeError(
                f"{what} has a {type(value).__name__}{where}: a teacher takes tensors and arrays "
                "of numbers, in dicts, lists and tuples"
            )

    walk(values, "")
    return found


def step(key: str) -> str:
    """Return the step of a path to what stands under a key of a dict."""
    return "/" + _SPECIAL.sub(r"\\\1", key)


def last_step(path: str) -> str:
    """Return the key or the number that a path ends with; "" of a lone tensor."""
    steps = [*_STEP.finditer(path)]
    if not steps:
        return ""
    key, _, number = steps[-1].groups()
    return number if key is None else re.sub(r"\\(.)", r"\1", key)


def values_of(parts: Sequence[Part]) -> Any:
    """Return what `parts_of` was given, with tensors for arrays.

    Raises ValueError for names that are no such paths, or one below another.
    """
    root: dict[str, Any] = {}
    for part in parts:
        at, key = root, ""
        steps = list(_STEP.finditer(part.name))
        if "".join(step[0] for step in steps) != part.name:
            raise ValueError(f"{part.name!r} is no path of an array")
        for step in steps:
            if isinstance(at, dict):
                at, key = at.setdefault(key, {}), step[0]
        if not isinstance(at, dict) or key in at:
            raise ValueError(f"{part.name!r} is at or below another array")
        at[key] = tensor_of(part)
    return _built(root.get("", ()))


def _built(node: Any) -> Any:
    """Return a node of the tree as it was."""
    if not isinstance(node, dict):
        return node
    kinds = {key[0] for key in node}
    made = [_built(each) for each in node.values()]
    if kinds <= {":"}:
        return tuple(made)
    if kinds <= {";"}:
        return made
    return {re.sub(r"\\(.)", r"\1", key[1:]): each for key, each in zip(node, made, strict=True)}


def part_of(path: str, tensor: Tensor) -> Part:
    """Return a tensor as an array of this name, of the same memory where it can be."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return Part(path, tensor.view(torch.uint16).numpy(), True)
    return Part(path, tensor.numpy())


def tensor_of(part: Part) -> Tensor:
    """Return an array as a tensor that shares its memory, if that may be written."""
    values = part.values if part.values.flags.writeable else part.values.copy()
    tensor = torch.from_numpy(values)
    return tensor.view(torch.bfloat16) if part.is_bfloat16 else tensor


def rows_of(parts: Sequence[Part]) -> int | None:
    """Return how many rows all arrays have; None where they differ, so that they stay together."""
    counts = {part.values.shape[0] if part.values.ndim else -1 for part in parts}
    rows = counts.pop() if len(counts) == 1 else -1
    return rows if rows >= 0 else None


def joined(pieces: Sequence[Sequence[Part]]) -> list[Part]:
    """Return arrays of the same names, kinds and row shapes as one of each."""
    if len(pieces) == 1:
        return list(pieces[0])
    return [
        Part(same[0].name, np.concatenate([each.values for each in same]), same[0].is_bfloat16)
        for same in zip(*pieces, strict=True)
    ]


def cut(parts: Sequence[Part], start: int, stop: int) -> list[Part]:
    """Return rows [start, stop) of each array."""
    return [Part(each.name, each.values[start:stop], each.is_bfloat16) for each in parts]


def kind_of(parts: Sequence[Part]) -> tuple[Any, ...]:
    """Return what arrays must have in common to be joined."""
    return tuple((p.name, p.values.dtype, p.values.shape[1:], p.is_bfloat16) for p in parts)


def has_nan(part: Part) -> bool:
    """Tell whether a number among the values is none. That -inf may be meant, as a mask."""
    values = part.values
    if part.is_bfloat16:
        return bool(((values & 0x7FFF) > 0x7F80).any())
    return values.dtype.kind == "f" and bool(np.isnan(values).any())


def has_overflown(part: Part) -> bool:
    """Tell whether a number among the values is +inf, which no class can have for its logit."""
    values = part.values
    if part.is_bfloat16:
        return bool((values == 0x7F80).any())
    return values.dtype.kind == "f" and bool((values == np.inf).any())


def fault_of(parts: Sequence[Part], rows: int | None) -> str:
    """Return what is wrong with an answer about so many rows; None: any number. "": nothing."""
    if not parts:
        return "it answers nothing"
    for part in parts:
        shape = part.values.shape
        if rows is not None and shape[:1] != (rows,):
            return f"it answers {part.name!r} of shape {list(shape)} for {rows} records"
        if has_nan(part):
            return f"it answers NaN in {part.name!r}"
        if has_overflown(part):
            narrow = part.values.dtype == np.float16
            how = " (float16 ends at 65504: have it reply in float32)" if narrow else ""
            return f"it answers +inf in {part.name!r}{how}"
    return ""


def picked(parts: Sequence[Part], rows: NDArray[np.int64]) -> list[Part]:
    """Return a copy of these rows of each array."""
    return [Part(each.name, each.values[rows], each.is_bfloat16) for each in parts]


def woven(mine: NDArray[np.bool_], some: Sequence[Part], others: Sequence[Part]) -> list[Part]:
    """Return arrays whose rows are in order those of `some` where `mine`, else of `others`.

    Both are of one kind (`kind_of`).
    """
    made = []
    for one, other in zip(some, others, strict=True):
        values = np.empty((len(mine), *one.values.shape[1:]), one.values.dtype)
        values[mine], values[~mine] = one.values, other.values
        made.append(Part(one.name, values, one.is_bfloat16))
    return made

"""Features as the flat tensors of a program: their names, and a few batches to trace it on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..common.errors import UsageError
from ..data.reader import Records, take
from ..distill.tree import parts_of

Features = Any
Arrays = dict[str, NDArray[Any]]
_SIZES = (7, 11, 13, 17, 19, 23, 29, 31)  # of the batch that is traced: one that no axis has
_OTHERS = 16  # batches of two records that the axes are compared on
_MOST_VALUES = 1 << 20  # of the features of many records: a second of a small model


@dataclass(frozen=True)
class Batches:
    """A few batches of features: the one that is traced, small ones, and one of many records."""

    traced: Features
    count: int
    others: tuple[tuple[Features, int], ...]

    @classmethod
    def of(cls, feed: Callable[[Any, str], tuple[Any, Any]], records: Records) -> Batches:
        """Make the batches. What feed raises passes."""

        def features(first: int, last: int) -> Features:
            return feed(take(records, np.arange(first, last) % len(records)), "predict")[0]

        two = [tensor for _, tensor in named(features(0, 2))]
        sizes = {size for tensor in two for size in tensor.shape[1:]}
        count = next(size for size in (*_SIZES, 2 * max([*sizes, 20])) if size not in sizes)
        pairs = min(_OTHERS, max(len(records) // 2, 1))
        others = [(features(2 * n, 2 * n + 2), 2) for n in range(pairs)]
        others.append((features(1, 4), 3))
        many = 2 * _MOST_VALUES // max(sum(tensor.numel() for tensor in two), 1)
        many = max(1, min(many, len(records)))
        return cls(features(0, count), count, (*others, (features(0, many), many)))

    def __iter__(self) -> Iterator[tuple[Features, int]]:
        return iter([(self.traced, self.count), *self.others])


def named(features: Features) -> list[tuple[str, Tensor]]:
    """Return the tensors of features by their paths. Raises UsageError for what is none."""
    try:
        paths = [part.name for part in parts_of(features, "what feed returns")]
    except TypeError as error:
        raise UsageError(f"{error}; a model is exported of tensors only") from error
    tensors = list(_tensors(features))
    if strange := [path for path, tensor in zip(paths, tensors, strict=True) if tensor is None]:
        raise UsageError(f"the feature {strange[0]!r} is an array: let feed make a tensor of it")
    return [(p, t) for p, t in zip(paths, tensors, strict=True) if t is not None]


def _tensors(value: Any) -> Iterator[Tensor | None]:
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    else:
        yield value if isinstance(value, Tensor) else None


def refilled(like: Any, tensors: Iterator[Tensor]) -> Any:
    """Return features like these, of other tensors."""
    if isinstance(like, Mapping):
        return {key: refilled(each, tensors) for key, each in like.items()}
    if isinstance(like, list | tuple):
        made = [refilled(each, tensors) for each in like]
        if isinstance(like, tuple) and hasattr(like, "_fields"):
            return type(like)(*made)
        return type(like)(made)
    return next(tensors)


def name_of(path: str) -> str:
    """Return the name of the input at a path of features: user, of /user; features, of a tensor."""
    return path.lstrip("/:;").replace("/", ".").replace(":", ".").replace(";", ".") or "features"

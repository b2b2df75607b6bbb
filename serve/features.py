"""Features as the flat tensors of a program: their names, and a few batches to trace it on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..common.errors import UsageError
from ..common.ragged import Ragged
from ..data.reader import Columns, Records, take
from ..distill.tree import parts_of
from .others import told_as

log = logging.getLogger(__name__)

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
    def of(
        cls,
        feed: Callable[[Any, str], tuple[Any, Any]],
        records: Records,
        model: Callable[[Features], Any] = lambda _: None,
    ) -> Batches:
        """Make the batches. What feed raises passes.

        Where all lists of a column have one length, others are tried: `model` raises what it does
        not take, and then only that length is exported.
        """

        def features(places: Iterable[int], of: Records = records) -> Features:
            return feed(take(of, np.fromiter(places, np.int64) % len(of)), "predict")[0]

        two = [tensor for _, tensor in named(features(range(2)))]
        sizes = {size for tensor in two for size in tensor.shape[1:]}
        others, longest = _of_other_lengths(records), _longest(records)
        if others is not None:
            try:
                with told_as(UsageError, "feed or model"):
                    model(features(range(2), others.records))
            except UsageError as error:  # it takes that length only
                log.info("lists of another length are not taken reason=%r", str(error))
                others = None
        traced_of = others if others is not None and others.is_longer else None
        for count in (*_SIZES, 2 * max([*sizes, 20])):
            of = records if traced_of is None else traced_of.records
            traced = features([*longest, *range(count)][:count], of)
            wide = {size for _, tensor in named(traced) for size in tensor.shape[1:]}
            if count not in sizes | wide:
                break
        pairs = min(_OTHERS, max(len(records) // 2, 1))
        made = [(features((2 * n, 2 * n + 1)), 2) for n in range(pairs)]
        made.append((features((1, 2, 3)), 3))
        if others is not None:
            made.append((features(range(2), others.records), 2))
        many = 2 * _MOST_VALUES // max(sum(tensor.numel() for tensor in two), 1)
        many = max(1, min(many, len(records)))
        return cls(traced, count, (*made, (features(range(many)), many)))

    def __iter__(self) -> Iterator[tuple[Features, int]]:
        return iter([(self.traced, self.count), *self.others])


class _Other(NamedTuple):
    records: Records
    is_longer: bool


def _longest(records: Records) -> list[int]:
    """Return the records with the longest lists: a program is traced on no axis of 1."""
    columns = records.values() if isinstance(records, Columns) else ()
    return list({int(np.argmax(each.lengths)) for each in columns if isinstance(each, Ragged)})


def _of_other_lengths(records: Records) -> _Other | None:
    """Return the records with lists of another length, where all of a column have the same.

    Else an axis would seem to be of one size that is not. None: there are no such lists.
    """
    if not isinstance(records, Columns):
        return None
    made, longer = dict(records), False
    for name, column in records.items():
        if not isinstance(column, Ragged) or len(set(column.lengths.tolist())) > 1:
            continue
        size = int(column.lengths[0])
        if size == 1:
            made[name], longer = Ragged.of(np.repeat(column.values, 2), column.lengths * 2), True
        elif size > 1:
            made[name] = column.keep(np.arange(len(column.values)) % size < size - 1)
    same = all(made[name] is column for name, column in records.items())
    return None if same else _Other(Columns(made), longer)


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

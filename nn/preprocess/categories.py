"""Layers that make ids of values: Hashing, IndexLookup by a vocabulary, Crossing of columns.

The hash is `edl.nn.hash64`, so ids are other ones than TensorFlow's FarmHash gives.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ...common.arrays import array_of
from ...common.errors import UsageError
from ...common.hashing import hash64
from ...common.ragged import Ragged, Sparse, as_column
from .analysis import Analysis, column_of
from .layer import Layer, as_texts, positive
from .read import text_of

_NUMBERS = (int, float, np.number, np.bool_)


@dataclass(frozen=True)
class Hashing(Layer):
    """hash(value) % num_bins, int64; without num_bins an id in [0, 2**63) for `edl.nn.Embedding`.

    Equal values of different `field`s get different ids. Raises ValueError for a None.
    """

    num_bins: int | None = None
    field: str = ""

    def __post_init__(self) -> None:
        if self.num_bins is not None:
            positive(self.name, "num_bins", self.num_bins)

    @classmethod
    def from_analysis(cls, analysis: Analysis, column: str, load: float = 0.5) -> Self:
        """Return so many bins that the column's distinct values fill the share `load` of them."""
        return cls(max(1, round(column_of(analysis, column)["distinct"] / load)), column)

    def _of(self, values: NDArray[Any]) -> NDArray[Any]:
        return _bins(hash64(self.field, values), self.num_bins)


@dataclass(frozen=True)
class IndexLookup(Layer):
    """A value's place in the vocabulary, int64; one that is not in it gets an id behind these.

    `vocabulary` is a list of texts or numbers, or the path of a file with one text in each line,
    which is read at once: `to_dict` holds the values. A value out of the vocabulary is
    len(vocabulary) + hash(value) % num_oov_tokens.
    """

    vocabulary: Sequence[Any]
    num_oov_tokens: int = 1

    def __post_init__(self) -> None:
        positive(self.name, "num_oov_tokens", self.num_oov_tokens)
        given = self.vocabulary
        values = _lines(given) if isinstance(given, str | Path) else array_of(list(given)).tolist()
        values = [each.decode() if isinstance(each, bytes) else each for each in values]
        twice = [each for each, count in collections.Counter(values).items() if count > 1]
        if twice:
            raise UsageError(f"The vocabulary of IndexLookup has {twice[0]!r} twice: remove one.")
        if len({isinstance(each, str) for each in values}) > 1:
            raise UsageError("The vocabulary of IndexLookup mixes texts and numbers.")
        if strange := [each for each in values if not isinstance(each, str | int | float)]:
            raise UsageError(
                f"The vocabulary of IndexLookup has {strange[0]!r}, which is no text or number."
            )
        object.__setattr__(self, "vocabulary", tuple(values))

    @classmethod
    def learnt(cls, values: Any, size: int | None = None, num_oov_tokens: int = 1) -> Self:
        """Return the vocabulary of these values: at most `size`, the most frequent first.

        Of equally frequent ones the lesser comes first. Missing values ("", NaN) are left out.
        """
        column = as_column(values)
        array = as_texts(column if isinstance(column, np.ndarray) else column.values).ravel()
        there = array[~np.isnan(array)] if array.dtype.kind == "f" else array[array != ""]
        counts = collections.Counter(there.tolist())
        kept = list(counts)
        kept.sort(key=lambda each: (-counts[each], each))
        return cls(kept[:size], num_oov_tokens)

    @classmethod
    def from_analysis(
        cls, analysis: Analysis, column: str, size: int | None = None, num_oov_tokens: int = 1
    ) -> Self:
        """Return the column's most frequent values, at most `size`.

        Raises UsageError where the analysis has kept fewer than `size` of them.
        """
        found = column_of(analysis, column)
        kept = [value for value, _ in found["vocabulary"]]
        if len(kept) < min(found["distinct"] if size is None else size, found["distinct"]):
            raise UsageError(
                f"The analysis has kept {len(kept)} of the {found['distinct']} values of column "
                f"{column!r}: give a size of at most {len(kept)}, or analyze with a greater "
                "--vocabulary."
            )
        return cls(kept[:size], num_oov_tokens)

    @property
    def num_ids(self) -> int:
        """Return how many ids there are: so many rows an embedding needs."""
        return len(self.vocabulary) + self.num_oov_tokens

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {value: place for place, value in enumerate(self.vocabulary)}

    def _of(self, values: NDArray[Any]) -> NDArray[Any]:
        values = as_texts(values)
        self._check(values)
        places = map(self._places.get, values.ravel().tolist(), repeat(-1))
        ids = np.fromiter(places, np.int64, values.size).reshape(values.shape)
        unknown = ids < 0
        if unknown.any():
            behind: Any = 0
            if self.num_oov_tokens > 1:
                behind = _bins(hash64("", values[unknown]), self.num_oov_tokens)
            ids[unknown] = len(self.vocabulary) + behind
        return ids

    def _check(self, values: NDArray[Any]) -> None:
        """Raise ValueError where numbers are looked up among texts, or texts among numbers."""
        if not self.vocabulary or not values.size:
            return
        texts = isinstance(self.vocabulary[0], str)
        if values.dtype.kind == "O":
            kinds = set(map(type, values.ravel().tolist()))
            strange = {kind for kind in kinds if not issubclass(kind, str if texts else _NUMBERS)}
        else:
            strange = set() if values.dtype.kind in ("UT" if texts else "biuf") else {
                values.dtype.type
            }  # fmt: skip
        if strange:
            raise ValueError(
                f"IndexLookup has a vocabulary of {'texts' if texts else 'numbers'} and got a "
                f"value of type {strange.pop().__name__}: read the column by dtypes=COLUMN:"
                f"{'str' if texts else 'int64'}"
            )


@dataclass(frozen=True)
class Crossing(Layer):
    """An id of the values of several columns together, as Keras' HashedCrossing.

    `layer([a, b])` of arrays of equal shape gives hash(a, b) % num_bins, int64 of that shape;
    without num_bins an id in [0, 2**63). The columns' order matters. Of lists it gives lists: the
    k-th values of a record's lists are crossed with each other, and with the record's single value
    of a column [N].
    """

    num_bins: int | None = None
    field: str = ""

    def __post_init__(self) -> None:
        if self.num_bins is not None:
            positive(self.name, "num_bins", self.num_bins)

    def numpy(self, values: Any) -> Any:
        columns = [as_column(each) for each in values]
        if any(isinstance(each, Sparse) for each in columns):
            raise ValueError("Crossing takes columns, tensors and lists, and got a Sparse")
        lists = next((each for each in columns if isinstance(each, Ragged)), None)
        arrays = [each if lists is None else _along(lists, each) for each in columns]
        shapes = [list(each.shape) for each in arrays]
        if len(arrays) < 2 or any(each != shapes[0] for each in shapes):
            raise ValueError(f"Crossing needs two columns or more of one shape, and got {shapes}")
        together = np.zeros(arrays[0].shape, np.int64)
        for array in arrays:  # a chain of hashes: the order matters
            together = hash64(self.field, together ^ hash64("", array))
        ids = _bins(together, self.num_bins)
        return ids if lists is None else lists.replace(ids)


def _along(lists: Ragged, column: Any) -> NDArray[Any]:
    """Return a value of the column for each value of the lists. Raises ValueError."""
    if column.shape != lists.shape:
        raise ValueError(
            f"Crossing of lists takes lists and single values of as many records, and got "
            f"{list(column.shape)} beside {list(lists.shape)}"
        )
    if not isinstance(column, Ragged):
        return np.repeat(column, lists.lengths)
    unlike = np.flatnonzero(column.lengths != lists.lengths)
    if len(unlike):
        a, b = (int(each.lengths[unlike[0]]) for each in (lists, column))
        raise ValueError(
            f"Crossing takes lists of equal length, and those of record {unlike[0]} have {a} and "
            f"{b} values"
        )
    return column.values


def _bins(ids: NDArray[np.int64], count: int | None) -> NDArray[np.int64]:
    return ids if count is None else ids % count


def _lines(path: str | Path) -> list[str]:
    """Return the lines of a vocabulary's file, without blanks around them, as ElasticDL does."""
    try:
        text = text_of(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The vocabulary {path} cannot be read: {error}.") from error
    return [line.strip() for line in text.removesuffix("\n").split("\n")] if text else []

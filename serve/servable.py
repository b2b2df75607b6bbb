"""A servable: a model that answers columns with columns, whatever it was opened from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from ..data.exact import Values
from ..data.schema import Field


class Column(NamedTuple):
    """An input or an output of a model, by the words of KServe's v2 protocol.

    `datatype`: FP32, INT64, BYTES, ... `shape`: without the batch axis; -1 is any size.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


class Typed(Column):
    """An input whose values are of a column of a schema.

    Of lists of any length the shape is [-1], and a request has a Ragged of them.
    """

    field: Field

    @classmethod
    def of(cls, field: Field, datatype: str, shape: tuple[int, ...]) -> Typed:
        """Return the input of these values."""
        made = cls(field.name, datatype, shape)
        made.field = field
        return made

    @property
    def is_lists(self) -> bool:
        """Tell whether each value is a list of any length."""
        return self.field.type.lists


class Servable(Protocol):
    """An opened model of one version. Any thread may call `infer`, several at once."""

    name: str
    version: str
    inputs: tuple[Column, ...]
    outputs: tuple[Column, ...]
    about: dict[str, Any]  # as JSON: job, cut, the definition's fingerprint, ...

    def infer(self, inputs: Mapping[str, Values]) -> dict[str, NDArray[Any]]:
        """Return the outputs by name; the first axis of each array is the batch.

        Raises UsageError that says what was expected.
        """
        ...

    def close(self) -> None:
        """Let go of files and memory; nobody calls `infer` any more."""
        ...

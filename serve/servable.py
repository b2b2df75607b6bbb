"""A servable: a model that answers columns with columns, whatever it was opened from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray


class Column(NamedTuple):
    """An input or an output of a model, by the words of KServe's v2 protocol.

    `datatype`: FP32, INT64, BYTES, ... `shape`: without the batch axis; -1 is any size.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


class Servable(Protocol):
    """An opened model of one version. Any thread may call `infer`, several at once."""

    name: str
    version: str
    inputs: tuple[Column, ...]
    outputs: tuple[Column, ...]
    about: dict[str, Any]  # as JSON: job, cut, the definition's fingerprint, ...

    def infer(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the outputs by name; the first axis of each array is the batch.

        Raises UsageError that says what was expected.
        """
        ...

    def close(self) -> None:
        """Let go of files and memory; nobody calls `infer` any more."""
        ...

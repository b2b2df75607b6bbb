"""The base of all preprocessing layers: fields, a numpy function, and their JSON.

A layer's fields are plain values (numbers, texts, lists of them), so that its JSON is all of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ...common.arrays import array_of, objects_of
from ...common.errors import UsageError
from ...common.ragged import Ragged, Sparse, as_column

if TYPE_CHECKING:
    from torch import Tensor

_LAYERS: dict[str, type[Layer]] = {}


class Layer:
    """A layer: `layer(values)` gives tensors, `layer.numpy(values)` arrays.

    `layer.to_dict()` gives its JSON, and `from_dict` the layer of that.
    """

    name: ClassVar[str]

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.name = cls.__name__
        _LAYERS[cls.__name__] = cls

    def __call__(self, values: Any) -> Any:
        """Return a tensor of the values' shape (of a Ragged or Sparse: one of these)."""
        return as_tensor(self.numpy(values))

    def numpy(self, values: Any) -> Any:
        """Return what `layer(values)` does, in numpy."""
        column = as_column(values)
        if isinstance(column, Ragged | Sparse):
            return column.replace(self._of(column.values))
        return self._of(column)

    def _of(self, values: NDArray[Any]) -> NDArray[Any]:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return the layer as JSON has it: its name and its fields."""
        fields = dataclasses.asdict(self)  # type: ignore[call-overload]
        return {"layer": self.name} | {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in fields.items()
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Return the layer of `to_dict`'s JSON. Raises UsageError where it is another's."""
        fields = dict(saved)
        name = fields.pop("layer", None)
        if name != cls.name:
            raise UsageError(f"The JSON is of a layer {name!r}, and {cls.name} was asked for.")
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        if strange := sorted(set(fields) - set(known)):
            raise UsageError(
                f"{name} has no field {strange[0]!r}; it has {', '.join(known)}: the JSON was "
                "written by another version of edl, or by hand."
            )
        try:
            return cls(**fields)
        except TypeError as error:
            raise UsageError(f"The JSON of a {name} cannot be read: {error}.") from error


def from_dict(saved: Mapping[str, Any]) -> Layer:
    """Return the layer of the JSON that its `to_dict` gave. Raises UsageError."""
    name = saved.get("layer") if isinstance(saved, Mapping) else saved
    if not isinstance(name, str) or name not in _LAYERS:
        raise UsageError(f"There is no layer {name!r}; there are {', '.join(sorted(_LAYERS))}.")
    return _LAYERS[name].from_dict(saved)


def as_texts(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array of texts: bytes are the UTF-8 of one. What is neither stays as it is."""
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8", "surrogateescape")
    if values.dtype.kind == "O" and bytes in set(map(type, values.ravel().tolist())):
        texts = [
            each.decode("utf-8", "surrogateescape") if isinstance(each, bytes) else each
            for each in values.ravel().tolist()
        ]
        return objects_of(texts).reshape(values.shape)
    return values


def as_numbers(layer: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return the values, which must be numbers, as bools, whole numbers or floats.

    They are objects where no type of numpy holds all of them exactly. Raises ValueError.
    """
    if values.dtype.kind == "O" and values.size and _are_numbers(values):
        values = array_of(values.ravel().tolist()).reshape(values.shape)
        if values.dtype.kind == "O":
            return values
    if values.dtype.kind not in "iufb":
        shown = f", such as {values.ravel()[0]!r}" if values.size else ""
        raise ValueError(
            f"{layer} takes numbers and got {values.dtype} values{shown}: put ToNumber before it"
        )
    return values


def _are_numbers(values: NDArray[Any]) -> bool:
    return all(issubclass(kind, int | float | np.number) for kind in set(map(type, values.ravel())))


def as_tensor(made: Any) -> Tensor | Ragged | Sparse:
    """Return an array as the tensor that shares its memory."""
    if isinstance(made, Ragged | Sparse):
        return made
    import torch

    return torch.from_numpy(np.ascontiguousarray(made).reshape(made.shape))


def whole(layer: str, field: str, value: object) -> None:
    """Check that a field is a whole number of 64 bits. Raises UsageError."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise UsageError(f"{layer} needs {field} as a whole number of 64 bits, and not {value!r}.")


def positive(layer: str, field: str, value: object) -> None:
    """Check that a field is a whole number of 1 or more. Raises UsageError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{layer} needs {field} of 1 or more, a whole number, and not {value!r}.")

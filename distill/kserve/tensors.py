"""Features as a model's inputs, and its outputs as an answer, by the words of KServe's v2 protocol.

Pure. ValueError says what does not fit, as the end of a sentence about the features or the answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...common import finite
from .. import tree
from ..frames import MAX_BODY_NBYTES, MAX_DIMS, Part

_BFLOAT16 = "BF16"
DTYPES = {
    "BOOL": np.dtype("bool"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
DATATYPES = {dtype: name for name, dtype in DTYPES.items()}
RAW_ONLY = {"FP16", _BFLOAT16}  # have no values in JSON, nor in a message
_KINDS: dict[str, type | tuple[type, ...]] = {"b": bool, "u": int, "i": int, "f": (int, float)}


class Tensor(NamedTuple):
    """A tensor as a model's metadata tells of it; a size of -1 is any."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name!r} ({self.datatype} {_sizes(self.shape)})"


class Input(NamedTuple):
    """An array on its way to a model."""

    name: str
    datatype: str
    values: NDArray[Any]

    def raw(self) -> NDArray[np.uint8]:
        """Return its bytes: little-endian, row by row, without padding."""
        dtype = self.values.dtype.newbyteorder("<")
        return np.ascontiguousarray(self.values, dtype).reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class Model:
    """The inputs and outputs of a model, as its server tells them.

    `most_rows`: of a request; 0: as many as come. `takes_raw`: bytes instead of values in JSON.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    most_rows: int = 0
    takes_raw: bool = True


def inputs_of(parts: Sequence[Part], model: Model) -> list[Input]:
    """Return features as the inputs of a model: by the last step of their paths, or the only one.

    Raises ValueError, naming both sides, for other names, datatypes or shapes than the model's.
    """
    if strange := [t for t in (*model.inputs, *model.outputs) if not _is_known(t.datatype)]:
        raise ValueError(f"the model has {strange[0]}, and only numbers can be asked and taught")
    inputs = _without_lengths(parts, model.inputs)
    if len(parts) == 1 and len(inputs) == 1:
        pairs = [(parts[0], inputs[0])]
    else:
        pairs = _by_name(parts, inputs)
    for part, tensor in pairs:
        if datatype_of(part) != tensor.datatype or not _fits(part.values.shape, tensor.shape):
            mine = f"{datatype_of(part)} {_sizes(part.values.shape)}"
            raise ValueError(f"the feature {part.name!r} is {mine}, and the model takes {tensor}")
    return [Input(tensor.name, tensor.datatype, part.values) for part, tensor in pairs]


def _without_lengths(parts: Sequence[Part], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the inputs but for NAME.lengths of lists NAME, which `edl serve` does not insist on.

    A feature is rectangular: its rows have one length.
    """
    lists = {f"{each.name}.lengths" for each in inputs if each.shape == (-1, -1)}
    left_out = lists - {tree.last_step(part.name) for part in parts}
    return [each for each in inputs if each.name not in left_out or each.shape != (-1,)]


def _by_name(parts: Sequence[Part], tensors: Sequence[Tensor]) -> list[tuple[Part, Tensor]]:
    names = [tree.last_step(part.name) for part in parts]
    if not tensors:  # some servers tell of none: then features say what they are
        tensors = [
            Tensor(name, datatype_of(part), part.values.shape)
            for name, part in zip(names, parts, strict=True)
        ]
    theirs = {tensor.name: tensor for tensor in tensors}
    if "" in theirs or len(set(names)) < len(names) or set(names) != set(theirs):
        mine = ", ".join(repr(part.name) for part in parts)
        takes = ", ".join(map(repr, theirs)) if any(theirs) else "inputs with names of their own"
        raise ValueError(
            f"the features are {mine}, and the model takes {takes}: let feed return a dict with "
            "exactly its names"
        )
    return [(part, theirs[name]) for part, name in zip(parts, names, strict=True)]


def answer_of(outputs: Sequence[Part]) -> list[Part]:
    """Return a model's outputs as parts of an answer: a lone one is a lone tensor.

    Raises ValueError for none, or for a name that comes twice.
    """
    if not outputs:
        raise ValueError("it has no outputs")
    name, times = Counter(each.name for each in outputs).most_common(1)[0]
    if times > 1:
        raise ValueError(f"it has the output {name!r} {times} times")
    if len(outputs) == 1:
        return [outputs[0]._replace(name="")]
    return [each._replace(name=tree.step(each.name)) for each in outputs]


def raw_part(name: str, datatype: str, shape: Sequence[Any], raw: bytes | memoryview) -> Part:
    """Return an output whose bytes are given. Raises ValueError unless they fit its shape."""
    sizes, dtype = _checked(name, datatype, shape)
    nbytes = math.prod(sizes) * dtype.itemsize
    if len(raw) != nbytes:
        raise ValueError(
            f"the output {name!r} of {datatype} {_sizes(sizes)} has {len(raw)} bytes, not {nbytes}"
        )
    if dtype.kind == "b":  # any other byte than 0 and 1 is no bool of numpy's
        return Part(name, (np.frombuffer(raw, np.uint8) != 0).reshape(sizes))
    values = np.frombuffer(raw, dtype).reshape(sizes)
    return Part(name, values, datatype == _BFLOAT16)


def listed_part(
    name: str, datatype: str, shape: Sequence[Any], values: Any, not_finite: Any = None
) -> Part:
    """Return an output whose values are listed, flat or nested. Raises ValueError.

    `not_finite`: which of them that are null were NaN or infinite (common/finite.py).
    """
    sizes, dtype = _checked(name, datatype, shape)
    if datatype == _BFLOAT16:
        raise ValueError(f"the output {name!r} is {_BFLOAT16}, which has no listed values")
    flat = list(_flat(values))
    if not_finite is not None:
        flat = finite.from_list(flat, not_finite)
    kinds = _KINDS[dtype.kind]
    for each in flat:
        if not isinstance(each, kinds) or (isinstance(each, bool) and dtype.kind != "b"):
            raise ValueError(f"the output {name!r} of {datatype} has the value {str(each)[:40]!r}")
    if len(flat) != math.prod(sizes):
        raise ValueError(
            f"the output {name!r} of {datatype} {_sizes(sizes)} has {len(flat)} values"
        )
    try:
        with np.errstate(over="ignore"):
            made = np.array(flat, dtype)
    except OverflowError as error:
        raise ValueError(f"the output {name!r} of {datatype} has larger values: {error}") from error
    if dtype.kind == "f":
        for place in np.flatnonzero(np.isinf(made)):
            if math.isfinite(flat[place]):
                large = f"{flat[place]:g}"
                raise ValueError(f"the output {name!r} of {datatype} has larger values: {large}")
    return Part(name, made.reshape(sizes))


def datatype_of(part: Part) -> str:
    """Return the protocol's word for an array's dtype. Raises ValueError where it has none."""
    if part.is_bfloat16:
        return _BFLOAT16
    datatype = DATATYPES.get(part.values.dtype.newbyteorder("<"))
    if datatype is None:
        raise ValueError(f"the feature {part.name!r} is {part.values.dtype}, which none can take")
    return datatype


def _checked(name: str, datatype: str, shape: Sequence[Any]) -> tuple[list[int], np.dtype[Any]]:
    dtype = DTYPES["UINT16"] if datatype == _BFLOAT16 else DTYPES.get(datatype)
    if dtype is None:
        raise ValueError(f"the output {name!r} is {datatype}, and only numbers can be taught")
    if len(shape) > MAX_DIMS or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"the output {name!r} has the shape {str([*shape])[:80]}")
    if math.prod(max(1, n) for n in shape) * dtype.itemsize > MAX_BODY_NBYTES:
        raise ValueError(f"the output {name!r} has the shape {[*shape]}, which is too large")
    return [*shape], dtype


def _flat(values: Any, depth: int = 0) -> Iterator[Any]:
    if not isinstance(values, list):
        yield values
    elif depth > MAX_DIMS:
        raise ValueError("values are nested deeper than shapes are")
    else:
        for each in values:
            yield from _flat(each, depth + 1)


def _is_known(datatype: str) -> bool:
    return datatype in DTYPES or datatype == _BFLOAT16


def _fits(shape: Sequence[int], theirs: Sequence[int]) -> bool:
    return len(shape) == len(theirs) and all(
        b in (-1, a) for a, b in zip(shape, theirs, strict=True)
    )


def _sizes(shape: Sequence[int]) -> str:
    return f"[{', '.join(str(n) for n in shape)}]"


def spans(rows: int, most: int) -> list[tuple[int, int]]:
    """Return spans of at most so many rows each, in order; 0: one of all."""
    size = most or max(rows, 1)
    return [(start, min(start + size, rows)) for start in range(0, rows, size)] or [(0, 0)]


def in_spans(
    parts: Sequence[Part], rows: int, most: int, ask: Callable[[Sequence[Part]], list[Part]]
) -> list[Part]:
    """Return what `ask` answers of all rows, at most so many at a time.

    Raises ValueError where answers cannot be put together.
    """
    places = spans(rows, most)
    if len(places) == 1:
        return ask(parts)
    pieces: list[list[Part]] = []
    for start, stop in places:
        piece = ask(tree.cut(parts, start, stop))
        for each in piece:
            if each.values.shape[:1] != (stop - start,):
                raise ValueError(
                    f"the output {each.name!r} has the shape {_sizes(each.values.shape)} for "
                    f"{stop - start} records"
                )
        if pieces and tree.kind_of(piece) != tree.kind_of(pieces[0]):
            raise ValueError("its outputs have other datatypes or shapes each time")
        pieces.append(piece)
    return tree.joined(pieces)

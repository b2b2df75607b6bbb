"""The model of the stand-in for servers of KServe's v2 protocol: what both of its carriers do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc
import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

# FP16 and BF16 exist as bytes only. BF16 stands as its bits.
DTYPES = {
    "BOOL": "?",
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
    "BF16": "<u2",
}
_STATUSES = {
    "INVALID_ARG": (400, grpc.StatusCode.INVALID_ARGUMENT),
    "NOT_FOUND": (404, grpc.StatusCode.NOT_FOUND),
    "INTERNAL": (500, grpc.StatusCode.INTERNAL),
    "UNAVAILABLE": (503, grpc.StatusCode.UNAVAILABLE),
    "TOO_MANY": (429, grpc.StatusCode.RESOURCE_EXHAUSTED),  # of a gateway
    "MAY_NOT": (401, grpc.StatusCode.UNAUTHENTICATED),  # likewise
}


class Fault(Exception):
    """An error that a client is told."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.http, self.grpc = _STATUSES[kind]


class Spec(NamedTuple):
    """A tensor of the model's metadata."""

    name: str
    datatype: str
    shape: Sequence[int]

    def json(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": [*self.shape]}


class Tensor(NamedTuple):
    """A tensor of a request or of an answer."""

    name: str
    datatype: str
    values: NDArray[Any]


@dataclass
class Model:
    """A model and its server. What a test changes is so from the next request on.

    `compute(arrays by name) -> arrays by name`, in the datatypes of `outputs`; what it raises is
    what the client is told.
    """

    inputs: list[Spec]
    outputs: list[Spec]
    compute: Callable[[Arrays], Arrays]
    model: str = "teacher"
    versions: tuple[str, ...] = ("1", "3")
    extensions: tuple[str, ...] = ("binary_tensor_data", "model_configuration")
    max_batch_size: int = 0
    writes_raw: bool = True
    is_ready: bool = True
    certified: tuple[str, str] | None = None  # files of a certificate and its key: it encrypts
    # What arrives: names of calls, connections, headers of the last call, rows of each inference.
    calls: list[str] = field(default_factory=list)
    connections: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)

    def known(self, model: str, version: str) -> str:
        """Return the version that a client means. Raises Fault."""
        if model != self.model:
            raise Fault("NOT_FOUND", f"Request for unknown model: '{model}' is not found")
        if version and version not in self.versions:
            raise Fault("NOT_FOUND", f"unknown version {version} of model '{model}'")
        return version or self.versions[-1]

    def infer(self, given: Sequence[Tensor], names: Sequence[str]) -> list[Tensor]:
        """Return the model's outputs of these names, all where there are none. Raises Fault."""
        if strange := set(names) - {spec.name for spec in self.outputs}:
            raise Fault("INVALID_ARG", f"unexpected inference output {strange}")
        by_name = {each.name: each for each in given}
        if len(by_name) < len(given) or set(by_name) != {spec.name for spec in self.inputs}:
            raise Fault("INVALID_ARG", f"expected {len(self.inputs)} inputs, got {[*by_name]}")
        for spec in self.inputs:
            self._must_fit(by_name[spec.name], spec)
        found = self.compute({name: each.values for name, each in by_name.items()})
        wanted = [spec for spec in self.outputs if not names or spec.name in names]
        return [Tensor(spec.name, spec.datatype, found[spec.name]) for spec in wanted]

    def _must_fit(self, tensor: Tensor, spec: Spec) -> None:
        shape = tensor.values.shape
        if tensor.datatype != spec.datatype:
            raise Fault("INVALID_ARG", f"{spec.name}: {tensor.datatype}, not {spec.datatype}")
        fits = len(shape) == len(spec.shape) and all(
            b in (-1, a) for a, b in zip(shape, spec.shape, strict=True)
        )
        if not fits:
            raise Fault("INVALID_ARG", f"unexpected shape for input '{spec.name}': {shape}")
        if self.max_batch_size and shape[0] > self.max_batch_size:
            raise Fault(
                "INVALID_ARG", f"batch-size must be <= {self.max_batch_size} for '{self.model}'"
            )


def tensor_of(told: Mapping[str, Any], raw: bytes | None, listed: Any) -> Tensor:
    """Return a tensor by its bytes or its values. Raises Fault."""
    name, datatype, shape = told["name"], told["datatype"], told["shape"]
    if datatype not in DTYPES:
        raise Fault("INVALID_ARG", f"{name}: datatype {datatype}")
    dtype = np.dtype(DTYPES[datatype])
    if raw is None:
        if datatype in ("FP16", "BF16"):
            raise Fault("INVALID_ARG", f"{name}: {datatype} must be raw")
        values = np.array(listed, dtype).reshape(-1)
    elif len(raw) != math.prod(shape) * dtype.itemsize:
        raise Fault("INVALID_ARG", f"{name}: {len(raw)} bytes for {shape} of {datatype}")
    else:
        values = np.frombuffer(raw, dtype)
    if len(values) != math.prod(shape):
        raise Fault("INVALID_ARG", f"{name}: {len(values)} values for {shape}")
    return Tensor(name, datatype, values.reshape(shape))

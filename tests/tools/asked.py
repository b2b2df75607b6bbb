"""Requests of KServe's v2 protocol about the columns of a reader, as its clients write them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from edl.common.ragged import Ragged
from edl.proto import kserve_pb2 as pb

_CONTENTS = {"BOOL": "bool", "INT64": "int64", "UINT64": "uint64", "FP32": "fp32", "FP64": "fp64"}
_CONTENTS |= {"BYTES": "bytes", "UINT8": "uint", "UINT16": "uint", "INT8": "int"}


class Sent(NamedTuple):
    """A tensor: flat values; `lengths`: those of lists that are to be nested."""

    name: str
    datatype: str
    shape: Sequence[int]
    values: list[Any]
    lengths: list[int] | None = None


def tensors(
    columns: Iterable[Any], values: Mapping[str, Any], *, apart: bool, numbers: bool = False
) -> list[Sent]:
    """Return the tensors about these values.

    `apart`: lists are flat, their lengths in another tensor. `numbers`: times are whole numbers.
    """
    found = []
    for column in columns:
        type_, given = column.field.type, values[column.name]
        array = given.values if isinstance(given, Ragged) else given
        datatype, flat = column.datatype, array.ravel()
        if array.dtype.kind in "Mm" and numbers:
            datatype, listed = "INT64", flat.view(np.int64).tolist()
        elif array.dtype.kind in "Mm":
            listed = [_time(each, type_.zone).encode() for each in flat]
        else:
            listed = [v.encode() if isinstance(v, str) else v for v in flat.tolist()]
        if not isinstance(given, Ragged):
            found.append(Sent(column.name, datatype, array.shape, listed))
        elif apart:
            lengths = given.lengths.tolist()
            found.append(Sent(f"{column.name}.lengths", "INT64", [len(lengths)], lengths))
            found.append(Sent(column.name, datatype, [len(listed)], listed))
        else:
            lengths = given.lengths.tolist()
            found.append(Sent(column.name, datatype, [len(lengths), -1], listed, lengths))
    return found


def _time(time: Any, zone: bool) -> str:
    if np.isnat(time):
        return ""
    if time.dtype.kind == "M":
        return str(time) + ("Z" if zone else "")
    number = int(time.view(np.int64))
    whole, rest = divmod(abs(number), 10**6)
    return f"{'-' * (number < 0)}PT{whole}.{rest:06d}S"


def as_json(sent: Iterable[Sent]) -> bytes:
    """Return a request in JSON, with Python's tokens for what is not finite."""
    inputs = []
    for name, datatype, shape, values, lengths in sent:
        data: list[Any] = [v.decode() if isinstance(v, bytes) else v for v in values]
        if datatype == "FP32":  # the shortest decimals that mean these
            data = [float(str(np.float32(v))) for v in data]
        if lengths is not None:
            ends = np.cumsum(lengths).tolist()
            data = [data[end - size : end] for end, size in zip(ends, lengths, strict=True)]
        inputs.append({"name": name, "datatype": datatype, "shape": [*shape], "data": data})
    return json.dumps({"inputs": inputs}).encode()


def as_bytes(sent: Iterable[Sent]) -> tuple[bytes, str]:
    """Return a request whose values lie behind the JSON, and the header with the JSON's size."""
    inputs, bodies = [], []
    for name, datatype, shape, values, _ in sent:
        bodies.append(_packed(datatype, values))
        told = {"binary_data_size": len(bodies[-1])}
        inputs.append({"name": name, "datatype": datatype, "shape": [*shape], "parameters": told})
    head = json.dumps({"inputs": inputs}).encode()
    return head + b"".join(bodies), str(len(head))


def as_message(sent: Iterable[Sent], *, raw: bool, model: str = "m") -> Any:
    """Return a request of gRPC: with raw_input_contents, or listed values."""
    message = pb.InferRequest(model_name=model)
    for name, datatype, shape, values, _ in sent:
        tensor = message.inputs.add(name=name, datatype=datatype, shape=shape)
        if raw:
            message.raw_input_contents.append(_packed(datatype, values))
        else:
            getattr(tensor.contents, f"{_CONTENTS[datatype]}_contents").extend(values)
    return message


def _packed(datatype: str, values: list[Any]) -> bytes:
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(each)) + each for each in values)
    kinds = {"BOOL": "?", "INT": "<i", "UIN": "<u", "FP3": "<f", "FP6": "<f"}
    size = {"BOOL": 1}.get(datatype) or int("".join(c for c in datatype if c.isdigit())) // 8
    kind = kinds["BOOL"] if datatype == "BOOL" else f"{kinds[datatype[:3]]}{size}"
    return np.array(values, kind).tobytes()

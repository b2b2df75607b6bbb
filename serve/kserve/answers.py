"""Answers as JSON and bytes: the coding of KServe's v2 protocol, at the server. Pure."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .refused import Refused, Why
from .tensors import Arrays, Question, datatype_of

_ENCODED = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def chosen(outputs: Arrays, question: Question) -> Arrays:
    """Return the outputs that were asked for, in that order."""
    if not question.wanted:
        return outputs
    return {name: outputs[name] for name in question.wanted}


def as_http(
    outputs: Arrays, question: Question, model: str, version: str
) -> tuple[bytes, list[Any]]:
    """Return the JSON of an answer, and the bytes that come behind it.

    Raises Refused where JSON cannot hold a value.
    """
    told: list[dict[str, Any]] = []
    bodies: list[Any] = []
    for name, array in chosen(outputs, question).items():
        tensor: dict[str, Any] = {
            "name": name,
            "datatype": datatype_of(array),
            "shape": list(array.shape),
        }
        told.append(tensor)
        if question.wanted.get(name, question.raw):
            body = packed(array)
            tensor["parameters"] = {"binary_data_size": len(body)}
            bodies.append(body)
        else:
            tensor["data"] = _values(array)
    head: dict[str, Any] = {"model_name": model, "model_version": version}
    if question.id:
        head["id"] = question.id
    head["outputs"] = told
    try:
        return _ENCODED(head).encode(), bodies
    except ValueError as error:
        raise Refused(
            Why.INVALID,
            "an output is NaN or infinite, which JSON has not: ask for bytes "
            '(parameters: {"binary_data_output": true})',
        ) from error


def _values(array: NDArray[Any]) -> list[Any]:
    flat: list[Any] = array.reshape(-1).tolist()
    if array.dtype.kind in "SUO":
        return [each.decode(errors="replace") if isinstance(each, bytes) else each for each in flat]
    return flat


def packed(array: NDArray[Any]) -> bytes:
    """Return an array's bytes as the protocol has them."""
    if array.dtype.kind in "SUO":
        texts = [e.encode() if isinstance(e, str) else bytes(e) for e in array.reshape(-1).tolist()]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()

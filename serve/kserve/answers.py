"""Answers as JSON and bytes: the coding of KServe's v2 protocol, at the server. Pure."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common import finite
from .listed import AT_ONCE, pieces
from .tensors import Arrays, Question, datatype_of

_ENCODED = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def chosen(outputs: Arrays, question: Question) -> Arrays:
    """Return the outputs that were asked for, in that order."""
    if not question.wanted:
        return outputs
    return {name: outputs[name] for name in question.wanted}


def is_large(outputs: Arrays) -> bool:
    """Tell whether an event loop must not write these."""
    return sum(array.size for array in outputs.values()) > AT_ONCE


def as_http(
    outputs: Arrays, question: Question, model: str, version: str
) -> tuple[bytes, list[Any]]:
    """Return the JSON of an answer, and the bytes that come behind it.

    In JSON NaN and infinities are null; the tensor's parameter `not_finite` says which they were.
    """
    told: list[str] = []
    bodies: list[Any] = []
    for name, array in chosen(outputs, question).items():
        tensor: dict[str, Any] = {
            "name": name,
            "datatype": datatype_of(array),
            "shape": list(array.shape),
        }
        if question.wanted.get(name, question.raw):
            body = packed(array)
            tensor["parameters"] = {"binary_data_size": len(body)}
            bodies.append(body)
            told.append(_ENCODED(tensor))
        else:
            data, said = _listed(array)
            if said:
                tensor["parameters"] = {finite.NOT_FINITE: said}
            told.append(f'{_ENCODED(tensor)[:-1]},"data":[{data}]}}')
    head: dict[str, Any] = {"model_name": model, "model_version": version}
    if question.id:
        head["id"] = question.id
    return f'{_ENCODED(head)[:-1]},"outputs":[{",".join(told)}]}}'.encode(), bodies


def _listed(array: NDArray[Any]) -> tuple[str, str]:
    """Return the JSON of an array's values, without the brackets, and its `not_finite`."""
    texts, notes, at = [], [], 0
    for piece in pieces(array.reshape(-1)):
        values, said = _values(piece, at)
        texts.append(_ENCODED(values)[1:-1])
        notes += [said] if said else []
        at += len(piece)
    return ",".join(texts), ",".join(notes)


def _values(flat: NDArray[Any], at: int) -> tuple[list[Any], str]:
    values: list[Any] = flat.tolist()
    if flat.dtype.kind in "SUO":
        return [e.decode(errors="replace") if isinstance(e, bytes) else e for e in values], ""
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        return finite.in_list(values, at)
    return values, ""


def packed(array: NDArray[Any]) -> bytes:
    """Return an array's bytes as the protocol has them."""
    if array.dtype.kind in "SUO":
        texts = [e.encode() if isinstance(e, str) else bytes(e) for e in array.reshape(-1).tolist()]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()

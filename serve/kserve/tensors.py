"""Requests as arrays: the coding of KServe's v2 protocol, at the server.

Pure. JSON has values, flat or nested; behind it (`Inference-Header-Content-Length`) or in a message
of gRPC lie bytes: little-endian, row by row; of BYTES each element after its length as uint32. What
does not fit a model's columns is a Refused that says what was expected; nothing is guessed.
BYTES are arrays of objects, which are Python's bytes; where a column has a type of a schema, its
values are brought to that. Columns of lists: lists.py.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common import finite, foreign
from ...distill.kserve.tensors import DATATYPES, DTYPES
from ..servable import Column
from . import lists, unserved
from .listed import BYTES, array_of, check_tokens, pieces, where_of
from .refused import invalid
from .taken import Inputs, Taken, listed_sizes, listing

LARGE_NBYTES = 256 << 10  # of a request, from which on an event loop must not read it

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Question:
    """A question to a model: `rows` of each input.

    `wanted`: the outputs by name, and whether their bytes shall be sent; {}: all, as `raw` says.
    """

    inputs: Inputs
    rows: int
    wanted: Mapping[str, bool]
    raw: bool
    id: str


def datatype_of(array: NDArray[Any]) -> str:
    """Return the protocol's word for an array's dtype; "" where it has none."""
    if array.dtype.kind in "SUO":
        return BYTES
    return DATATYPES.get(array.dtype.newbyteorder("<"), "")


def as_metadata(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Return columns as a model's metadata tells of them, and the lengths that lists may have."""
    lengths = [lists.lengths_column(name) for name in lists.beside(columns)]
    return [
        {"name": c.name, "datatype": c.datatype, "shape": [-1, *c.shape]}
        for c in (*columns, *lengths)
    ]


def from_http(
    body: bytes, json_nbytes: str, columns: Sequence[Column], outputs: Sequence[Column]
) -> Question:
    """Return the question of a request's body; `json_nbytes` is the header of that, or "".

    Raises Refused.
    """
    head, raw = _split(body, json_nbytes)
    told = _parsed(head)
    unserved.check_json(told)
    taken = Taken(columns, [tensor["name"] for tensor in told["inputs"]])
    for tensor in told["inputs"]:
        column, sizes = taken.expected(tensor["name"], tensor["datatype"], tensor["shape"])
        nbytes = _parameter(tensor, "binary_data_size") if "parameters" in tensor else None
        if nbytes is None:
            if "data" not in tensor:
                raise invalid(f"the input {column.name!r} has neither data nor binary_data_size")
            said = _parameter(tensor, finite.NOT_FINITE) if "parameters" in tensor else None
            data, lengths = tensor["data"], None
            if taken.is_open(column, sizes):
                data, lengths = lists.nested(column, sizes[0], data)
                sizes = (len(data),)
            where = where_of(sizes, taken.is_apart(column), lengths)
            values = array_of(column, sizes, data, where, said)
            if values.dtype.kind == "f" and said is None and np.isinf(values).any():
                check_tokens(head, column)
            taken.put(column, sizes, values, lengths)
            continue
        if type(nbytes) is not int or not 0 <= nbytes <= len(raw):
            raise invalid(
                f"the input {column.name!r} has binary_data_size {str(nbytes)[:40]}, and "
                f"{len(raw)} bytes are left behind the JSON"
            )
        _check_closed(taken, column, sizes)
        taken.put(column, sizes, _packed(column, sizes, raw[:nbytes]))
        raw = raw[nbytes:]
    if len(raw):
        raise invalid(f"behind the JSON are {len(raw)} bytes that are of no input")
    found = taken.whole()
    wanted, all_raw = _wanted(told, outputs)
    told_id = told.get("id", "")
    return Question(found, taken.rows, wanted, all_raw, told_id if isinstance(told_id, str) else "")


def _parsed(head: bytes) -> dict[str, Any]:
    """Return a request, whose inputs have what all have. Raises Refused."""
    try:
        told: dict[str, Any] = foreign.parse(head, yields=len(head) > LARGE_NBYTES)
        # By hand: `must_be` on some ten inputs takes longer than all the rest of a small request.
        if type(told) is not dict or not _is_plain(told.get("inputs")):
            foreign.must_be(told, {"inputs": [{"name": str, "datatype": str, "shape": list}]})
    except ValueError as error:  # UnicodeDecodeError too
        raise invalid(f"the request is no JSON of the protocol: {error}") from error
    return told


def _is_plain(inputs: Any) -> bool:
    if type(inputs) is not list:
        return False
    for each in inputs:
        if (
            type(each) is not dict
            or type(each.get("name")) is not str
            or type(each.get("datatype")) is not str
            or type(each.get("shape")) is not list
        ):
            return False
    return True


def _split(body: bytes, json_nbytes: str) -> tuple[bytes, memoryview]:
    if not json_nbytes:
        return body, memoryview(b"")
    if not (json_nbytes.isascii() and json_nbytes.isdecimal()) or len(json_nbytes) > 18:
        raise invalid(f"Inference-Header-Content-Length {json_nbytes[:40]!r} is no number")
    if (nbytes := int(json_nbytes)) > len(body):
        raise invalid(
            f"Inference-Header-Content-Length is {nbytes}, and the body has {len(body)} bytes"
        )
    return body[:nbytes], memoryview(body)[nbytes:]


def from_message(message: Any, columns: Sequence[Column], outputs: Sequence[Column]) -> Question:
    """Return the question of an InferRequest. Raises Refused."""
    unserved.check_message(message)
    bodies = message.raw_input_contents
    if bodies and len(bodies) != len(message.inputs):
        raise invalid(
            f"there are {len(message.inputs)} inputs, and raw_input_contents of {len(bodies)}"
        )
    taken = Taken(columns, [tensor.name for tensor in message.inputs])
    for place, tensor in enumerate(message.inputs):
        column, sizes = taken.expected(tensor.name, tensor.datatype, tensor.shape)
        _check_closed(taken, column, sizes)
        if bodies:
            taken.put(column, sizes, _packed(column, sizes, memoryview(bodies[place])))
        else:
            contents = getattr(tensor.contents, _CONTENTS[column.datatype], ())
            listed = list(itertools.chain.from_iterable(pieces(contents)))
            where = where_of(sizes, taken.is_apart(column))
            taken.put(column, sizes, array_of(column, sizes, listed, where))
    found = taken.whole()
    asked = [each.name for each in message.outputs]
    _known_outputs(asked, outputs)
    return Question(found, taken.rows, dict.fromkeys(asked, True), True, message.id)


def _check_closed(taken: Taken, column: Column, sizes: Sequence[int]) -> None:
    """Raise Refused where flat values do not say how long each list is."""
    if taken.is_open(column, sizes):
        raise invalid(
            f"the input {column.name!r} is lists, and its shape {listed_sizes(sizes)} does not say "
            f"how long each is: send all values flat with {column.name}{lists.LENGTHS}, or a shape "
            f"[{sizes[0]}, LENGTH]"
        )


_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP16": "",  # in raw_input_contents only
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}


def _packed(column: Column, sizes: tuple[int, ...], raw: memoryview) -> NDArray[Any]:
    """Return the array of bytes. Raises Refused."""
    count = math.prod(sizes)
    if column.datatype == BYTES:
        return _unpacked_texts(column, count, raw).reshape(sizes)
    dtype = DTYPES[column.datatype]
    if len(raw) != count * dtype.itemsize:
        raise invalid(
            f"the input {column.name!r} of {column.datatype} {listed_sizes(sizes)} has {len(raw)} "
            f"bytes instead of {count * dtype.itemsize}"
        )
    if dtype.kind == "b":  # any other byte than 0 and 1 is no bool of numpy's
        bools: NDArray[np.bool_] = np.frombuffer(raw, np.uint8) != 0
        return bools.reshape(sizes)
    # A copy: aligned, and one that feed may write into, as in training.
    return np.frombuffer(raw, dtype).copy().reshape(sizes)


def _unpacked_texts(column: Column, count: int, raw: memoryview) -> NDArray[Any]:
    if count * 4 > len(raw):
        raise invalid(f"the input {column.name!r} has {len(raw)} bytes, too few for {count} texts")
    found = np.empty(count, object)
    start = 0
    for place in range(count):
        stop = start + 4
        if stop <= len(raw):
            stop += struct.unpack_from("<I", raw, start)[0]
        if stop > len(raw):
            raise invalid(f"the bytes of the input {column.name!r} end in the midst of a text")
        found[place] = bytes(raw[start + 4 : stop])
        start = stop
    if start != len(raw):
        raise invalid(
            f"the input {column.name!r} has {len(raw) - start} bytes behind its {count} texts"
        )
    return found


def _wanted(told: Mapping[str, Any], outputs: Sequence[Column]) -> tuple[dict[str, bool], bool]:
    """Return which outputs are asked for, each as bytes or not, and whether all are as bytes."""
    all_raw = _parameter(told, "binary_data_output") is True
    asked = told.get("outputs") or []
    try:
        foreign.must_be(asked, [{"name": str}], "outputs")
    except ValueError as error:
        raise invalid(f"the request is no JSON of the protocol: {error}") from error
    _known_outputs([each["name"] for each in asked], outputs)
    found = {}
    for each in asked:
        raw = _parameter(each, "binary_data")
        found[each["name"]] = all_raw if raw is None else raw is True
    return found, all_raw


def _known_outputs(asked: Sequence[str], outputs: Sequence[Column]) -> None:
    known = {column.name: column for column in outputs}
    if strange := [name for name in asked if name not in known]:
        raise invalid(f"there is no output {strange[0][:80]!r}: the model has {listing(known)}")


def _parameter(told: Mapping[str, Any], name: str) -> Any:
    parameters = told.get("parameters")
    return parameters.get(name) if isinstance(parameters, dict) else None

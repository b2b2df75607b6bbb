"""Requests as arrays: the coding of KServe's v2 protocol, at the server.

Pure. JSON has values, flat or nested; behind it (`Inference-Header-Content-Length`) or in a message
of gRPC lie bytes: little-endian, row by row; of BYTES each element after its length as uint32. What
does not fit a model's columns is a Refused that says what was expected; nothing is guessed.
BYTES are arrays of objects, which are Python's bytes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common import finite, foreign
from ...distill.kserve.tensors import DATATYPES, DTYPES
from ..servable import Column
from . import unserved
from .refused import Refused, Why

MOST_ROWS = 1 << 20  # of a request
LARGE_NBYTES = 256 << 10  # of a request, from which on an event loop must not read it
AT_ONCE = 1 << 14  # values that C may convert while no other thread runs: some milliseconds
_BYTES = "BYTES"
_KINDS: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Question:
    """A question to a model: `rows` of each input.

    `wanted`: the outputs by name, and whether their bytes shall be sent; {}: all, as `raw` says.
    """

    inputs: Arrays
    rows: int
    wanted: Mapping[str, bool]
    raw: bool
    id: str


def datatype_of(array: NDArray[Any]) -> str:
    """Return the protocol's word for an array's dtype; "" where it has none."""
    if array.dtype.kind in "SUO":
        return _BYTES
    return DATATYPES.get(array.dtype.newbyteorder("<"), "")


def pieces(values: Any) -> Iterator[Any]:
    """Give out a sequence in pieces, between which another thread may run."""
    if len(values) <= AT_ONCE:
        yield values
        return
    for start in range(0, len(values), AT_ONCE):
        yield values[start : start + AT_ONCE]


def described(column: Column) -> str:
    """Return a column in words: its datatype and shape, with the batch axis."""
    return f"{column.datatype} {_sizes((-1, *column.shape))}"


def as_metadata(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Return columns as a model's metadata tells of them."""
    return [{"name": c.name, "datatype": c.datatype, "shape": [-1, *c.shape]} for c in columns]


def from_http(
    body: bytes, json_nbytes: str, columns: Sequence[Column], outputs: Sequence[Column]
) -> Question:
    """Return the question of a request's body; `json_nbytes` is the header of that, or "".

    Raises Refused.
    """
    head, raw = _split(body, json_nbytes)
    told = _parsed(head)
    unserved.check_json(told)
    found: Arrays = {}
    by_name = {column.name: column for column in columns}
    rows = 0
    for tensor in told["inputs"]:
        column, sizes = _expected(tensor["name"], tensor["datatype"], tensor["shape"], by_name)
        rows = _same_rows(column, sizes, rows, found)
        nbytes = _parameter(tensor, "binary_data_size") if "parameters" in tensor else None
        if nbytes is None:
            if "data" not in tensor:
                raise _invalid(f"the input {column.name!r} has neither data nor binary_data_size")
            said = _parameter(tensor, finite.NOT_FINITE) if "parameters" in tensor else None
            found[column.name] = _listed(column, sizes, tensor["data"], said)
            continue
        if type(nbytes) is not int or not 0 <= nbytes <= len(raw):
            raise _invalid(
                f"the input {column.name!r} has binary_data_size {str(nbytes)[:40]}, and "
                f"{len(raw)} bytes are left behind the JSON"
            )
        found[column.name] = _packed(column, sizes, raw[:nbytes])
        raw = raw[nbytes:]
    if len(raw):
        raise _invalid(f"behind the JSON are {len(raw)} bytes that are of no input")
    _all_there(found, columns)
    wanted, all_raw = _wanted(told, outputs)
    told_id = told.get("id", "")
    return Question(found, rows, wanted, all_raw, told_id if isinstance(told_id, str) else "")


def _parsed(head: bytes) -> dict[str, Any]:
    """Return a request, whose inputs have what all have. Raises Refused."""
    try:
        told: dict[str, Any] = foreign.parse(head, yields=len(head) > LARGE_NBYTES)
        # By hand: `must_be` on some ten inputs takes longer than all the rest of a small request.
        if type(told) is not dict or not _is_plain(told.get("inputs")):
            foreign.must_be(told, {"inputs": [{"name": str, "datatype": str, "shape": list}]})
    except ValueError as error:  # UnicodeDecodeError too
        raise _invalid(f"the request is no JSON of the protocol: {error}") from error
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
        raise _invalid(f"Inference-Header-Content-Length {json_nbytes[:40]!r} is no number")
    if (nbytes := int(json_nbytes)) > len(body):
        raise _invalid(
            f"Inference-Header-Content-Length is {nbytes}, and the body has {len(body)} bytes"
        )
    return body[:nbytes], memoryview(body)[nbytes:]


def from_message(message: Any, columns: Sequence[Column], outputs: Sequence[Column]) -> Question:
    """Return the question of an InferRequest. Raises Refused."""
    unserved.check_message(message)
    bodies = message.raw_input_contents
    if bodies and len(bodies) != len(message.inputs):
        raise _invalid(
            f"there are {len(message.inputs)} inputs, and raw_input_contents of {len(bodies)}"
        )
    found: Arrays = {}
    by_name = {column.name: column for column in columns}
    rows = 0
    for place, tensor in enumerate(message.inputs):
        column, sizes = _expected(tensor.name, tensor.datatype, tensor.shape, by_name)
        rows = _same_rows(column, sizes, rows, found)
        if bodies:
            found[column.name] = _packed(column, sizes, memoryview(bodies[place]))
        else:
            contents = getattr(tensor.contents, _CONTENTS[column.datatype], ())
            found[column.name] = _listed(
                column, sizes, list(itertools.chain.from_iterable(pieces(contents)))
            )
    _all_there(found, columns)
    asked = [each.name for each in message.outputs]
    _known_outputs(asked, outputs)
    return Question(found, rows, dict.fromkeys(asked, True), True, message.id)


_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP16": "",  # in raw_input_contents only
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    _BYTES: "bytes_contents",
}


def _expected(
    name: str, datatype: str, shape: Sequence[Any], columns: Mapping[str, Column]
) -> tuple[Column, tuple[int, ...]]:
    """Return the column that a tensor is for, and its shape. Raises Refused."""
    column = columns.get(name)
    if column is None:
        raise _invalid(f"there is no input {name[:80]!r}: the model takes {_listing(columns)}")
    sizes = tuple(shape)
    for size in sizes:
        if type(size) is not int or size < 0:
            raise _invalid(f"the input {name!r} has the shape {str(list(sizes))[:80]}")
    fits = sizes[1:] == column.shape or (
        len(sizes) == 1 + len(column.shape)
        and all(b in (-1, a) for a, b in zip(sizes[1:], column.shape, strict=True))
    )
    if datatype != column.datatype or not fits or not sizes:
        raise _invalid(
            f"the input {name!r} is {datatype[:40]} {_sizes(sizes)[:80]}, and the model takes "
            f"{described(column)}"
        )
    if not 0 < sizes[0] <= MOST_ROWS:
        raise _invalid(
            f"the input {name!r} has {sizes[0]} rows: ask about 1 to {MOST_ROWS} at a time"
        )
    return column, sizes


def _same_rows(column: Column, sizes: tuple[int, ...], rows: int, found: Arrays) -> int:
    if column.name in found:
        raise _invalid(f"the input {column.name!r} is there twice")
    if found and sizes[0] != rows:
        raise _invalid(
            f"the input {column.name!r} has {sizes[0]} rows, and {next(iter(found))!r} has {rows}"
        )
    return sizes[0]


def _all_there(found: Arrays, columns: Sequence[Column]) -> None:
    if len(found) == len(columns):
        return  # no name was unknown or there twice
    if lacking := [column for column in columns if column.name not in found]:
        raise _invalid(
            f"the input {lacking[0].name!r} is missing: the model takes "
            f"{_listing({column.name: column for column in columns})}"
        )


def _listing(columns: Mapping[str, Column]) -> str:
    return ", ".join(f"{name!r} ({described(column)})" for name, column in columns.items())


def _listed(
    column: Column, sizes: tuple[int, ...], values: Any, not_finite: Any = None
) -> NDArray[Any]:
    """Return the array of listed values, flat or nested. Raises Refused.

    `not_finite`: which of them that are null were NaN or infinite (common/finite.py).
    """
    flat = _flat(column, sizes, values)
    if not_finite is not None:
        try:
            flat = finite.from_list(flat, not_finite)
        except ValueError as error:
            raise _invalid(f"the input {column.name!r}: {error}") from error
    if column.datatype == _BYTES:
        return _texts(column, sizes, flat)
    dtype = DTYPES[column.datatype]
    kinds = set[type]()
    for piece in pieces(flat):
        kinds.update(map(type, piece))
    if dtype.kind == "f" and type(None) in kinds:  # JSON has no NaN
        flat = [math.nan if each is None else each for each in flat]
        kinds.discard(type(None))
    if not kinds <= _KINDS[dtype.kind]:
        strange = next(each for each in flat if type(each) not in _KINDS[dtype.kind])
        instead = "" if strange is not None else ": say what stands for a missing value in training"
        raise _invalid(
            f"the input {column.name!r} of {column.datatype} has the value "
            f"{json.dumps(strange)[:40]}{instead}"
        )
    try:
        with np.errstate(over="ignore") if dtype.kind == "f" else contextlib.nullcontext():
            found = [np.array(piece, dtype) for piece in pieces(flat)]
        return (found[0] if len(found) == 1 else np.concatenate(found)).reshape(sizes)
    except OverflowError as error:
        raise _invalid(
            f"the input {column.name!r} has a value that {column.datatype} cannot hold: {error}"
        ) from error


def _flat(column: Column, sizes: tuple[int, ...], data: Any) -> list[Any]:
    values: list[Any] = data
    if not isinstance(data, list):
        raise _invalid(f"the data of the input {column.name!r} is no list")
    if values and isinstance(values[0], list) and len(values) == sizes[0]:
        for size in sizes[1:]:
            if not all(isinstance(each, list) and len(each) == size for each in values):
                raise _invalid(
                    f"the data of the input {column.name!r} is nested otherwise than its shape "
                    f"{_sizes(sizes)}"
                )
            values = list(itertools.chain.from_iterable(values))
    if len(values) != math.prod(sizes):
        raise _invalid(
            f"the input {column.name!r} of the shape {_sizes(sizes)} has {len(values)} values "
            f"instead of {math.prod(sizes)}"
        )
    return values


def _texts(column: Column, sizes: tuple[int, ...], flat: Sequence[Any]) -> NDArray[Any]:
    found = np.empty(len(flat), object)
    for place, each in enumerate(flat):
        if not isinstance(each, str | bytes):
            raise _invalid(
                f"the input {column.name!r} of {_BYTES} has the value {json.dumps(each)[:40]}, "
                "which is no text"
            )
        try:
            found[place] = each.encode() if isinstance(each, str) else each
        except UnicodeEncodeError as error:  # half a surrogate
            raise _invalid(f"the input {column.name!r} has a text that is none") from error
    return found.reshape(sizes)


def _packed(column: Column, sizes: tuple[int, ...], raw: memoryview) -> NDArray[Any]:
    """Return the array of bytes. Raises Refused."""
    count = math.prod(sizes)
    if column.datatype == _BYTES:
        return _unpacked_texts(column, count, raw).reshape(sizes)
    dtype = DTYPES[column.datatype]
    if len(raw) != count * dtype.itemsize:
        raise _invalid(
            f"the input {column.name!r} of {column.datatype} {_sizes(sizes)} has {len(raw)} "
            f"bytes instead of {count * dtype.itemsize}"
        )
    if dtype.kind == "b":  # any other byte than 0 and 1 is no bool of numpy's
        bools: NDArray[np.bool_] = np.frombuffer(raw, np.uint8) != 0
        return bools.reshape(sizes)
    # A copy: aligned, and one that feed may write into, as in training.
    return np.frombuffer(raw, dtype).copy().reshape(sizes)


def _unpacked_texts(column: Column, count: int, raw: memoryview) -> NDArray[Any]:
    if count * 4 > len(raw):
        raise _invalid(f"the input {column.name!r} has {len(raw)} bytes, too few for {count} texts")
    found = np.empty(count, object)
    start = 0
    for place in range(count):
        stop = start + 4
        if stop <= len(raw):
            stop += struct.unpack_from("<I", raw, start)[0]
        if stop > len(raw):
            raise _invalid(f"the bytes of the input {column.name!r} end in the midst of a text")
        found[place] = bytes(raw[start + 4 : stop])
        start = stop
    if start != len(raw):
        raise _invalid(
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
        raise _invalid(f"the request is no JSON of the protocol: {error}") from error
    _known_outputs([each["name"] for each in asked], outputs)
    found = {}
    for each in asked:
        raw = _parameter(each, "binary_data")
        found[each["name"]] = all_raw if raw is None else raw is True
    return found, all_raw


def _known_outputs(asked: Sequence[str], outputs: Sequence[Column]) -> None:
    known = {column.name: column for column in outputs}
    if strange := [name for name in asked if name not in known]:
        raise _invalid(f"there is no output {strange[0][:80]!r}: the model has {_listing(known)}")


def _parameter(told: Mapping[str, Any], name: str) -> Any:
    parameters = told.get("parameters")
    return parameters.get(name) if isinstance(parameters, dict) else None


def _invalid(what: str) -> Refused:
    return Refused(Why.INVALID, what)


def _sizes(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"

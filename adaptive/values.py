"""Values as bytes and back, for messages of replicas and for checkpoints. No pickles.

None, numbers, texts, bytes, NumPy arrays and numbers, tensors, and the containers of _KINDS of
them, each of exactly that type: an object of one's own would need its code to be made again, and a
subclass would come back as something less. So these are refused by name.

    bytes of the JSON (8, big endian) | JSON | the bytes it speaks of, one after the other

In the JSON a value is itself where JSON has it, else [kind, ...].
"""

from __future__ import annotations

import io
import json
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.errors import UsageError

_KINDS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": lambda pairs: Counter(dict(pairs)),
}
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_LONGEST = (
    2**63
)  # of an integer that is written as one: longer ones take quadratic time in decimals


def encode(value: object) -> bytes:
    """Return a value as bytes. Raises UsageError for what is none of these."""
    blobs: list[bytes] = []
    try:
        text = json.dumps(_shown(value, blobs)).encode()
    except RecursionError as error:
        raise _refused(value, "it is nested too deeply, or holds itself") from error
    return b"".join([len(text).to_bytes(8), text, *blobs])


def decode(data: bytes) -> Any:
    """Return the value that `encode` was given: an equal one.

    A tensor of a device is on this process's current one.
    """
    start = 8 + int.from_bytes(data[:8])
    return _value(json.loads(data[8:start]), io.BytesIO(data[start:]))


def _shown(value: Any, blobs: list[bytes]) -> Any:
    kind = type(value)
    if value is None or kind in (bool, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is int:
        return value if abs(value) < _LONGEST else ["int", hex(value)]
    if kind is float:
        return ["float", repr(value)]
    if kind is complex:
        return ["complex", repr(value.real), repr(value.imag)]
    if kind in (bytes, bytearray):
        return [kind.__name__, _kept(bytes(value), blobs)]
    if isinstance(value, Tensor):
        return _shown_tensor(value, blobs)
    if kind is np.ndarray or isinstance(value, np.generic):
        return ["array" if kind is np.ndarray else "scalar", _kept(_npy(value), blobs)]
    if kind.__name__ in _KINDS and kind.__module__ in ("builtins", "collections"):
        members = value.items() if isinstance(value, dict) else value
        if kind is deque and value.maxlen is not None:
            raise _refused(value, "its maxlen would be lost")
        if isinstance(value, dict):
            return [kind.__name__, [[_shown(k, blobs), _shown(v, blobs)] for k, v in members]]
        return [kind.__name__, [_shown(member, blobs) for member in members]]
    raise _refused(value)


def _value(shown: object, blobs: io.BytesIO) -> Any:
    if not isinstance(shown, list):
        return shown
    kind, first = shown[:2]
    if kind in _KINDS:
        if kind in ("dict", "OrderedDict", "Counter"):
            return _KINDS[kind]((_value(k, blobs), _value(v, blobs)) for k, v in first)
        return _KINDS[kind](_value(member, blobs) for member in first)
    if kind == "int":
        return int(first, 16)
    if kind == "float":
        return float(first)
    if kind == "complex":
        return complex(float(first), float(shown[2]))
    data = blobs.read(first)
    if kind == "tensor":
        return _tensor(data, *shown[2:])
    if kind in ("array", "scalar"):
        array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        return array if kind == "array" else array[()]
    return bytearray(data) if kind == "bytearray" else data


def _kept(data: bytes, blobs: list[bytes]) -> int:
    blobs.append(data)
    return len(data)


def _npy(value: object) -> bytes:
    """Return a value as an .npy file. Raises UsageError where that cannot hold its type."""
    array, file = np.asarray(value), io.BytesIO()
    descr = np.lib.format.dtype_to_descr(array.dtype)
    if array.dtype.hasobject or np.lib.format.descr_to_dtype(descr) != array.dtype:
        raise _refused(value, f"its elements are of the type {array.dtype}")
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def _shown_tensor(value: Tensor, blobs: list[bytes]) -> Any:
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        raise _refused(value, "only dense tensors can be sent")
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return ["tensor", _kept(data, blobs), str(plain.dtype), list(plain.shape), value.device.type]


def _tensor(data: bytes, dtype: str, shape: list[int], device: str) -> Tensor:
    plain = torch.empty(shape, dtype=_DTYPES[dtype])
    if data:
        plain = torch.frombuffer(bytearray(data), dtype=_DTYPES[dtype]).reshape(shape)
    return plain if device == "cpu" else plain.to(device)


def _refused(value: object, why: str = "") -> UsageError:
    text = repr(value) if not isinstance(value, Tensor) else f"a tensor of {tuple(value.shape)}"
    return UsageError(
        f"{text[:100]} ({type(value).__name__}) cannot be sent to the other replicas or kept"
        f"{': ' + why if why else ''}; give numbers, texts, bytes, NumPy arrays, tensors, or "
        "lists, tuples, sets and dicts of them"
    )

"""The files of a checkpoint or snapshot that hold arrays: safetensors, and what they are as JSON.

The metadata of a file has one entry, "edl", which says what its tensors are:

    {"chunks": [[tensor, number, steps, changed], ...]}    N.value, N.state.NAME of the N-th
    {"rows": TABLE}                                        ids, weight, steps, state.NAME
    {"chunk_sums": [...]}, {"row_sums": TABLE}             what is summed, and not stepped yet

Whoever writes or reads one comes here. Arrays begin at multiples of 4 bytes and lie in one piece
each, so that a file may be mapped into memory and its rows read where they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import math
import mmap
import os
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from .errors import CheckpointError
from .foreign import must_be, open_plain, parse
from .storage import Part

Tensors = dict[str, NDArray[Any]]
STATE = "state."  # before the name of a part of the optimizer's state
_KINDS = {  # as safetensors names them
    "float32": "F32",
    "uint16": "U16",
    "int64": "I64",
    "int8": "I8",
}
_TYPES = {kind: np.dtype(name) for name, kind in _KINDS.items()}
_ENTRY = {"dtype": str, "shape": [int], "data_offsets": (int, int)}


def encode(tensors: Tensors, about: dict[str, Any]) -> list[Part]:
    """Return a file of safetensors, in parts: the arrays as they lie, without a copy."""
    shapes = {name: (values.dtype, values.shape) for name, values in tensors.items()}
    data: list[Part] = [
        memoryview(np.ascontiguousarray(values).reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        for values in tensors.values()
    ]
    return [head(shapes, about), *data]


def head(
    shapes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
    about: dict[str, Any],
    align: int = 8,
) -> bytes:
    """Return how a file begins, behind which the arrays of these shapes come in this order.

    `align`: bytes; the first array begins at a multiple of it.
    """
    header: dict[str, Any] = {"__metadata__": {"edl": json.dumps(about)}}
    begin = 0
    for name, (dtype, shape) in shapes.items():
        end = begin + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _KINDS[dtype.name], "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % align)
    return len(text).to_bytes(8, "little") + text


def decode(data: bytes) -> tuple[Tensors, dict[str, Any]]:
    """Return the arrays of a file by name, copied, and what they are.

    Raises ValueError or SafetensorError where it is no such file.
    """
    _, about = _header(data)
    return safetensors.numpy.load(data), about


def _header(data: bytes | memoryview) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a file says of its tensors, and of what they are. Raises ValueError."""
    nbytes = int.from_bytes(data[:8], "little")  # safetensors: length, JSON header, data
    header = parse(bytes(data[8 : 8 + nbytes]))
    must_be(header, {"__metadata__": {"edl": str}})
    about = parse(header.pop("__metadata__")["edl"])
    must_be(about, dict)
    return header, about


@dataclass(frozen=True)
class Chunk:
    """A run of a dense tensor's values, flat, and the optimizer's state of them by name."""

    tensor: str
    number: int
    steps: int
    value: NDArray[np.float32]
    state: dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Rows:
    """Rows of a table as a file has them: `weight` float32, or the bits of 16-bit rows.

    A state is as wide as the weight, or one number a row.
    """

    table: str
    ids: NDArray[np.int64]
    weight: NDArray[Any]
    steps: NDArray[np.int64]
    state: dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Mapped:
    """A file whose arrays are read where they lie: nothing is in memory before it is looked at.

    The map holds on to the file, whoever removes it meanwhile.
    """

    path: Path
    tensors: Tensors
    about: dict[str, Any]

    def chunks(self) -> Iterator[Chunk]:
        """Yield the dense chunks in it. Raises CheckpointError where it lacks what it names."""
        told = self.about.get("chunks", [])
        with _faults(self.path):
            must_be(told, [(str, int, int, int)], "chunks")
            for number, (tensor, chunk, steps, _) in enumerate(told):
                value = self._array(f"{number}.value", np.float32, 1)
                state = self._state(f"{number}.{STATE}", [value.shape])
                yield Chunk(tensor, chunk, steps, value, state)

    def rows(self) -> Rows | None:
        """Return the rows in it; None where it has none. Raises CheckpointError, as `chunks`."""
        if "rows" not in self.about:
            return None
        with _faults(self.path):
            must_be(self.about, {"rows": str})
            ids = self._array("ids", np.int64, 1)
            weight = self._array("weight", None, 2)
            steps = self._array("steps", np.int64, 1)
            state = self._state(STATE, [weight.shape, (len(ids), 1)])
            if not len(ids) == len(weight) == len(steps):
                raise ValueError(f"it has {len(ids)} ids of {len(weight)} rows")
            return Rows(self.about["rows"], ids, weight, steps, state)

    def _state(self, prefix: str, shapes: list[tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
        """Return the optimizer's state, of one of these shapes. Raises ValueError."""
        names = [name for name in self.tensors if name.startswith(prefix)]
        dims = len(shapes[0])
        found = {n.removeprefix(prefix): self._array(n, np.float32, dims) for n in names}
        for name, values in found.items():
            if values.shape not in shapes:
                raise ValueError(f"{prefix}{name} is {list(values.shape)}, not {list(shapes[0])}")
        return found

    def _array(self, name: str, dtype: type | None, dims: int) -> NDArray[Any]:
        if name not in self.tensors:
            raise ValueError(f"it has no {name!r}")
        found = self.tensors[name]
        if found.ndim != dims or (dtype is not None and found.dtype != dtype):
            raise ValueError(f"{name} is {found.dtype}{list(found.shape)}")
        return found


@contextlib.contextmanager
def _faults(path: Path) -> Iterator[None]:
    """Make a ValueError of the block the error of the file that it is about."""
    try:
        yield
    except ValueError as error:
        raise CheckpointError(f"{path} is no piece of a shard: {error}") from error


def mapped(path: Path) -> Mapped:
    """Map a file into memory. Raises CheckpointError where it is no such file.

    Only its header is read: its checksum is the manifest's business.
    """
    try:
        with open_plain(path) as file:
            data = _map(file.fileno(), os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    with _faults(path):
        header, about = _header(data)
        begin = 8 + int.from_bytes(data[:8], "little")
        tensors = {name: _view(data[begin:], name, entry) for name, entry in header.items()}
        return Mapped(path, tensors, about)


def _map(descriptor: int, nbytes: int) -> memoryview:
    """Return a file's bytes where the kernel maps them, read-only. Raises OSError.

    Not Python's mmap, which holds a descriptor open for each map: a checkpoint may have more files
    than a process may have descriptors.
    """
    if not nbytes:
        return memoryview(b"")
    libc = _libc()
    address = libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    whole = (ctypes.c_ubyte * nbytes).from_address(address)
    unmap = weakref.finalize(whole, libc.munmap, address, nbytes)  # once no array is left
    unmap.atexit = False  # a thread may still read then; the process ends anyway
    return memoryview(whole).cast("B").toreadonly()


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    size, number = ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = (ctypes.c_void_p, size, number, number, number, ctypes.c_longlong)
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = (ctypes.c_void_p, size)
    return libc


def _view(data: memoryview, name: str, entry: object) -> NDArray[Any]:
    """Return a tensor where it lies. Raises ValueError where it would lie elsewhere."""
    must_be(entry, _ENTRY, name)
    assert isinstance(entry, dict)
    if entry["dtype"] not in _TYPES:
        raise ValueError(f"{name} is {entry['dtype']}, none of {', '.join(_TYPES)}")
    dtype, shape = _TYPES[entry["dtype"]], entry["shape"]
    (start, stop), nbytes = entry["data_offsets"], math.prod(shape) * dtype.itemsize
    if not start <= stop <= len(data) or stop - start != nbytes:
        raise ValueError(f"{name} of {nbytes} bytes lies at {start} to {stop} of {len(data)}")
    found = np.frombuffer(data[start:stop], dtype).reshape(shape)
    return found if found.flags.aligned else found.copy()  # int64 after rows of an odd width

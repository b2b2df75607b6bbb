"""Rows of 16 bits: bfloat16 and float16, as uint16 bits outside of the arithmetic.

Rounding is to the nearest, ties to even, or stochastic: up with the probability of the distance to
the value below, so that small steps are not lost but add up on average. The random bits are a hash
of (id, updates of the row, column): no generator has a state that a snapshot would have to hold.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from ...kernels.compile import (
    FLOATS_2D,
    INTEGER,
    compiled,
    inlined,
    instruction,
    load_float,
    part,
    pointer,
    store_float,
)
from .optimizers import Floats

FLOAT32, BFLOAT16, FLOAT16 = range(3)  # the numbers of a TableSpec's dtypes
KINDS = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16}
Bits = NDArray[np.uint16]
_BITS_2D = types.Array(types.uint16, 2, "C")


def widened(bits: Bits, dtype: str) -> Floats:
    """Return float32 of the same values."""
    if KINDS[dtype] == FLOAT16:
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrowed(values: Floats, dtype: str) -> Bits:
    """Return the uint16[n, dim] bits of float32[n, dim], to the nearest."""
    out = np.empty(values.shape, np.uint16)
    compiled(_narrow_rows, FLOATS_2D, _BITS_2D, INTEGER)(values, out, KINDS[dtype])
    return out


def _narrow_rows(values, out, kind):  # type: ignore[no-untyped-def]
    n = values.size
    narrow(np.int64(values.ctypes.data), np.int64(out.ctypes.data), n, kind, False, 0, 0)


# -- Parts of kernels. `kind` is BFLOAT16 or FLOAT16, addresses are int64.


_I16, _I32, _F16, _F32 = ir.IntType(16), ir.IntType(32), ir.HalfType(), ir.FloatType()
_word_at = instruction(types.uint32, types.int64)(
    lambda b, a: b.zext(b.load(pointer(b, a, _I16), align=2), _I32),
)
_float_of = instruction(types.float32, types.uint32)(lambda b, v: b.bitcast(v, _F32))
_bits_of = instruction(types.uint32, types.float32)(lambda b, v: b.bitcast(v, _I32))
_float_of_half = instruction(types.float32, types.uint32)(
    lambda b, v: b.fpext(b.bitcast(b.trunc(v, _I16), _F16), _F32),
)
_half_of_float = instruction(types.uint32, types.float32)(
    lambda b, v: b.zext(b.bitcast(b.fptrunc(v, _F16), _I16), _I32),
)


@instruction(types.void, types.int64, types.uint32)
def _put_word(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    place = pointer(builder, address, _I16)
    builder.store(builder.trunc(value, _I16), place, align=2)


@part
def widen(source, target, n, kind):  # type: ignore[no-untyped-def]
    """Write n values of 16 bits as float32."""
    for j in range(n):
        bits = _word_at(source + 2 * j)
        value = _float_of_half(bits) if kind == FLOAT16 else _float_of(bits << np.uint32(16))
        store_float(target + 4 * j, value)


@part
def narrow(source, target, n, kind, stochastic, id, step):  # type: ignore[no-untyped-def]
    """Write n float32 as values of 16 bits."""
    z = (np.uint64(id) ^ (np.uint64(step) * np.uint64(0xD1B54A32D192ED03))) + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    low, high = np.uint32(z & np.uint64(0xFFFFFFFF)), np.uint32(z >> np.uint64(32))
    for j in range(n):
        value = load_float(source + 4 * j)
        random = np.uint32(0)
        if stochastic:
            random = np.uint32(low + np.uint32(j) * np.uint32(0x9E3779B9))
            random = np.uint32((random ^ (random >> np.uint32(16))) * np.uint32(0x7FEB352D)) ^ high
            random = np.uint32((random ^ (random >> np.uint32(15))) * np.uint32(0x846CA68B))
            random = random ^ (random >> np.uint32(16))
        _put_word(target + 2 * j, _rounded(value, kind, stochastic, random))


@inlined
def _rounded(value, kind, stochastic, random):  # type: ignore[no-untyped-def]
    bits = _bits_of(value)
    sign, size = bits & np.uint32(0x80000000), bits & np.uint32(0x7FFFFFFF)
    if kind == BFLOAT16:
        if size > np.uint32(0x7F800000):  # a NaN stays one
            return (bits >> np.uint32(16)) | np.uint32(0x40)
        if stochastic:
            return (bits + (random & np.uint32(0xFFFF))) >> np.uint32(16)
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return rounded >> np.uint32(16)
    if not stochastic or size >= np.uint32(0x477FE000):  # 65504, the largest; infinity; NaN
        return _half_of_float(value)
    if size >= np.uint32(0x38800000):  # 2^-14, the smallest with all its digits
        size = (size + (random & np.uint32(0x1FFF))) & np.uint32(0xFFFFE000)
        return _half_of_float(_float_of(sign | size))
    scaled = _float_of(size) * np.float32(2.0**24)  # below it the step is 2^-24
    whole = np.uint32(scaled)
    share = np.uint32((scaled - np.float32(whole)) * np.float32(2.0**16))
    whole += np.uint32(1) if (random & np.uint32(0xFFFF)) < share else np.uint32(0)
    return (sign >> np.uint32(16)) | whole


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

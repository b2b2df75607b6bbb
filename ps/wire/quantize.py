"""Gradients in fewer bytes on the wire: codes, and one float32 scale for each group of values.

A group is a row of [n, dim], or 4,096 values in order of a flat chunk.

  wire      code     scale                                    error of a value, rounded to nearest
  float16   float16  2**k, so that the largest is <= 2**15    2**-11 of it; 2**-40 of the largest
  int8      int8     largest / 127, up to 17 bits of mantissa  1/254 of the largest

Decoding is exact in float32 (the product of code and scale has at most 24 bits), and encoding what
was decoded gives the same values again. So a worker rounds its gradients itself (`carry`,
`round_rows`), knows to the bit what the servers will add, and any carrier may encode them later.
Groups whose largest value is below 2**-100 become zeros; one with a value that is not finite
becomes NaN.

Dense tensors carry the error over (Seide et al. 2014, Karimireddy et al. 2019): what the code lost
of one push is added to the next, so the sum of what was sent stays within one code step of the sum
of the gradients. Rows are touched too rarely for that, and a residual for each would cost what the
table costs: they are rounded at random, up with the probability that makes the mean of the code
the value. So their error has mean zero whatever the distribution of the gradients (QSGD, Alistarh
et al. 2017, lemma 3.1), but for the largest value of an int8 row, whose code is always 127 (that
moves it by less than 2**-16 of itself).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from ...kernels.compile import OPTIONS, compiled, mixed
from .frames import SCALE_ELEMENTS

Floats = NDArray[np.float32]
Codes = NDArray[Any]  # float32, float16 or int8

GROUP = SCALE_ELEMENTS  # values of a flat chunk that share a scale; divides CHUNK_ELEMENTS
DTYPES = {"float32": np.float32, "float16": np.float16, "int8": np.int8}

_LEAST = 0x0D800000  # the bits of 2**-100
_INFINITE = 0x7F800000
_SLICE = 1 << 16  # values that `carry` handles at once: they stay in the cache


def num_scales(shape: tuple[int, ...], wire: str) -> int:
    """Return how many scales the codes of an array of this shape have."""
    if wire == "float32":
        return 0
    return shape[0] if len(shape) == 2 else -(-shape[0] // GROUP)


def encode(values: Floats, wire: str) -> tuple[Codes, Floats]:
    """Return codes of the shape of `values` ([n, dim] or [m], C-contiguous) and scales.

    They are rounded to nearest.

    For "float32" the values themselves and no scales.
    """
    if wire == "float32":
        return values, np.zeros(0, np.float32)
    codes = np.empty(values.shape, DTYPES[wire])
    scales = np.empty(num_scales(values.shape, wire), np.float32)
    _kernel("encode", wire)(values.reshape(-1), _width(values.shape), _bits(codes), scales)
    return codes, scales


def decode(codes: Codes, scales: Floats, out: Floats | None = None) -> Floats:
    """Return float32 of the shape of the codes, in `out` where given.

    Any bytes will do for codes.
    """
    if codes.dtype == np.float32:
        if out is None:
            return codes
        np.copyto(out, codes)
        return out
    out = np.empty(codes.shape, np.float32) if out is None else out
    if len(scales) != num_scales(codes.shape, codes.dtype.name):
        raise ValueError(f"{len(scales)} scales for codes of shape {list(codes.shape)}")
    kernel = _kernel("decode", codes.dtype.name)
    kernel(_bits(codes), _width(codes.shape), scales, out.reshape(-1))
    return out


def carry(values: Floats, residual: Floats, lost: Floats, wire: str) -> None:
    """Make `values` (flat) what the wire will hold of `values + residual`, all in place.

    `residual` becomes what is left for the next push; `lost`, of the same size, is written with
    what was added to it: take it off again where this push is not applied.
    """
    for first in range(0, len(values), _SLICE):
        part = slice(first, first + _SLICE)
        given, left, more = values[part], residual[part], lost[part]
        np.copyto(more, given)
        given += left
        np.copyto(left, given)
        decode(*encode(given, wire), given)
        left -= given
        more -= given


def round_rows(values: Floats, ids: NDArray[np.int64], seed: int, wire: str) -> None:
    """Round rows [n, dim] at random, in place, to values that `encode` keeps exactly.

    The draws are a function of (seed, id, column), so that a span computed again is the same.
    """
    if wire != "float32" and values.size:
        key = np.uint64(seed & (1 << 64) - 1)
        _kernel("round", wire)(values.reshape(-1), values.shape[1], ids, key)


def _width(shape: tuple[int, ...]) -> int:
    return shape[1] if len(shape) == 2 else GROUP


def _bits(codes: Codes) -> Codes:
    """Return the codes, flat; float16 as its bits, which numba can compute with."""
    flat = codes.reshape(-1)
    return flat.view(np.uint16) if codes.dtype == np.float16 else flat


@functools.cache
def _kernel(step: str, wire: str) -> Callable[..., None]:
    """Compile the kernel at its first use."""

    def array(kind: types.Type, readonly: bool = False) -> types.Array:
        return types.Array(kind, 1, "C", readonly=readonly)

    floats, floats_in = array(types.float32), array(types.float32, True)
    code = types.uint16 if wire == "float16" else types.int8
    function: Callable[..., None] = globals()[f"_{step}_{wire}"]
    match step:
        case "encode":
            return compiled(function, floats_in, types.int64, array(code), floats)
        case "decode":
            return compiled(function, array(code, True), types.int64, floats_in, floats)
    return compiled(function, floats, types.int64, array(types.int64, True), types.uint64)


_part = numba.njit(**OPTIONS)

# -- The kernels. `width`: values of a group; the last group of a flat chunk may be shorter.


@_part
def _largest(values, first, last):  # type: ignore[no-untyped-def]
    """Return the bits of the largest magnitude of values[first:last]."""
    largest = np.int32(0)
    for i in range(first, last):
        largest = max(largest, np.float32(values[i]).view(np.int32) & np.int32(0x7FFFFFFF))
    return largest


@_part
def _int8_scale(largest):  # type: ignore[no-untyped-def]
    """Return a 127th of the largest magnitude, up to 17 bits of mantissa."""
    scale = np.int32(largest).view(np.float32) / np.float32(127)
    bits = (np.float32(scale).view(np.int32) + np.int32(0x7F)) & np.int32(~0x7F)
    return np.int32(bits).view(np.float32)


@_part
def _float16_scale(largest):  # type: ignore[no-untyped-def]
    """Return 2**k of which the largest is in (2**14, 2**15], and 2**-k."""
    exponent = ((largest - np.int32(1)) >> np.int32(23)) - np.int32(14)
    scale = np.int32(exponent << np.int32(23)).view(np.float32)
    return scale, np.int32((np.int32(254) - exponent) << np.int32(23)).view(np.float32)


@_part
def _drawn(z, key, column):  # type: ignore[no-untyped-def]
    """Return 32 random bits for a column, the lowest of the result.

    `z`: the column's before it.
    """
    if column & 1:
        return z >> np.uint64(32)
    return mixed(key + np.uint64(column + 1) * np.uint64(0x9E3779B97F4A7C15))


def _encode_int8(values: Floats, width: int, codes: Codes, scales: Floats) -> None:
    for group in range(len(scales)):
        first, last = group * width, min((group + 1) * width, len(values))
        largest = _largest(values, first, last)
        scale = inverse = np.float32(0)
        if largest >= _INFINITE:
            scale = np.float32(np.nan)
        elif largest >= _LEAST:
            scale = _int8_scale(largest)
            inverse = np.float32(1) / scale
        scales[group] = scale
        if inverse == 0:
            codes[first:last] = 0
            continue
        for i in range(first, last):
            codes[i] = np.int8(np.int32(np.rint(values[i] * inverse)))


def _decode_int8(codes: Codes, width: int, scales: Floats, out: Floats) -> None:
    for group in range(len(scales)):
        scale = scales[group]
        for i in range(group * width, min((group + 1) * width, len(out))):
            out[i] = np.float32(codes[i]) * scale


def _round_int8(values: Floats, width: int, ids: NDArray[np.int64], seed: np.uint64) -> None:
    for row in range(len(ids)):
        first, last = row * width, (row + 1) * width
        largest = _largest(values, first, last)
        if largest < _LEAST or largest >= _INFINITE:
            continue
        scale = _int8_scale(largest)
        key = np.uint64(ids[row]) * np.uint64(0x9E3779B97F4A7C15) ^ seed
        z = np.uint64(0)
        for i in range(first, last):
            z = _drawn(z, key, i - first)
            code = np.float64(values[i]) / np.float64(scale)
            if abs(code) > 126.99:  # the largest: it names the scale, so its code is certain
                code = np.rint(code)
            else:
                code = np.floor(code + np.float64(z & np.uint64(0xFFFFFFFF)) * 2.0**-32)
            values[i] = np.float32(code) * scale


def _encode_float16(values: Floats, width: int, codes: Codes, scales: Floats) -> None:
    for group in range(len(scales)):
        first, last = group * width, min((group + 1) * width, len(values))
        largest = _largest(values, first, last)
        scale = inverse = np.float32(0)
        if largest >= _INFINITE:
            scale = np.float32(np.nan)
        elif largest >= _LEAST:
            scale, inverse = _float16_scale(largest)
        scales[group] = scale
        for i in range(first, last):
            scaled = np.float32(values[i] * inverse)
            bits = scaled.view(np.int32)
            sign = (bits >> np.int32(16)) & np.int32(0x8000)
            bits &= np.int32(0x7FFFFFFF)
            # To nearest even by carry; below 2**-14 by adding 0.5, whose last bit is 2**-24.
            normal = (
                bits
                + np.int32(0xFFF)
                + ((bits >> np.int32(13)) & np.int32(1))
                - np.int32(112 << 23)
            ) >> np.int32(13)
            small = np.float32(abs(scaled) + np.float32(0.5)).view(np.int32) - np.int32(0x3F000000)
            code = normal if bits >= np.int32(0x38800000) else small
            codes[i] = np.uint16(code | sign)


def _decode_float16(codes: Codes, width: int, scales: Floats, out: Floats) -> None:
    for group in range(len(scales)):
        scale = scales[group]
        for i in range(group * width, min((group + 1) * width, len(out))):
            bits = np.int32(codes[i])
            size = bits & np.int32(0x7FFF)
            normal = np.int32((size << np.int32(13)) + np.int32(112 << 23)).view(np.float32)
            small = np.float32(size) * np.float32(2.0**-24)
            value = normal if size >= np.int32(0x400) else small
            out[i] = (-value if bits & np.int32(0x8000) else value) * scale


def _round_float16(values: Floats, width: int, ids: NDArray[np.int64], seed: np.uint64) -> None:
    for row in range(len(ids)):
        first, last = row * width, (row + 1) * width
        largest = _largest(values, first, last)
        if largest < _LEAST or largest >= _INFINITE:
            continue
        scale, inverse = _float16_scale(largest)
        key = np.uint64(ids[row]) * np.uint64(0x9E3779B97F4A7C15) ^ seed
        z = np.uint64(0)
        for i in range(first, last):
            z = _drawn(z, key, i - first)
            scaled = np.float32(values[i] * inverse)
            bits = scaled.view(np.int32)
            if bits & np.int32(0x7FFFFFFF) >= np.int32(0x38800000):
                # a carry counts the exponent up
                bits = (bits + np.int32(z & np.uint64(0x1FFF))) & np.int32(~0x1FFF)
                values[i] = np.int32(bits).view(np.float32) * scale
            else:
                steps = np.float64(scaled) * 2.0**24
                steps = np.floor(steps + np.float64(z & np.uint64(0xFFFFFFFF)) * 2.0**-32)
                values[i] = np.float32(steps * 2.0**-24) * scale

"""Loops compiled by numba: no GIL while they run, the machine code kept on disk.

`compiled` makes a kernel of a plain function. What is decorated here is called from kernels only:
numba has no prefetch, no atomics and no pointers of its own, so these few LLVM instructions are
given to it (`instruction`). An address is an int64. Whoever must start fast without numba imports
this module inside the function that needs it.

Where machine code is kept, and when it is made anew: cache.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types

from .cache import alone, digest_of, keep_elsewhere

BYTES_1D = types.Array(types.uint8, 1, "C")
BYTES_1D_IN = types.Array(types.uint8, 1, "C", readonly=True)
FLOATS_1D = types.Array(types.float32, 1, "C")
FLOATS_2D = types.Array(types.float32, 2, "C")
FLOATS_2D_IN = types.Array(types.float32, 2, "C", readonly=True)
INTS_1D = types.Array(types.int64, 1, "C")
INTS_1D_IN = types.Array(types.int64, 1, "C", readonly=True)  # takes writable arrays too
DOUBLE = types.float64
BOOLEAN = types.boolean
INTEGER = types.int64
UINT64 = types.uint64

overload: Any = extending.overload
OPTIONS: dict[str, Any] = {  # IEEE division, no exceptions; nobody asks for a C callback
    "nogil": True,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
}
PART: dict[str, Any] = {**OPTIONS, "no_cpython_wrapper": True}  # is called from kernels only


keep_elsewhere(Path(__file__).parent)


def prepare() -> None:
    """Do what numba does once in a process, at its first kernel (half a second): forks have it."""
    numba.njit([INTEGER(INTEGER)], **OPTIONS)(lambda number: number)


@functools.cache
def compiled(function: FunctionType, *signature: Any) -> Callable[..., Any]:
    """Return the machine code of `function` for these argument types.

    Numbers of the functions around it are constants in it, and each set of them is kept for itself.
    """
    digest = digest_of(function)
    name = function.__qualname__.replace(".<locals>", "")
    named = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    named.__qualname__ = f"{name}-{digest}"
    try:
        with alone(digest):
            code: Any = numba.njit([signature], cache=True, **OPTIONS)(named)
    except RuntimeError as error:  # neither the package's folder nor the home can be written
        if "cache" not in str(error):
            raise
        uncached: Callable[..., Any] = numba.njit([signature], **OPTIONS)(function)
        return uncached
    if code.stats.cache_misses:
        file = Path(function.__code__.co_filename).stem
        for path in Path(code.stats.cache_path).glob(f"{file}.{name}-*.nb[ic]"):
            if digest not in path.name:
                path.unlink(missing_ok=True)
    return code  # type: ignore[no-any-return]


# Parts of kernels, each compiled once for all that call it, in every one of which LLVM then has it
# in place. (numba's own `inline="always"` types and lowers a part anew at each call: three times
# the CPU time for the same machine code.) Of a `part` LLVM decides whether that pays.
inlined = numba.njit(forceinline=True, **PART)
part = numba.njit(**PART)
frozen = numba.njit(inline="always", **PART)  # typed anew at each call, for the constants there


@inlined
def mixed(z):  # type: ignore[no-untyped-def]
    """Return splitmix64's finaliser of a uint64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def instruction(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator, by which kernels call what emits LLVM instructions.

    It is called with the builder and LLVM's values of `arguments` (none: whatever is given), and
    returns that of `result`.
    """

    def made(emit: Callable[..., Any]) -> Any:
        @functools.wraps(emit)
        def typed(_typing: Any, *given: Any) -> Any:
            def generate(context: Any, builder: ir.IRBuilder, _signature: Any, values: Any) -> Any:
                value = emit(builder, *values)
                return context.get_dummy_value() if result is types.void else value

            return result(*(arguments or given)), generate

        return extending.intrinsic(typed)

    return made


def integers(*names: str) -> np.dtype[Any]:
    """Return the record type that has an int64 of each name."""
    return np.dtype([(name, np.int64) for name in names])


def record_at(kind: np.dtype[Any]) -> Any:
    """Return, for kernels, a function of an address, which returns the record that is there."""
    record = numba.from_dtype(kind)
    assert kind.itemsize == record.size

    @instruction(record, types.int64)
    def at(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
        return pointer(builder, address, ir.ArrayType(ir.IntType(8), kind.itemsize))

    return at


def offset_of(kind: np.dtype[Any], field: str) -> int:
    """Return how many bytes behind a record's address the field is; for atomics."""
    assert kind.fields is not None
    return int(kind.fields[field][1])


def pointer(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    """Return, for an `instruction`, the address as an LLVM pointer."""
    return builder.inttoptr(address, kind.as_pointer())


def declared(builder: ir.IRBuilder, name: str, kind: ir.FunctionType) -> ir.Function:
    """Return, for an `instruction`, LLVM's function of this name."""
    return builder.module.globals.get(name) or ir.Function(builder.module, kind, name)


@instruction(types.void, types.int64)
def prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Begin to load the cache line at `address` (int64), which may be any."""
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    function = declared(builder, "llvm.prefetch.p0", kind)
    line = pointer(builder, address, ir.IntType(8))
    builder.call(function, [line, word(0), word(3), word(1)])  # read, keep, data


@instruction(types.uint64, types.uint64, types.uint64)
def high_product(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return the upper 64 bits of the 128 of a * b (uint64)."""
    wide = ir.IntType(128)
    product = builder.mul(builder.zext(a, wide), builder.zext(b, wide))
    return builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))


@instruction(types.uint64, types.uint64)
def leading_zeros(builder: ir.IRBuilder, number: ir.Value) -> ir.Value:
    """Return how many of the highest bits of a uint64, which is not 0, are clear."""
    return builder.ctlz(number, ir.IntType(1)(1))


@instruction(types.uint64, types.uint64)
def trailing_zeros(builder: ir.IRBuilder, number: ir.Value) -> ir.Value:
    """Return how many of the lowest bits of a uint64, which is not 0, are clear."""
    return builder.cttz(number, ir.IntType(1)(1))


@instruction(types.uint64, types.int64)
def load_bytes(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Return the eight bytes at `address`, of any alignment, as a uint64.

    The first byte is the lowest.
    """
    return builder.load(pointer(builder, address, _INT64), align=1)


@instruction(types.boolean, types.int64)
def set_bit(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Set the lowest bit of the uint32 at `address`, atomically, and return whether it was clear.

    Acquires.
    """
    word = ir.IntType(32)
    place = pointer(builder, address, word)
    before = builder.atomic_rmw("or", place, word(1), "acquire")
    return builder.icmp_unsigned("==", builder.and_(before, word(1)), word(0))


@instruction(types.void, types.int64, types.uint32)
def clear_bits(builder: ir.IRBuilder, address: ir.Value, bits: ir.Value) -> None:
    """Clear `bits` of the uint32 at `address`, atomically; the others are left alone."""
    place = pointer(builder, address, ir.IntType(32))
    builder.atomic_rmw("and", place, builder.not_(bits), "monotonic")


@instruction(types.uint32, types.int64)
def load_word(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Return the uint32 at `address`, read atomically."""
    place = pointer(builder, address, ir.IntType(32))
    return builder.load_atomic(place, "monotonic", 4)


@instruction(types.boolean, types.int64, types.int64, types.int64)
def compare_and_swap(
    builder: ir.IRBuilder, address: ir.Value, expected: ir.Value, value: ir.Value
) -> ir.Value:
    """Write the int64 at `address` if it is the expected one, atomically.

    Returns whether it was. Acquires and releases.
    """
    place = pointer(builder, address, ir.IntType(64))
    swapped = builder.cmpxchg(place, expected, value, "acq_rel", "monotonic")
    return builder.extract_value(swapped, 1)


@instruction(types.int64, types.int64, types.int64)
def fetch_add(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> ir.Value:
    """Add to the int64 at `address`, atomically, and return what it was.

    Acquires and releases.
    """
    place = pointer(builder, address, ir.IntType(64))
    return builder.atomic_rmw("add", place, value, "acq_rel")


@instruction(types.int64, types.int64)
def acquire_integer(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Return the int64 at `address`, read atomically, before all that is read after it."""
    return builder.load_atomic(pointer(builder, address, ir.IntType(64)), "acquire", 8)


@instruction(types.int64, types.int64)
def read_integer(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Return the int64 at `address`, read atomically, in no order with others."""
    return builder.load_atomic(pointer(builder, address, _INT64), "monotonic", 8)


@instruction(types.int64, types.int64)
def read_integer_last(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Return the int64 at `address`, read atomically, after all that was read before."""
    builder.fence("acquire")
    return builder.load_atomic(pointer(builder, address, _INT64), "monotonic", 8)


@instruction(types.void, types.int64, types.int64)
def write_integer_first(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    """Write the int64 at `address`, atomically, before all that is written after it.

    It is also written after all that was written before.
    """
    builder.atomic_rmw("xchg", pointer(builder, address, _INT64), value, "seq_cst")


def _load(kind: Any, llvm: ir.Type) -> Any:
    @instruction(kind, types.int64)
    def load(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
        """Return the number at `address`."""
        return builder.load(pointer(builder, address, llvm))

    return load


def _store(kind: Any, llvm: ir.Type) -> Any:
    @instruction(types.void, types.int64, kind)
    def store(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
        """Write the number at `address`."""
        builder.store(value, pointer(builder, address, llvm))

    return store


def _release(kind: Any, llvm: ir.Type) -> Any:
    @instruction(types.void, types.int64, kind)
    def release(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
        """Write the number at `address`, atomically, after all that was written before."""
        place = pointer(builder, address, llvm)
        builder.store_atomic(value, place, "release", kind.bitwidth // 8)

    return release


_INT64 = ir.IntType(64)
load_integer, store_integer = _load(types.int64, _INT64), _store(types.int64, _INT64)
load_float = _load(types.float32, ir.FloatType())
store_float = _store(types.float32, ir.FloatType())
release_integer = _release(types.int64, _INT64)
release_word = _release(types.uint32, ir.IntType(32))

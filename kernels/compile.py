"""Loops compiled by numba: no GIL while they run, the machine code kept on disk.

`compiled` makes a kernel of a plain function. What is decorated here is called from kernels only:
numba has no prefetch, no atomics and no pointers of its own, so these few LLVM instructions are
given to it as intrinsics. An address is an int64. Whoever must start fast without numba imports
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

intrinsic: Any = extending.intrinsic  # numba types it as if the typing context were an argument
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
    """The machine code of `function` for these argument types.

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
# in place. (numba's own `inline="always"` types and lowers a part anew at each call: three times the
# CPU time for the same machine code.) Of a `part` LLVM decides whether that pays.
inlined = numba.njit(forceinline=True, **PART)
part = numba.njit(**PART)
frozen = numba.njit(inline="always", **PART)  # typed anew at each call, for the constants there


@inlined
def mixed(z):  # type: ignore[no-untyped-def]
    """splitmix64's finaliser of a uint64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def integers(*names: str) -> np.dtype[Any]:
    """Return the record type that has an int64 of each name."""
    return np.dtype([(name, np.int64) for name in names])


def record_at(kind: np.dtype[Any]) -> Any:
    """For kernels: a function of an address, which returns the record that is there."""
    record = numba.from_dtype(kind)

    @intrinsic  # type: ignore[untyped-decorator]
    def at(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            assert kind.itemsize == record.size
            return builder.inttoptr(args[0], context.get_value_type(record))

        return record(types.int64), codegen

    return at


def offset_of(kind: np.dtype[Any], field: str) -> int:
    """Return how many bytes behind a record's address the field is; for atomics."""
    assert kind.fields is not None
    return int(kind.fields[field][1])


def pointer(builder: Any, address: Any, kind: ir.Type) -> Any:
    """For intrinsics: the address as an LLVM pointer."""
    return builder.inttoptr(address, kind.as_pointer())


def declared(builder: Any, name: str, kind: ir.FunctionType) -> Any:
    """For intrinsics: LLVM's function of this name."""
    return builder.module.globals.get(name) or ir.Function(builder.module, kind, name)


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typingctx: Any, address: Any) -> Any:
    """Begin to load the cache line at `address` (int64). Any address is allowed."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = declared(builder, "llvm.prefetch.p0", kind)
        line = pointer(builder, args[0], ir.IntType(8))
        builder.call(function, [line, word(0), word(3), word(1)])  # read, keep, data
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def high_product(typingctx: Any, a: Any, b: Any) -> Any:
    """The upper 64 bits of the 128 of a * b (uint64)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(value, wide) for value in args))
        return builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def leading_zeros(typingctx: Any, number: Any) -> Any:
    """How many of the highest bits of a uint64, which is not 0, are clear."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.IntType(1)(1))

    return types.uint64(types.uint64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def trailing_zeros(typingctx: Any, number: Any) -> Any:
    """How many of the lowest bits of a uint64, which is not 0, are clear."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.uint64(types.uint64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def load_bytes(typingctx: Any, address: Any) -> Any:
    """The eight bytes at `address`, of any alignment, as a uint64: the first is the lowest."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(pointer(builder, args[0], _INT64), align=1)

    return types.uint64(types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def set_bit(typingctx: Any, address: Any) -> Any:
    """Set the lowest bit of the uint32 at `address`, atomically; whether it was clear. Acquires."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        place = pointer(builder, args[0], word)
        before = builder.atomic_rmw("or", place, word(1), "acquire")
        return builder.icmp_unsigned("==", builder.and_(before, word(1)), word(0))

    return types.boolean(types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def clear_bits(typingctx: Any, address: Any, bits: Any) -> Any:
    """Clear `bits` of the uint32 at `address`, atomically; the others are left alone."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = pointer(builder, args[0], ir.IntType(32))
        builder.atomic_rmw("and", place, builder.not_(args[1]), "monotonic")
        return context.get_dummy_value()

    return types.void(types.int64, types.uint32), codegen


@intrinsic  # type: ignore[untyped-decorator]
def load_word(typingctx: Any, address: Any) -> Any:
    """The uint32 at `address`, read atomically."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = pointer(builder, args[0], ir.IntType(32))
        return builder.load_atomic(place, "monotonic", 4)

    return types.uint32(types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def compare_and_swap(typingctx: Any, address: Any, expected: Any, value: Any) -> Any:
    """Write the int64 at `address` if it is the expected one, atomically; whether it was. Acquires
    and releases.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = pointer(builder, args[0], ir.IntType(64))
        swapped = builder.cmpxchg(place, args[1], args[2], "acq_rel", "monotonic")
        return builder.extract_value(swapped, 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def fetch_add(typingctx: Any, address: Any, value: Any) -> Any:
    """Add to the int64 at `address`, atomically; what it was. Acquires and releases."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = pointer(builder, args[0], ir.IntType(64))
        return builder.atomic_rmw("add", place, args[1], "acq_rel")

    return types.int64(types.int64, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def acquire_integer(typingctx: Any, address: Any) -> Any:
    """The int64 at `address`, read atomically, before all that is read after it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(pointer(builder, args[0], ir.IntType(64)), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def read_integer(typingctx: Any, address: Any) -> Any:
    """The int64 at `address`, read atomically, in no order with others."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(pointer(builder, args[0], _INT64), "monotonic", 8)

    return types.int64(types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def read_integer_last(typingctx: Any, address: Any) -> Any:
    """The int64 at `address`, read atomically, after all that was read before."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("acquire")
        return builder.load_atomic(pointer(builder, args[0], _INT64), "monotonic", 8)

    return types.int64(types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def write_integer_first(typingctx: Any, address: Any, value: Any) -> Any:
    """Write the int64 at `address`, atomically, before all that is written after it, and after all
    that was written before.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.atomic_rmw("xchg", pointer(builder, args[0], _INT64), args[1], "seq_cst")
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _load(kind: Any, llvm: ir.Type) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def load(typingctx: Any, address: Any) -> Any:
        """The number at `address`."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(pointer(builder, args[0], llvm))

        return kind(types.int64), codegen

    return load


def _store(kind: Any, llvm: ir.Type) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def store(typingctx: Any, address: Any, value: Any) -> Any:
        """Write the number at `address`."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.store(args[1], pointer(builder, args[0], llvm))
            return context.get_dummy_value()

        return types.void(types.int64, kind), codegen

    return store


def _release(kind: Any, llvm: ir.Type) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def release(typingctx: Any, address: Any, value: Any) -> Any:
        """Write the number at `address`, atomically, after all that was written before."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = pointer(builder, args[0], llvm)
            builder.store_atomic(args[1], place, "release", kind.bitwidth // 8)
            return context.get_dummy_value()

        return types.void(types.int64, kind), codegen

    return release


_INT64 = ir.IntType(64)
load_integer, store_integer = _load(types.int64, _INT64), _store(types.int64, _INT64)
load_double = _load(types.float64, ir.DoubleType())
load_float = _load(types.float32, ir.FloatType())
store_float = _store(types.float32, ir.FloatType())
release_integer = _release(types.int64, _INT64)
release_word = _release(types.uint32, ir.IntType(32))

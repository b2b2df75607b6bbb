"""Eight float32 at once inside a kernel, as a type of its own: `Lanes`.

LLVM's own vectoriser leaves a row of 16 elements to its scalar remainder, and asks for each row
anew whether the arrays overlap. With this type a formula is written once for eight elements, the
last few of a row included, and its arithmetic is IEEE's, element by element: the same bits at any
place of the row.

Operators + - * / take two Lanes, or Lanes and a float32 on either side.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing import templates
from numba.extending import lower_builtin, models, register_model

from .compile import declared, intrinsic, pointer

WIDTH = 8


class _Lanes(types.Type):
    def __init__(self) -> None:
        super().__init__("Lanes")


LANES: Any = _Lanes()
_INT = ir.IntType(32)
_VECTOR, _INTS = ir.VectorType(ir.FloatType(), WIDTH), ir.VectorType(_INT, WIDTH)
_MASK = ir.VectorType(ir.IntType(1), WIDTH)
_PAIRS = ((LANES, LANES), (LANES, types.float32), (types.float32, LANES))


@register_model(_Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)  # type: ignore[no-untyped-call]


def _splat(builder: Any, value: Any, vector: Any = _VECTOR) -> Any:
    """The value in each lane; Lanes as they are."""
    if value.type == vector:
        return value
    nothing = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(nothing, value, _INT(0))
    return builder.shuffle_vector(one, nothing, ir.Constant(_INTS, [0] * WIDTH))


def _operator(symbol: Any, instruction: str) -> None:
    class Typing(templates.ConcreteTemplate):
        key = symbol
        cases = tuple(LANES(a, b) for a, b in _PAIRS)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*(_splat(builder, value) for value in args))

    infer_global: Any = templates.infer_global
    lower: Any = lower_builtin
    infer_global(symbol)(Typing)
    for a, b in _PAIRS:
        lower(symbol, a, b)(emit)


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")
_operator(operator.truediv, "fdiv")


@intrinsic  # type: ignore[untyped-decorator]
def lanes(typingctx: Any, value: Any) -> Any:
    """Eight times the float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _splat(builder, args[0])

    return LANES(types.float32), codegen


@intrinsic  # type: ignore[untyped-decorator]
def load(typingctx: Any, address: Any) -> Any:
    """The eight float32 at `address`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(pointer(builder, args[0], _VECTOR), align=4)

    return LANES(types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def store(typingctx: Any, address: Any, value: Any) -> Any:
    """Write the eight to `address`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], pointer(builder, args[0], _VECTOR), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, LANES), codegen


def _first(builder: Any, count: Any) -> Any:
    """A mask of the first `count` lanes."""
    numbers = ir.Constant(_INTS, list(range(WIDTH)))
    limit = _splat(builder, builder.trunc(count, _INT), _INTS)
    return builder.icmp_signed("<", numbers, limit)


@intrinsic  # type: ignore[untyped-decorator]
def load_first(typingctx: Any, address: Any, count: Any) -> Any:
    """The first `count` of eight float32; zeros for the others, which are not touched."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_VECTOR, [_VECTOR.as_pointer(), _INT, _MASK, _VECTOR])
        function = declared(builder, "llvm.masked.load.v8f32.p0", kind)
        place, zeros = pointer(builder, args[0], _VECTOR), ir.Constant(_VECTOR, [0.0] * WIDTH)
        return builder.call(function, [place, _INT(4), _first(builder, args[1]), zeros])

    return LANES(types.int64, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def store_first(typingctx: Any, address: Any, value: Any, count: Any) -> Any:
    """Write the first `count` of the eight."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_VECTOR, _VECTOR.as_pointer(), _INT, _MASK])
        function = declared(builder, "llvm.masked.store.v8f32.p0", kind)
        place = pointer(builder, args[0], _VECTOR)
        builder.call(function, [args[1], place, _INT(4), _first(builder, args[2])])
        return context.get_dummy_value()

    return types.void(types.int64, LANES, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def root(typingctx: Any, value: Any) -> Any:
    """The square root of each."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_VECTOR, [_VECTOR])
        return builder.call(declared(builder, "llvm.sqrt.v8f32", kind), args)

    return LANES(LANES), codegen


@intrinsic  # type: ignore[untyped-decorator]
def choose(typingctx: Any, x: Any, y: Any, a: Any, b: Any) -> Any:
    """`a` where x <= y, else `b`, lane by lane; each Lanes or a float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        left, right, this, that = (_splat(builder, value) for value in args)
        return builder.select(builder.fcmp_ordered("<=", left, right), this, that)

    return LANES(x, y, a, b), codegen


def _copy(nbytes: int) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def copy(typingctx: Any, source: Any, target: Any) -> Any:
        """Copy so many bytes, at any alignment, from one address to another."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.IntType(8 * nbytes) if nbytes < 32 else _VECTOR
            value = builder.load(pointer(builder, args[0], kind), align=1)
            builder.store(value, pointer(builder, args[1], kind), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return copy


copy_2, copy_4, copy_32 = _copy(2), _copy(4), _copy(32)

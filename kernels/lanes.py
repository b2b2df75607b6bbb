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

from .compile import declared, instruction, pointer

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


def _splat(builder: ir.IRBuilder, value: ir.Value, vector: ir.Type = _VECTOR) -> ir.Value:
    """Return the value in each lane; Lanes as they are."""
    if value.type == vector:
        return value
    nothing = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(nothing, value, _INT(0))
    return builder.shuffle_vector(one, nothing, ir.Constant(_INTS, [0] * WIDTH))


def _operator(symbol: Any, name: str) -> None:
    class Typing(templates.ConcreteTemplate):
        key = symbol
        cases = tuple(LANES(a, b) for a, b in _PAIRS)

    def emit(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> Any:
        return getattr(builder, name)(*(_splat(builder, value) for value in args))

    infer_global: Any = templates.infer_global
    lower: Any = lower_builtin
    infer_global(symbol)(Typing)
    for a, b in _PAIRS:
        lower(symbol, a, b)(emit)


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")
_operator(operator.truediv, "fdiv")


@instruction(LANES, types.float32)
def lanes(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Return eight times the float32."""
    return _splat(builder, value)


@instruction(LANES, types.int64)
def load(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Return the eight float32 at `address`."""
    return builder.load(pointer(builder, address, _VECTOR), align=4)


@instruction(types.void, types.int64, LANES)
def store(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    """Write eight float32 to `address`."""
    builder.store(value, pointer(builder, address, _VECTOR), align=4)


def _first(builder: ir.IRBuilder, count: ir.Value) -> ir.Value:
    """Return a mask of the first `count` lanes."""
    numbers = ir.Constant(_INTS, list(range(WIDTH)))
    limit = _splat(builder, builder.trunc(count, _INT), _INTS)
    return builder.icmp_signed("<", numbers, limit)


@instruction(LANES, types.int64, types.int64)
def load_first(builder: ir.IRBuilder, address: ir.Value, count: ir.Value) -> ir.Value:
    """Return the first `count` of eight float32; zeros for the others, which are not touched."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR.as_pointer(), _INT, _MASK, _VECTOR])
    function = declared(builder, "llvm.masked.load.v8f32.p0", kind)
    place, zeros = pointer(builder, address, _VECTOR), ir.Constant(_VECTOR, [0.0] * WIDTH)
    return builder.call(function, [place, _INT(4), _first(builder, count), zeros])


@instruction(types.void, types.int64, LANES, types.int64)
def store_first(builder: ir.IRBuilder, address: ir.Value, value: ir.Value, count: ir.Value) -> None:
    """Write the first `count` of eight float32 to `address`."""
    kind = ir.FunctionType(ir.VoidType(), [_VECTOR, _VECTOR.as_pointer(), _INT, _MASK])
    function = declared(builder, "llvm.masked.store.v8f32.p0", kind)
    place = pointer(builder, address, _VECTOR)
    builder.call(function, [value, place, _INT(4), _first(builder, count)])


@instruction(LANES, LANES)
def root(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Return the square root of each of eight float32."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR])
    return builder.call(declared(builder, "llvm.sqrt.v8f32", kind), [value])


@instruction(types.float32, LANES)
def total(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Return the sum of the eight float32, added in order."""
    found = builder.extract_element(value, _INT(0))
    for number in range(1, WIDTH):
        found = builder.fadd(found, builder.extract_element(value, _INT(number)))
    return found


@instruction(LANES)
def choose(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return `a` where x <= y, else `b`, lane by lane; each Lanes or a float32."""
    left, right, this, that = (_splat(builder, value) for value in (x, y, a, b))
    return builder.select(builder.fcmp_ordered("<=", left, right), this, that)


def _copy(nbytes: int) -> Any:
    @instruction(types.void, types.int64, types.int64)
    def copy(builder: ir.IRBuilder, source: ir.Value, target: ir.Value) -> None:
        """Copy so many bytes, at any alignment, from one address to another."""
        kind = ir.IntType(8 * nbytes) if nbytes < 32 else _VECTOR
        value = builder.load(pointer(builder, source, kind), align=1)
        builder.store(value, pointer(builder, target, kind), align=1)

    return copy


copy_2, copy_4, copy_32 = _copy(2), _copy(4), _copy(32)

"""A step of one row of a table, or of a dense chunk, which is one long row: one pass, or two.

`step` is for kernels, in which the kind of optimizer is a constant: only its formula (formulas.py)
is compiled, over whole lanes and the last few elements.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import types

from ...kernels.compile import PART, frozen, inlined, load_float, overload
from ...kernels.lanes import WIDTH, lanes, load, load_first, store, store_first, total
from .formulas import FORMULAS, WHOLE

_ZERO = np.float32(0.0)
_BLOCK = 4096  # elements whose squares are added up in float32; blocks then in float64


class RowAt(NamedTuple):
    """The addresses of a row's weight, states (any address, where it has none) and gradient."""

    weight: np.int64
    a: np.int64
    b: np.int64
    c: np.int64
    grad: np.int64


class Coefficients(NamedTuple):
    """The inputs of a formula beside the row, all float32.

    They are the rule's constants, a line of `by_step`, and the updates so far.
    """

    constants: tuple[np.float32, ...]
    x: np.float32
    y: np.float32
    z: np.float32
    steps: np.float32


@inlined
def _load(address, left):  # type: ignore[no-untyped-def]
    return load(address) if left >= WIDTH else load_first(address, left)


@inlined
def _store(address, value, left):  # type: ignore[no-untyped-def]
    if left >= WIDTH:
        store(address, value)
    else:
        store_first(address, value, left)


@frozen
def _each(formula, states, n, row, told):  # type: ignore[no-untyped-def]
    zero = lanes(_ZERO)
    for left in range(n, 0, -WIDTH):
        at = 4 * (n - left)
        a = _load(row.a + at, left) if states > 0 else zero
        b = _load(row.b + at, left) if states > 1 else zero
        c = _load(row.c + at, left) if states > 2 else zero
        w, g = _load(row.weight + at, left), _load(row.grad + at, left)
        w, a, b, c = formula(w, a, b, c, g, told)
        _store(row.weight + at, w, left)
        if states > 0:
            _store(row.a + at, a, left)
        if states > 1:
            _store(row.b + at, b, left)
        if states > 2:
            _store(row.c + at, c, left)


@frozen
def _sums(formula, states, n, row, told):  # type: ignore[no-untyped-def]
    """Renew the states; return the two sums."""
    zero = lanes(_ZERO)
    p, q = 0.0, 0.0
    for stop in range(n, 0, -_BLOCK):
        ps, qs = zero, zero
        for left in range(stop, max(stop - _BLOCK, 0), -WIDTH):
            at = 4 * (n - left)
            a = _load(row.a + at, left) if states > 0 else zero
            b = _load(row.b + at, left) if states > 1 else zero
            c = _load(row.c + at, left) if states > 2 else zero
            w, g = _load(row.weight + at, left), _load(row.grad + at, left)
            a, b, c, x, y = formula(w, a, b, c, g, told)
            ps, qs = ps + x, qs + y
            if states > 0:
                _store(row.a + at, a, left)
            if states > 1:
                _store(row.b + at, b, left)
            if states > 2:
                _store(row.c + at, c, left)
        p += np.float64(total(ps))
        q += np.float64(total(qs))
    return p, q


@frozen
def _weights(formula, states, n, row, told, number):  # type: ignore[no-untyped-def]
    zero = lanes(_ZERO)
    for left in range(n, 0, -WIDTH):
        at = 4 * (n - left)
        a = _load(row.a + at, left) if states > 0 else zero
        b = _load(row.b + at, left) if states > 1 else zero
        c = _load(row.c + at, left) if states > 2 else zero
        w, g = _load(row.weight + at, left), _load(row.grad + at, left)
        _store(row.weight + at, formula(w, a, b, c, g, told, number), left)


def step(kind, n, row, told):  # type: ignore[no-untyped-def]
    """Make one step of `n` elements: a RowAt and the Coefficients.

    For kernels, in which `kind` is a constant: only its formula is compiled.
    """
    if kind in WHOLE:
        first, between, second, lasting = WHOLE[kind]
        p, q = _sums(first, lasting, n, row, told)
        _weights(second, lasting, n, row, told, between(p, q, n, row, told))
    else:
        formula, states = FORMULAS[kind]
        _each(formula, states, n, row, told)


@overload(step, strict=False, jit_options={**PART, "forceinline": True})
def _step_in_kernels(kind, _n, _row, _told):  # type: ignore[no-untyped-def]
    if not isinstance(kind, types.IntegerLiteral):
        return None  # numba then asks with the constant
    if kind.literal_value in WHOLE:
        first, between, second, lasting = WHOLE[kind.literal_value]

        def twice(_kind, n, row, told):  # type: ignore[no-untyped-def]
            p, q = _sums(first, lasting, n, row, told)
            _weights(second, lasting, n, row, told, between(p, q, n, row, told))

        return twice
    formula, states = FORMULAS[kind.literal_value]

    def in_place(_kind, n, row, told):  # type: ignore[no-untyped-def]
        _each(formula, states, n, row, told)

    return in_place


@inlined
def constants_of(k):  # type: ignore[no-untyped-def]
    """Return the array as a tuple, to have it in registers."""
    return (k[0], k[1], k[2], k[3], k[4], k[5], k[6])


@inlined
def coefficients(constants, by_step, last, steps):  # type: ignore[no-untyped-def]
    """Return the Coefficients of a row that has had so many steps.

    `constants` is a tuple, `by_step` the table's address, `last` its last line.
    """
    line = by_step + 12 * min(steps, last)
    x, y, z = load_float(line), load_float(line + 4), load_float(line + 8)
    return Coefficients(constants, x, y, z, np.float32(steps))


@functools.cache
def apply_of_chunk(kind: int) -> Any:
    def apply(weight, a, b, c, steps, grad, constants, by_step):  # type: ignore[no-untyped-def]
        w, g = np.int64(weight.ctypes.data), np.int64(grad.ctypes.data)
        p, q, r = np.int64(a.ctypes.data), np.int64(b.ctypes.data), np.int64(c.ctypes.data)
        table, last = np.int64(by_step.ctypes.data), len(by_step) - 1
        told = coefficients(constants_of(constants), table, last, steps[0])
        steps[0] += 1
        step(kind, weight.size, RowAt(w, p, q, r, g), told)  # type: ignore[no-untyped-call]

    return apply

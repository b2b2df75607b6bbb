"""Compile loops with numba: no GIL while they run, the machine code kept on disk.

Input arrays are declared read-only, so that views of a message's bytes are taken without a copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
from numba import types

FLOATS_2D = types.Array(types.float32, 2, "C")
FLOATS_2D_IN = types.Array(types.float32, 2, "C", readonly=True)
INTS_1D = types.Array(types.int64, 1, "C")
INTS_1D_IN = types.Array(types.int64, 1, "C", readonly=True)
DOUBLE = types.float64
BOOLEAN = types.boolean
INTEGER = types.int64


@functools.cache
def compiled(function: Callable[..., Any], *signature: Any) -> Callable[..., Any]:
    """The machine code of `function` for these argument types; IEEE division, no exceptions."""
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        code: Callable[..., Any] = numba.njit([signature], cache=True, **options)(function)
    except RuntimeError as error:  # neither the package's folder nor the home can be written
        if "cache" not in str(error):
            raise
        code = numba.njit([signature], **options)(function)
    return code

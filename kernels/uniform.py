"""Uniform first values of rows, in kernels.

The bits are those of `initializers.uniforms`, element by element. Apart from initializers.py, which
starts without numba.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compile import DOUBLE, FLOATS_2D, INTS_1D_IN, UINT64, compiled, inlined, mixed, store_float

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniform_rows(
    ids: NDArray[np.int64], key: np.uint64, scale: float, rows: NDArray[np.float32]
) -> None:
    """Write the first values of `ids` to rows[n, dim]: scale * (2 * u - 1)."""
    compiled(_uniform_rows, INTS_1D_IN, UINT64, DOUBLE, FLOATS_2D)(ids, key, scale, rows)


# -- Compiled by numba


@inlined
def uniform_row(id, key, scale, dim, target):  # type: ignore[no-untyped-def]
    """Write the row of `id` to the `dim` float32 at the address `target`."""
    row = mixed((np.uint64(id) ^ key) + _GOLDEN)
    for j in range(dim):
        bits = mixed(row + np.uint64(j + 2) * _GOLDEN)
        u = np.float64(bits >> np.uint64(11)) * 2.0**-53
        store_float(target + 4 * j, np.float32(scale * (2.0 * u - 1.0)))


def _uniform_rows(ids, key, scale, rows):  # type: ignore[no-untyped-def]
    dim, target = rows.shape[1], np.int64(rows.ctypes.data)
    for i in range(rows.shape[0]):
        uniform_row(ids[i], key, scale, dim, target + 4 * dim * i)

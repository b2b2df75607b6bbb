"""First values of embedding rows: a pure function of (seed, table, id).

So it never matters when, where or how often a row is made.

Each element is a counter-based random number: splitmix64 (Steele, Lea and Flood 2014) of the row's
key and the column. No state, any order, any subset of ids gives the same values.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np
from numpy.typing import NDArray

from ..common.hashing import GOLDEN, mix64
from .model_spec import TableSpec

INITIALIZERS = ("zeros", "uniform", "normal")


@functools.cache
def key_of(seed: int, table: str) -> np.uint64:
    """Return the number that stands for seed and table in each row's key."""
    digest = hashlib.blake2b(f"{seed}/{table}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def uniforms(seed: int, table: str, ids: NDArray[np.int64], columns: int) -> NDArray[np.float64]:
    """Return float64[n, columns] on [0, 1), 53 random bits each."""
    rows = mix64(ids.view(np.uint64) ^ key_of(seed, table))
    counters = np.arange(1, columns + 1, dtype=np.uint64) * GOLDEN
    bits = mix64(rows[:, None] + counters[None, :])
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def initial_rows(seed: int, spec: TableSpec, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the first values of the rows `ids` (int64[n]) of a table: float32[n, dim]."""
    ids = np.ascontiguousarray(ids, dtype=np.int64)
    if spec.initializer == "zeros":
        return np.zeros((len(ids), spec.dim), np.float32)
    if spec.initializer == "uniform":
        from ..kernels.uniform import uniform_rows  # numba

        rows = np.empty((len(ids), spec.dim), np.float32)
        uniform_rows(ids, key_of(seed, spec.name), spec.scale, rows)
        return rows
    if spec.initializer == "normal":  # Box-Muller, one pair of uniforms an element
        u = uniforms(seed, spec.name, ids, 2 * spec.dim)
        radius = np.sqrt(-2.0 * np.log1p(-u[:, : spec.dim]))
        cosine = np.cos(2.0 * np.pi * u[:, spec.dim :])
        return (spec.scale * radius * cosine).astype(np.float32)
    raise ValueError(
        f"table {spec.name!r}: unknown initializer {spec.initializer!r}: "
        f"choose from {', '.join(INITIALIZERS)}"
    )

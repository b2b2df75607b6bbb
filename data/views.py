"""Which records `feed` is given now, and in which of their views: for augmentation that repeats.

Whoever calls a definition's `feed` says so around the call (`showing`), and `view_seeds` tells it
to whatever `feed` calls in the same thread: the contract of `feed` needs no more arguments. A view
is the epoch modulo `--teacher_views`, so that what was asked of a teacher about it holds again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Seen:
    """The records of a minibatch: of a source, by number, int64[N], in one of their views."""

    source: str
    records: NDArray[np.int64]
    view: int = 0


_NOW: ContextVar[Seen | None] = ContextVar("edl_seen", default=None)


@contextmanager
def showing(seen: Seen) -> Iterator[None]:
    """Have `view_seeds` tell of these records, in this thread."""
    token = _NOW.set(seen)
    try:
        yield
    finally:
        _NOW.reset(token)


def view_seeds(count: int) -> NDArray[np.int64]:
    """Return a seed for each of the `count` records that `feed` was given: int64[count], 0 or more.

    To be called within `feed`. A function of the record and its view alone (the epoch modulo
    `--teacher_views`), so that a record that is fed again in this view, by whichever worker, looks
    the same. Where no job calls `feed`, it is as of records 0, 1, ... of a source. Raises
    ValueError where `feed` was given another number of records.
    """
    seen = _NOW.get() or Seen("", np.arange(count))
    if len(seen.records) != count:
        raise ValueError(f"view_seeds({count}), but feed was given {len(seen.records)} records")
    number = seen.records.astype(np.uint64)
    for other in (zlib.crc32(seen.source.encode()), seen.view):
        number = _mixed(number ^ np.uint64(other) * np.uint64(0x9E3779B97F4A7C15 >> 32))
    return (number >> np.uint64(1)).astype(np.int64)


def _mixed(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the step and the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    number = number + np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ number >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ number >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return number ^ number >> np.uint64(31)

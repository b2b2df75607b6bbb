"""The speedup of a job: how many times faster it makes progress on another allocation. Pure.

    speedup(N, R) = best goodput on (N, R) / best goodput on the base

with the best batch size on each. AdaptDL's base is one replica; Pollux's is the fair share of the
cluster (OSDI '21, section 4.2), which `fair_replicas` tells. Nothing on nothing: (0, 0) is 0.

A scheduler asks for the same few allocations many thousand times: the speedups are in a table,
which is made at once up to a power of two of replicas and again, larger, when more are asked for.
Two rows suffice, since of nodes the model knows one or several only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .model import ROUNDING, Floats, GoodputFunction, Range, check, plain

_FIRST_SIZE = 32  # replicas that the first table knows, and one less: AdaptDL's


class SpeedupFunction:
    """Speedup of one job wherever it might run, over its run on `base` (nodes, replicas)."""

    def __init__(
        self,
        goodput: GoodputFunction,
        max_batch_size: int | None = None,
        atomic_bsz_range: Range | None = None,
        accumulation: bool = False,
        base: tuple[int, int] = (1, 1),
    ) -> None:
        """Take bounds as those of `GoodputFunction.optimize`, with its errors too."""
        self._goodput = goodput
        self._bounds = max_batch_size, atomic_bsz_range, accumulation
        self._base: float = goodput.optimize(base[0], base[1], *self._bounds)[0]
        self._table_NR = self._made(_FIRST_SIZE)  # [0 or 1: one node or several, replicas]

    def __call__(self, num_nodes: ArrayLike, num_replicas: ArrayLike) -> Any:
        """Return a float, or a float64 array of the broadcast shape.

        Raises ValueError where the two are not whole numbers with 0 < N <= R or N = R = 0.
        """
        nodes, replicas = np.asarray(num_nodes)[()], np.asarray(num_replicas)[()]
        check(
            nodes.dtype.kind in "iu" and replicas.dtype.kind in "iu",
            f"nodes and replicas are whole numbers, not {nodes.dtype} and {replicas.dtype}",
        )
        check(
            (nodes >= 0) & (nodes <= replicas) & ((nodes > 0) | (replicas == 0)),
            "an allocation has at least one replica on each of its nodes, or none of both",
            num_nodes=nodes,
            num_replicas=replicas,
        )
        row = (nodes > 1) * 1
        try:
            return plain(self._table_NR[row, replicas])
        except IndexError:
            self._table_NR = self._made(1 << int(replicas.max()).bit_length())
            return plain(self._table_NR[row, replicas])

    def _made(self, size: int) -> Floats:
        return best_goodput(self._goodput, size, *self._bounds) / self._base


def best_goodput(
    goodput: GoodputFunction,
    size: int,
    max_batch_size: int | None = None,
    atomic_bsz_range: Range | None = None,
    accumulation: bool = False,
) -> Floats:
    """Return the goodput [on one node or on several, replicas below `size`] with the best batch.

    0 of no replicas. Bounds and errors are those of `GoodputFunction.optimize`.
    """
    replicas = np.arange(1, size)
    nodes = np.minimum([[1], [2]], replicas)
    best = goodput.optimize(nodes, replicas, max_batch_size, atomic_bsz_range, accumulation)[0]
    return np.pad(best, ((0, 0), (1, 0)))


def linear_speedup(num_nodes: ArrayLike, num_replicas: ArrayLike) -> Any:
    """Return the speedup of a job of which nothing is known: its replicas."""
    del num_nodes  # it stands for a SpeedupFunction, which takes them
    return plain(np.asarray(num_replicas, float))


def fair_replicas(requests: Mapping[str, float], totals: Mapping[str, float], num_jobs: int) -> int:
    """Return how many replicas of a job are its fair share of the cluster.

    It is 1 / `num_jobs` of the cluster, rounded up.

    `requests`: of each resource, what one replica needs; `totals`: what the whole cluster has. The
    scarcest resource decides. Raises ValueError where the cluster cannot run even one replica.
    """
    check(num_jobs >= 1, f"a cluster is shared by at least one job, not {num_jobs}")
    needed = {name: amount for name, amount in requests.items() if amount > 0}
    check(bool(needed), "a replica needs some of at least one resource")
    fit = {name: totals.get(name, 0) / amount for name, amount in needed.items()}
    scarcest = min(fit, key=fit.__getitem__)
    check(
        fit[scarcest] >= 1,
        f"a replica needs {needed[scarcest]:g} of {scarcest}, the cluster has "
        f"{totals.get(scarcest, 0):g}",
    )
    return math.ceil(fit[scarcest] / num_jobs - ROUNDING)

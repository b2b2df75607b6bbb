"""Goodput of an allocation: useful examples a second. Pure.

    goodput = throughput x efficiency                            Pollux (OSDI '21), section 3, eqn 4

Throughput is examples a second, out of a model of the time of a step (section 3.2, eqns 8 to 11),
whose parameters `fit.py` finds. Efficiency is what an example of a batch is worth beside one of a
batch of the initial size (section 3.1, eqn 6), by the noise of the gradients: 1 at the initial
size, and never more with a larger batch. So a job may be given more replicas and a larger batch at
once, and its goodput says whether that pays.

Of nodes the model knows one or several, and no more. Every argument may be a number or an array;
arrays broadcast, and numbers alone give numbers.

Names: nodes N, replicas R, atomic batch size m (what a replica computes at once), accumulation
steps s (passes before the one that synchronises), total batch size M = R * m * (s + 1), initial one
M0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Of another batch size that is worth adopting: less is within the error of the model.
MIN_GAIN = 1.05
CANDIDATES = 50  # total batch sizes that `optimize` compares
_EXPONENTS = np.linspace(0.0, 1.0, CANDIDATES)
ROUNDING = 1e-8  # errors of floats: 64 + 1e-13 is not rounded up to 65

Floats = NDArray[np.float64]
Range = tuple[int | None, int | None]


class PerfParams(NamedTuple):
    """The model of the time of a step. AdaptDL's names and order."""

    alpha_c: float  # s; of a pass forward and backward,
    beta_c: float  # s for each example of it more
    alpha_n: float  # s; of a synchronisation of two replicas on several nodes,
    beta_n: float  # s for each replica more
    alpha_r: float  # the same on one node
    beta_r: float
    gamma: float  # 1: computing and synchronising take turns; the larger, the more they overlap


class GradParams(NamedTuple):
    """The gradient at the initial batch size: its squared length, and its variance.

    Unknown yet: (0, 1), with which every batch size is as efficient as any other.
    """

    sqr: float
    var: float


class GoodputFunction:
    """Goodput of one job wherever it might run."""

    def __init__(
        self,
        perf_params: PerfParams | Sequence[float],
        grad_params: GradParams | Sequence[float],
        init_batch_size: int,
    ) -> None:
        """Take the model and the initial batch size.

        Raises ValueError for parameters that no job can have.
        """
        self._perf = perf = PerfParams(*map(float, perf_params))
        self._grad = grad = GradParams(*map(float, grad_params))
        check(
            init_batch_size >= 1 and float(init_batch_size).is_integer(),
            f"an initial batch size is a whole number of at least 1, not {init_batch_size}",
        )
        self._init = int(init_batch_size)
        check(
            np.isfinite(perf).all() and min(perf) >= 0,
            f"times are finite and at least 0 s, not {perf}",
        )
        check(perf.alpha_c + perf.beta_c > 0, f"a pass takes more than 0 s, not {perf}")
        check(perf.gamma >= 1, f"gamma is at least 1, not {perf}")
        check(
            np.isfinite(grad).all() and min(grad) >= 0,
            f"a squared length and a variance are finite and at least 0, not {grad}",
        )

    def __call__(
        self,
        num_nodes: ArrayLike,
        num_replicas: ArrayLike,
        atomic_bsz: ArrayLike,
        accum_steps: ArrayLike,
    ) -> Any:
        """Call `evaluate`."""
        return self.evaluate(num_nodes, num_replicas, atomic_bsz, accum_steps)

    def evaluate(
        self,
        num_nodes: ArrayLike,
        num_replicas: ArrayLike,
        atomic_bsz: ArrayLike,
        accum_steps: ArrayLike,
    ) -> Any:
        """Return useful examples a second: a float, or a float64 array of the broadcast shape.

        Raises ValueError as `throughput` and `efficiency` do.
        """
        nodes, replicas = allocation(num_nodes, num_replicas)
        atomic, accum = _batch(atomic_bsz, accum_steps)
        efficiency = self._efficiency(self._total(replicas * atomic * (accum + 1)))
        return plain(self._throughput(nodes, replicas, atomic, accum) * efficiency)

    def throughput(
        self,
        num_nodes: ArrayLike,
        num_replicas: ArrayLike,
        atomic_bsz: ArrayLike,
        accum_steps: ArrayLike,
    ) -> Any:
        """Return examples a second, useful or not.

        Raises ValueError where not 1 <= N <= R, m is below 1 or s below 0.
        """
        nodes, replicas = allocation(num_nodes, num_replicas)
        return plain(self._throughput(nodes, replicas, *_batch(atomic_bsz, accum_steps)))

    def efficiency(self, batch_size: ArrayLike) -> Any:
        """Return what an example of a batch of this total size is worth: above 0, at most 1.

        Raises ValueError for a batch below the initial size, of which the model says nothing.
        """
        return plain(self._efficiency(self._total(floats(batch_size))))

    def optimize(
        self,
        num_nodes: ArrayLike,
        num_replicas: ArrayLike,
        max_batch_size: int | None = None,
        atomic_bsz_range: Range | None = None,
        accumulation: bool = False,
    ) -> tuple[Any, Any, Any]:
        """Return the best goodput there, with which atomic batch size and accumulation steps.

        Section 4.1, eqn 13: the best of 50 total batch sizes from the initial one to
        `max_batch_size` (default: the initial one), in equal ratios. Each is divided among the
        replicas and their passes, as few as the upper end of `atomic_bsz_range` (each end may be
        None) lets it, and rounded up: the total may exceed `max_batch_size` by less than one
        example a pass. Where the lower end forbids every such total, the batch is as large as the
        lower end makes it. Without `accumulation` one replica keeps the initial size: the noise of
        its gradients, measured between steps instead of passes, is biased.

        Raises ValueError for bounds that contradict each other, and where the upper end keeps the
        total batch below the initial size.
        """
        places = np.broadcast_arrays(*allocation(num_nodes, num_replicas))
        nodes, replicas = (each[..., None] for each in places)
        most, low, high = self._bounds(max_batch_size, atomic_bsz_range)
        least = np.maximum(self._init, low * replicas)
        local = least * (most / least) ** _EXPONENTS / replicas
        if accumulation:
            accum = np.maximum(np.ceil(local / high - ROUNDING) - 1, 0)
            grows = (replicas == 1) & (local > self._init + ROUNDING)
            accum = np.where(grows, np.maximum(accum, 1), accum)
            atomic = np.ceil(local / (accum + 1) - ROUNDING)
        else:
            accum = np.zeros_like(local)
            atomic = np.where(replicas == 1, float(self._init), np.ceil(local - ROUNDING))
        atomic = np.clip(atomic, low, high)
        passes = replicas * (accum + 1)
        check(
            passes * atomic >= self._init,
            f"atomic batch sizes of at most {high} do not add up to the initial batch size of "
            f"{self._init} here: raise the bound or allow accumulation",
        )
        goodput = self._throughput(nodes, replicas, atomic, accum) * self._efficiency(
            passes * atomic
        )
        above = passes * atomic >= most + passes  # the lower end has lifted it
        goodput = np.where(above & ~above.all(-1, keepdims=True), 0.0, goodput)
        best = goodput.argmax(-1)[..., None]

        def taken(values: Floats) -> Floats:
            return np.take_along_axis(values, best, -1)[..., 0]

        return (
            plain(taken(goodput)),
            plain(taken(atomic).astype(np.int64)),
            plain(taken(accum).astype(np.int64)),
        )

    def _bounds(
        self, max_batch_size: int | None, atomic_bsz_range: Range | None
    ) -> tuple[int, int, int]:
        most = self._init if max_batch_size is None else max_batch_size
        low, high = atomic_bsz_range or (None, None)
        low, high = 1 if low is None else low, most if high is None else high
        check(
            most >= self._init,
            f"a largest batch size is at least the initial one of {self._init}, not {most}",
        )
        check(
            1 <= low <= high,
            f"a range of atomic batch sizes begins at 1 or later and ends no earlier, not {low} to "
            f"{high}",
        )
        return most, low, high

    def _throughput(self, nodes: Floats, replicas: Floats, atomic: Floats, accum: Floats) -> Floats:
        perf = self._perf
        gradient_s = perf.alpha_c + perf.beta_c * atomic
        more = np.maximum(replicas - 2, 0)
        on_one_s = (nodes == 1) * (replicas > 1) * (perf.alpha_r + perf.beta_r * more)
        sync_s = on_one_s + (nodes > 1) * (perf.alpha_n + perf.beta_n * more)
        # (gradient^gamma + sync^gamma)^(1 / gamma), which would underflow or overflow as it stands
        longer, shorter = np.maximum(gradient_s, sync_s), np.minimum(gradient_s, sync_s)
        last_s = longer * (1 + (shorter / longer) ** perf.gamma) ** (1 / perf.gamma)
        step_s: Floats = accum * gradient_s + last_s
        return replicas * atomic * (accum + 1) / step_s

    def _total(self, batch_size: Floats) -> Floats:
        check(
            (batch_size >= self._init) & (batch_size < np.inf),
            f"a total batch size is at least the initial one of {self._init}",
            batch_size=batch_size,
        )
        return batch_size

    def _efficiency(self, batch_size: Floats) -> Floats:
        sqr, var = self._grad
        scale = batch_size / self._init
        if sqr + var == 0:  # a gradient of nothing gains nothing by a larger batch
            return 1 / scale
        # gain / scale with gain = (var + sqr) / (var / scale + sqr), so that it falls in floats too
        return (var + sqr) / (var + sqr * scale)


def allocation(num_nodes: ArrayLike, num_replicas: ArrayLike) -> tuple[Floats, Floats]:
    """Return the nodes and the replicas as float64. Raises ValueError where not 1 <= N <= R."""
    nodes, replicas = floats(num_nodes), floats(num_replicas)
    check(
        (nodes >= 1) & (nodes <= replicas) & (replicas < np.inf),
        "a job runs on at least one node, and has at least one replica on each",
        num_nodes=nodes,
        num_replicas=replicas,
    )
    return nodes, replicas


def check(holds: Any, rule: str, **values: ArrayLike) -> None:
    """Raise ValueError with the first of the values for which the rule does not hold."""
    if not (holds.all() if isinstance(holds, np.ndarray) else holds):
        first = np.argmin(holds)
        each = (
            f"{n}={np.broadcast_to(v, np.shape(holds)).flat[first]:g}" for n, v in values.items()
        )
        raise ValueError(f"{rule}, not {', '.join(each)}" if values else rule)


def _batch(atomic_bsz: ArrayLike, accum_steps: ArrayLike) -> tuple[Floats, Floats]:
    atomic, accum = floats(atomic_bsz), floats(accum_steps)
    check((accum >= 0) & (accum < np.inf), "accumulation steps are at least 0", accum_steps=accum)
    return atomic_sizes(atomic), accum


def atomic_sizes(atomic: Floats) -> Floats:
    """Return the sizes as they are. Raises ValueError for those below 1."""
    check(
        (atomic >= 1) & (atomic < np.inf), "an atomic batch size is at least 1", atomic_bsz=atomic
    )
    return atomic


def floats(values: ArrayLike) -> Any:
    """Return the values as float64.

    Of a number it is a numpy scalar: arithmetic with an array takes three times as long.
    """
    return np.asarray(values, float)[()]


def plain(values: Any) -> Any:
    """Return a number instead of an array of no dimensions."""
    return values.item() if values.ndim == 0 else values

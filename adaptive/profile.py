"""The speed of a training process as it learns it, and what a scheduler may be told of it.

For each (nodes, replicas, atomic batch size) that the job ran with: how many passes there were and
how long they took, apart those that only accumulate and those that synchronise, and of the latter
the part that was spent synchronising. Restarts keep it, so a job that has run on 1, 2 and 4
replicas knows all three. From it, and from the statistics of the gradients, comes the model of
goodput (edl.goodput); it is fitted when somebody asks, and then not again for a while.

Rank 0's figures count: passes end together, so the others' hardly differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from ..common.clock import Clock, MonotonicClock
from . import checkpoint, env
from .collective import control
from .session import only
from .step_times import Key, Times, fit, rows_of, times_of
from .stopwatch import Stopwatch

if TYPE_CHECKING:
    from ..goodput.model import GoodputFunction, PerfParams

REFIT_S = 30.0  # Pollux's interval of reports (section 4.1); a fit takes about 0.2 s

Bounds = tuple[int | None, int | None]


class Profile(checkpoint.State):
    """Times by (nodes, replicas, atomic batch size), and what is known of batch and gradients.

    `init_batch_size` is that of the data loader that trains; None before there is one.
    """

    def __init__(self, clock: Clock | None = None, stopwatch: Stopwatch | None = None) -> None:
        super().__init__("edl-profile")
        self.init_batch_size: int | None = None
        self.global_batch_size: int | None = None
        self.max_batch_size: int | None = None
        self.local_bsz_bounds: Bounds | None = None
        self.gradient_accumulation = False
        self.times: dict[Key, Times] = {}
        self._models: dict[str, tuple[float, float]] = {}  # the same by model
        self._gradients: tuple[float, float] | None = None  # |g|^2, variance at init_batch_size
        self._clock = clock or MonotonicClock()
        self._stopwatch = stopwatch or Stopwatch(self._clock)
        self._perf: PerfParams | None = None
        self._fitted_at: float | None = None
        self._syncs_s: list[float] = []  # that became known in this pass
        checkpoint.load_state(self)

    @contextmanager
    def timed(self, atomic_bsz: int, sync: bool, commit: Callable[[], bool]) -> Iterator[None]:
        """Time one pass; not one that fails, or of which `commit()` then says no."""
        self._syncs_s.clear()
        begun = self._stopwatch.mark()
        yield
        replicas = control().replicas
        times = self.times.setdefault(
            (min(env.num_nodes(), replicas), replicas, atomic_bsz), Times()
        )
        if commit():
            for seconds in self._syncs_s:
                times.add_sync(seconds)
            add = times.add_optim if sync else times.add_accum
            self._stopwatch.measure(begun, self._stopwatch.mark(), add)

    def record_sync(self, seconds: float) -> None:
        """Note that a pass of about now spent so long synchronising.

        Of a device it is known a bit late.
        """
        self._syncs_s.append(seconds)

    def set_gradient_stats(self, sqr: float, var: float, model: str = "") -> None:
        """Note the squared length of a model's gradient, and its variance at `init_batch_size`.

        Those of several models, a GAN's, add up: their gradients are parts of one.
        """
        self._models[model] = (sqr, var)
        sqrs, variances = zip(*self._models.values(), strict=True)
        self._gradients = (sum(sqrs), sum(variances))

    @property
    def grad_params(self) -> tuple[float, float]:
        """The statistics that `set_gradient_stats` was told; before that those that are assumed."""
        return self._gradients or (1.0, 1e-6)

    def perf_params(self) -> PerfParams | None:
        """Return the throughput model; None before a pass was timed. Fits at most every REFIT_S."""
        now = self._clock.now()
        if self._fitted_at is not None and now < self._fitted_at + REFIT_S:
            return self._perf
        self._stopwatch.collect()
        perf = fit(self.times)
        if perf is not None:
            self._perf, self._fitted_at = perf, now
        return self._perf

    def goodput(self) -> GoodputFunction | None:
        """Return the job's goodput anywhere; None while its speed or its gradients are unknown."""
        perf = self.perf_params()
        if perf is None or self._gradients is None or self.init_batch_size is None:
            return None
        from ..goodput.model import GoodputFunction

        return GoodputFunction(perf, self._gradients, self.init_batch_size)

    def hints(self) -> dict[str, Any]:
        """Return what a scheduler wants to know, as JSON; what is unknown yet is None."""
        perf, gradients = self.perf_params(), self._gradients
        return {
            "initBatchSize": self.init_batch_size,
            "localBszBounds": list(self.local_bsz_bounds) if self.local_bsz_bounds else None,
            "globalBatchSize": self.global_batch_size,
            "maxBatchSize": self.max_batch_size,
            "maxProfiledReplicas": max(
                (key[1] for key, times in self.times.items() if times.optims), default=0
            ),
            "gradientAccumulation": self.gradient_accumulation,
            "gradParams": dict(zip(("norm", "var"), gradients, strict=True)) if gradients else None,
            "perfParams": perf._asdict() if perf else None,
        }

    def save(self, fileobj: BinaryIO) -> None:
        self._stopwatch.collect()
        saved = {"times": rows_of(self.times), "gradients": self._gradients}
        fileobj.write(json.dumps(saved).encode())

    def load(self, fileobj: BinaryIO) -> None:
        saved = json.loads(fileobj.read())
        self.times = times_of(saved["times"])
        self._gradients = tuple(saved["gradients"]) if saved["gradients"] else None


init_batch_size: int | None  # the one of `current()`


def __getattr__(name: str) -> Any:
    if name == "init_batch_size":
        return current().init_batch_size
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def current() -> Profile:
    """Return this process's profile."""
    return only(Profile)


def record_sync(seconds: float) -> None:
    """Note that a pass of about now spent so long synchronising."""
    current().record_sync(seconds)


def set_gradient_stats(sqr: float, var: float, model: str = "") -> None:
    """Note a model's squared length of the gradient, and its variance at the initial batch size."""
    current().set_gradient_stats(sqr, var, model)


def hints() -> dict[str, Any]:
    """Return what a scheduler wants to know of this job. Rank 0's is the one to send."""
    return current().hints()

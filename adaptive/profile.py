"""What a training process learns of its own speed, and what may be said of it to a scheduler.

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
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from ..common.clock import Clock, MonotonicClock
from . import checkpoint, env
from .collective import control
from .session import only
from .stopwatch import Stopwatch

if TYPE_CHECKING:
    from ..goodput.model import GoodputFunction, PerfParams

REFIT_S = 30.0  # Pollux's interval of reports (section 4.1); a fit takes about 0.2 s
_LEAST_S = 1e-6  # of a pass: logarithms of times are fitted

Bounds = tuple[int | None, int | None]


@dataclass
class Times:
    """Sums over the passes of one (nodes, replicas, atomic batch size)."""

    accums: int = 0
    accum_s: float = 0.0
    optims: int = 0
    optim_s: float = 0.0
    syncs: int = 0  # of the optims, those whose synchronisation was measured
    sync_s: float = 0.0

    def accum_time_s(self) -> float:
        """Of a pass without synchronisation: those with none, and the others less theirs."""
        sync_s = self.optims * self.sync_s / max(1, self.syncs)
        pass_s = (self.accum_s + self.optim_s - sync_s) / (self.accums + self.optims)
        return max(pass_s, _LEAST_S)

    def optim_time_s(self) -> float:
        return max(self.optim_s / self.optims, _LEAST_S)


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
        self.times: dict[tuple[int, int, int], Times] = {}
        self._gradients: tuple[float, float] | None = None  # |g|^2, variance at init_batch_size
        self._clock = clock or MonotonicClock()
        self._stopwatch = stopwatch or Stopwatch(self._clock)
        self._perf: PerfParams | None = None
        self._fitted_at: float | None = None
        self._syncs_s: list[float] = []  # that became known in this pass
        checkpoint.load_state(self)

    @contextmanager
    def timed(self, atomic_bsz: int, sync: bool, commit: Callable[[], bool]) -> Iterator[None]:
        """The time of one pass; not of one that fails, or of which `commit()` then says no."""
        self._syncs_s.clear()
        begun = self._stopwatch.mark()
        yield
        replicas = control().replicas
        times = self.times.setdefault(
            (min(env.num_nodes(), replicas), replicas, atomic_bsz), Times()
        )

        def add(seconds: float) -> None:
            if sync:
                times.optims += 1
                times.optim_s += seconds
            else:
                times.accums += 1
                times.accum_s += seconds

        if commit():
            times.syncs += len(self._syncs_s)
            times.sync_s += sum(self._syncs_s)
            self._stopwatch.measure(begun, self._stopwatch.mark(), add)

    def record_sync(self, seconds: float) -> None:
        """A pass of about now spent so long synchronising. Of a device it is known a bit late."""
        self._syncs_s.append(seconds)

    def set_gradient_stats(self, sqr: float, var: float) -> None:
        """Squared length of the gradient, and its variance at `init_batch_size`."""
        self._gradients = (sqr, var)

    def perf_params(self) -> PerfParams | None:
        """The throughput model; None before a pass was timed. Fits at most every REFIT_S."""
        now = self._clock.now()
        if self._fitted_at is not None and now < self._fitted_at + REFIT_S:
            return self._perf
        self._stopwatch.collect()
        rows = [(*key, t.accum_time_s(), t.optim_time_s()) for key, t in self._whole()]
        if rows:
            from ..goodput.fit import fit_perf_params  # scipy: 0.3 s to import

            self._perf = fit_perf_params(*map(list, zip(*rows, strict=True)))
            self._fitted_at = now
        return self._perf

    def goodput(self) -> GoodputFunction | None:
        """The job's goodput anywhere; None while its speed or its gradients are unknown."""
        perf = self.perf_params()
        if perf is None or self._gradients is None or self.init_batch_size is None:
            return None
        from ..goodput.model import GoodputFunction

        return GoodputFunction(perf, self._gradients, self.init_batch_size)

    def hints(self) -> dict[str, Any]:
        """What a scheduler wants to know, as JSON; what is unknown yet is None."""
        perf, gradients = self.perf_params(), self._gradients
        return {
            "initBatchSize": self.init_batch_size,
            "localBszBounds": list(self.local_bsz_bounds) if self.local_bsz_bounds else None,
            "globalBatchSize": self.global_batch_size,
            "maxBatchSize": self.max_batch_size,
            "maxProfiledReplicas": max((key[1] for key, _ in self._whole()), default=0),
            "gradientAccumulation": self.gradient_accumulation,
            "gradParams": dict(zip(("norm", "var"), gradients, strict=True)) if gradients else None,
            "perfParams": perf._asdict() if perf else None,
        }

    def save(self, fileobj: BinaryIO) -> None:
        self._stopwatch.collect()
        rows = [[*key, *astuple(times)] for key, times in self.times.items()]
        fileobj.write(json.dumps({"times": rows, "gradients": self._gradients}).encode())

    def load(self, fileobj: BinaryIO) -> None:
        saved = json.loads(fileobj.read())
        self.times = {(n, r, m): Times(*sums) for n, r, m, *sums in saved["times"]}
        self._gradients = tuple(saved["gradients"]) if saved["gradients"] else None

    def _whole(self) -> list[tuple[tuple[int, int, int], Times]]:
        """Those with a pass that synchronised."""
        return [(key, times) for key, times in self.times.items() if times.optims]


init_batch_size: int | None  # the one of `current()`


def __getattr__(name: str) -> Any:
    if name == "init_batch_size":
        return current().init_batch_size
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def current() -> Profile:
    """This process's."""
    return only(Profile)


def record_sync(seconds: float) -> None:
    """A pass of about now spent so long synchronising."""
    current().record_sync(seconds)


def set_gradient_stats(sqr: float, var: float) -> None:
    """Squared length of the gradient, and its variance at the initial batch size."""
    current().set_gradient_stats(sqr, var)


def hints() -> dict[str, Any]:
    """What a scheduler wants to know of this job. Rank 0's is the one to send."""
    return current().hints()

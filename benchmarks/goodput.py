"""The speed of telling goodput, as a scheduler asks for it: one question at a time, and many.

Each figure is of one thread, as a loop over it has it.

    python -m benchmarks.goodput     from the repository root
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import measure
from edl.goodput import GoodputFunction, GradParams, PerfParams, SpeedupFunction, fit_perf_params

AT_ONCE = 10_000  # allocations of an array
MOST_REPLICAS = 64
PERF = PerfParams(0.121, 0.00568, 0.0236, 0.00634, 0.0118, 0.00317, 1.14)
BOUNDS = (1280, (64, 256), True)
PLACES = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 2), (2, 8), (4, 16), (8, 32)]
SIZES = (64, 128, 256)
NOISE = 0.05  # of the times that are fitted


def goodput() -> str:
    """Make a Markdown table."""
    random = np.random.default_rng(0)
    replicas = random.integers(1, MOST_REPLICAS + 1, AT_ONCE)
    nodes = np.minimum(random.integers(1, 17, AT_ONCE), replicas)
    function = GoodputFunction(PERF, GradParams(0.0005, 0.005), 128)
    speedup = SpeedupFunction(function, *BOUNDS)
    rows = _rows(random)
    found = measure.alternate(
        {
            "goodput, one": _repeated(lambda: function(2, 8, 64, 0), 2_000),
            f"goodput, {AT_ONCE:,}": _repeated(
                lambda: function(nodes, replicas, 128, 0), 20, AT_ONCE
            ),
            "best batch size, one": _repeated(lambda: function.optimize(2, 8, *BOUNDS), 500),
            f"best batch size, {AT_ONCE:,}": _repeated(
                lambda: function.optimize(nodes, replicas, *BOUNDS), 2, AT_ONCE
            ),
            "speedup, one": _repeated(lambda: speedup(2, 8), 5_000),
            f"speedup, {AT_ONCE:,}": _repeated(lambda: speedup(nodes, replicas), 50, AT_ONCE),
            "a new job's table of speedups": _repeated(
                lambda: SpeedupFunction(function, *BOUNDS), 100
            ),
            f"fit of {len(rows[0])} rows": _repeated(lambda: fit_perf_params(*rows), 10),
        }
    )
    return _table(found)


def _rows(random: np.random.Generator) -> list[np.ndarray]:
    """Return what a job that has run in many places would have measured."""
    nodes, replicas, atomic = np.array(
        [(*place, size) for place in PLACES for size in SIZES], float
    ).T
    accum_s = PERF.alpha_c + PERF.beta_c * atomic
    optim_s = (
        replicas * atomic / GoodputFunction(PERF, (0, 1), 1).throughput(nodes, replicas, atomic, 0)
    )
    noise = np.exp(random.normal(0, NOISE, (2, len(nodes))))
    return [nodes, replicas, atomic, accum_s * noise[0], optim_s * noise[1]]


def _repeated(
    ask: Callable[[], object], times: int, at_once: int = 1
) -> Callable[[], measure.Sample]:
    def work() -> None:
        for _ in range(times):
            ask()

    return lambda: measure.sample(times * at_once, work)


def _table(found: measure.Found) -> str:
    def cells(samples: Sequence[measure.Sample]) -> list[str]:
        return [
            measure.spread([sample.rate for sample in samples]),
            measure.spread([sample.wall_s / sample.amount * 1e6 for sample in samples]),
        ]

    lines = ["| | a second | µs each |", "|---|---|---|"]
    lines += [f"| {' | '.join([name, *cells(samples)])} |" for name, samples in found.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(f"{measure.machine()}\n\n{goodput()}")

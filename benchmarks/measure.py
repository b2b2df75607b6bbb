"""Side by side: each variant once a round, the order turned by one from round to round.

A figure is the median over the rounds with its min-max. A ratio is taken within a round, so that
what else the machine does at that time is in both of its parts. CPU time is the kernel's clock of
whole processes, exact to the nanosecond, dead threads included (Linux).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks import page

ROUNDS = 5
_DRAWS = 1000  # of a bootstrap


@dataclass(frozen=True)
class Sample:
    """A sample: an amount of work, its wall time, and the CPU time of all processes.

    `amount` is in rows, cycles or records.
    """

    amount: float
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.amount / self.wall_s

    @property
    def cost(self) -> float:
        """Return the CPU seconds for one unit of work."""
        return self.cpu_s / self.amount


Found = Mapping[str, Sequence[Sample]]


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds of processes so far: clock_getcpuclockid(3) of each."""
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def sample(amount: float, work: Callable[[], None], pids: Sequence[int] = ()) -> Sample:
    """Do the work; return what this process and `pids` needed for it."""
    everybody = (os.getpid(), *pids)
    began, used = time.perf_counter(), cpu_s(everybody)
    work()
    return Sample(amount, time.perf_counter() - began, cpu_s(everybody) - used)


def alternate(
    variants: Mapping[str, Callable[[], Sample]], rounds: int = ROUNDS, warm_up: bool = True
) -> dict[str, list[Sample]]:
    """Return the samples of each variant, by round.

    A round before the first warms up and is dropped.
    """
    names = list(variants)
    found: dict[str, list[Sample]] = {name: [] for name in names}
    for turn in range(-1 if warm_up else 0, rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            result = variants[name]()
            if turn >= 0:
                found[name].append(result)
                print(f"  {turn} {name}: {result.rate:.4g}/s", file=sys.stderr, flush=True)
    return found


def table(
    found: Found, baselines: Sequence[str], rate: tuple[str, float], cost: tuple[str, float]
) -> str:
    """Make a Markdown table of rates and costs.

    `rate`, `cost`: the unit, and how many of it one unit per second, or one CPU second per unit,
    are. Costs are compared with the first baseline's.
    """
    heads = ["", rate[0], *(f"of {b}" for b in baselines), cost[0], f"times {baselines[0]}"]
    rows = [
        [
            name,
            spread([s.rate * rate[1] for s in samples]),
            *(ratio(samples, found[b], lambda s: s.rate) for b in baselines),
            spread([s.cost * cost[1] for s in samples]),
            ratio(samples, found[baselines[0]], lambda s: s.cost),
        ]
        for name, samples in found.items()
    ]
    return page.table(heads, rows)


def ratio(mine: Sequence[Sample], theirs: Sequence[Sample], of: Callable[[Sample], float]) -> str:
    """Return the spread of the ratios within the rounds; "1" for a variant and itself."""
    if mine is theirs:
        return "1"
    return spread([of(a) / of(b) for a, b in zip(mine, theirs, strict=True)])


def more(mine: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> str:
    """Return by how many per cent mine is more than theirs.

    The median [95 % interval] (lower, upper quartile). Ratios are taken within the rounds. Rounds
    come in groups, those of one of which may be alike, so the interval is that of the medians of
    groups drawn with replacement (bootstrap, Efron 1979).
    """
    groups = [
        [100 * (a / b - 1) for a, b in zip(one, other, strict=True)]
        for one, other in zip(mine, theirs, strict=True)
    ]
    random = np.random.default_rng(0)
    medians = [
        np.median(
            np.concatenate([groups[i] for i in random.integers(len(groups), size=len(groups))])
        )
        for _ in range(_DRAWS)
    ]
    low, high = np.quantile(medians, [0.025, 0.975])
    lower, median, upper = np.quantile(np.concatenate(groups), [0.25, 0.5, 0.75])
    return f"{median:+.1f} % [{low:+.1f}, {high:+.1f}] ({lower:+.1f}, {upper:+.1f})"


def spread(values: Sequence[float]) -> str:
    """Return median (min-max), to three digits."""
    return f"{_short(statistics.median(values))} ({_short(min(values))}-{_short(max(values))})"


def _short(value: float) -> str:
    """Write a figure with three digits, and never an exponent."""
    text = f"{value:.3g}"
    return f"{value:,.0f}" if "e" in text or abs(value) >= 100 else text


def machine() -> str:
    """Describe what a figure means nothing without, as a Markdown list."""
    versions = (f"{p} {importlib.metadata.version(p)}" for p in ("torch", "numpy", "grpcio"))
    gib = psutil.virtual_memory().total / 2**30
    return "\n".join(
        [
            f"- machine: {os.cpu_count()} cores of {_cpu_model()}, {gib:.0f} GiB",
            f"- kernel {platform.release()}, Python {platform.python_version()}, "
            + ", ".join(versions),
            f"- commit: {commit()}",
        ]
    )


def load() -> str:
    """Return the load averages now."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def commit() -> str:
    def git(*arguments: str) -> list[str]:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.splitlines()

    changed = [line[3:] for line in git("status", "--porcelain")]
    head = "".join(git("rev-parse", "--short", "HEAD")) or "unknown"
    return head + (f", and uncommitted: {' '.join(changed)}" if changed else "")

"""The times of the passes of steps by where they were made, and the model of speed. Pure.

A step is some passes forward and backward that only accumulate, and one that synchronises. Sums of
their times are kept for each (nodes, replicas, atomic batch size), so what several processes have
measured, or one before and after a restart, adds up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..goodput.model import PerfParams

_LEAST_S = 1e-6  # of a pass: logarithms of times are fitted

Key = tuple[int, int, int]  # nodes, replicas, atomic batch size


@dataclass
class Times:
    """Sums over the passes of one (nodes, replicas, atomic batch size)."""

    accums: int = 0
    accum_s: float = 0.0
    optims: int = 0
    optim_s: float = 0.0
    syncs: int = 0  # of the optims, those whose synchronisation was measured
    sync_s: float = 0.0

    def add_accum(self, seconds: float) -> None:
        """Add a pass that only accumulates and took so long."""
        self.accums += 1
        self.accum_s += seconds

    def add_optim(self, seconds: float) -> None:
        """Add a pass that synchronises and took so long."""
        self.optims += 1
        self.optim_s += seconds

    def add_sync(self, seconds: float) -> None:
        """Add the time that a pass which synchronises spent synchronising."""
        self.syncs += 1
        self.sync_s += seconds

    def add(self, other: Times) -> None:
        """Add the sums of other measurements to these."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def accum_time_s(self) -> float:
        """Return the seconds of a pass without synchronisation.

        They come from those with none, and from the others less theirs.
        """
        sync_s = self.optims * self.sync_s / max(1, self.syncs)
        pass_s = (self.accum_s + self.optim_s - sync_s) / (self.accums + self.optims)
        return max(pass_s, _LEAST_S)

    def optim_time_s(self) -> float:
        return max(self.optim_s / self.optims, _LEAST_S)


def fit(times: Mapping[Key, Times]) -> PerfParams | None:
    """Return the throughput model; None where no pass that synchronises was timed.

    Takes about 0.2 s.
    """
    rows = [(*key, t.accum_time_s(), t.optim_time_s()) for key, t in times.items() if t.optims]
    if not rows:
        return None
    from ..goodput.fit import fit_perf_params  # scipy: 0.3 s to import

    return fit_perf_params(*map(list, zip(*rows, strict=True)))


def rows_of(times: Mapping[Key, Times]) -> list[list[float]]:
    """Return the times as JSON values."""
    return [[*key, *astuple(of)] for key, of in times.items()]


def times_of(rows: Iterable[Sequence[float]]) -> dict[Key, Times]:
    """Return the times of which `rows_of` made these rows."""
    return {(int(n), int(r), int(m)): Times(*sums) for n, r, m, *sums in rows}  # type: ignore[arg-type]

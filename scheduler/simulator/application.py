"""An application that was traced: how fast it steps and what its steps are worth, anywhere.

The tables are those that the authors of Pollux (OSDI '21) published, in one folder an application:

    placements.csv        seconds of a step by GPUs on each node ("134": 1, 3 and 4), local batch
    scalability.csv       the same by nodes, replicas and local batch, for more than four nodes
    validation-BATCH.csv  of each epoch with this batch: where its progress ends, and its gradient

Local batch: what a replica computes at once. Progress counts steps of the initial batch size, the
smallest that was validated; the largest is the most that a job may use. Sia's authors (SOSP '23)
added tables of other kinds of machines, as placements-KIND.csv and scalability-KIND.csv.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ...common.errors import UsageError
from ...goodput import GradParams
from .tables import Parser, amount, read_table

if TYPE_CHECKING:
    from scipy.interpolate import LinearNDInterpolator

Floats = NDArray[np.float64]
Placement = tuple[int, ...]  # GPUs on each node that it runs on, in the order of the nodes

_TIMES = ("step_time", "sync_time")  # s


@dataclass(frozen=True)
class Limits:
    """What a job of an application may choose. None: as far as its traces go."""

    local_batch: int | None = None  # the most
    replicas: int | None = None  # the most
    batch: int | None = None  # the one that it uses


POLLUX = {  # the limits by which Pollux's authors played these, by the names of their folders
    "ncf": Limits(replicas=1, batch=32768),
    "yolov3": Limits(local_batch=8),
}


class Traced(Protocol):
    """What a job is of, as it can be played."""

    name: str
    local_range: tuple[int, int]  # of what a replica computes at once
    batch_range: tuple[int, int]
    batch: int | None  # that it must use
    replicas: int  # the most
    epochs: int

    def end_of(self, epoch: int) -> float:
        """Return the progress with which an epoch ends, in steps of the least batch."""

    def step_s(self, placement: Placement, local_batch: int) -> tuple[float, float]:
        """Return the seconds of a step, and those of its synchronisation."""

    def gradient(self, batch: int, epoch: int) -> GradParams:
        """Return what is measured of the gradient in an epoch with a batch."""


class Application:
    """An application by its traces. All its answers are remembered."""

    def __init__(self, folder: Path, limits: Limits | None = None, kind: str = "") -> None:
        """Read the tables. `kind`: of the machines, as Sia's authors name them; "": Pollux's.

        Raises UsageError for one that is missing or wrong.
        """
        suffix = f"-{kind}" if kind else ""
        self._scalability = folder / f"scalability{suffix}.csv"
        self.name = folder.name
        self.folder = folder
        self._by_placement = _by_placement(folder / f"placements{suffix}.csv")
        self._gradients = _validated(folder)
        limits = limits or POLLUX.get(self.name) or Limits()
        sizes = [local_n for local_n, _ in self._by_placement.values()]
        self.local_range = (
            int(min(local_n[0] for local_n in sizes)),
            limits.local_batch or int(max(local_n[-1] for local_n in sizes)),
        )
        self.batch_range = min(self._gradients), max(self._gradients)
        self.batch = limits.batch
        self.replicas = limits.replicas or self.batch_range[1] // self.local_range[0]
        self.epochs = min(len(table) for table in self._gradients.values())
        # The least of the batch sizes: their epochs end within a step of each other.
        self._ends = np.min([table[: self.epochs, 0] for table in self._gradients.values()], axis=0)
        self.step_s = functools.cache(self._step_s)
        self.gradient = functools.cache(self._gradient)

    def end_of(self, epoch: int) -> float:
        """Return the progress with which an epoch ends. The first is 0."""
        return float(self._ends[epoch])

    def _step_s(self, placement: Placement, local_batch: int) -> tuple[float, float]:
        """Return the seconds of a step, and those of its synchronisation.

        Raises UsageError where the traces do not reach.
        """
        rotated = min(placement[i:] + placement[:i] for i in range(len(placement)))
        if rotated in self._by_placement:
            local_n, times_n2 = self._by_placement[rotated]
            step_s, sync_s = (float(np.interp(local_batch, local_n, times)) for times in times_n2.T)
        else:
            step_s, sync_s = self._beyond([len(placement), sum(placement), local_batch])[0].tolist()
        if math.isnan(step_s):
            raise UsageError(
                f"{self.folder}: the traces say nothing of {sum(placement)} replicas on "
                f"{len(placement)} nodes with {local_batch} examples each"
            )
        return step_s, sync_s

    @functools.cached_property
    def _beyond(self) -> LinearNDInterpolator:
        """The times of placements that were not traced, by (nodes, replicas, local batch)."""
        from scipy.interpolate import LinearNDInterpolator  # takes a second
        from scipy.spatial import QhullError

        alike: dict[tuple[float, ...], list[Floats]] = {}  # placements of as many, on as many
        for placement, (local_n, times_n2) in self._by_placement.items():
            for local_batch, times in zip(local_n.tolist(), times_n2, strict=True):
                point = (len(placement), sum(placement), local_batch)
                alike.setdefault(point, []).append(times)
        path = self._scalability
        columns = dict.fromkeys(("num_nodes", "num_replicas", "local_bsz", *_TIMES), amount)
        rows = [list(row.values()) for _, row in read_table(path, columns)]
        farther = np.array(rows, float).reshape(-1, len(columns))
        points = np.concatenate([np.array(list(alike)), farther[:, :3]])
        times = np.array([np.mean(each, axis=0) for each in alike.values()])
        try:
            return LinearNDInterpolator(points, np.concatenate([times, farther[:, 3:]]))
        except QhullError as error:
            raise UsageError(
                f"{path} and the placements have too few numbers of nodes, replicas and examples "
                "to tell the times between them"
            ) from error

    def _gradient(self, batch: int, epoch: int) -> GradParams:
        """Return what is measured of the gradient in an epoch with a batch, of the range."""
        sizes = list(self._gradients)
        rows = np.array([self._gradients[size][epoch, 1:] for size in sizes])
        return GradParams(*(float(np.interp(batch, sizes, column)) for column in rows.T))


def _by_placement(path: Path) -> dict[Placement, tuple[Floats, Floats]]:
    """Return the local batches, ascending, and their times [:, (step, sync)] of each placement."""
    rows: dict[Placement, list[tuple[float, ...]]] = {}
    columns: dict[str, Parser] = dict.fromkeys(("local_bsz", *_TIMES), amount)
    columns["placement"] = _digits
    for _, row in read_table(path, columns):
        placement = tuple(int(digit) for digit in str(row["placement"]))
        rows.setdefault(placement, []).append(
            (float(row["local_bsz"]), float(row["step_time"]), float(row["sync_time"]))
        )
    if not rows:
        raise UsageError(f"{path} has no row: there is a time of at least one placement")
    tables = {placement: np.array(sorted(each)) for placement, each in rows.items()}
    return {placement: (table[:, 0], table[:, 1:]) for placement, table in tables.items()}


def _digits(field: str) -> str:
    if not field.isdecimal() or "0" in field:
        raise ValueError("a digit from 1 to 9 for each node")
    return field


def _validated(folder: Path) -> dict[int, Floats]:
    """Return by batch size, ascending: [epoch, (progress, grad_sqr, grad_var)]."""
    columns = {"progress": amount, "grad_sqr": amount, "grad_var": amount}
    tables: dict[int, Floats] = {}
    for path in folder.glob("validation-*.csv"):
        size = path.stem.removeprefix("validation-")
        rows = [list(row.values()) for _, row in read_table(path, columns)]
        if not size.isdecimal() or not rows:
            raise UsageError(f"{path} is a batch size by its name, and has a row for each epoch")
        tables[int(size)] = np.array(rows, float)
    if not tables:
        raise UsageError(f"{folder} has no table validation-BATCH.csv")
    return dict(sorted(tables.items()))


def read_applications(folder: Path, kind: str = "") -> dict[str, Traced]:
    """Return the applications by name: those whose folders are in this one.

    `kind`: of the machines whose tables are read, as in `Application`.

    Raises UsageError where there is none, and for tables that are missing or wrong.
    """
    file = f"placements-{kind}.csv" if kind else "placements.csv"
    found = [Application(path.parent, kind=kind) for path in sorted(folder.glob(f"*/{file}"))]
    if not found:
        raise UsageError(f"{folder} has no folder of an application with a file {file}")
    return {application.name: application for application in found}

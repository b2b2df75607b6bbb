"""The history of a job, in its folder: its events and its curves, for whoever looks at it later.

A line is an event of the status, or a point of the curves: {"t", "version", "scalars": {name:
value}}, with "job" for those who are no page (loggers): its workers, restarts and goodput. They
are told, not kept as the books are: a power cut may take the last ones. Points become
seldomer with the age of the job, so that a file of weeks is small. A line is JSON that others can
read, too (common/finite.py).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ..common import finite
from . import figures
from .job import Status

log = logging.getLogger(__name__)

FILE = "history.jsonl"
_POINT_S = 2.0  # between two points of a curve
_POINTS = 500  # so many between any two ages of which one is e times the other
_MOST_NBYTES = 64 << 20  # of what is read: a job of weeks has a tenth of it

Line = dict[str, Any]


def curves(status: Status) -> dict[str, float]:
    """Return what is drawn over time, of a status."""
    told = {name: status.get(name) for name in ("loss", "records_per_s", "minibatch", "gain")}
    return {name: float(value) for name, value in told.items() if isinstance(value, int | float)}


def standing(status: Status) -> dict[str, float]:
    """Return a job's workers, all its restarts, and the useful share of its machines' time."""
    workers = [each for each in status.get("workers") or () if each["heartbeat_age_s"] is not None]
    told = {"workers": float(len(workers)), "restarts": float(sum(status["restarts"].values()))}
    spent = figures.machine_seconds(status)
    total = sum(spent.get(name, 0.0) for name in ("useful_s", "recompute_s", "start_s", "idle_s"))
    if total > 0:
        told["goodput"] = round(spent.get("useful_s", 0.0) / total, 4)
    return told


def evaluated(status: Status, after: int = 0) -> list[tuple[int, dict[str, float]]]:
    """Return the version and the metrics of each evaluation but for the first `after` ones."""
    found = []
    for each in (status.get("evaluations") or [])[after:]:
        numbers = {k: v for k, v in each["metrics"].items() if isinstance(v, int | float)}
        found.append((int(each["version"]), {_metric(name): v for name, v in numbers.items()}))
    return found


def _metric(name: str) -> str:
    return f"evaluated {name}" if name in ("loss", "records_per_s", "minibatch", "gain") else name


class History:
    """The writer of a job's history. What cannot be written is told once, and the job goes on."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file: BinaryIO | None = None
        self._next_t = 0.0
        self._evaluations = 0
        self._lost = False

    def event(self, event: Mapping[str, Any]) -> None:
        """Write an event, as the status has it."""
        self._write(event)

    def look(self, status: Status, *, last: bool = False) -> None:
        """Write what the curves have since: of evaluations all, of the rest a point now and then.

        `last`: one in any case.
        """
        t, version = status["started_s_ago"], status["version"]
        for measured, metrics in evaluated(status, self._evaluations):
            self._write({"t": t, "version": measured, "scalars": metrics})
        self._evaluations = len(status["evaluations"])
        if last or t >= self._next_t:
            self._next_t = t + max(_POINT_S, t / _POINTS)
            point = {"t": t, "version": version, "scalars": curves(status)}
            self._write({**point, "job": standing(status)} if "restarts" in status else point)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        try:
            if self._file is None:
                self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
                self._file.write(b"\n")  # ends what a master that was killed left half
            self._file.write(finite.dumps(line).encode() + b"\n")
        except OSError as error:
            if not self._lost:
                log.warning("history -> lost file=%s error=%s", self._path, error)
            self._lost = True


class Reader:
    """A reader of what comes to a job's history, from `offset`, where another has stopped."""

    def __init__(self, folder: Path, offset: int = 0) -> None:
        self._path = folder / FILE
        self.offset = offset

    def lines(self) -> list[Line]:
        """Return what is new, whole lines only; nothing where there is no history."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self.offset)
                data = file.read(_MOST_NBYTES)
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return [found for line in whole.split(b"\n") if (found := _parsed(line)) is not None]


def _parsed(line: bytes) -> Line | None:
    """Return a line; None where it is none, as the half of one that a killed master left."""
    try:
        found = finite.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("t"), int | float):
        return None
    return found if {"id", "text"} <= found.keys() or "scalars" in found else None

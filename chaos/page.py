"""The page of the fault matrix, made from recorded cells alone."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .. import __version__
from . import cell as cells
from .cell import COUNTED, Cell
from .faults import FAULTS, Fault
from .phases import PHASES, Phase

_NOT_MEANINGFUL, _FAILED = "not meaningful", "failed"


def line(cell: Cell) -> str:
    """Return one cell for a terminal."""
    times = f"noticed {_s(cell.detection_s)}, stall {_s(cell.stall_s)}, {cell.wall_s:.1f} s"
    where = f"{cell.fault} x {cell.phase}" if cell.phase else "no fault"
    reason = f": {cell.reason}" if cell.reason else ""
    return f"{cell.outcome:<14} {where} ({cell.mode}, hit {cell.nth}; {times}){reason}"


def page(found: Iterable[Cell], command: str) -> str:
    """Return docs/fault-matrix.md. `command`: what made it."""
    matrix = _Matrix.of(list(found))
    reasons: dict[str, int] = {}
    table = _times(matrix, matrix.faults, matrix.of_deltas(False), reasons)
    of_deltas = _times(matrix, matrix.followed, matrix.of_deltas(True), reasons)
    lines = [
        *("# The fault matrix", ""),
        *(f"Made by `{command}` from real runs; do not edit.", ""),
        *(_summary(matrix), ""),
        *(_about(), ""),
        *([_teachers(matrix), ""] if matrix.taught else []),
        *([_deltas(matrix), ""] if matrix.followed else []),
        *(_fault_free(matrix.free), ""),
        *("## Detection / stall, in seconds", "", *table, ""),
        *(["In the phases of deltas:", "", *of_deltas, ""] if matrix.of_deltas(True) else []),
        *(f"{number}. not meaningful: {reason}" for reason, number in reasons.items()),
        "",
        *(["## What failed", "", *(f"- {line(c)}" for c in matrix.bad), ""] if matrix.bad else []),
        *("## By fault", "", *_by_fault(matrix), ""),
        *("## Phases", "", *(f"- **{p.name}**: {p.about}" for p in matrix.phases), ""),
        *(_origin(matrix), ""),
    ]
    return "\n".join(lines)


@dataclass(frozen=True)
class _Matrix:
    """The cells, sorted."""

    cells: list[Cell]
    free: dict[str, Cell]  # of no fault, by mode
    by_key: dict[tuple[str, str], Cell]  # (fault, phase)
    phases: list[Phase]
    faults: list[Fault]

    @classmethod
    def of(cls, found: list[Cell]) -> _Matrix:
        by_key = {c.key: c for c in found if c.phase}
        return cls(
            found,
            {c.mode: c for c in found if not c.phase},
            by_key,
            [p for p in PHASES if any(key[1] == p.name for key in by_key)],
            [f for f in FAULTS if any(key[0] == f.name for key in by_key)],
        )

    @property
    def meaningful(self) -> list[Cell]:
        return [c for c in self.by_key.values() if c.outcome != _NOT_MEANINGFUL]

    @property
    def taught(self) -> list[Cell]:
        """The cells whose jobs had teachers, and a last checkpoint."""
        return [c for c in self.meaningful if c.taught is not None]

    @property
    def followed(self) -> list[Fault]:
        """The faults whose jobs leave deltas."""
        return [f for f in self.faults if f.has_deltas]

    def of_deltas(self, wanted: bool) -> list[Phase]:
        return [p for p in self.phases if p.of_deltas == wanted]

    @property
    def bad(self) -> list[Cell]:
        return [c for c in self.meaningful if c.outcome == _FAILED]


def _summary(matrix: _Matrix) -> str:
    ran, bad = matrix.meaningful, matrix.bad
    totals = (f"{_total(ran, what)} {what.replace('_', ' ')}" for what in COUNTED)
    return (
        f"{len(ran)} cells run ({len(matrix.faults)} faults, {len(matrix.phases)} phases), "
        f"{len(ran) - len(bad)} sound, {len(bad)} failed, "
        f"{len(matrix.by_key) - len(ran)} without a meaning. Over the "
        f"{sum(c.records_lost is not None for c in ran)} whose last checkpoint could be counted: "
        f"{', '.join(totals)}."
    )


def _about() -> str:
    return (
        f"A cell is a job of real processes: {cells.WORKERS} workers, {cells.SERVERS} servers, "
        f"{cells.RECORDS:,} records, {cells.EPOCHS} epochs in minibatches of {cells.MINIBATCH}, an "
        f"evaluation after each epoch, a snapshot of every server each 0.2 s, a lease of "
        f"{cells.LEASE_S:g} s, a server timeout of {cells.SERVER_TIMEOUT_S:g} s. The fault strikes "
        "while a "
        "process is held at the phase's failpoint (which of its hits: drawn by the seed, as is "
        "whether updates are async or sync). Recorded: *detection*, from the blow to the first "
        "line of any log that tells of it (`-`: nobody had to notice); *stall*, the longest pause "
        "between two applied steps of a surviving worker from then on; records by their rows and "
        "updates by every server's counters, against the epochs; *loss gap*, the last "
        "evaluation's loss less the fault-free run's."
    )


def _teachers(matrix: _Matrix) -> str:
    taught = matrix.taught
    bounds = [f"{f.stall_s:g} s" for f in matrix.faults if f.stall_s is not None]
    return (
        f"In the rows of teachers, {len(taught)} cells, the job also has {cells.TEACHERS} "
        f"teachers, each of which has {cells.TEACHER_TIMEOUT_S:g} s for an answer, and students "
        "that wait for one, or go on without where no teacher is there (drawn). There a cell is "
        "sound where also no worker, server or master was started again (but for the worker that "
        "*requeue* kills), no stall was longer than "
        f"{' or, with all teachers away, '.join(dict.fromkeys(bounds))}, and what was taught of "
        "each record is by its value what a teacher says of it. Records by what came into their "
        f"loss: {_total(taught, 'taught'):,} taught, {_total(taught, 'untaught'):,} without, "
        f"{_total(taught, 'mistaught'):,} with anything else."
    )


def _deltas(matrix: _Matrix) -> str:
    mine = [c for c in matrix.meaningful if c.published is not None]
    return (
        f"In the rows of deltas, {len(mine)} cells, the job also leaves a delta each "
        f"{cells.DELTA_S:g} s, with a lease of {cells.FOLLOWED_LEASE_S:g} s, a server timeout of "
        f"{cells.FOLLOWED_SERVER_TIMEOUT_S:g} s and its records in their order (whence the loss "
        "gap), and a consumer follows it, which is started again where it was killed. It publishes "
        "a state for what it has read, as rows and as a model. There a cell is sound where also "
        "each state that was published is one cut of the job (its rows count as many records as "
        "its manifest says and as the counters on each server do, each record with all others of "
        "its minibatch, but for pushes that wait for their version, one on each server in sync-2; "
        "whoever read the same cut, by a base or by deltas, has the same), no consumer went back, "
        "and the last state has all records of the job; and where the fault strikes the consumer "
        "or the store of deltas, nobody of the job was "
        f"started again. {_total(mine, 'published'):,} states were published, "
        f"{_total(mine, 'mixed'):,} of them no cut."
    )


def _fault_free(free: dict[str, Cell]) -> str:
    told = (
        f"{mode} {cell.wall_s:.1f} s, loss {cell.loss:.6f}"
        for mode, cell in free.items()
        if cell.loss is not None
    )
    return f"Fault-free: {'; '.join(told)}."


def _times(
    matrix: _Matrix, faults: list[Fault], phases: list[Phase], reasons: dict[str, int]
) -> list[str]:
    """Return a table of these faults and phases; cells without a meaning number their reasons."""
    rows = [
        [
            f"**{fault.name}**",
            *(_entry(matrix.by_key.get((fault.name, p.name)), reasons) for p in phases),
        ]
        for fault in faults
    ]
    return _table(["fault", *(p.name for p in phases)], rows)


def _by_fault(matrix: _Matrix) -> list[str]:
    head = ["fault", "what is done", "detection", "stall"]
    head += ["records lost", "doubled", "updates lost", "doubled", "largest loss gap"]
    rows = []
    for fault in matrix.faults:
        mine = [c for c in matrix.meaningful if c.fault == fault.name]
        spans = [_range(c.detection_s for c in mine), _range(c.stall_s for c in mine)]
        totals = [str(_total(mine, what)) for what in COUNTED]
        rows.append([f"**{fault.name}**", fault.about, *spans, *totals, _gap(mine, matrix.free)])
    return _table(head, rows)


def _origin(matrix: _Matrix) -> str:
    ran = matrix.meaningful
    commits = Counter(c.commit or "no commit" for c in ran)
    at = ", ".join(f"{commit} ({number} cells)" for commit, number in commits.items())
    return (
        f"edl {__version__} at {at}, {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}; seeds {sorted({c.seed for c in matrix.cells})}, "
        f"{sum(c.wall_s for c in matrix.cells) / 60:.0f} minutes in all, "
        f"{sum(c.wall_s for c in ran) / max(1, len(ran)):.1f} s a cell."
    )


def _total(found: Iterable[Cell], what: str) -> int:
    return sum(getattr(c, what) or 0 for c in found)


def _entry(cell: Cell | None, reasons: dict[str, int]) -> str:
    if cell is None:
        return ""
    if cell.outcome == _NOT_MEANINGFUL:
        return f"({reasons.setdefault(cell.reason, len(reasons) + 1)})"
    times = f"{_s(cell.detection_s)} / {_s(cell.stall_s)}"
    return f"**failed** {times}" if cell.outcome == _FAILED else times


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}"


def _range(values: Iterable[float | None]) -> str:
    there = sorted(value for value in values if value is not None)
    return f"{there[0]:.2f} to {there[-1]:.2f}" if there else "-"


def _gap(mine: Iterable[Cell], free: dict[str, Cell]) -> str:
    gaps = [
        abs(c.loss - base.loss)
        for c in mine
        if c.loss is not None and (base := free.get(c.mode)) and base.loss is not None
    ]
    return f"{max(gaps):.6f}" if gaps else "-"


def commit() -> str:
    """Return the commit of this checkout; an installed package has none."""
    try:
        said = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return "no commit"
    return said.stdout.strip()

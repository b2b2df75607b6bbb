"""The fault matrix: every fault in every phase, run, recorded and written as a page.

Cells are kept as JSON lines, one a run; a cell that is there for this seed is not run again unless
that is asked for, so an interrupted matrix goes on where it was. The page is made from those lines
alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import platform
import random
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from .. import __version__
from ..common.errors import UsageError
from . import cell as cells
from .cell import PHASES, Cell, Phase
from .faults import FAULTS, Fault

MODES = ("async", "sync", "sync-2")
_NOT_MEANINGFUL, _FAILED = "not meaningful", "failed"


def pairs(only: str = "", sample: int = 0, seed: int = 0) -> list[tuple[Fault, Phase]]:
    """The cells wanted: all, those of `only` ("fault,phase", either may be empty), or a draw."""
    fault_name, _, phase_name = only.partition(",")
    faults = [f for f in FAULTS if fault_name in ("", f.name)]
    phases = [p for p in PHASES if phase_name in ("", p.name)]
    if not faults or not phases:
        raise UsageError(
            f"--only {only!r}: write FAULT,PHASE with a fault of {', '.join(f.name for f in FAULTS)}"
            f"; and a phase of {', '.join(p.name for p in PHASES)}. Either may be left out."
        )
    wanted = list(itertools.product(faults, phases))
    if sample:
        wanted = [pair for pair in wanted if pair[1].name not in pair[0].not_in]
        return random.Random(seed).sample(wanted, min(sample, len(wanted)))
    return wanted


def run(
    wanted: Sequence[tuple[Fault, Phase]],
    folder: Path,
    *,
    seed: int,
    again: bool = False,
    say: Callable[[str], None] = print,
) -> list[Cell]:
    """Run what is not recorded yet under `folder`; all cells wanted, fault-free runs first."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cells.jsonl"
    known = {} if again else {(*c.key, c.mode if not c.phase else ""): c for c in read(path, seed)}
    found = []
    free: list[tuple[Fault | None, Phase | None, str]] = [(None, None, mode) for mode in MODES]
    for fault, phase, mode in [*free, *((f, p, "") for f, p in wanted)]:
        key = (fault.name, phase.name, "") if fault and phase else ("none", "", mode)
        cell = known.get(key)
        if cell is None:
            name = "-".join(filter(None, key)).replace(" ", "_").replace(",", "")
            cell = cells.run(fault, phase, folder / name, seed=seed, mode=mode)
            with open(path, "a") as file:
                file.write(json.dumps(dataclasses.asdict(cell)) + "\n")
            say(line(cell))
        found.append(cell)
    return found


def read(path: Path, seed: int | None = None) -> list[Cell]:
    """The cells recorded, the last run of each."""
    if not path.exists():
        return []
    last: dict[tuple[str, ...], Cell] = {}
    for text in path.read_text().splitlines():
        cell = Cell(**json.loads(text))
        if seed is None or cell.seed == seed:
            last[(*cell.key, "" if cell.phase else cell.mode)] = cell
    return list(last.values())


def line(cell: Cell) -> str:
    """One cell for a terminal."""
    times = f"noticed {_s(cell.detection_s)}, stall {_s(cell.stall_s)}, {cell.wall_s:.1f} s"
    where = f"{cell.fault} x {cell.phase}" if cell.phase else "no fault"
    reason = f": {cell.reason}" if cell.reason else ""
    return f"{cell.outcome:<14} {where} ({cell.mode}, hit {cell.nth}; {times}){reason}"


# -- the page


def page(found: Iterable[Cell], command: str) -> str:
    """docs/fault-matrix.md."""
    all_cells = list(found)
    free = {c.mode: c for c in all_cells if not c.phase}
    by_key = {c.key: c for c in all_cells if c.phase}
    phases = [p for p in PHASES if any(key[1] == p.name for key in by_key)]
    faults = [f for f in FAULTS if any(key[0] == f.name for key in by_key)]
    run_ = [c for c in by_key.values() if c.outcome != _NOT_MEANINGFUL]
    bad = [c for c in run_ if c.outcome == _FAILED]
    total = {
        what: sum(getattr(c, what) or 0 for c in run_)
        for what in ("records_lost", "records_duplicated", "updates_lost", "updates_duplicated")
    }
    reasons: dict[str, int] = {}
    rows = []
    for fault in faults:
        row = [f"**{fault.name}**"]
        for phase in phases:
            row.append(_entry(by_key.get((fault.name, phase.name)), reasons))
        rows.append(row)
    costs = []
    for fault in faults:
        mine = [c for c in run_ if c.fault == fault.name]
        costs.append(
            [
                f"**{fault.name}**",
                fault.about,
                _range(c.detection_s for c in mine),
                _range(c.stall_s for c in mine),
                *(
                    str(sum(getattr(c, what) or 0 for c in mine))
                    for what in (
                        "records_lost",
                        "records_duplicated",
                        "updates_lost",
                        "updates_duplicated",
                    )
                ),
                _gap(mine, free),
            ]
        )
    lines = [
        "# The fault matrix",
        "",
        f"Made by `{command}` from real runs; do not edit.",
        "",
        f"{len(run_)} cells run ({len(faults)} faults, {len(phases)} phases), "
        f"{len(run_) - len(bad)} sound, {len(bad)} failed, "
        f"{len(by_key) - len(run_)} without a meaning. Over the "
        f"{sum(c.records_lost is not None for c in run_)} whose last checkpoint could be counted: "
        + ", ".join(f"{value} {what.replace('_', ' ')}" for what, value in total.items())
        + ".",
        "",
        (
            f"A cell is a job of real processes: {cells.WORKERS} workers, {cells.SERVERS} servers, "
            f"{cells.RECORDS:,} records, {cells.EPOCHS} epochs in minibatches of {cells.MINIBATCH}, an "
            f"evaluation after each epoch, a snapshot of every server each 0.2 s, a lease of "
            f"{cells.LEASE_S:g} s, a server timeout of {cells.SERVER_TIMEOUT_S:g} s. The fault strikes while a "
            "process is held at the phase's failpoint (which of its hits: drawn by the seed, as is "
            "whether updates are async or sync). Recorded: *detection*, from the blow to the first "
            "line of any log that tells of it (`-`: nobody had to notice); *stall*, the longest pause "
            "between two applied steps of a surviving worker from then on; records by their rows and "
            "updates by every server's counters, against the epochs; *loss gap*, the last "
            "evaluation's loss less the fault-free run's."
        ),
        "",
        "Fault-free: "
        + "; ".join(
            f"{mode} {cell.wall_s:.1f} s, loss {cell.loss:.6f}"
            for mode, cell in free.items()
            if cell.loss is not None
        )
        + ".",
        "",
        "## Detection / stall, in seconds",
        "",
        *_table(["fault", *(p.name for p in phases)], rows),
        "",
        *(f"{number}. not meaningful: {reason}" for reason, number in reasons.items()),
        "",
        *([] if not bad else ["## What failed", "", *(f"- {line(c)}" for c in bad), ""]),
        "## By fault",
        "",
        *_table(
            [
                "fault",
                "what is done",
                "detection",
                "stall",
                "records lost",
                "doubled",
                "updates lost",
                "doubled",
                "largest loss gap",
            ],
            costs,
        ),
        "",
        "## Phases",
        "",
        *(f"- **{phase.name}**: {phase.about}" for phase in phases),
        "",
        (
            f"edl {__version__} at {_commit()}, {platform.machine()}, {os.cpu_count()} cores, "
            f"Python {platform.python_version()}; seeds {sorted({c.seed for c in all_cells})}, "
            f"{sum(c.wall_s for c in all_cells) / 60:.0f} minutes in all, "
            f"{sum(c.wall_s for c in run_) / max(1, len(run_)):.1f} s a cell."
        ),
        "",
    ]
    return "\n".join(lines)


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


def _commit() -> str:
    """Of this checkout; an installed package has none."""
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

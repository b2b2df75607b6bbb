"""The fault matrix: every fault in every phase, run and recorded.

Cells are kept as JSON lines, one a run; a cell that is there for this seed is not run again unless
that is asked for, so an interrupted matrix goes on where it was. chaos/page.py shows them.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from ..common.errors import UsageError
from . import cell as cells
from .cell import MODES, Cell
from .faults import FAULTS, Fault
from .page import commit, line
from .phases import PHASES, Phase


def pairs(only: str = "", sample: int = 0, seed: int = 0) -> list[tuple[Fault, Phase]]:
    """Return the cells wanted: all, a draw, or those of `only` ("fault,phase").

    Either part of `only` may be empty. Phases of deltas are those of faults whose jobs leave some.
    """
    fault_name, _, phase_name = only.partition(",")
    faults = [f for f in FAULTS if fault_name in ("", f.name)]
    phases = [p for p in PHASES if phase_name in ("", p.name)]
    both = itertools.product(faults, phases)
    wanted = [(f, p) for f, p in both if f.has_deltas or not p.of_deltas]
    if not wanted:
        raise UsageError(
            f"--only {only!r}: write FAULT,PHASE with a fault of "
            f"{', '.join(f.name for f in FAULTS)}; and a phase of "
            f"{', '.join(p.name for p in PHASES)}. Either may be left out. Only a fault with "
            "deltas has the phases of deltas, from cut on."
        )
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
            cell = dataclasses.replace(cell, commit=commit())
            with open(path, "a") as file:
                file.write(json.dumps(dataclasses.asdict(cell)) + "\n")
            say(line(cell))
        found.append(cell)
    return found


def read(path: Path, seed: int | None = None) -> list[Cell]:
    """Return the cells recorded, the last run of each."""
    if not path.exists():
        return []
    last: dict[tuple[str, ...], Cell] = {}
    for text in path.read_text().splitlines():
        cell = Cell(**json.loads(text))
        if seed is None or cell.seed == seed:
            last[(*cell.key, "" if cell.phase else cell.mode)] = cell
    return list(last.values())

"""The page of the matrix, and which cells are wanted."""

import dataclasses

import pytest

from edl.chaos import matrix
from edl.chaos.cell import Cell
from edl.chaos.page import page as page_of
from edl.common.errors import UsageError

SOUND = Cell(
    *("kill worker", "pull", 0, "async", 3, "ok", ""),
    detection_s=0.02,
    stall_s=0.31,
    records_lost=0,
    records_duplicated=0,
    updates_lost=0,
    updates_duplicated=0,
    loss=0.5,
    wall_s=6.0,
)
FREE = dataclasses.replace(SOUND, fault="none", phase="", loss=0.25)


def test_a_cell_stands_where_its_fault_and_its_phase_meet():
    page = page_of([FREE, SOUND], "edl chaos matrix")

    assert "| fault | pull |\n| --- | --- |\n| **kill worker** | 0.02 / 0.31 |" in page
    assert "1 cells run (1 faults, 1 phases), 1 sound, 0 failed, 0 without a meaning" in page
    assert "0 records lost, 0 records duplicated, 0 updates lost, 0 updates duplicated" in page
    assert "| SIGKILL | 0.02 to 0.02 | 0.31 to 0.31 | 0 | 0 | 0 | 0 | 0.250000 |" in page


def test_a_cell_that_lost_something_cannot_be_overlooked():
    lost = dataclasses.replace(SOUND, outcome="failed", reason="records lost: 3", records_lost=3)
    page = page_of([FREE, lost], "edl chaos matrix")

    assert "**failed** 0.02 / 0.31" in page
    assert "3 records lost" in page
    assert "records lost: 3" in page.split("## What failed")[1]


def test_a_cell_without_a_meaning_says_why():
    none = dataclasses.replace(SOUND, outcome="not meaningful", reason="no worker runs")
    page = page_of([FREE, none], "edl chaos matrix")

    assert "| **kill worker** | (1) |" in page
    assert "1. not meaningful: no worker runs" in page


def test_cells_are_all_or_those_named_or_a_draw_by_the_seed():
    every = matrix.pairs()

    assert len(matrix.FAULTS) * len(matrix.PHASES) == len(every)
    assert [("kill worker", "pull")] == [
        (f.name, p.name) for f, p in matrix.pairs("kill worker,pull")
    ]
    assert len(matrix.FAULTS) == len(matrix.pairs(",pull"))
    drawn = matrix.pairs(sample=6, seed=1)
    assert drawn == matrix.pairs(sample=6, seed=1) != matrix.pairs(sample=6, seed=2)
    with pytest.raises(UsageError, match="write FAULT,PHASE"):
        matrix.pairs("kill wrker")


def test_the_last_run_of_a_cell_counts(tmp_path):
    path = tmp_path / "cells.jsonl"
    again = dataclasses.replace(SOUND, stall_s=9.0)
    other_seed = dataclasses.replace(SOUND, seed=1)
    lines = [matrix.json.dumps(dataclasses.asdict(cell)) for cell in (SOUND, again, other_seed)]
    path.write_text("\n".join(lines) + "\n")

    assert [again] == matrix.read(path, seed=0)

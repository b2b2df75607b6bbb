"""The page of the matrix, which cells are wanted, and what the counting model says."""

import dataclasses

import numpy as np
import pytest
import torch

from edl.chaos import counting, matrix
from edl.chaos.cell import Cell, badly_taught, taught_of
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

    with_deltas = sum(fault.has_deltas for fault in matrix.FAULTS)
    of_deltas = sum(phase.of_deltas for phase in matrix.PHASES)
    elsewhere = (len(matrix.FAULTS) - with_deltas) * (len(matrix.PHASES) - of_deltas)
    assert with_deltas * len(matrix.PHASES) + elsewhere == len(every)
    assert [("kill worker", "pull")] == [
        (f.name, p.name) for f, p in matrix.pairs("kill worker,pull")
    ]
    assert len(matrix.FAULTS) == len(matrix.pairs(",pull"))
    drawn = matrix.pairs(sample=6, seed=1)
    assert drawn == matrix.pairs(sample=6, seed=1) != matrix.pairs(sample=6, seed=2)
    with pytest.raises(UsageError, match="write FAULT,PHASE"):
        matrix.pairs("kill wrker")
    with pytest.raises(UsageError, match="the phases of deltas"):
        matrix.pairs("kill worker,delta mid")


def test_the_last_run_of_a_cell_counts(tmp_path):
    path = tmp_path / "cells.jsonl"
    again = dataclasses.replace(SOUND, stall_s=9.0)
    other_seed = dataclasses.replace(SOUND, seed=1)
    lines = [matrix.json.dumps(dataclasses.asdict(cell)) for cell in (SOUND, again, other_seed)]
    path.write_text("\n".join(lines) + "\n")

    assert [again] == matrix.read(path, seed=0)


def test_the_rows_of_teachers_tell_what_came_into_the_loss():
    teacher = dataclasses.replace(
        SOUND, fault="kill teacher", without="wait", taught=2047, untaught=1, mistaught=0
    )
    page = page_of([FREE, SOUND, teacher], "edl chaos matrix")

    assert "In the rows of teachers, 1 cells" in page
    assert "2,047 taught, 1 without, 0 with anything else." in page
    assert "In the rows of teachers" not in page_of([FREE, SOUND], "edl chaos matrix")


def test_the_rows_of_deltas_tell_what_was_published_and_have_phases_of_their_own():
    killed = dataclasses.replace(SOUND, fault="kill consumer", published=12, mixed=1)
    page = page_of([FREE, SOUND, killed, dataclasses.replace(killed, phase="publish")], "")

    assert "In the rows of deltas, 2 cells" in page
    assert "24 states were published, 2 of them no cut." in page
    assert "| fault | pull |\n| --- | --- |\n| **kill worker** | 0.02 / 0.31 |" in page
    assert "| fault | publish |\n| --- | --- |\n| **kill consumer** | 0.02 / 0.31 |" in page
    assert "deltas" not in page_of([FREE, SOUND], "")


def test_a_page_tells_the_commits_of_its_cells():
    cells = [
        dataclasses.replace(SOUND, phase=p, commit=c) for p, c in (("pull", "a1"), ("push", "b2"))
    ]

    assert "at a1 (1 cells), b2 (1 cells), " in page_of([FREE, *cells], "edl chaos matrix")


def test_what_was_taught_is_told_by_its_value():
    says = 2000.0 + np.arange(6)
    rows = np.array([2.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    lessons = says * [2, 1, 0, 2, 3, 2]  # twice, once, never; 3: more often than applied
    lessons[3] = says[3] + says[4]  # another record's
    lessons[5] = np.nan

    found = taught_of(rows, lessons)

    assert 3 == found["mistaught"]
    assert {"taught": 3, "untaught": 3, "mistaught": 0} == taught_of(rows[:3], lessons[:3])


@pytest.mark.parametrize(
    ("told", "says"),
    [("", [[2003.0], [2001.0]]), ("slow", [[2003.0], [2001.0]]), ("rows", [[0.0]] * 3)],
)
def test_a_teacher_of_the_counting_job_does_as_it_is_told(monkeypatch, tmp_path, told, says):
    monkeypatch.setenv("TEACH", str(tmp_path))
    monkeypatch.setenv("EDL_INDEX", "1")
    (tmp_path / "0").write_text("nan")
    (tmp_path / "1").write_text(told)
    records = {"record": torch.tensor([3, 1])}

    assert says == counting.teacher(first=2000.0)(records).tolist()
    (tmp_path / "1").write_text("nan")
    assert counting.teacher(first=2000.0)(records).isnan().all()


NONE = dict.fromkeys(
    ["worker", "server", "preemptions", "server_preemptions", "teacher_preemptions", "master"], 0
)


@pytest.mark.parametrize(
    ("cell", "restarts", "records", "what"),
    [
        ({}, {"teacher_preemptions": 2}, 2048, ""),
        ({"phase": "requeue"}, {"preemptions": 1}, 2000, ""),
        ({"without": "hard_labels", "taught": 2000, "untaught": 48}, {}, 2000, ""),
        ({"taught": 2000, "untaught": 48}, {}, 2000, "applied and not taught: 48 records"),
        ({"mistaught": 1}, {}, 2048, "taught what no teacher says of them: 1 records"),
        ({}, {"server_preemptions": 1}, 2048, "restarts of others than whom the fault struck"),
        ({}, {"preemptions": 1}, 2048, "restarts of others than whom the fault struck"),
        ({}, {}, 2047, "the status has {'records': 2047, 'untaught': 0}, and the checkpoint 2048"),
        ({"stall_s": 60.0}, {}, 2048, "a stall of 60.00 s, of at most 10"),
    ],
)
def test_a_fault_of_a_teacher_harms_nobody_else(cell, restarts, records, what):
    fault = next(each for each in matrix.FAULTS if each.name == "kill teacher")
    taught = {"without": "wait", "taught": 2048, "untaught": 0, "mistaught": 0} | cell
    made = dataclasses.replace(SOUND, **taught)
    status = {
        "restarts": NONE | restarts,
        "teaching": {"records": records, "untaught": made.untaught},
    }

    found = badly_taught(made, fault, status)

    assert (what in "".join(found)) if what else found == []

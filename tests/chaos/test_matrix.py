"""A few cells of the fault matrix, other ones each day; all of them: `edl chaos matrix`.

EDL_MATRIX_SEED=20260131 draws what that day's run drew.
"""

import datetime
import os

import pytest

from edl.chaos import matrix

SEED = int(os.environ.get("EDL_MATRIX_SEED") or f"{datetime.datetime.now(datetime.UTC):%Y%m%d}")
CELLS = 2


@pytest.mark.timeout(600)
def test_todays_cells_of_the_matrix_lose_and_double_nothing(tmp_path):
    print(f"EDL_MATRIX_SEED={SEED}")
    found = matrix.run(matrix.pairs(sample=CELLS, seed=SEED), tmp_path, seed=SEED)

    assert [] == [matrix.line(cell) for cell in found if cell.outcome == "failed"]
    assert CELLS + len(matrix.MODES) == len(found)


def test_all_faults_and_phases_have_names_of_their_own():
    wanted = matrix.pairs()
    keys = {(fault.name, phase.name) for fault, phase in wanted}

    assert len(keys) == len(wanted)
    assert len(matrix.FAULTS) >= 20
    assert len(matrix.PHASES) >= 10

"""A few cells of the fault matrix, other ones for each commit; all of them: `edl chaos matrix`."""

import pytest
from tools.turns import TURN, in_turn, turn

from edl.chaos import matrix

CELLS = 2


@in_turn(1)
@pytest.mark.timeout(600)
def test_some_cells_of_the_matrix_lose_and_double_nothing(tmp_path):
    print(f"{TURN}={turn()}")
    found = matrix.run(matrix.pairs(sample=CELLS, seed=turn()), tmp_path, seed=turn())

    assert [] == [matrix.line(cell) for cell in found if cell.outcome == "failed"]
    assert CELLS + len(matrix.MODES) == len(found)


def test_all_faults_and_phases_have_names_of_their_own():
    wanted = matrix.pairs()
    keys = {(fault.name, phase.name) for fault, phase in wanted}

    assert len(keys) == len(wanted)
    assert len(matrix.FAULTS) >= 20
    assert len(matrix.PHASES) >= 10

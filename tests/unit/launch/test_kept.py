"""States of launched scripts of versions before are loaded as they were: tests/kept/README.md."""

from __future__ import annotations

import pytest
from kept import served
from kept.folders import JOB, all_kept

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("kept", all_kept("launch"))
def test_the_state_of_a_script_of_before_has_its_counts(kept, tmp_path):
    kept.place(tmp_path / "home")

    told = served.of_state(tmp_path / "home" / JOB)

    records, position, passes = kept.expected["records"], told["position"], told["passes"]
    assert [passes + (record < position) for record in range(records)] == told["counts"]
    assert (kept.expected["passes"], kept.expected["position"]) == (passes, position)

"""The Makefile names tests that there are: pytest ends at once over one that is gone."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_make_fast_names_tests_that_exist():
    told = subprocess.run(
        ["make", "--dry-run", "fast"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    named = [word for word in told.split() if word.startswith("tests/")]

    assert len(named) > 40
    assert [] == [word for word in named if not (ROOT / word).exists()]

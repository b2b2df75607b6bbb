"""The Makefile names tests that there are: pytest ends at once over one that is gone."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_targets_name_tests_that_exist():
    targets = ["fast", "test", "test-ui", "test-k8s"]
    told = subprocess.run(
        ["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    named = {word for word in told.split() if word.startswith("tests/")}

    assert {"tests/unit", "tests/integration", "tests/chaos", "tests/ui", "tests/k8s"} <= named
    assert [] == [word for word in sorted(named) if not (ROOT / word).exists()]

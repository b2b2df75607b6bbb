"""`import edl` is quick: what stands there is looked up when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.fast

_LOOKED_UP = """
import sys
import edl
heavy = {"torch", "grpc", "numpy", "numba", "kubernetes", "click", "pydantic", "yaml", "asyncio"}
print(sorted(heavy & set(sys.modules)))
print(len([name for name in sys.modules if name.startswith("edl")]))
names = ["train", "submit", "job", "jobs", "check", "Definition", "Job", "Result", "JobFailed"]
names += ["UsageError", "EdlError", "nn", "evaluate", "predict", "Predictions"]
print(all(getattr(edl, name) is not None and name in dir(edl) for name in names))
"""


def test_import_edl_imports_nothing_else() -> None:
    said = subprocess.run(
        [sys.executable, "-c", _LOOKED_UP], check=True, capture_output=True, text=True, timeout=300
    ).stdout

    assert ["[]", "1", "True"] == said.splitlines()

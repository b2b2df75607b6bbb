"""What benchmarks take from the package is there: they are run by hand, and things move."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: path.stem)
def test_every_name_is_there(path):
    missing = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "edl":
            module = importlib.import_module(node.module)
            for each in node.names:
                name = f"{node.module}.{each.name}"
                if not hasattr(module, each.name) and importlib.util.find_spec(name) is None:
                    missing.append(name)

    assert [] == missing

"""Each test asserts something, by itself or by a function of the tests that it calls by name."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2]
KINDS = (ast.FunctionDef, ast.AsyncFunctionDef)
RAISES = ("raises", "warns", "fail", "runTest")  # of pytest, and of a state machine of hypothesis


def asserts(function: ast.AST, helpers: set[str]) -> bool:
    """Tell whether a function asserts; `helpers`: the names of those that do."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name) if name in helpers:
                    return True
                case ast.Attribute(attr=name) if name in RAISES or name.startswith("assert_"):
                    return True
    return False


def silent(files: list[Path]) -> Iterator[str]:
    """Yield the tests in these files that assert nothing.

    A name that is called is the file's own function, else one of that name in any other file.
    """
    found = {path: list(ast.walk(ast.parse(path.read_text()))) for path in files}
    functions = {path: [n for n in nodes if isinstance(n, KINDS)] for path, nodes in found.items()}
    own: dict[Path, set[str]] = {path: set() for path in files}
    before = -1
    while sum(map(len, own.values())) != before:
        before = sum(map(len, own.values()))
        everywhere = set().union(*own.values())
        for path, there in functions.items():
            helpers = own[path] | (everywhere - {f.name for f in there})
            own[path] |= {f.name for f in there if asserts(f, helpers)}
    for path, there in functions.items():
        tests = [f for f in there if f.name.startswith("test_")]
        yield from (f"{path}:{f.lineno} {f.name}" for f in tests if f.name not in own[path])


def test_each_test_asserts_something():
    assert [] == list(silent(sorted(TESTS.rglob("*.py"))))


def test_a_test_that_asserts_nothing_is_found(tmp_path):
    path = tmp_path / "test_it.py"
    path.write_text(
        "def check(it):\n    assert it\n\n"
        "def test_by_a_helper():\n    check(1)\n\n"
        "def test_nothing():\n    it.check(1)\n    print(1)\n"
    )

    assert [f"{path}:7 test_nothing"] == list(silent([path]))

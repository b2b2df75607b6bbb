"""Each test asserts something, by itself or by a function of the tests that it calls by name."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[2]
KINDS = (ast.FunctionDef, ast.AsyncFunctionDef)
RAISES = ("raises", "warns", "fail", "runTest")  # of pytest, and of a state machine of hypothesis


@dataclass(frozen=True)
class Function:
    """What is asked of a function: whether it asserts by itself, and whom it calls by name."""

    name: str
    line: int
    asserts: bool
    calls: frozenset[str]

    @classmethod
    def of(cls, node: ast.FunctionDef | ast.AsyncFunctionDef) -> "Function":
        asserts, calls = False, set()
        for each in ast.walk(node):
            asserts |= isinstance(each, ast.Assert)
            if isinstance(each, ast.Call):
                match each.func:
                    case ast.Name(id=name):
                        calls.add(name)
                    case ast.Attribute(attr=name):
                        asserts |= name in RAISES or name.startswith("assert_")
        return cls(node.name, node.lineno, asserts, frozenset(calls))


def functions_of(path: Path) -> list[Function]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [Function.of(node) for node in nodes if isinstance(node, KINDS)]


def silent(files: list[Path]) -> Iterator[str]:
    """Yield the tests in these files that assert nothing.

    A name that is called is the file's own function, else one of that name in any other file.
    """
    functions = {path: functions_of(path) for path in files}
    own: dict[Path, set[str]] = {path: set() for path in files}
    before = -1
    while sum(map(len, own.values())) != before:
        before = sum(map(len, own.values()))
        everywhere = set().union(*own.values())
        for path, there in functions.items():
            helpers = own[path] | (everywhere - {f.name for f in there})
            own[path] |= {f.name for f in there if f.asserts or f.calls & helpers}
    for path, there in functions.items():
        tests = [f for f in there if f.name.startswith("test_")]
        yield from (f"{path}:{f.line} {f.name}" for f in tests if f.name not in own[path])


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

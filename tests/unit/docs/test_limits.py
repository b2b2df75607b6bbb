"""The package's files, classes and functions stay within the limits that CONTRIBUTING.md names."""

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

N = TypeVar("N", bound=ast.AST)
ROOT = Path(__file__).resolve().parents[3]
FOLDERS = sorted(
    init.parent.name for init in ROOT.glob("*/__init__.py") if init.parent.name != "proto"
)
FILE_LINES, LONG_FILE_LINES, LONG_FILES = 500, 400, 6  # at most so many of the long ones
FUNCTION_LINES, PARAMETERS, METHODS = 60, 8, 25
BROAD_SHARE = 0.05  # of all handlers


@functools.cache
def modules() -> list[tuple[str, str, ast.Module]]:
    """Return the path, text and tree of each module of the package."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}
    return [(path, text, ast.parse(text)) for path, text in texts.items()]


@functools.cache
def all_nodes() -> dict[type[ast.AST], list[tuple[str, ast.AST]]]:
    """Return the nodes of all modules by their kind, each with its module's path."""
    found: dict[type[ast.AST], list[tuple[str, ast.AST]]] = defaultdict(list)
    for path, _, tree in modules():
        for node in ast.walk(tree):
            found[type(node)].append((path, node))
    return found


def nodes(kind: type[N]) -> Iterator[tuple[str, N]]:
    for path, node in all_nodes()[kind]:
        assert isinstance(node, kind)
        yield path, node


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    yield from nodes(ast.FunctionDef)
    yield from nodes(ast.AsyncFunctionDef)


def test_files_are_short() -> None:
    lines = {path: text.count("\n") for path, text, _ in modules()}

    assert {} == {path: n for path, n in lines.items() if n > FILE_LINES}
    assert len([path for path, n in lines.items() if n > LONG_FILE_LINES]) <= LONG_FILES


def test_functions_are_short() -> None:
    found = [
        (path, node.name)
        for path, node in functions()
        if (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES
    ]

    assert [] == found


def test_functions_have_few_parameters() -> None:
    found = []
    for path, node in functions():
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if len([each for each in given if each.arg not in ("self", "cls")]) > PARAMETERS:
            found.append((path, node.name))

    assert [] == found


def test_classes_have_few_methods() -> None:
    found = [
        (path, node.name)
        for path, node in nodes(ast.ClassDef)
        if sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
        > METHODS
    ]

    assert [] == found


def test_broad_handlers_are_rare() -> None:
    handlers = [node for _, node in nodes(ast.ExceptHandler)]

    broad = [
        node
        for node in handlers
        if node.type is None or re.search(r"\b(Base)?Exception\b", ast.unparse(node.type))
    ]
    assert len(broad) <= BROAD_SHARE * len(handlers)


def test_private_names_stay_in_their_module() -> None:
    found = [
        (path, each.name)
        for path, node in nodes(ast.ImportFrom)
        for each in node.names
        if each.name.startswith("_") and not each.name.startswith("__")
    ]

    assert [] == found

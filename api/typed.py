"""The source of one function or class that was typed, found again, and constants as text.

A class that was typed in a notebook has no file that `inspect` would look into; it is looked for in
the cells, which linecache keeps.
"""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import math
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..common.errors import DefinitionError

MOST_NBYTES = 100_000  # of a constant: what is longer is data, and belongs into a file
_PLAIN = (str, bytes, bool, int, complex, type(None), type(Ellipsis))
# Whether the name that is called was imported decides about these.
_OF_CALLS = ("LOAD_METHOD", "LOAD_ATTR", "PUSH_NULL", "PRECALL", "CALL")
_FUTURE_ANNOTATIONS = 0x1000000  # __future__.annotations.compiler_flag


@dataclass(frozen=True)
class Typed:
    """The source of a function or a class, from its first column, and the globals around it."""

    text: str
    scope: Mapping[str, object]
    annotations_are_text: bool
    file: str
    line: int


def what(value: object) -> str:
    """Return what a value is, for a sentence."""
    if isinstance(value, types.ModuleType):
        return f"the module {value.__name__}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, types.FunctionType):
        return f"the function {value.__name__}"
    kind = type(value)
    home = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    article = "an" if (home or kind.__name__)[0] in "aeiou" else "a"
    return f"{article} {home}{kind.__name__}"


def literal(value: object) -> str | None:
    """Return a constant as Python writes it; None where it is none, or is too long for one."""
    text = _literal(value)
    return text if text is not None and len(text) <= MOST_NBYTES else None


def _literal(value: object) -> str | None:
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if type(value) in _PLAIN:
        return repr(value)
    if type(value) is dict:
        pairs = [(_literal(key), _literal(each)) for key, each in value.items()]
        if any(None in pair for pair in pairs):
            return None
        return "{" + ", ".join(f"{key}: {each}" for key, each in pairs) + "}"
    if type(value) not in (tuple, list, set, frozenset):
        return None
    items = [_literal(each) for each in value]  # type: ignore[attr-defined]
    if None in items:
        return None
    inside = ", ".join(
        sorted(map(str, items)) if isinstance(value, set | frozenset) else map(str, items)
    )
    if isinstance(value, tuple):
        return f"({inside},)" if len(items) == 1 else f"({inside})"
    if isinstance(value, list):
        return f"[{inside}]"
    made = f"{{{inside}}}" if items else "set()"
    return made if isinstance(value, set) else f"frozenset({made if items else ''})"


def of_function(function: types.FunctionType, name: str, user: str, depth: int = 0) -> Typed:
    """Return a function, with its decorators; a lambda gets the name. Raises DefinitionError.

    `depth`: so many functions are around it, which its decorators must have made.
    """
    code = function.__code__
    _refuse_closure(function, user)
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise _lost(user, f"the source of {function.__name__}") from error
    if function.__name__ == "<lambda>":
        text = f"{name} = {_lambda(function, user)}"
    else:
        _check_same(text, function, user)
    if depth > len(getattr(_parsed(text).body[0], "decorator_list", ())):
        raise DefinitionError(
            f"{user} cannot be written as source: there is another function around "
            f"{function.__name__}, which its source does not say: write that as a decorator."
        )
    as_text = bool(code.co_flags & _FUTURE_ANNOTATIONS)
    place = code.co_filename, code.co_firstlineno
    return Typed(text.rstrip(), function.__globals__, as_text, *place)


def of_class(cls: type, user: str) -> Typed:
    """Return a class, with its decorators. Raises DefinitionError."""
    methods = [each for each in map(_function_of, vars(cls).values()) if each is not None]
    mine = [
        each  # and none that others have made, of a dataclass or a NamedTuple for example
        for each in methods
        if each.__module__ == cls.__module__
        and each.__qualname__.startswith(f"{cls.__qualname__}.")
        and linecache.getlines(each.__code__.co_filename, each.__globals__)
    ]
    for each in mine:
        _refuse_closure(each, user)
    name = cls.__qualname__.rpartition(".")[2]
    for file in _files(cls, mine):
        lines = linecache.getlines(file, mine[0].__globals__ if mine else None)
        text = "".join(lines)
        nodes = [each for each in ast.walk(_parsed(text)) if isinstance(each, ast.ClassDef)]
        nodes = [node for node in nodes if node.name == name]
        inside = [n for n in nodes if all(_has(n, each.__code__.co_firstlineno) for each in mine)]
        if inside:
            node = inside[-1]
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found = textwrap.dedent("".join(lines[first - 1 : node.end_lineno]))
            scope = mine[0].__globals__ if mine else vars(sys.modules[cls.__module__])
            flags = mine[0].__code__.co_flags if mine else 0
            as_text = bool(flags & _FUTURE_ANNOTATIONS)
            return Typed(found.rstrip(), scope, as_text, file, first)
    raise _lost(user, f"the source of the class {name}")


def _files(cls: type, methods: list[types.FunctionType]) -> Iterator[str]:
    """Yield the files that may have the class: that of a method, its module's, the cells."""
    if methods:
        yield methods[0].__code__.co_filename
        return
    if file := getattr(sys.modules.get(cls.__module__), "__file__", None):
        yield file
    cells = [name for name in linecache.cache if "ipython-input" in name or "ipykernel_" in name]
    yield from reversed(cells)  # the last that was run


def _function_of(value: object) -> types.FunctionType | None:
    """Return the function of a method, however it is decorated."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    value = inspect.unwrap(value) if callable(value) else value
    return value if isinstance(value, types.FunctionType) else None


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError:  # a cell that failed
        return ast.Module(body=[], type_ignores=[])


def _has(node: ast.ClassDef, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)


def _refuse_closure(function: types.FunctionType, user: str) -> None:
    if taken := sorted(set(function.__code__.co_freevars) - {"__class__"}):
        raise DefinitionError(
            f"{user} cannot be written as source: {function.__qualname__} takes "
            f"{', '.join(taken)} from the function around it (a closure): make that a global, or "
            "an argument of model() by model_params."
        )


def _lost(user: str, lost: str) -> DefinitionError:
    return DefinitionError(
        f"{user} cannot be written as source: {lost} is not to be found, as of what is typed at "
        "Python's plain prompt or made by exec: put it into a file and give its path."
    )


def _lambda(function: types.FunctionType, user: str) -> str:
    """Return a lambda's own text, out of the lines around it."""
    lines = linecache.getlines(function.__code__.co_filename, function.__globals__)
    line = function.__code__.co_firstlineno
    found = set()
    for node in ast.walk(_parsed("".join(lines))):
        if isinstance(node, ast.Lambda) and node.lineno == line:
            text = ast.unparse(node)
            if _same(compile(f"({text})", "<definition>", "eval"), function):
                found.add(text)
    if len(found) != 1:
        raise _lost(user, "the source of a lambda")
    return found.pop()


def _check_same(text: str, function: types.FunctionType, user: str) -> None:
    """Refuse the text of a file that is not any more what runs here."""
    if not _same(compile(text, "<definition>", "exec", dont_inherit=True), function):
        raise DefinitionError(
            f"{user} cannot be written as source: the file of {function.__name__} has changed "
            "since it was imported: import it anew (importlib.reload)."
        )


def _same(code: types.CodeType, function: types.FunctionType) -> bool:
    """Tell whether compiled text has the function as it is."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    ours = _steps(function.__code__)
    return any(each.co_name == function.__name__ and _steps(each) == ours for each in inner)


def _steps(code: types.CodeType) -> list[object]:
    """Return what a function does, but for what the module around it changes: how it calls."""
    steps = [each.opname for each in dis.get_instructions(code) if each.opname not in _OF_CALLS]
    consts = [_steps(c) if isinstance(c, types.CodeType) else c for c in code.co_consts]
    return [steps, code.co_names, code.co_varnames, consts]

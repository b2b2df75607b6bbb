"""The source of functions and classes that were typed in a notebook or a script, as one module.

A definition is a plain module (docs/model-zoo.md). Its functions are written there as they were
typed, with the globals that they use: functions and classes likewise, or imported where they are
installed; modules as imports; constants as they are. What cannot be written is refused in one
sentence. Nothing is pickled: what is written can be read, compared and sent to another machine.

An object of a module is written in front of whatever needs it when the module is run: a base class,
a decorator, a default.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import linecache
import symtable
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.errors import DefinitionError
from .typed import Typed, literal, of_class, of_function, what

Place = tuple[int, int, float]  # what was typed first is the least
_LAST = 2, 0, 0.0
_AT_ONCE = ("listcomp", "setcomp", "dictcomp", "genexpr")  # scopes that run where they stand


def module_text(parts: Mapping[str, object], about: str) -> str:
    """Return the text of a module that has each of `parts` under its name, and what these use.

    `about`: its docstring. Raises DefinitionError for what cannot be written.
    """
    module = _Module()
    for name, part in parts.items():
        module.add(name, part)
    return module.text(about)


@dataclass(frozen=True)
class _Piece:
    """A function or a class, with the globals that it uses when the module runs, and later."""

    text: str
    place: Place
    now: frozenset[str] = frozenset()
    later: frozenset[str] = frozenset()


class _Module:
    """A module that is made: imports, constants, functions and classes, other names of these."""

    def __init__(self) -> None:
        self._means: dict[str, object] = {}  # by name, to see where it means two things
        self._imports: set[str] = set()
        self._constants: dict[str, str] = {}
        self._pieces: dict[str, _Piece] = {}
        self._annotations_are_text = False

    def add(self, name: str, part: object) -> None:
        """Add a part of a definition under its name."""
        if name == "optimizer" and (made := _spec(part)):
            self._means[name] = part
            self._imports.add("import edl.nn")
            self._pieces[name] = _Piece(f"def optimizer():\n    return {made}", _LAST)
        else:
            self._bind(name, part, f"{name} of the definition")

    def text(self, about: str) -> str:
        """Return the whole module."""
        blocks = [f'"""{about}"""']
        if self._annotations_are_text:
            blocks.append("from __future__ import annotations")
        if self._imports:
            blocks.append("\n".join(sorted(self._imports)))
        if self._constants:
            blocks.append("\n".join(f"{n} = {text}" for n, text in self._constants.items()))
        blocks += [f"\n{self._pieces[name].text}" for name in self._in_order()]
        return "\n\n".join(blocks) + "\n"

    def _means_one(self, name: str, value: object) -> bool:
        """Note what a name means; return whether it did before. Raises where it means another."""
        if name not in self._means:
            self._means[name] = value
            return False
        before = self._means[name]
        text = literal(value)
        if before is not value and (text is None or literal(before) != text):
            raise DefinitionError(
                f"{name!r} means two things in this definition, {what(before)} and {what(value)}: "
                "give one of them another name."
            )
        return True

    def _bind(self, name: str, value: object, user: str) -> None:
        """Give a name of the module its meaning. `user`: who needs it, for the errors."""
        if self._means_one(name, value):
            return
        if isinstance(value, types.ModuleType):
            self._imports.add(_import_of(name, value, user))
        elif (text := literal(value)) is not None:
            self._constants[name] = text
        elif (inner := _typed(value)) is not None:
            own = name if inner.__name__ == "<lambda>" else inner.__name__
            if own != name:  # it has another name besides
                self._bind(own, value, user)
                place = self._pieces[own].place if own in self._pieces else _LAST
                self._pieces[name] = _Piece(f"{name} = {own}", place, frozenset((own,)))
            elif isinstance(inner, type):
                self._write(name, inner.__module__, of_class(inner, user))
            else:
                typed = of_function(inner, name, user, _depth(value))
                self._write(name, inner.__module__, typed)
        elif found := _where_installed(name, value):
            self._imports.add(found)
        else:
            raise DefinitionError(
                f"{user} cannot be written as source: {name} is {what(value)}, and only functions, "
                "classes, modules and plain constants can: make it inside of a function, or put "
                "the definition into a file and give its path."
            )

    def _write(self, name: str, module: str, source: Typed) -> None:
        now, later = _globals_of(source.text)
        self._annotations_are_text |= source.annotations_are_text
        place = _place(module, source.file, source.line)
        self._pieces[name] = _Piece(source.text, place, frozenset(now), frozenset(later))
        for used in sorted(now | later):
            if used in source.scope and used != name:
                self._bind(used, source.scope[used], f"{name}, which uses {used},")
        for line in _submodules(source.text, source.scope):
            self._imports.add(line)

    def _in_order(self) -> Iterator[str]:
        """Yield the pieces in an order in which the module can run.

        That is the order in which they were typed, for so they ran. But what was typed anew since,
        below what needs it at once, is pulled up, with all that it uses then.
        """
        done: set[str] = set()
        under_way: set[str] = set()

        def emit(name: str) -> Iterator[str]:
            if name in done or name in under_way or name not in self._pieces:
                return
            under_way.add(name)
            for needed in sorted(self._pieces[name].now - done):
                for used in sorted(self._reached(needed, later=True)):
                    if not self._reached(used) & under_way:
                        yield from emit(used)
                yield from emit(needed)
            under_way.remove(name)
            done.add(name)
            yield name

        for name in sorted(self._pieces, key=lambda each: self._pieces[each].place):
            yield from emit(name)

    def _reached(self, name: str, later: bool = False) -> set[str]:
        """Return the pieces that a piece uses at once, or that it uses at all; not itself."""
        found: set[str] = set()
        ahead = [name]
        while ahead:
            piece = self._pieces.get(ahead.pop())
            used = (piece.now | piece.later if later else piece.now) if piece else frozenset()
            ahead += used - found
            found |= used
        return found - {name}


def _place(module: str, file: str, line: float) -> Place:
    """Return where something was typed, as a place in the order of that.

    A module is there before whoever imports it, and of cells those that ran first.
    """
    if module != "__main__":
        modules = list(sys.modules)
        return 0, modules.index(module) if module in modules else len(modules), line
    files = list(linecache.cache)
    return 1, files.index(file) if file in files else len(files), line


def _typed(value: object) -> types.FunctionType | type | None:
    """Return a function or a class that is to be written, without its decorators; None: none is."""
    inner = inspect.unwrap(value) if callable(value) else value
    if not isinstance(inner, types.FunctionType | type) or _is_installed(str(inner.__module__)):
        return None
    return inner


def _depth(value: object) -> int:
    """Return how many functions are around a function, as decorators make them."""
    depth = 0
    while (value := getattr(value, "__wrapped__", None)) is not None:
        depth += 1
    return depth


def _globals_of(text: str) -> tuple[set[str], set[str]]:
    """Return the globals that a function or a class uses when it is defined, and later."""
    now: set[str] = set()
    later: set[str] = set()

    def look(table: symtable.SymbolTable, at_once: bool) -> None:
        for child in table.get_children():
            runs = at_once and (child.get_type() == "class" or child.get_name() in _AT_ONCE)
            names = {s.get_name() for s in child.get_symbols() if s.is_global()}
            (now if runs else later).update(names)
            look(child, runs)

    top = symtable.symtable(text, "<definition>", "exec")
    now.update(s.get_name() for s in top.get_symbols() if s.is_referenced())
    look(top, True)
    return now, later


def _submodules(text: str, scope: Mapping[str, object]) -> Iterator[str]:
    """Yield imports of modules that are used as attributes of their packages: xml.etree, say."""
    for node in ast.walk(ast.parse(text)):
        names = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not names or not isinstance(node, ast.Name):
            continue
        found: Any = scope.get(node.id)
        for attribute in reversed(names):
            inner: Any = getattr(found, attribute, None) if _is_module(found) else None
            if not _is_module(inner) or inner.__name__ != f"{found.__name__}.{attribute}":
                break
            found = inner
            yield f"import {found.__name__}"


def _is_module(value: object) -> bool:
    return isinstance(value, types.ModuleType)


def _import_of(name: str, module: types.ModuleType, user: str) -> str:
    """Return the line that imports a module under a name. Raises where none can."""
    if module.__name__ == "__main__" or sys.modules.get(module.__name__) is not module:
        raise DefinitionError(
            f"{user} cannot be written as source: the module {name} cannot be imported by its "
            "name: put it into a file on PYTHONPATH."
        )
    return f"import {module.__name__}" + ("" if name == module.__name__ else f" as {name}")


def _is_installed(module: str) -> bool:
    """Tell whether every Python of this machine can import a module, wherever it begins."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in sys.builtin_module_names or top == "edl":
        return top != "__main__"
    file = getattr(sys.modules.get(module) or sys.modules.get(top), "__file__", None)
    places = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    return file is not None and any(Path(file).is_relative_to(place) for place in places)


def _where_installed(name: str, value: object) -> str:
    """Return the import of an object from an installed module; "" where it is in none."""
    own = str(getattr(value, "__module__", None) or "")
    said = str(getattr(value, "__name__", None) or name)
    homes = sorted(sys.modules, key=lambda home: (home != own, home.count("."), home))
    for home in homes:
        module = sys.modules[home]
        for attribute in {said, name}:
            inside = vars(module).get(attribute) if _is_module(module) else None
            if inside is value and "._" not in f".{home}" and _is_installed(home):
                renamed = "" if attribute == name else f" as {name}"
                return f"from {home} import {attribute}{renamed}"
    return ""


def _spec(part: object) -> str:
    """Return what makes an optimizer of edl.nn, or a schedule or table within; "" for others."""
    cls: Any = type(part)
    if not dataclasses.is_dataclass(part) or not str(cls.__module__).startswith("edl.nn."):
        return ""
    given = []
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if value != field.default:
            text = _pairs(value) or _spec(value) or literal(value)
            if text is None:
                return ""
            given.append(f"{field.name}={text}")
    return f"edl.nn.{cls.__name__}({', '.join(given)})"


def _pairs(value: object) -> str:
    """Return the pairs of name and optimizer of a ByName; "" for what are none."""
    if not isinstance(value, tuple) or not value or not isinstance(value[0], tuple):
        return ""
    return f"[{', '.join(f'({key!r}, {_spec(each)})' for key, each in value)}]"

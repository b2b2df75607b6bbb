"""The files of the modules that a definition imports: what its answers depend on beside itself.

They are read from the text of its imports, those within functions and those of what it imports
included, so that they are the same before and after anything was called. Only what is the user's
counts: what lies in the definition's folder or package, and what comes from other places where
nothing is installed (PYTHONPATH, say), of which all that its package has imported so far is taken
without a look into it. What is installed beside it, Python and edl itself are left out.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_INSTALLED = {"site-packages", "dist-packages"}
_CALLS = {"import_module", "__import__"}


def files_of(module: ModuleType) -> dict[str, Path]:
    """Return the files of a definition and of the user's modules that it imports, by their names.

    The definition's own name is "", and of its package's modules the name goes on from there, so
    that nothing depends on where the folder lies. {} where it comes from no file.
    """
    home = _home(module)
    if home is None:
        return {}
    found: dict[str, Path] = {}
    ahead = [module.__name__]
    while ahead:
        name = ahead.pop()
        spec = None if name in found else _spec(name)
        if spec is None or not spec.has_location or spec.origin is None:
            continue
        path = Path(spec.origin).resolve()
        if not path.is_file() or _is_foreign(name, path, module.__name__, home):
            continue
        found[name] = path
        if not path.is_relative_to(home):
            top = name.partition(".")[0]
            ahead += [each for each in [*sys.modules] if each.partition(".")[0] == top]
        elif path.suffix == ".py":
            ahead += _imported(path, name, spec.submodule_search_locations is not None)
    return {name.removeprefix(module.__name__): path for name, path in found.items()}


def _home(module: ModuleType) -> Path | None:
    """Return the folder whose modules are the definition's own: its package's, or its file's."""
    top = sys.modules.get(module.__name__.partition(".")[0])
    if module.__name__.startswith(f"{__package__}."):  # one that is built in
        top = sys.modules[str(__package__)]
    file = getattr(top, "__file__", None) or getattr(module, "__file__", None)
    return None if file is None else Path(file).resolve().parent


def _spec(name: str) -> ModuleSpec | None:
    """Return where a module is, or would be imported from, without importing anything."""
    if name in sys.modules:
        spec: ModuleSpec | None = getattr(sys.modules[name], "__spec__", None)
        return spec
    above, _, _ = name.rpartition(".")
    if not above:
        return PathFinder.find_spec(name)
    package = _spec(above)
    places = None if package is None else package.submodule_search_locations
    return None if places is None else PathFinder.find_spec(name, list(places))


def _is_foreign(name: str, path: Path, definition: str, home: Path) -> bool:
    """Tell whether a module is none of the user's."""
    if name == definition or name.startswith(f"{definition}."):
        return False
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top == "edl":
        return not (definition.startswith(f"{__package__}.") and path.is_relative_to(home))
    if path.is_relative_to(home) and home.name not in _INSTALLED:
        return not _INSTALLED.isdisjoint(path.relative_to(home).parts)
    places = (sysconfig.get_path(each) for each in ("stdlib", "platstdlib", "purelib", "platlib"))
    installed = any(path.is_relative_to(Path(place).resolve()) for place in places)
    return installed or not _INSTALLED.isdisjoint(path.parts)


def _imported(path: Path, name: str, is_package: bool) -> Iterator[str]:
    """Yield the names that a file imports, or may, with the packages that they are in."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # whoever imports it is told
        return
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(tree):
        for each in _names_of(node, package):
            parts = each.split(".")
            yield from (".".join(parts[: n + 1]) for n in range(len(parts)))


def _names_of(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the modules that a statement imports; of `from a import b` b may be one."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        said = "." * node.level + (node.module or "")
        try:
            base = importlib.util.resolve_name(said, package or None)
        except ImportError:  # beyond its package: whoever imports it is told
            return
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and node.args:
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        first = node.args[0]
        name = first.value if isinstance(first, ast.Constant) else None
        if called in _CALLS and isinstance(name, str) and not name.startswith("."):
            yield name

"""The catalogue of definitions: find one by name, import it, list all.

A name is looked for in this order: a path (it ends in .py or has a slash), the user's zoo folder,
the entry points of group `edl.model_zoo`, the built-in definitions, a dotted module. Listing reads
the files as text: only `find` runs a definition's code.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

from ..common.errors import DefinitionError

ENTRY_POINTS = "edl.model_zoo"
BUILT_IN = Path(__file__).parent


def find(model_def: str, model_zoo: str = "") -> tuple[ModuleType, str, str]:
    """Return (module, name, name of the function that makes the model) of a definition.

    ElasticDL's `module.function` is understood: the function is "model" everywhere else.
    """
    if model_def.endswith(".py") or "/" in model_def:
        path = _file_of(Path(model_def))
        if path is None:
            raise DefinitionError(f"There is no definition file {model_def!r}.")
        return _import_file(path), path.stem, "model"
    if (module := _find_name(model_def, model_zoo)) is not None:
        return module, model_def, "model"
    stem, _, function = model_def.rpartition(".")
    if stem and (module := _find_name(stem, model_zoo)) is not None:
        return module, stem, function
    names = [name for name, _, _ in list_definitions(model_zoo)]
    raise DefinitionError(
        f"There is no definition {model_def!r}{did_you_mean(model_def, names)}. It is neither in "
        f"the zoo folder ({model_zoo or 'none given'}), nor an entry point of {ENTRY_POINTS}, nor "
        f"a module that can be imported, nor built in: {', '.join(_built_in())}."
    )


def list_definitions(model_zoo: str = "") -> list[tuple[str, str, str]]:
    """Return (name, origin, first line of its docstring) of every definition that has a name."""
    listed = []
    if model_zoo:
        folder = _zoo_folder(model_zoo)
        listed += [(path, str(folder)) for path in _definitions_in(folder)]
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        spec = importlib.util.find_spec(entry.module)
        package = entry.dist.name if entry.dist else entry.module
        listed += [(Path(spec.origin), f"package {package}")] if spec and spec.origin else []
    listed += [(path, "built in") for path in _definitions_in(BUILT_IN)]
    return [(_name_of(path), origin, _first_line(path)) for path, origin in listed]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" or ""."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _built_in() -> list[str]:
    return [_name_of(path) for path in _definitions_in(BUILT_IN)]


def _zoo_folder(model_zoo: str) -> Path:
    folder = Path(model_zoo)
    if not folder.is_dir():
        raise DefinitionError(
            f"The model zoo {model_zoo!r} is no folder; `edl zoo init` makes one."
        )
    return folder


def _find_name(name: str, model_zoo: str) -> ModuleType | None:
    if model_zoo and (path := _file_of(_zoo_folder(model_zoo) / name.replace(".", "/"))):
        return _import_file(path)
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry.name == name:
            return _import_module(entry.module)
    if name in _built_in():
        return _import_module(f"{__package__}.{name}")
    return _import_module(name) if _is_module(name) else None


def _file_of(path: Path) -> Path | None:
    """Return the file of the definition `path`.

    It is itself, with .py, or of its name in its own folder.
    """
    inside = [path.with_name(f"{path.name}.py"), path / f"{path.name}.py", path / "__init__.py"]
    candidates = [path] if path.suffix == ".py" else inside
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _definitions_in(folder: Path) -> Iterator[Path]:
    """Yield files that define a `model`.

    They are in the folder itself, or one folder down under its own name.
    """
    for path in sorted(folder.iterdir()):
        found = path if path.suffix == ".py" else _file_of(path) if path.is_dir() else None
        if found is not None and _defines_model(found):
            yield found


def _name_of(path: Path) -> str:
    return path.parent.name if path.stem == "__init__" else path.stem


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError):  # `find` says what is wrong with it
        return ast.Module(body=[], type_ignores=[])


def _defines_model(path: Path) -> bool:
    return any(
        isinstance(node, ast.FunctionDef) and node.name in ("model", "custom_model")
        for node in _parse(path).body
    )


def _first_line(path: Path) -> str:
    return (ast.get_docstring(_parse(path)) or "").partition("\n")[0]


def _is_module(name: str) -> bool:
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # its parent is no package
        return False


def _import_module(name: str) -> ModuleType:
    def file() -> str:
        spec = importlib.util.find_spec(name)
        return str(spec.origin) if spec else name

    with _importing(file):
        return importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    """Import a file under a name of its own; its folder joins sys.path for its neighbours."""
    path = path.resolve()
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"edl_definition_{_name_of(path)}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, as import does: dataclasses look it up
    with _importing(lambda: str(path)), contextlib.ExitStack() as undo:
        undo.callback(sys.modules.pop, name, None)
        spec.loader.exec_module(module)
        undo.pop_all()
    return module


@contextlib.contextmanager
def _importing(file: Callable[[], str]) -> Iterator[None]:
    """Run the user's file within. Raises DefinitionError where that fails."""
    try:
        yield
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise _broken(file(), error) from error


def _broken(file: str, error: BaseException) -> DefinitionError:
    """Name the user's own line: the last frame of the traceback that lies in the file."""
    where, code = file, ""
    if isinstance(error, SyntaxError) and error.filename:
        where, code = f"{error.filename}:{error.lineno}", (error.text or "").strip()
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == file:
            where, code = f"{file}:{frame.lineno}", frame.line or ""
    line = f", in the line `{code}`" if code else ""
    return DefinitionError(
        f"{where}: the definition cannot be imported: {type(error).__name__}: {error}{line}."
    )

"""Write docs/map.md: the first sentence of each module's docstring, folder by folder.

`make map` runs it, after a module or its first sentence was changed. It needs the standard library
only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/map.md"
_HEAD = """# Map of the files

The first sentence of each module's docstring, written by `make map`.
"""
_MORE = ("proto", "tests", "benchmarks")  # folders besides those of the package
# A sentence ends where a capital letter follows. "Pure." belongs to the one before.
_SENTENCE = re.compile(r".+?[.!?](?= [A-Z`]|$)(?: Pure\.)?", re.DOTALL)


def page() -> str:
    """Return the text that docs/map.md should have.

    Raises ValueError for modules without docstring.
    """
    lines, silent = [_HEAD], []
    for folder, modules in _folders():
        name = folder.relative_to(ROOT).as_posix()
        lines.append(f"## {name}/\n" if folder != ROOT else "## The root\n")
        for path in modules:
            about = _about(path)
            if not about:
                silent.append(path.relative_to(ROOT).as_posix())
            elif path.name == "__init__.py":
                lines.append(f"{about}\n")
            else:
                lines.append(f"- [`{path.name}`](../{path.relative_to(ROOT).as_posix()}): {about}")
        lines.append("")
    if silent:
        raise ValueError(f"say in a docstring what these modules are: {', '.join(silent)}")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _folders() -> Iterator[tuple[Path, list[Path]]]:
    """Yield each folder that has modules, and these, `__init__.py` first."""
    package = sorted(init.parent for init in ROOT.glob("*/__init__.py"))
    yield ROOT, sorted(path for path in ROOT.glob("*.py") if path.name != "__init__.py")
    for top in [*package, *(ROOT / name for name in _MORE)]:
        for folder in [top, *sorted(path for path in top.rglob("*") if path.is_dir())]:
            modules = [path for path in sorted(folder.iterdir()) if _is_listed(path)]
            if modules:
                yield folder, sorted(modules, key=lambda path: path.name != "__init__.py")


def _is_listed(path: Path) -> bool:
    if path.suffix == ".proto":
        return True
    unlisted = path.name.startswith("test_") or path.name == "conftest.py" or "_pb2" in path.name
    return path.suffix == ".py" and not unlisted


def _about(path: Path) -> str:
    """Return the first sentence about a file, on one line; "" where it has none."""
    text = path.read_text()
    if path.suffix == ".proto":
        comment = re.match(r"(?://.*\n)+", text)
        said = re.sub(r"^// ?", "", comment[0], flags=re.MULTILINE) if comment else ""
    else:
        said = ast.get_docstring(ast.parse(text)) or ""
    paragraph = " ".join(said.partition("\n\n")[0].split())
    sentence = _SENTENCE.match(paragraph)
    parts = (sentence[0] if sentence else paragraph).split("`")
    parts[::2] = [re.sub(r"([\[<*])", r"\\\1", part) for part in parts[::2]]  # no links, no HTML
    return "`".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())

"""The page's files, as they are served."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "page"
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_CSRF = '<meta name="edl-csrf" content="">'


def read(name: str) -> tuple[bytes, str] | None:
    """Return a file of the page and its type; None: there is none of that name."""
    path = FOLDER / name
    if path.parent != FOLDER or path.suffix not in _TYPES or not path.is_file():
        return None
    return path.read_bytes(), _TYPES[path.suffix]


def index(csrf: str) -> str:
    """Return the page, which knows what it must send with an action."""
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    return page.replace(_CSRF, _CSRF.replace('""', f'"{csrf}"'))

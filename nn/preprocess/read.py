"""The files that layers have read: an analysis, vocabularies. An export takes them along."""

from __future__ import annotations

from pathlib import Path

_read: dict[Path, bytes] = {}


def text_of(path: str | Path) -> str:
    """Return the UTF-8 text of a file, and remember the file.

    Raises OSError, UnicodeDecodeError.
    """
    found = Path(path).read_bytes()
    _read[Path(path).resolve()] = found
    return found.decode("utf-8")


def read_in(folder: Path) -> dict[str, bytes]:
    """Return what layers of this process have read of a folder's own files, by name."""
    here = folder.resolve()
    return {path.name: content for path, content in _read.items() if path.parent == here}

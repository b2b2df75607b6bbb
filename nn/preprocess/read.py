"""The files that layers have read: an analysis, vocabularies. An export takes them along."""

from __future__ import annotations

import codecs
from pathlib import Path

from ...common.errors import UsageError

_read: dict[Path, bytes] = {}
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)


def text_of(path: str | Path) -> str:
    """Return the UTF-8 text of a file, less a byte order mark, and remember the file.

    Raises OSError, UnicodeDecodeError, and UsageError for UTF-16.
    """
    found = Path(path).read_bytes()
    if found.startswith(_WIDE) or b"\0" in found[:2]:
        raise UsageError(f"{path} is of UTF-16 or UTF-32: save it as UTF-8.")
    _read[Path(path).resolve()] = found
    return found.decode("utf-8-sig")


def read_in(folder: Path) -> dict[str, bytes]:
    """Return what layers of this process have read of a folder's own files, by name."""
    here = folder.resolve()
    return {path.name: content for path, content in _read.items() if path.parent == here}

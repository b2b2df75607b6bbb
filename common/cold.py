"""Tell whether kernels will be compiled at the next start, without numba.

numba keeps the machine code of a file beside it, or where it is told to (kernels/compile.py), and
compiles anew where the file has changed since.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_WIRE = Path(__file__).parents[1] / "ps" / "wire"
_KERNELS = ("turns", "pulls")  # files with kernels that every server has a use for


def must_compile(
    sources: Path = _WIRE, names: Iterable[str] = _KERNELS, kept: Iterable[Path] | None = None
) -> bool:
    """Tell whether a kernel must be compiled: none is kept that is as new as its source.

    `kept`: where they may be, by default all places.
    """
    files = [file for place in (_places() if kept is None else kept) for file in _in(place)]
    for name in names:
        source = (sources / f"{name}.py").stat().st_mtime
        if not any(f.name.startswith(f"{name}.") and f.stat().st_mtime >= source for f in files):
            return True
    return False


def _places() -> Iterable[Path]:
    if folder := os.environ.get("NUMBA_CACHE_DIR"):  # then numba looks nowhere else
        yield Path(folder)
        return
    yield _WIRE / "__pycache__"
    if folder := os.environ.get("EDL_KERNEL_CACHE"):
        yield Path(folder)
    # As numba finds it: of a user without a home the name stays as it is.
    yield Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "numba"


def _in(place: Path) -> Iterable[Path]:
    return [*place.glob("*.nbi"), *place.glob("*/*.nbi")]

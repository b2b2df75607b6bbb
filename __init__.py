"""`edl`: elastic, fault-tolerant training for PyTorch with parameter servers.

`load` and `rows` (docs/using.md) are looked up at first use (PEP 562), so that `import edl` imports
nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .serve.rows import Rows as Rows
    from .serve.rows import rows as rows
    from .serve.trained import load as load

__version__ = "0.1.0"

_MODULES = {"Rows": "serve.rows", "load": "serve.trained", "rows": "serve.rows"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

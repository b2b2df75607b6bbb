"""`edl`: elastic, fault-tolerant training for PyTorch with parameter servers.

What stands here is looked up at first use (PEP 562), so that `import edl` imports nothing else:
`train`, `submit`, `evaluate`, `predict`, `job`, `jobs`, `check` (docs/python.md), `load`, `rows`
and `schema` (docs/using.md), `nn`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import nn as nn
    from .api.definition import Definition as Definition
    from .api.job import Job as Job
    from .api.job import job as job
    from .api.job import jobs as jobs
    from .api.result import Result as Result
    from .api.run import check as check
    from .api.run import submit as submit
    from .api.run import train as train
    from .api.use import Predictions as Predictions
    from .api.use import evaluate as evaluate
    from .api.use import predict as predict
    from .common.errors import EdlError as EdlError
    from .common.errors import JobFailed as JobFailed
    from .common.errors import UsageError as UsageError
    from .serve.rows import Rows as Rows
    from .serve.rows import rows as rows
    from .serve.trained import load as load
    from .serve.trained import schema as schema

__version__ = "0.1.0"

_MODULES = {
    "Definition": "api.definition",
    "Result": "api.result",
    "Job": "api.job",
    "job": "api.job",
    **dict.fromkeys(("check", "submit", "train"), "api.run"),
    **dict.fromkeys(("Predictions", "evaluate", "predict"), "api.use"),
    **dict.fromkeys(("EdlError", "JobFailed", "UsageError"), "common.errors"),
    "Rows": "serve.rows",
    "load": "serve.trained",
    "rows": "serve.rows",
    "schema": "serve.trained",
}
_PACKAGES = ("jobs", "nn")  # edl.jobs is a package, and can be called


def __getattr__(name: str) -> Any:
    import importlib

    if name in _PACKAGES:
        return importlib.import_module(f".{name}", __name__)
    if name in _MODULES:
        return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES, *_PACKAGES])

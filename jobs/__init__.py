"""Jobs seen from outside: the ones of this machine, and what all jobs have in common.

The module can be called: `edl.jobs()` is api/job.py's, for a package and a function of one name are
one attribute of `edl`.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Jobs(ModuleType):
    """This module, as a function."""

    def __call__(self, **where: Any) -> Any:
        return importlib.import_module("edl.api.job").jobs(**where)


sys.modules[__name__].__class__ = _Jobs

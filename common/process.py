"""The end of a process that has daemon threads in native code."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End with `code` without tearing the interpreter down.

    Teardown frees what daemon threads still use inside gRPC or torch: once in some hundred ends
    that is a SIGSEGV instead of the exit code. Whatever must be on disk has been closed before.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

"""Logging of all processes: one line per state change, as text or as JSON.

    2026-11-21T05:23:22.123Z INFO worker-2 task=17 -> done records=512
    {"ts": "2026-11-21T05:23:22.123Z", "level": "info", "role": "worker", "index": 2, "msg": ...}

Times are UTC. Nothing is configured at import: each process calls `configure` once it knows who it
is; a second call replaces the first.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import TextIO

from . import finite

_TALKATIVE = ("aiobotocore", "botocore")  # at INFO they tell of each process where its keys are


def configure(
    level: str = "info",
    format: str = "text",
    role: str = "",
    index: int | None = None,
    stream: TextIO | None = None,
) -> None:
    """Send the log of this process to `stream` (stderr)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter((_Json if format == "json" else _Text)(role, index))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))
    logging.captureWarnings(True)


def timestamp(seconds: float) -> str:
    """Return a time as ISO 8601 in UTC with milliseconds."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"


class _Text(logging.Formatter):
    def __init__(self, role: str, index: int | None) -> None:
        super().__init__()
        self._who = "" if not role else f"{role} " if index is None else f"{role}-{index} "

    def format(self, record: logging.LogRecord) -> str:
        head = f"{timestamp(record.created)} {record.levelname} {self._who}"
        return head + super().format(record)


class _Json(logging.Formatter):
    def __init__(self, role: str, index: int | None) -> None:
        super().__init__()
        who = {"job": os.environ.get("EDL_JOB_NAME", ""), "role": role, "index": index}
        self._who = {key: value for key, value in who.items() if value not in ("", None)}

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "ts": timestamp(record.created),
            "level": record.levelname.lower(),
            **self._who,
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return finite.dumps(line, default=str)

"""The words of a script under `edl launch` to its node agent: a file, EDL_REPORT_FILE."""

from __future__ import annotations

import json
import os
from pathlib import Path


def is_heard() -> bool:
    """Tell whether anybody listens: nobody does to a script that was not launched."""
    return bool(os.environ.get("EDL_REPORT_FILE"))


def tell(*, throughput: float | None = None, remaining_s: float | None = None) -> None:
    """Leave these figures for the agent; those that are None say nothing."""
    path = os.environ.get("EDL_REPORT_FILE")
    if not path:
        return
    told = {"throughput": throughput, "remaining_s": remaining_s}
    values = {name: float(value) for name, value in told.items() if value is not None}
    temporary = Path(f"{path}.tmp")  # no fsync: what is lost with the machine is said again
    temporary.write_text(json.dumps(values))
    temporary.replace(path)

"""Report a script's progress, for `edl status` and for whoever decides about nodes."""

from __future__ import annotations

import json
import os
from pathlib import Path

from . import world


def report(*, throughput: float | None = None, remaining_s: float | None = None) -> None:
    """Report how fast the whole job is, and how long it still needs.

    `throughput`: records, or whatever counts, a second. `remaining_s`: no node is let in any more
    when fewer than --nearly_done are left. Rank 0's word counts; a script that nobody launched says
    it to nobody.
    """
    path = os.environ.get("EDL_REPORT_FILE")
    if not path or world.rank() != 0:
        return
    told = {"throughput": throughput, "remaining_s": remaining_s}
    values = {name: float(value) for name, value in told.items() if value is not None}
    temporary = Path(f"{path}.tmp")  # no fsync: what is lost with the machine is said again
    temporary.write_text(json.dumps(values))
    temporary.replace(path)

"""Report a script's progress, for `edl status` and for whoever decides about nodes."""

from __future__ import annotations

from ..common import told
from . import world


def report(*, throughput: float | None = None, remaining_s: float | None = None) -> None:
    """Report how fast the whole job is, and how long it still needs.

    `throughput`: records, or whatever counts, a second. `remaining_s`: no node is let in any more
    when fewer than --nearly_done are left. Rank 0's word counts; a script that nobody launched says
    it to nobody.
    """
    if world.rank() == 0:
        told.tell(throughput=throughput, remaining_s=remaining_s)

"""The seam between whoever knows how many nodes would pay and whoever can have them made."""

from __future__ import annotations

from typing import Protocol

from ..cluster import Resources
from .fleet import Pool, Wish


class Asker(Protocol):
    """A way to ask a cloud for nodes. What it asks stands in the cluster, so it may be killed.

    `takes`: what it takes of each node, which is to be left free for it.
    """

    takes: Resources

    def ask(self, pool: Pool, wish: Wish, now: float) -> str:
        """Ask for what is wished, and for no more; return what is asked, in words.

        It is called again and again, with what there is by then. Raises PeerError where the
        cluster does not answer, or refuses.
        """

"""The pauses of training by which a group comes to another number of members. Pure.

A newcomer costs two of them: it comes in as a latecomer, gets the state while the others train on,
and counts from the next round on. What a loss costs is not the price of a change, and is left out.
"""

from __future__ import annotations


class Pauses:
    """The pauses of training between a group's rounds."""

    def __init__(self) -> None:
        self._members = 0  # of the newest round
        self._since: float | None = None  # when the round before it ended; None: it trains
        self._is_change = False  # the number of members is another, and that is not over
        self._all_train = False
        self._sum_s = 0.0

    def formed(self, since: float, members: int, *, in_order: bool, all_train: bool) -> None:
        """Note that a round was formed.

        `since`: when the one before ended. `in_order`: nobody was lost. `all_train`: nobody of it
        is a latecomer.
        """
        before, self._members = self._members, members
        if not (in_order and self._is_change):
            self._sum_s = 0.0
            self._is_change = in_order and before > 0 and members != before
        self._since, self._all_train = since, all_train

    def trains(self, now: float) -> float | None:
        """Note that the round trains.

        Returns the seconds that the change of the number of members has cost, once it is over.
        """
        if self._since is None:
            return None
        self._sum_s += now - self._since
        self._since = None
        if not self._is_change or not self._all_train:
            return None
        cost_s, self._sum_s, self._is_change = self._sum_s, 0.0, False
        return cost_s

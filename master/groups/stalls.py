"""Stalls of a round: all members are in the same step for long, so they wait for each other. Pure.

Who computes for long holds the others up in an all-reduce: then all say that they are in the step,
but so they do where the library's own messages went astray and nobody will ever go on (seen with
gloo, twelve members, in ring all-reduces). The two cannot be told apart from outside, but a step
that is only long is long again. So the round is begun anew once for a step; where it stalls in the
same one again, that one is long, and is left alone.
"""

from __future__ import annotations

from collections.abc import Collection

Step = tuple[int, int, int]  # task, start, end


class Stalls:
    """What the members of a round have said of the steps that they are in."""

    def __init__(self) -> None:
        self._round = 0
        self._in: dict[str, Step] = {}  # by incarnation
        self._begun_anew: set[Step] = set()

    def told(self, round_: int, members: Collection[str], who: str, step: Step) -> bool:
        """Note that a member has been in a step for long. True: the round should begin anew."""
        if round_ != self._round:
            self._round = round_
            self._in.clear()
        self._in[who] = step
        together = all(self._in.get(member) == step for member in members)
        if not together or step in self._begun_anew:
            return False
        self._begun_anew.add(step)
        return True

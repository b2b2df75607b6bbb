"""The speed that a script has told, by the nodes it ran on, as a report to schedulers. Pure.

A script counts its own records, in its own way: the rates are its word (launch/report.py), and so
is what is left: the time that it says it still needs, at the rate that it told last.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..common.report import VERSION, Bounds, Configuration, Report, Resize, Sample
from .nodes import Round
from .rounds import Policy

_MOST = 32  # configurations that are kept: those told of last
_LAST = 5  # changes whose mean is told


@dataclass
class _Told:
    """The words about one configuration together."""

    rates: float = 0.0
    seconds: float = 0.0
    looks: int = 0


class History:
    """The rates that a script has told, and the seconds that changes of its nodes have cost."""

    def __init__(self) -> None:
        self._told: dict[Configuration, _Told] = {}  # the one that was told of last is last
        self._costs: deque[float] = deque(maxlen=_LAST)
        self._round: Round | None = None  # the last one that was told of
        self._at = 0.0
        self._rate: float | None = None  # told last

    def tell(self, found: Round, since: float, now: float, rate: float) -> None:
        """Note the rate that a script tells of its running round.

        `since`: when the round before that one ended.
        """
        before, self._round = self._round, found
        if before is None or before.number != found.number:
            self._at = found.formed_at
            if before is not None and len(before.members) != len(found.members):
                self._costs.append(now - since)
        at = Configuration(0, found.world_size, len(found.members), 0)
        told = self._told.pop(at, None) or _Told()
        self._told[at] = told
        self._rate = rate
        told.rates += rate
        told.seconds += now - self._at
        told.looks += 1
        self._at = now
        if len(self._told) > _MOST:
            del self._told[next(iter(self._told))]

    def report(self, policy: Policy, nearly_done: bool, left_s: float | None = None) -> Report:
        """Return the report of a job with these bounds; `left_s`: that it still needs, s."""
        samples = (
            Sample(**vars(at), records_per_s=t.rates / t.looks, seconds=t.seconds, looks=t.looks)
            for at, t in self._told.items()
        )
        left = None if left_s is None or self._rate is None else round(left_s * self._rate)
        cost_s = sum(self._costs) / len(self._costs) if self._costs else None
        return Report(
            version=VERSION,
            records_left=left,
            records_total=None,
            epochs=None,
            samples=tuple(samples),
            model=None,
            resize=Resize(workers=cost_s),
            workers=Bounds(),
            nodes=Bounds(policy.min_nodes, policy.max_nodes),
            priority=None,
            nearly_done=nearly_done,
            suspended=False,
        )

"""The cost of a job: machine-seconds by market, useful and wasted ones, and dollars. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .prices import MARKETS, ON_DEMAND, SPOT, Price, of

_HOUR_S = 3600


@dataclass(frozen=True)
class Usage:
    """The machine-seconds that a job has had of one kind of node on one market."""

    kind: str
    market: str
    useful_s: float  # in which records were computed that the books have as applied
    recompute_s: float = 0.0  # in which such were computed as were lost, or computed before
    idle_s: float = 0.0
    start_s: float = 0.0  # from the begin of the machine's time to the first record
    preempted: int = 0  # machines, or processes, that were taken away

    @property
    def wasted_s(self) -> float:
        return self.recompute_s + self.idle_s + self.start_s

    @property
    def machine_s(self) -> float:
        return self.useful_s + self.wasted_s


@dataclass(frozen=True)
class Cost:
    """The figures that `edl cost` prints."""

    machine_s: dict[str, float]  # by market
    useful_s: float
    wasted_s: float
    preempted: int
    dollars: float
    dollars_per_million: float | None  # records; None: no record has been applied yet
    saved: float  # $ against all on-demand; below 0: it would have been cheaper

    def lines(self) -> list[str]:
        """Return the rows of a Markdown table."""
        total_s = self.useful_s + self.wasted_s
        wasted = f" ({self.wasted_s / total_s:.1%})" if total_s else ""
        each = "-" if self.dollars_per_million is None else f"{self.dollars_per_million:,.4f}"
        return [
            "| | |",
            "|---|---|",
            *(
                f"| machine-seconds, {market} | {self.machine_s[market]:,.0f} |"
                for market in MARKETS
            ),
            f"| useful | {self.useful_s:,.0f} |",
            f"| wasted | {self.wasted_s:,.0f}{wasted} |",
            f"| taken away | {self.preempted:,} |",
            f"| $ | {self.dollars:,.2f} |",
            f"| $ per million records | {each} |",
            f"| $ saved against all on-demand | {self.saved:,.2f} |",
        ]


def cost(usages: Iterable[Usage], prices: Mapping[str, Price], records: int) -> Cost:
    """Return what `records` applied records have cost.

    All on-demand would have had the useful seconds of spot machines at the other price, without
    what was wasted on spot. Raises UsageError for a kind or a market without a price.
    """
    machine_s = dict.fromkeys(MARKETS, 0.0)
    useful_s = wasted_s = dollars = without_spot = 0.0
    preempted = 0
    for usage in usages:
        paid = usage.machine_s / _HOUR_S * of(prices, usage.kind, usage.market)
        machine_s[usage.market] += usage.machine_s
        useful_s += usage.useful_s
        wasted_s += usage.wasted_s
        preempted += usage.preempted
        dollars += paid
        dear = usage.useful_s / _HOUR_S * of(prices, usage.kind, ON_DEMAND)
        without_spot += dear if usage.market == SPOT else paid
    each = dollars / records * 1e6 if records else None
    return Cost(machine_s, useful_s, wasted_s, preempted, dollars, each, without_spot - dollars)

"""The bill of a job: what it has used, as its status tells, and the cost of that as rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..common.errors import JobError
from ..durable.schema import load
from ..jobs.job import Job, Kind, Status
from .cost import Usage, cost
from .prices import MARKETS, ON_DEMAND, Price

if TYPE_CHECKING:
    from rich.table import Table

UNKNOWN = "unknown"  # the kind of a machine of which nobody knows it
_PARTS = ("useful", "recompute", "idle", "start")


@dataclass(frozen=True)
class _Machine:
    name: str
    useful_s: float
    recompute_s: float
    idle_s: float
    start_s: float


@dataclass(frozen=True)
class _Told:
    """The usage that a status tells (docs/cli.md)."""

    records: int
    machines: list[_Machine]


@dataclass(frozen=True)
class Used:
    """The machines that a job has used, and the records that it has done on them."""

    job: str
    records: int
    taken: int  # processes that were preempted
    usages: tuple[Usage, ...]  # by kind and market


def used(job: Job, status: Status | None = None) -> Used:
    """Return what a job has used, by its status. Raises JobError where that does not tell it."""
    status = job.status() if status is None else status
    usage, restarts = status.get("usage"), status.get("restarts") or {}
    if usage is None:
        raise JobError(
            f"Job {job.name!r} tells no machine-seconds: it has not begun, is one of `edl launch`, "
            "or of an older edl."
        )
    try:
        told = load(_Told, usage)
    except ValueError as error:
        raise JobError(f"Job {job.name!r} tells a usage that makes no sense: {error}.") from error
    known = job.kinds([each.name for each in told.machines])
    sums: dict[Kind, list[float]] = {}
    for each in told.machines:
        parts = sums.setdefault(known.get(each.name, (UNKNOWN, ON_DEMAND)), [0.0] * len(_PARTS))
        for i, part in enumerate(_PARTS):
            parts[i] += getattr(each, f"{part}_s")
    taken = sum(int(restarts.get(key) or 0) for key in ("preemptions", "server_preemptions"))
    usages = tuple(
        Usage(kind, market, useful_s, recompute_s, idle_s, start_s)
        for (kind, market), (useful_s, recompute_s, idle_s, start_s) in sorted(sums.items())
    )
    return Used(job.name, told.records, taken, usages)


def kinds(found: Iterable[Used]) -> set[str]:
    """Return the kinds of machines that these jobs have used."""
    return {usage.kind for each in found for usage in each.usages}


def has_unknown(found: Used) -> bool:
    return UNKNOWN in kinds([found])


def total(found: Sequence[Used], prices: Mapping[str, Price]) -> dict[str, Any]:
    """Return the row of all jobs together."""
    usages = tuple(usage for each in found for usage in each.usages)
    records, taken = (sum(getattr(each, name) for each in found) for name in ("records", "taken"))
    return row(Used("all", records, taken, usages), prices)


def row(found: Used, prices: Mapping[str, Price]) -> dict[str, Any]:
    """Return a job's cost as JSON values.

    Raises UsageError for a kind or a market without a price.
    """
    whole = cost(found.usages, prices, found.records)
    return {
        "job_name": found.job,
        "records": found.records,
        "machine_s": whole.machine_s,
        "useful_s": whole.useful_s,
        "wasted_s": whole.wasted_s,
        **{
            f"{part}_s": sum(getattr(each, f"{part}_s") for each in found.usages)
            for part in _PARTS[1:]
        },
        "taken_away": found.taken,
        "dollars": whole.dollars,
        "dollars_per_million": whole.dollars_per_million,
        "saved": whole.saved,
        "kinds": [
            {"kind": each.kind, "market": each.market, "machine_s": each.machine_s}
            for each in found.usages
        ],
    }


def drawn(rows: Sequence[dict[str, Any]], wide: bool) -> Table:
    """Make a table of one row per job; wide: with what was wasted, part by part."""
    from rich.table import Table

    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    made.add_column("job", no_wrap=True)
    parts = _PARTS[1:] if wide else ()
    for name in (*(f"{m} s" for m in MARKETS), "useful s", "wasted s", *(f"{p} s" for p in parts)):
        made.add_column(name, justify="right", no_wrap=True)
    for name in ("taken", "$", "$/M records", "$ saved"):
        made.add_column(name, justify="right", no_wrap=True)
    for each in rows:
        whole_s = each["useful_s"] + each["wasted_s"]
        share = f" ({each['wasted_s'] / whole_s:.0%})" if whole_s else ""
        per_million = each["dollars_per_million"]
        made.add_row(
            each["job_name"],
            *(f"{each['machine_s'][market]:,.0f}" for market in MARKETS),
            f"{each['useful_s']:,.0f}",
            f"{each['wasted_s']:,.0f}{share}",
            *(f"{each[f'{part}_s']:,.0f}" for part in parts),
            f"{each['taken_away']:,}",
            f"{each['dollars']:,.4g}",
            "-" if per_million is None else f"{per_million:,.4g}",
            f"{each['saved']:,.4g}",
        )
    return made

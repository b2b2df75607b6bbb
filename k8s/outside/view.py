"""A job of a cluster as text: its pods, what they use, its events. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ...common.errors import UsageError
from ...jobs import view
from ...jobs.job import Status
from .. import names, observe
from ..api import Object
from ..counting import requested
from .state import event_time

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_STYLES = {"running": "green", "waiting": "yellow", "ending": "yellow", "Warning": "yellow"}
_FRACTIONS = {"n": Decimal("1e-9"), "u": Decimal("1e-6")}  # which only metrics have
_MI = 1 << 20

Row = dict[str, Any]


def pod_row(pod: Object, now: datetime.datetime) -> Row:
    """Return what is told of a pod: its state in a word, and what it waits for or how it ended."""
    about, status = pod["metadata"], pod.get("status") or {}
    labels = about.get("labels") or {}
    seen = observe.observe(pod)
    state, why = "running", ""
    if isinstance(seen, observe.Waiting):
        state, why = "waiting", seen.why
    elif isinstance(seen, observe.Ended):
        state = "done" if seen.code == 0 else "ended"
        why = seen.why or (f"exit code {seen.code}" if seen.code else "")
    elif about.get("deletionTimestamp"):
        state = "ending"
    return {
        "pod": about["name"],
        "role": labels.get(names.ROLE_LABEL),
        "index": int(labels.get(names.INDEX_LABEL) or 0),
        "state": state,
        "restarts": observe.restarts(pod),
        "age_s": _age_s(about.get("creationTimestamp"), now),
        "why": why,
        "node": (pod.get("spec") or {}).get("nodeName") or "",
        "ip": status.get("podIP") or "",
        "priority": (pod.get("spec") or {}).get("priorityClassName") or "",
    }


def pods_table(rows: Sequence[Row], wide: bool) -> Table:
    more = ("node", "ip", "priority") if wide else ()
    table = _table(["pod", "state"], ["restarts", "age"], [*more, "why"], folded="why")
    for row in rows:
        table.add_row(
            row["pod"],
            _styled(row["state"]),
            str(row["restarts"]),
            _age(row["age_s"]),
            *(row[name] or "-" for name in more),
            row["why"],
        )
    return table


def event_row(event: Object, now: datetime.datetime) -> Row:
    about = event.get("involvedObject") or {}
    return {
        "age_s": _age_s(event_time(event), now),
        "type": event.get("type") or "",
        "reason": event.get("reason") or "",
        "object": f"{about.get('kind', '?')}/{about.get('name', '?')}",
        "count": int((event.get("series") or {}).get("count") or event.get("count") or 1),
        "message": event.get("message") or "",
    }


def events_table(rows: Sequence[Row], wide: bool) -> Table:
    table = _table(["type", "reason"], ["age"], ["object", "message"], folded="message")
    for row in rows:
        # without its kind where all is said by the name; pods' names are long enough
        object_ = row["object"] if wide else row["object"].partition("/")[2]
        times = f" ({row['count']} times)" if row["count"] > 1 else ""
        table.add_row(
            _styled(row["type"]),
            row["reason"],
            _age(row["age_s"]),
            object_,
            " ".join(row["message"].split()) + times,
        )
    return table


def description(
    status: Status, pods: Sequence[Row], events: Sequence[Row], wide: bool
) -> list[RenderableType]:
    """Return the panel of a job, the table of its pods and, if there are any, of its events."""
    parts: list[RenderableType] = [view.panel(status), "", pods_table(pods, wide)]
    if events:
        parts += ["", events_table(events, wide)]
    return parts


def usage_rows(
    pods: Sequence[Object], metrics: Sequence[Object] | None, status: Status
) -> list[Row]:
    """Return what each pod asks for, uses (None: nobody measures) and does."""
    used = {each["metadata"]["name"]: each for each in metrics or ()}
    rates = {
        ("worker", each.get("index")): each.get("records_per_s")
        for each in status.get("workers") or ()
    }
    rows = []
    for pod in pods:
        name, labels = pod["metadata"]["name"], pod["metadata"].get("labels") or {}
        role, index = labels.get(names.ROLE_LABEL), int(labels.get(names.INDEX_LABEL) or 0)
        asked = requested(pod["spec"])
        uses = [each.get("usage", {}) for each in used.get(name, {}).get("containers", [])]
        runs = isinstance(observe.observe(pod), observe.Running)
        rows.append(
            {
                "pod": name,
                "cpu_request": asked.get("cpu", 0.0),
                "cpu": _total(uses, "cpu") if uses else None,
                "memory_request": asked.get("memory", 0.0),
                "memory": _total(uses, "memory") if uses else None,
                "records_per_s": rates.get((str(role), index)) if runs else None,
            }
        )
    return rows


def usage_table(rows: Sequence[Row], measured: bool) -> Table:
    figures = ["cpu asked", "used", "memory asked", "used", "records/s"]
    if not measured:
        figures = [name for name in figures if name != "used"]
    table = _table(["pod"], figures, [])
    total: Row = {"pod": f"{len(rows)} pods"}
    for key in ("cpu_request", "cpu", "memory_request", "memory", "records_per_s"):
        known = [row[key] for row in rows if row[key] is not None]
        total[key] = sum(known) if known else None
    for row in (*rows, total):
        cells = [
            _cores(row["cpu_request"]),
            _cores(row["cpu"]),
            _memory(row["memory_request"]),
            _memory(row["memory"]),
            f"{row['records_per_s']:,.0f}" if row["records_per_s"] else "-",
        ]
        if not measured:
            cells = [cells[0], cells[2], cells[4]]
        if row is total:
            table.add_section()
        table.add_row(row["pod"], *cells, style="bold" if row is total else "")
    return table


def _table(
    left: Iterable[str], right: Iterable[str], rest: Iterable[str], folded: str = ""
) -> Table:
    from rich.table import Table

    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for name in left:
        made.add_column(name, no_wrap=True)
    for name in right:
        made.add_column(name, justify="right", no_wrap=True)
    for name in rest:
        made.add_column(name, no_wrap=name != folded, overflow="fold")
    return made


def _styled(word: str) -> Text:
    from rich.text import Text

    return Text(word, style=_STYLES.get(word, ""))


def _age_s(text: str | None, now: datetime.datetime) -> float | None:
    if not text:
        return None
    return max(0.0, (now - datetime.datetime.fromisoformat(text)).total_seconds())


def _age(seconds: float | None) -> str:
    """Return an age as kubectl tells it: 42s, 12m, 5h, 3d."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s"


def _total(parts: Iterable[Row], resource: str) -> float:
    return float(sum(_number(str(each[resource])) for each in parts if resource in each))


def _number(text: str) -> Decimal:
    factor = _FRACTIONS.get(text[-1:])
    try:
        return Decimal(text[:-1]) * factor if factor else names.quantity(text, "resource")
    except UsageError:
        return Decimal(0)  # a quantity that only other versions know: nothing hangs on it here


def _cores(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}".rstrip("0").rstrip(".") or "0"


def _memory(number: float | None) -> str:
    return "-" if number is None else f"{number / _MI:,.0f}Mi"

"""Why a job is given what it is given: a line of plain words for each. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .cluster import Resources
from .jobs import Given, Job, Plan, Quota, Shape
from .objectives import meeting
from .options import Options, amounts, keeps, words
from .placement import Placed, Placement
from .room import covers, loose, taken
from .turns import waits_since

_UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0))
_SAME = 0.05  # a speed that differs by less is the same in words


@dataclass(frozen=True)
class Outcome:
    """What was decided for a job."""

    table: Options
    chosen: Shape  # before it was put onto nodes
    given: Shape
    placed: Placed
    was_longest: bool  # it has waited longest, and beyond the patience
    is_lost: bool  # no nodes hold it beside the others


def named(quota: Quota) -> str:
    """Return the quota's name in words."""
    of = [("namespace", quota.namespace), ("user", quota.user)]
    names = " and ".join(f"{what} {name}" for what, name in of if name is not None)
    return f"the quota of {names or 'all jobs'}"


def unchanged(job: Job, why: str) -> Given:
    """Return what a job has, for this reason."""
    has = f"stays at {words(job.held)}" if job.held.workers else "gets nothing"
    return Given(job.held, f"{has}: {why}", job.workers_on, job.servers_on)


def explain(
    outcomes: Sequence[Outcome],
    placement: Placement,
    quotas: Sequence[Quota],
    fixed: Sequence[Job],
    now: float,
) -> Plan:
    """Return what was decided, with the reasons."""
    has = [(each.table.job, each.given) for each in outcomes]
    has += [(job, job.held) for job in fixed]
    waits = [each for each in outcomes if not each.given.workers]
    waits.sort(key=lambda each: _in_line(each.table.job, now))
    plan = {}
    ahead = None
    for each in waits:
        job = each.table.job
        line = f"next in line after {ahead}" if ahead else "next in line"
        lacks = _lacks(each, placement, quotas, has)
        if job.held.workers:
            plan[job.name] = Given(Shape(), f"{words(job.held)} -> 0: suspended, {lacks}; {line}")
        elif len(each.table.shapes) == 1:
            plan[job.name] = Given(Shape(), f"waits: {lacks}")
            continue
        else:
            plan[job.name] = Given(Shape(), f"waits: {lacks}; {line}")
        ahead = job.name
    for each in outcomes:
        if each.given.workers:
            why = _runs(each, now)
            plan[each.table.job.name] = Given(
                each.given, why, each.placed.workers_on, each.placed.servers_on
            )
    return plan


def _in_line(job: Job, now: float) -> tuple[float, float, str]:
    since = waits_since(job)
    return -job.priority, now if since is None else since, job.name


def _lacks(
    outcome: Outcome,
    placement: Placement,
    quotas: Sequence[Quota],
    has: Sequence[tuple[Job, Shape]],
) -> str:
    """Return what the job's minimum lacks."""
    table = outcome.table
    job = table.job
    least = Shape(job.minimum, min(job.servers)) if len(table.shapes) == 1 else table.shapes[1]
    needs = amounts(taken(job, least))
    mine = [quota for quota in quotas if covers(quota, job)]
    for quota in mine:
        if (needs > loose(amounts(quota.bounds))).any():
            return f"{named(quota)} is too small for its minimum of {words(least)}"
    if len(table.shapes) == 1:
        return f"its minimum of {words(least)} does not fit on the nodes, even if they were empty"
    for quota in mine:
        used = sum((taken(each, shape) for each, shape in has if covers(quota, each)), Resources())
        if (amounts(used) + needs > loose(amounts(quota.bounds))).any():
            return f"others have what {named(quota)} allows"
    room = placement.count(job.worker)
    if room < least.workers:
        return f"its minimum of {words(least)} does not fit: there is room for {room}"
    if outcome.is_lost:
        return f"the nodes that are free do not hold its minimum of {words(least)} together"
    return "others come before it"


def _runs(outcome: Outcome, now: float) -> str:
    """Return why a job is given what it is given."""
    table, given = outcome.table, outcome.given
    job = table.job
    speed = _speed(table, given)
    notes = []
    if (given.workers, given.servers) != (outcome.chosen.workers, outcome.chosen.servers):
        notes.append(f"{words(outcome.chosen)} fit on no nodes together")
    if outcome.was_longest:
        notes.append("it had waited longest")
    if keeps(job, given):
        head = f"stays at {words(given)}"
        if job.workers_on and job.workers_on != outcome.placed.workers_on:
            notes.append(f"it moves to other nodes, which costs {lasts(job.resize_s)}")
    elif not job.held.workers:
        head = f"starts with {words(given)}"
    else:
        head = f"{_change(job.held, given)}"
        before = _speed(table, job.held)
        if before and abs(speed / before - 1) > _SAME:
            head += f": {speed / before:.2g} times as fast"
        notes.append(f"the change costs {lasts(job.price_s(given))}")
    if job.left is not None and speed:
        head += f"{',' if ':' in head else ':'} ends in {lasts(job.left / speed)}"
    meets = meeting(table, now)
    if meets is not None:
        late = not meets[table.shapes.index(given)] if given in table.shapes else not meets.any()
        notes.append("its deadline is missed" if late else "its deadline is met")
    return "; ".join([head, *notes])


def _change(held: Shape, given: Shape) -> str:
    """Return the change in words: 2 -> 4 workers."""
    if held.servers == given.servers == 0:
        if held.workers == given.workers:
            return f"{words(held)} on {held.nodes} -> {given.nodes} nodes"
        return f"{held.workers} -> {words(given)}"
    return f"{words(held)} -> {words(given)}"


def _speed(table: Options, shape: Shape) -> float:
    """Return the speed in a shape, or 0 where it is none of the options.

    Of pods that do not move nobody chooses on how many nodes they are.
    """
    if not table.job.may_move:
        nodes = {(s.workers, s.servers, s.kind): s.nodes for s in table.shapes}
        same = nodes.get((shape.workers, shape.servers, shape.kind), shape.nodes)
        shape = replace(shape, nodes=same)
    places = (i for i, each in enumerate(table.shapes) if each == shape)
    place = next(places, table.kept if keeps(table.job, shape) and table.kept else 0)
    return float(table.speeds[place])


def lasts(seconds: float) -> str:
    """Return a time in words: 3 s, 12 min, 2.5 h."""
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{float(f'{seconds / size:.2g}'):g} {unit}"
    return f"{float(f'{seconds:.2g}'):g} s"

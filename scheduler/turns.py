"""Who is sure of something before sums count: the longest waiting, priorities, claims. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from .jobs import Job
from .objectives import Aim, Bools, Claim, Outlook
from .placement import Placement
from .room import Room, loose


def waits_since(job: Job) -> float | None:
    """Return since when the job has had nothing, s; None while it has something."""
    if job.held.workers:
        return None
    return job.submitted if job.waits_since is None else job.waits_since


class Turns:
    """The options that are left to each job once those are served that must be.

    allowed: for each job, of each option, whether it may be chosen.
    longest: the job that has waited longest, if beyond the patience and there is room for it.
    lost: the jobs that no nodes hold beside the others.
    Jobs are told by their places in the room; of equal ones the first there is served.
    """

    def __init__(
        self, room: Room, outlook: Outlook, aim: Aim, placement: Placement, patience_s: float
    ) -> None:
        """Serve whoever must be, each with the least that will do.

        `placement`: the nodes, with the fixed jobs only.
        """
        self._room = room
        self._jobs = [table.job for table in room.tables]
        self._aim = aim
        self._sure = [0] * len(self._jobs)  # the option that each is sure of
        self._used = np.zeros(len(room.limits))
        self.allowed = [np.ones(len(rows), bool) for rows in room.takes]
        self.lost: set[int] = set()

        for j, job in enumerate(self._jobs):
            if job.held.workers and not job.may_be_suspended:
                self._serve(Claim(j, self._runs(j)))
        late = self._late(outlook.now - patience_s)
        self.longest: int | None = next((j for j in late if self._serve_first(j, placement)), None)
        for claim in self._minimums(late):
            self._serve(claim)
        held_up = False
        for claim in sorted(aim.claims, key=lambda claim: -self._jobs[claim.job].priority):
            waits = not self._jobs[claim.job].held.workers
            if not (held_up and waits) and not self._serve(claim) and claim.options.any():
                held_up = aim.in_turn
        for j in sorted(range(len(self._jobs)), key=lambda j: -self._jobs[j].priority):
            job = self._jobs[j]
            if job.held.workers and not job.may_move:  # its end and start cost more than a change
                self._serve(Claim(j, self._runs(j)))
        if aim.in_turn:
            for j, option in enumerate(self._sure):
                if not option:
                    self.allowed[j][1:] = False

    def as_before(self) -> list[int]:
        """Return options that fit together: what each has, where it may keep it, or is sure of."""
        for j in sorted(range(len(self._jobs)), key=lambda j: (-self._jobs[j].priority, j)):
            kept = self._room.tables[j].kept
            if kept is not None and self.allowed[j][kept]:
                self._serve(Claim(j, np.arange(len(self.allowed[j])) == kept))
        return list(self._sure)

    def give_up(self, lost: Iterable[int]) -> bool:
        """Give these jobs nothing, which no nodes hold; tell whether there is one more of them."""
        more = set(lost) - self.lost
        self.lost |= more
        for j in more:
            self._used -= self._room.takes[j][self._sure[j]]
            self._sure[j] = 0
            self.allowed[j] = ~self._runs(j)
        return bool(more)

    def evict(self) -> bool:
        """Give nothing to one of those whose pods do not move; tell whether there was one left.

        Another one that has waited longest has no place beside them; they find one anew.
        """
        jobs = self._jobs
        stay = [
            j
            for j, job in enumerate(jobs)
            if not job.may_move and job.may_be_suspended and job.held.workers and j not in self.lost
        ]
        stay.sort(key=lambda j: (jobs[j].priority, -jobs[j].held.workers))
        return bool(stay) and self.give_up(stay[:1])

    def _serve_first(self, j: int, placement: Placement) -> bool:
        """Make the job sure of the least that can be put onto the nodes, and of no less."""
        table, rows = self._room.tables[j], self._room.takes[j]
        fits = (rows <= loose(self._room.limits)).all(axis=1) & self._runs(j)
        for i in np.flatnonzero(fits).tolist():
            if any(placement.find(table.job, table.shapes[i], spread) for spread in (False, True)):
                return self._serve(Claim(j, (rows >= rows[i]).all(axis=1)))
        return False

    def _serve(self, claim: Claim) -> bool:
        """Make the job sure of the least claimed option that fits; tell whether one does."""
        j, rows = claim.job, self._room.takes[claim.job]
        wanted = self.allowed[j] & claim.options
        others = self._used - rows[self._sure[j]]
        fits = np.flatnonzero(wanted & (others + rows <= loose(self._room.limits)).all(axis=1))
        if not len(fits):
            return False
        self._sure[j] = int(fits[0])
        self._used = others + rows[fits[0]]
        self.allowed[j] = wanted
        return True

    def _late(self, since: float) -> list[int]:
        """Return who could be served and has waited since then or longer, the longest first."""
        waits = []
        for j, job in enumerate(self._jobs):
            start = waits_since(job)
            if start is not None and start <= since and len(self.allowed[j]) > 1:
                waits.append((start, j))
        return [j for _, j in sorted(waits)]

    def _minimums(self, late: list[int]) -> Iterator[Claim]:
        """Yield claims to minimums, by priority.

        Where somebody has waited too long, of those who run, the least served first, and then of
        those who wait so long; and, but where turns are kept, of all above the lowest priority.
        """
        priorities = sorted({job.priority for job in self._jobs}, reverse=True)
        for priority in priorities:
            mine = [j for j, job in enumerate(self._jobs) if job.priority == priority]
            first: list[int] = []
            if late:
                runs = [j for j in mine if self._jobs[j].held.workers]
                first += sorted(runs, key=lambda j: self._jobs[j].served_s)
                first += [j for j in late if j in set(mine)]
            if priority > priorities[-1] and not self._aim.in_turn:
                first += sorted(mine, key=lambda j: -self._density(j))
            for j in first:
                if not self._sure[j]:
                    yield Claim(j, self._runs(j))

    def _density(self, j: int) -> float:
        """Return what the job's minimum adds, for each share of the room that it takes."""
        values, rows = self._aim.values[j], self._room.takes[j]
        if len(values) == 1:
            return 0.0
        share = (rows[1] / np.maximum(self._room.limits, 1e-9)).max(initial=1e-9)
        return float((values[1] - values[0]) / share)

    def _runs(self, j: int) -> Bools:
        return np.arange(len(self.allowed[j])) > 0

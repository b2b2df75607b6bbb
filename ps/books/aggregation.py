"""Steps made of pushes: async, sync and bounded staleness.

Pure.

async: each push is a step. sync: the gradients of `grads_to_wait` pushes are summed in the order of
arrival and divided by grads_to_wait (an incomplete version that is flushed, too), then one step.
A push of a version older than the shard's by more than the bound is stale. What has been summed but
not stepped is keyed by chunk and by row, so a snapshot holds it and another number of shards can
take it over.

References: SSP, Ho et al. 2013; staleness-aware rates, Zhang et al. 2016 (lr / staleness).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...common.settings import JobSettings
from ...kernels.ids import sum_by_id
from ..rows.optimizers import Floats, Ints
from .dense import ChunkKey


@dataclass(frozen=True)
class Update:
    """Gradients: by chunk float32[n], by table (unique ids[n], float32[n, dim])."""

    dense: dict[ChunkKey, Floats] = field(default_factory=dict)
    rows: dict[str, tuple[Ints, Floats]] = field(default_factory=dict)

    def row_counts(self) -> list[tuple[str, int]]:
        """Return, by table, how many rows it has."""
        return [(table, len(ids)) for table, (ids, _) in self.rows.items()]


@dataclass(frozen=True)
class Policy:
    """The policy by which pushes become steps.

    `staleness` None: no bound.
    """

    use_async: bool = False
    grads_to_wait: int = 1
    staleness: int | None = None
    lr_staleness_modulation: bool = False

    @classmethod
    def of(cls, settings: JobSettings) -> Policy:
        """Return the policy of a job."""
        return cls(
            use_async=settings.use_async,
            grads_to_wait=settings.grads_to_wait,
            staleness=settings.resolved_staleness,
            lr_staleness_modulation=settings.lr_staleness_modulation,
        )

    def is_stale(self, push_version: int, version: int) -> bool:
        return self.staleness is not None and push_version < version - self.staleness

    def lr_scale(self, push_version: int, version: int) -> float:
        """Return the factor by which the learning rate of an async push is multiplied."""
        if not (self.use_async and self.lr_staleness_modulation):
            return 1.0
        return 1.0 / max(1, version - push_version)


class Aggregation:
    """Pushes of the version that is being made. What is kept of a push is a copy."""

    def __init__(self, policy: Policy, pushes: int = 0, sums: Update | None = None) -> None:
        self._wait = 1 if policy.use_async else policy.grads_to_wait
        self.pushes = pushes
        self._dense: dict[ChunkKey, Floats] = dict(sums.dense) if sums else {}
        self._rows = {table: [part] for table, part in sums.rows.items()} if sums else {}

    def add(self, update: Update) -> Update | None:
        """Add one push, and return the update of the step that it completes, if it does."""
        if self._wait == 1 and not self.pushes:  # pushes: of a checkpoint that waited for more
            return update
        self.pushes += 1
        last = self.pushes >= self._wait
        for key, grad in update.dense.items():
            if key in self._dense:
                self._dense[key] += grad
            else:
                self._dense[key] = grad.copy()
        for table, (ids, grads) in update.rows.items():
            part = (ids, grads) if last else (ids.copy(), grads.copy())
            self._rows.setdefault(table, []).append(part)
        return self.flush() if last else None

    def flush(self) -> Update:
        """Return the update of a step with the pushes that wait, and begin the next one."""
        step = Update(self._dense, {table: sum_by_id(p) for table, p in self._rows.items()})
        divisor = np.float32(self._wait)
        for grad in step.dense.values():
            grad /= divisor
        for table, (ids, sums) in step.rows.items():
            fresh = len(self._rows[table]) > 1  # else they are a push's, or a cut's too
            step.rows[table] = ids, np.divide(sums, divisor, out=sums if fresh else None)
        self.pushes, self._dense, self._rows = 0, {}, {}
        return step

    def row_counts(self) -> list[tuple[str, int]]:
        """Return, for each part that waits, its table and how many rows."""
        return [(table, len(ids)) for table, parts in self._rows.items() for ids, _ in parts]

    def sums(self) -> Update:
        """Return what has been summed; the next push does not change it in place."""
        for table, parts in self._rows.items():
            self._rows[table] = [sum_by_id(parts)]
        return Update(
            {key: grad.copy() for key, grad in self._dense.items()},
            {table: parts[0] for table, parts in self._rows.items()},
        )

"""What a job reads, cut into tasks: a pure function of the data and the settings.

An epoch is all sources cut into tasks of minibatch_size * num_minibatches_per_task records (one more
where one would be left alone), in an order that depends on (seed, epoch) alone. Task ids grow in the order of leasing and depend on
nothing but the plan, so that the same job has the same tasks whatever happens to it.

`max_steps` counts versions of the parameters. In sync mode a version is `pushes_per_step`
minibatches, or what is left of an epoch (which is flushed unless epochs overlap).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from ..common.errors import UsageError
from ..common.order import minibatches, order
from ..common.settings import JobSettings

Piece = tuple[str, int, int]  # source, first record, one past the last


class Kind(IntEnum):
    """What a worker does with a task; the numbers are those of master.proto."""

    TRAIN = 1
    EVALUATE = 2
    PREDICT = 3
    EVALUATE_END = 4
    TRAIN_END = 5


@dataclass(frozen=True)
class Plan:
    """The tasks of a job. `num_epochs` 0: without end (then `max_steps` ends it, or a stop)."""

    kind: Kind
    sources: tuple[tuple[str, int], ...]
    minibatch_size: int
    num_minibatches_per_task: int
    num_epochs: int = 1
    seed: int = 0
    shuffle: bool = False
    overlap_epochs: bool = False
    max_steps: int = 0
    pushes_per_step: int = 1
    first_id: int = 1

    @cached_property
    def pieces(self) -> list[Piece]:
        """One epoch, in the order of the sources."""
        return cut(self.sources, self.minibatch_size * self.num_minibatches_per_task)

    def epoch(self, epoch: int) -> list[Piece]:
        """The tasks of an epoch, in the order of leasing; less where `max_steps` ends the job."""
        ranks = order(self.seed, epoch, 0, len(self.pieces), self.shuffle)
        left = self._minibatches_of(epoch)
        planned: list[Piece] = []
        for source, start, end in (self.pieces[rank] for rank in ranks):
            if left <= 0:
                break
            if self._minibatches((source, start, end)) > left:
                end = start + left * self.minibatch_size
            planned.append((source, start, end))
            left -= self._minibatches((source, start, end))
        return planned

    def first_id_of(self, epoch: int) -> int:
        """Id of the epoch's first task."""
        return self.first_id + epoch * len(self.pieces)

    @property
    def epochs(self) -> int | None:
        """How many epochs have tasks; None: no end."""
        if not self._full:
            return 0
        bounds = []
        if self.num_epochs > 0:
            bounds.append(self.num_epochs)
        if self.max_steps:
            if self.overlap_epochs:
                bounds.append(-(-self.max_steps * self.pushes_per_step // self._full))
            else:
                bounds.append(-(-self.max_steps // self._steps_of_epoch))
        return min(bounds) if bounds else None

    @property
    def records(self) -> int | None:
        """Records of all epochs; None: no end."""
        if self.epochs is None:
            return None
        if not self.epochs:
            return 0
        full = sum(records for _, records in self.sources)
        last = sum(end - start for _, start, end in self.epoch(self.epochs - 1))
        return (self.epochs - 1) * full + last

    def fingerprint(self) -> dict[str, Any]:
        """What must be equal for positions of one plan to mean the same in another."""
        values = dataclasses.asdict(self)
        free = ["num_epochs", "first_id"]
        if not self.max_steps:  # else they say which records an epoch has not
            free += ["max_steps", "overlap_epochs", "pushes_per_step"]
        for name in free:
            del values[name]
        size = self.minibatch_size * self.num_minibatches_per_task
        if any(minibatches(records, size) != -(-records // size) for _, records in self.sources):
            values["last_records"] = "joined"  # versions before had a task of one there
        return {**values, "kind": int(self.kind), "sources": [list(s) for s in self.sources]}

    def _minibatches(self, piece: Piece) -> int:
        return minibatches(piece[2] - piece[1], self.minibatch_size)

    @cached_property
    def _full(self) -> int:
        """Minibatches of an uncut epoch."""
        return sum(map(self._minibatches, self.pieces))

    @property
    def _steps_of_epoch(self) -> int:
        return -(-self._full // self.pushes_per_step)

    def _minibatches_of(self, epoch: int) -> int:
        if not self.max_steps:
            return self._full
        if self.overlap_epochs:  # versions run on across the ends of epochs
            left = self.max_steps * self.pushes_per_step - epoch * self._full
        else:
            left = (self.max_steps - epoch * self._steps_of_epoch) * self.pushes_per_step
        return max(0, min(self._full, left))


_FLAGS = {"sources": "training_data", "pushes_per_step": "grads_to_wait"}


def check_same_plan(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Positions of one plan's fingerprint mean the same in the other. Raises UsageError."""
    for name in sorted({**before, **now}, key=lambda name: (name == "last_records", name)):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if name == "last_records":
            raise UsageError(
                "--resume goes on record by record, but the checkpoint was taken by a version that cut "
                "these data otherwise: start a new job from its parameters with "
                "--checkpoint_dir_for_init."
            )
        flag = _FLAGS.get(name, name)
        if name == "sources":
            what = f"other data: {_difference(dict(old or ()), dict(new or ()))}"
        else:
            what = f"--{flag} {old if old is not None else 0}, not {new if new is not None else 0}"
        raise UsageError(
            f"--resume goes on record by record, but --{flag} is not that of the checkpoint, which "
            f"was taken with {what}. Leave it as it was, or start a new job from the checkpoint's "
            "parameters with --checkpoint_dir_for_init."
        )


def _difference(old: dict[str, int], new: dict[str, int]) -> str:
    """The first source that is not the same."""
    for source in (*old, *new):
        if old.get(source) != new.get(source):
            return f"{source} had {old.get(source, 0)} records, and has {new.get(source, 0)}"
    return "the same sources in another order"


def cut(sources: tuple[tuple[str, int], ...], size: int) -> list[Piece]:
    """Sources cut into pieces of `size` records or what is left, none across two sources; one that is
    left alone makes the piece before it longer, so that it has a minibatch to be in."""
    pieces = []
    for name, records in sources:
        count = minibatches(records, size)
        ends = [*(size * number for number in range(1, count)), records]
        pieces += [(name, size * number, end) for number, end in enumerate(ends[:count])]
    return pieces


def plan_of(settings: JobSettings, described: dict[str, Any], first_id: int = 1) -> Plan:
    """The plan of a job; `described` is what `edl.worker --describe` wrote."""
    common: dict[str, Any] = {
        "minibatch_size": settings.minibatch_size,
        "num_minibatches_per_task": settings.num_minibatches_per_task,
        "first_id": first_id,
    }
    if settings.command == "evaluate":
        return Plan(Kind.EVALUATE, sources_of(described, "validation"), **common)
    if settings.command == "predict":
        return Plan(Kind.PREDICT, sources_of(described, "prediction"), **common)
    return Plan(
        Kind.TRAIN,
        sources_of(described, "training"),
        num_epochs=settings.num_epochs,
        seed=settings.seed,
        shuffle=settings.shuffle,
        overlap_epochs=settings.overlap_epochs,
        max_steps=settings.max_steps,
        pushes_per_step=1 if settings.use_async else settings.grads_to_wait,
        **common,
    )


def sources_of(described: dict[str, Any], name: str) -> tuple[tuple[str, int], ...]:
    """(source, records) of the training, validation or prediction data."""
    return tuple((source, int(records)) for source, records in described.get(name, ()))

"""The plan of a job: its data, split into tasks, as a pure function of the data and the settings.

An epoch is all sources split into tasks of minibatch_size * num_minibatches_per_task records (one
more where one would be left alone), in an order that depends on (seed, epoch) alone. Task ids grow
in the order of leasing and depend on nothing but the plan, so that the same job has the same tasks
whatever happens to it. Nothing here lists tasks: what is asked about one, or about a range, is
computed.

`max_steps` counts versions of the parameters. In sync mode a version is `pushes_per_step`
minibatches, or what is left of an epoch (which is flushed unless epochs overlap).
"""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from ...common.contents import Content
from ...common.errors import UsageError
from ...common.order import TaskOrder, minibatches
from ...common.settings import ANALYZE, JobSettings

Piece = tuple[str, int, int]  # source, first record, one past the last
_COURSES_KEPT = 4  # epochs that are open at once, and what asks for the last one


class Kind(IntEnum):
    """The work of a task; the numbers are those of master.proto."""

    TRAIN = 1
    EVALUATE = 2
    PREDICT = 3
    EVALUATE_END = 4
    TRAIN_END = 5
    ANALYZE = 6
    ANALYZE_END = 7


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
    contents: tuple[Content, ...] = ()  # as far as they are known; no part of the fingerprint

    @property
    def tasks_per_epoch(self) -> int:
        """The number of tasks of a whole epoch."""
        return self._firsts[-1]

    def tasks_of(self, epoch: int) -> int:
        """Return the number of tasks of an epoch.

        Where `max_steps` ends the job it is less, and the last one is shorter.
        """
        return self._course(epoch).tasks

    def of_first(self, epochs: int) -> tuple[int, int]:
        """Return the tasks and records of the first so many epochs.

        Only the last one of all may be short.
        """
        if epochs == self.epochs and epochs:
            last = self._course(epochs - 1)
            tasks, records = last.tasks, last.records_before(last.tasks)
            epochs -= 1
        else:
            tasks = records = 0
        full = sum(records for _, records in self.sources)
        return tasks + epochs * self.tasks_per_epoch, records + epochs * full

    def task(self, number: int) -> tuple[int, Piece]:
        """Return the epoch and the records of the task with this id.

        Raises ValueError where there is none.
        """
        epoch = self.epoch_of(number)
        position = number - self.first_id_of(epoch)
        if epoch < 0 or position >= self.tasks_of(epoch):
            raise ValueError(f"there is no task {number}")
        return epoch, self._course(epoch).piece(position)

    def records_between(self, first: int, end: int) -> int:
        """Return the records of the tasks with ids from `first` to `end` - 1, all of one epoch."""
        if first >= end:
            return 0
        epoch = self.epoch_of(first)
        position = first - self.first_id_of(epoch)
        before = self._course(epoch).records_before
        return before(position + end - first) - before(position)

    def epoch_of(self, number: int) -> int:
        """Return the epoch of the task with this id."""
        return (number - self.first_id) // max(1, self.tasks_per_epoch)

    def first_id_of(self, epoch: int) -> int:
        """Return the id of the epoch's first task."""
        return self.first_id + epoch * self.tasks_per_epoch

    @cached_property
    def epochs(self) -> int | None:
        """The number of epochs that have tasks; None: no end."""
        if not self.minibatches_per_epoch:
            return 0
        bounds = []
        if self.num_epochs > 0:
            bounds.append(self.num_epochs)
        if self.max_steps:
            if self.overlap_epochs:
                bounds.append(
                    -(-self.max_steps * self.pushes_per_step // self.minibatches_per_epoch)
                )
            else:
                bounds.append(-(-self.max_steps // self._steps_of_epoch))
        return min(bounds) if bounds else None

    @cached_property
    def records(self) -> int | None:
        """The records of all epochs; None: no end."""
        return None if self.epochs is None else self.of_first(self.epochs)[1]

    def fingerprint(self) -> dict[str, Any]:
        """Return what must be equal for positions of one plan to mean the same in another."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        free = ["num_epochs", "first_id", "contents"]
        if not self.max_steps:  # else they say which records an epoch has not
            free += ["max_steps", "overlap_epochs", "pushes_per_step"]
        for name in free:
            del values[name]
        size = self.task_size
        if any(minibatches(records, size) != -(-records // size) for _, records in self.sources):
            values["last_records"] = "joined"  # versions before had a task of one there
        if self.shuffle and self.tasks_per_epoch > TaskOrder.LISTED:
            values["task_order"] = "by position"  # versions before had another one
        return {**values, "kind": int(self.kind), "sources": [list(s) for s in self.sources]}

    @property
    def task_size(self) -> int:
        """The records of a task, of all but the last one of a source."""
        return self.minibatch_size * self.num_minibatches_per_task

    def piece(self, index: int) -> Piece:
        """Return a task of a whole epoch, in the order of the sources."""
        number = bisect_right(self._firsts, index) - 1
        source, records = self.sources[number]
        start = (index - self._firsts[number]) * self.task_size
        is_last = index + 1 == self._firsts[number + 1]
        return source, start, records if is_last else start + self.task_size

    @cached_property
    def last_pieces(self) -> list[tuple[int, int]]:
        """The index and the records of the last task of each source that has any."""
        return [
            (end - 1, records - (end - 1 - first) * self.task_size)
            for first, end, (_, records) in zip(
                self._firsts, self._firsts[1:], self.sources, strict=False
            )
            if end > first
        ]

    @cached_property
    def _firsts(self) -> list[int]:
        """The index of the first task of each source, and one past the last of all."""
        counts = (minibatches(records, self.task_size) for _, records in self.sources)
        return [0, *itertools.accumulate(counts)]

    @cached_property
    def minibatches_per_epoch(self) -> int:
        """The number of minibatches of a whole epoch."""
        lasts = self.last_pieces
        whole = (self.tasks_per_epoch - len(lasts)) * self.num_minibatches_per_task
        return whole + sum(minibatches(records, self.minibatch_size) for _, records in lasts)

    @cached_property
    def _courses(self) -> dict[int, _Course]:
        return {}

    def _course(self, epoch: int) -> _Course:
        if epoch not in self._courses:
            while len(self._courses) >= _COURSES_KEPT:
                del self._courses[next(iter(self._courses))]
            self._courses[epoch] = _Course(self, epoch, self._minibatches_of(epoch))
        return self._courses[epoch]

    @property
    def _steps_of_epoch(self) -> int:
        return -(-self.minibatches_per_epoch // self.pushes_per_step)

    def _minibatches_of(self, epoch: int) -> int:
        if not self.max_steps:
            return self.minibatches_per_epoch
        if self.overlap_epochs:  # versions run on across the ends of epochs
            left = self.max_steps * self.pushes_per_step - epoch * self.minibatches_per_epoch
        else:
            left = (self.max_steps - epoch * self._steps_of_epoch) * self.pushes_per_step
        return max(0, min(self.minibatches_per_epoch, left))


class _Course:
    """The tasks of one epoch in the order of leasing, up to so many minibatches."""

    def __init__(self, plan: Plan, epoch: int, most: int) -> None:
        self._plan = plan
        self._order = TaskOrder(plan.seed, epoch, plan.tasks_per_epoch, plan.shuffle)
        self._short = 0  # records that the last task has less
        self.tasks = plan.tasks_per_epoch
        if most < plan.minibatches_per_epoch:
            self.tasks = bisect_left(range(self.tasks), most, key=self._minibatches_before)
            beyond = self._minibatches_before(self.tasks) - most
            if beyond:
                _, start, end = self.piece(self.tasks - 1)
                kept = minibatches(end - start, plan.minibatch_size) - beyond
                self._short = end - start - kept * plan.minibatch_size

    def piece(self, position: int) -> Piece:
        source, start, end = self._plan.piece(self._order.at(position))
        return source, start, end - (self._short if position + 1 == self.tasks else 0)

    def records_before(self, position: int) -> int:
        """Return the records of the tasks before this position."""
        short = self._short if position == self.tasks else 0
        return self._sum(position, self._plan.task_size, 0) - short

    def _minibatches_before(self, position: int) -> int:
        return self._sum(position, self._plan.num_minibatches_per_task, 1)

    def _sum(self, position: int, of_each: int, what: int) -> int:
        """Sum over tasks that all have as much, but for the last ones of the sources."""
        positions, more = self._lasts
        return position * of_each + more[what][bisect_left(positions, position)]

    @cached_property
    def _lasts(self) -> tuple[list[int], tuple[list[int], list[int]]]:
        """The positions of the last tasks of sources, and what they have more than others.

        Of so many of them: records, and minibatches.
        """
        plan = self._plan
        found = sorted((self._order.position_of(i), records) for i, records in plan.last_pieces)
        records = [size - plan.task_size for _, size in found]
        batches = [
            minibatches(size, plan.minibatch_size) - plan.num_minibatches_per_task
            for _, size in found
        ]
        more = ([0, *itertools.accumulate(each)] for each in (records, batches))
        return [position for position, _ in found], tuple(more)  # type: ignore[return-value]


_FLAGS = {"sources": "training_data", "pushes_per_step": "grads_to_wait"}


def check_same_plan(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Check that positions of one plan's fingerprint mean the same in the other.

    Raises UsageError.
    """
    for name in sorted({**before, **now}, key=lambda name: (name == "last_records", name)):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if name == "last_records":
            raise UsageError(
                "--resume goes on record by record, but the checkpoint was taken by a version that "
                "cut these data otherwise: let that version go on with it, or start a new job from "
                "its parameters with --checkpoint_dir_for_init. A new job begins at the first "
                "record: those that its epoch has had by now count once more."
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
    """Return the first source that is not the same, in words."""
    for source in (*old, *new):
        if source not in new:
            return f"{source} is not there now"
        if source not in old:
            return f"{source} was not there"
        if old[source] != new[source]:
            return f"{source} had {old[source]} records, and has {new[source]}"
    return "the same sources in another order"


def split(sources: tuple[tuple[str, int], ...], size: int) -> list[Piece]:
    """Split sources into pieces of `size` records or what is left, none across two sources.

    A record that is left alone makes the piece before it longer, so that it has a minibatch to be
    in.
    """
    pieces = []
    for name, records in sources:
        count = minibatches(records, size)
        ends = [*(size * number for number in range(1, count)), records]
        pieces += [(name, size * number, end) for number, end in enumerate(ends[:count])]
    return pieces


def plan_of(settings: JobSettings, described: dict[str, Any], first_id: int = 1) -> Plan:
    """Return the plan of a job; `described` is what `edl.worker --describe` wrote."""
    common: dict[str, Any] = {
        "minibatch_size": settings.minibatch_size,
        "num_minibatches_per_task": settings.minibatches_per_task,
        "first_id": first_id,
    }
    if settings.command == "evaluate":
        return Plan(Kind.EVALUATE, sources_of(described, "validation"), **common)
    if settings.command == "predict":
        return Plan(Kind.PREDICT, sources_of(described, "prediction"), **common)
    if settings.command == ANALYZE:
        common |= {"minibatch_size": described["shard"], "num_minibatches_per_task": 1}
        return Plan(Kind.ANALYZE, sources_of(described, "training"), **common)
    return Plan(
        Kind.TRAIN,
        sources_of(described, "training"),
        num_epochs=settings.num_epochs,
        seed=settings.seed,
        shuffle=settings.shuffle,
        overlap_epochs=settings.overlap_epochs,
        max_steps=settings.max_steps,
        pushes_per_step=1 if settings.use_async else settings.grads_to_wait,
        contents=tuple(
            (source, what, when) for source, what, when in described.get("contents", ())
        ),
        **common,
    )


def sources_of(described: dict[str, Any], name: str) -> tuple[tuple[str, int], ...]:
    """Return (source, records) of the training, validation or prediction data."""
    return tuple((source, int(records)) for source, records in described.get(name, ()))

"""A loop over data that outlives restarts: its place, its batch, what happens between its steps.

The place of a loop is that of the last optimizer step that is complete, and a checkpoint is taken
between steps only, so it goes with the model's. A loop that was done before a restart is skipped:
the n-th loop over a loader in an epoch is the same one in each run of that epoch.

Between two steps all replicas learn whether one of them is preempted, whether a checkpoint is due
and whether one says it is done (collective.Control.exchange: one exchange late, without waiting; at
once where the loop may end soon). How often they do is `pace.py`.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import operator
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from ..common.clock import MonotonicClock
from . import checkpoint, collective, env, profile
from .batch_size import Batch, best_batch, checked_bounds, first_batch
from .epoch import epochs
from .loader_state import LoaderState
from .pace import Pace
from .positions import Step
from .profile import Bounds
from .session import only
from .speed import Speed

log = logging.getLogger(__name__)

_numbers = itertools.count(1)  # of micro-batches


class Scalars(Protocol):
    """TensorBoard's SummaryWriter, as far as it is used."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None: ...


class AdaptiveDataLoaderHelper:
    """A helper that makes a loader elastic, for AdaptiveDataLoader and for loaders of one's own.

    One of those:

        with self._elastic.context():
            if self._elastic.skipdone():
                return
            local_bsz = self._elastic._sync_local_bsz()
            while self._elastic.current_index < self._elastic.end_index: # both are the loader's
                with self._elastic.profile(commit=True):
                    yield ...                                            # one micro-batch
                self._elastic.current_index += ...

    `keep_index`: the index goes on in the next loop, instead of from 0. `pass_records`: so many
    there are to read, where that is known; a batch never grows beyond them.
    """

    def __init__(
        self, batch_size: int = 1, keep_index: bool = False, pass_records: int | None = None
    ) -> None:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size is {batch_size!r}: give a whole number of at least 1")
        if current_dataloader() is not None:
            raise RuntimeError("a data loader is made before the loop over another, not within it")
        self.batch_size = batch_size
        self.max_batch_size: int | None = None
        self.local_bsz_bounds: Bounds | None = None
        self.gradient_accumulation = False
        self.training = False
        self.weight = 1.0
        self.steps_of_loop = 0
        self._pace, self._speed = Pace(MonotonicClock()), Speed(MonotonicClock())
        self._keep_index = keep_index
        self._pass_records = pass_records
        self._step_records: int | None = None
        self.micro = 0  # the micro-batch that is being computed,
        self._micros = 1  # of so many of this step
        self.number = 0  # its number, which no other micro-batch of this process has
        self._waits = False  # for what is exchanged
        self._passes_of_loop = 0
        self._epoch_entered: int | None = None
        self._loops_entered = 0  # in that epoch, by this process
        self._skip = False
        self._state = LoaderState(epochs().name_of("dataloader"))
        self.models = self._state.models  # that its loops train
        epochs().forget_after(self._state)

    @property
    def current_index(self) -> int:
        """The place of the loop, in whatever the loader counts; survives a restart."""
        return self._state.index

    @current_index.setter
    def current_index(self, index: int) -> None:
        self._state.index = index

    @property
    def end_index(self) -> int:
        """The place where the loop ends; survives a restart."""
        return self._state.end_index

    @end_index.setter
    def end_index(self, index: int) -> None:
        self._state.end_index = index

    @property
    def batch(self) -> Batch:
        """The size in use; the initial one before the first loop with these replicas."""
        batch = self._state.batch
        _, replicas = collective.place()
        if batch is None or batch.replicas != replicas:
            return first_batch(
                self.batch_size, replicas, self.max_batch_size, self.local_bsz_bounds
            )
        return batch

    @property
    def current_local_bsz(self) -> int:
        """The records of one replica's micro-batch; where they do not divide, of the largest."""
        return self.batch.atomic

    @property
    def current_batch_size(self) -> int:
        """The records of an optimizer step, over all replicas and micro-batches."""
        return self.batch.total

    @property
    def step_records(self) -> int:
        """The records of the current step, fewer than `current_batch_size` at a pass's end."""
        return self._step_records or self.current_batch_size

    @property
    def accumulation_steps(self) -> int:
        """The micro-batches of the current step before the one that synchronises."""
        return self._micros - 1

    def is_sync_step(self) -> bool:
        """Tell whether the current micro-batch is the last one of its optimizer step."""
        return self.micro == self._micros - 1

    is_optim_step = is_sync_step

    def is_accum_step(self) -> bool:
        """Tell whether the current micro-batch only accumulates."""
        return not self.is_sync_step()

    def train(self) -> None:
        """Mark the loop as one that trains: its passes are timed, its batch is the job's."""
        if self.training:
            return
        self.training = True
        known = profile.current()
        known.init_batch_size = self.batch_size
        known.max_batch_size = self.max_batch_size
        known.local_bsz_bounds = self.local_bsz_bounds
        known.gradient_accumulation = self.gradient_accumulation

    def autoscale_batch_size(
        self,
        max_batch_size: int,
        local_bsz_bounds: Bounds | None = None,
        gradient_accumulation: bool = False,
    ) -> None:
        """Let the batch follow the goodput, from `batch_size` to `max_batch_size` in total.

        `local_bsz_bounds` are the least and most records of a micro-batch of one replica, each may
        be None. Raises ValueError where these exclude `batch_size`.
        """
        bounds = checked_bounds(self.batch_size, max_batch_size, local_bsz_bounds)
        if self._pass_records is not None:
            max_batch_size = min(max_batch_size, max(self._pass_records, self.batch_size))
        self.max_batch_size = max_batch_size
        self.local_bsz_bounds = bounds
        self.gradient_accumulation = gradient_accumulation

    @contextmanager
    def context(self) -> Iterator[None]:
        """Enter a loop, and leave it. Raises RuntimeError where another loop is running."""
        running = only(_Running)
        if running.loop is not None:
            raise RuntimeError(
                "loops over data loaders do not nest or overlap: end the other first"
            )
        number = self._enter()
        running.loop = self
        try:
            yield
        finally:  # also by `break` or an exception in the loop: it counts as done
            running.loop = None
            if not self._skip:
                self._state.loops_done = number + 1
                if not self._keep_index:
                    self._state.index = 0
                self._state.end_index = 0
        if not self._skip:  # nobody is left waiting for the next loop
            self._pace.reset()
            self.boundary()
            self._act(collective.control().settle())

    def to_tensorboard(
        self, writer: Scalars, global_step: int | None = None, tag_prefix: str = ""
    ) -> None:
        """Write the batch size as scalars; `tag_prefix` with or without its slash."""
        prefix = tag_prefix if not tag_prefix or tag_prefix.endswith("/") else f"{tag_prefix}/"
        batch = self.batch
        writer.add_scalar(f"{prefix}Total_Batch_Size", batch.total, global_step)
        writer.add_scalar(f"{prefix}Local_Batch_Size", batch.atomic, global_step)
        writer.add_scalar(f"{prefix}Accumulation_Steps", batch.accumulation, global_step)

    def skipdone(self) -> bool:
        """Tell whether this loop was done before a restart; its body is then left out."""
        return self._skip

    def boundary(self, done: bool = False, surely: float = math.inf) -> bool:
        """Leave between two steps if a replica is preempted, save if that is due.

        Gives whether a replica says `done`; it will not within `surely` steps. Where that is soon,
        what is exchanged is waited for, else it is what they said the time before.
        """
        if not self._pace.due():
            return False
        peers, soon = collective.control(), self._pace.reaches(surely)
        flags = (collective.preemption().requested, checkpoint.states().due(), done, soon)
        verdict, steps = peers.exchange(flags, self._pace.propose(surely))
        self._pace.agree(steps)
        if self._waits or verdict[3]:  # the same on all replicas
            verdict = tuple(map(operator.or_, verdict, peers.settle()))
            self._waits = verdict[3]
        self._act(verdict)
        return verdict[2]

    def begin(self, step: Step, micro: int) -> None:
        """Begin the next micro-batch, which is this one of the step."""
        share = step.share(micro, *collective.place())
        self.take(step.micros, step.stop - step.start, share.weight)

    def take(self, micros: int, records: int, weight: float) -> None:
        """Take the next micro-batch, one of so many of a step of so many records.

        It counts `weight` in the mean.
        """
        self._micros, self._step_records, self.weight = micros, records, weight

    @contextmanager
    def profile(self, commit: bool) -> Iterator[None]:
        """Run the body of the loop within, one micro-batch. Its time counts if `commit`."""
        if self.micro == 0:
            self.boundary()
            self._micros = self.batch.accumulation + 1
        with self.micro_batch(commit):
            yield

    @contextmanager
    def micro_batch(self, commit: bool) -> Iterator[None]:
        """Run a micro-batch as `profile` does, without the boundary.

        It has no say in the number of micro-batches.
        """
        self.number = next(_numbers)
        sync, first = self.is_sync_step(), self._passes_of_loop == 0
        self._passes_of_loop += 1
        with profile.current().timed(
            self.batch.atomic, sync, lambda: commit and self.training and not first
        ):
            yield
        self.micro = 0 if sync else self.micro + 1
        self.steps_of_loop += sync
        if sync and self.training:
            self._speed.step(self.step_records)

    def _enter(self) -> int:
        """Enter the loop; return its number within its epoch."""
        state, epoch = self._state, epochs().current
        if self._epoch_entered != epoch:
            self._epoch_entered, self._loops_entered = epoch, 0
        if state.epoch != epoch:
            state.epoch, state.loops_done = epoch, 0
        number = self._loops_entered
        self._loops_entered += 1
        self._skip = number < state.loops_done
        self.micro = self._passes_of_loop = self.steps_of_loop = 0
        self._waits = False
        self.models.enter(number)
        self._pace.reset()
        self._speed.begin()
        if not self._skip:
            collective.preemption().install()
            self._act(collective.control().settle())  # of a loop that was broken off
        return number

    def _act(self, verdict: tuple[bool, ...]) -> None:
        preempted, due = verdict[:2] or (False, False)
        if preempted:
            path = checkpoint.save_all_states()
            log.warning("replica -> preempted checkpoint=%s", path)
            sys.exit(collective.PREEMPTED)
        if due:
            checkpoint.save_all_states()

    def _sync_local_bsz(self) -> int:
        """Choose the batch, the same on all replicas. Gives the records of a micro-batch."""
        peers, most, bounds = collective.control(), self.max_batch_size, self.local_bsz_bounds
        if most is None:
            self._state.batch = first_batch(self.batch_size, peers.replicas, None, bounds)
        else:
            chosen: tuple[int, ...] = ()
            if peers.rank == 0:
                best = best_batch(
                    profile.current().goodput(),
                    self._state.batch,
                    (min(env.num_nodes(), peers.replicas), peers.replicas),
                    most,
                    bounds,
                    self.gradient_accumulation,
                )
                chosen = dataclasses.astuple(best or self.batch)
            self._state.batch = Batch(*peers.broadcast(chosen))
        profile.current().global_batch_size = self.batch.total
        return self.batch.atomic


class AdaptiveDataLoaderMixin:
    """The attributes of an elastic loader, for one that has an AdaptiveDataLoaderHelper."""

    def __init__(
        self, batch_size: int, keep_index: bool = False, pass_records: int | None = None
    ) -> None:
        self._elastic = AdaptiveDataLoaderHelper(batch_size, keep_index, pass_records)

    @property
    def current_local_bsz(self) -> int:
        """The records of one replica's micro-batch; where they do not divide, of the largest."""
        return self._elastic.current_local_bsz

    @property
    def current_batch_size(self) -> int:
        """The records of an optimizer step, over all replicas and micro-batches."""
        return self._elastic.current_batch_size

    @property
    def accumulation_steps(self) -> int:
        """The micro-batches of the current step before the one that synchronises."""
        return self._elastic.accumulation_steps

    @property
    def training(self) -> bool:
        """True where the loader's loops train."""
        return self._elastic.training

    @property
    def weight(self) -> float:
        """The weight of this replica's micro-batch in the mean: 1 but where shares are uneven."""
        return self._elastic.weight

    def autoscale_batch_size(
        self,
        max_batch_size: int,
        local_bsz_bounds: Bounds | None = None,
        gradient_accumulation: bool = False,
    ) -> None:
        """Let the batch follow the goodput; see AdaptiveDataLoaderHelper.autoscale_batch_size."""
        self._elastic.autoscale_batch_size(max_batch_size, local_bsz_bounds, gradient_accumulation)

    def to_tensorboard(
        self, writer: Scalars, global_step: int | None = None, tag_prefix: str = ""
    ) -> None:
        """Write the batch size as scalars; `tag_prefix` with or without its slash."""
        self._elastic.to_tensorboard(writer, global_step, tag_prefix)


class _Running:
    """The loop that is running, if one is."""

    def __init__(self) -> None:
        self.loop: AdaptiveDataLoaderHelper | None = None


def current_dataloader() -> AdaptiveDataLoaderHelper | None:
    """Return the loop over a data loader that is running; None outside of one."""
    return only(_Running).loop

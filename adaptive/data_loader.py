"""Data loaders whose batch follows the replicas, the goodput and nothing else, at exact positions.

A loop over an AdaptiveDataLoader is one pass over the records (positions.py): over the replicas each
is read exactly once, whatever their number, and however often the job is restarted with another one
meanwhile. The loader's place is that of the last optimizer step that is complete; a checkpoint is
taken between steps only, so it goes with the model's.

Without autoscale the total batch is always `batch_size`. With it, a loop begins with the batch of the
best goodput, and asks again every RETUNE_STEPS optimizer steps; another one is adopted if it promises
more than 5 % more (MIN_GAIN). Rank 0 decides, and tells the others. Epochs are then measured by
statistical progress (Pollux, OSDI '21, section 3.1): epoch e ends when the optimizer has progressed as far
as e + 1 passes at the initial batch would bring it, wherever in a pass that is; the next loop goes on there.

Between two steps all replicas learn whether one of them is preempted, whether a checkpoint is due and whether
the epoch has progressed enough (collective.Control.exchange: a step late, without waiting).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import sys
from collections.abc import Generator, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from ..common.order import order
from . import checkpoint, collective, env, profile
from .epoch import epochs
from .positions import Step, steps
from .profile import Bounds
from .session import only

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from .data_parallel import AdaptiveDataParallel

T = TypeVar("T")

RETUNE_STEPS = 100  # optimizer steps; a guess: asking costs a broadcast, and a fit each 30 s
MIN_GAIN = 1.05  # AdaptDL's: less is within the error of the model


class Scalars(Protocol):
    """TensorBoard's SummaryWriter, as far as it is used."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None: ...


@dataclass(frozen=True)
class Batch:
    """A size of the batch: for so many replicas, of at most `atomic` records a pass, `total` in all."""

    replicas: int
    atomic: int
    accumulation: int
    total: int


class ElasticSampler(Sampler[int]):
    """The records of this replica from a position on, in an order that all replicas share.

    By itself: `for record in sampler` gives every num_replicas-th record of the rest of the pass. The
    shares of the replicas differ by at most one record; none is repeated.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self._size = len(dataset)
        self._shuffle = shuffle
        self._seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int, index: int = 0) -> None:
        """Stand at a record of an epoch; an `index` of len(dataset) or more is in its later passes."""
        self.epoch = epoch
        self.index = index

    @property
    def position(self) -> int:
        """Within the pass."""
        return self.index % max(1, self._size)

    def order(self) -> NDArray[np.int64]:
        """Records by position, int64[len(dataset)]: the whole pass, of all replicas."""
        number = self.index // max(1, self._size)
        return order(self._seed, self.epoch, number, self._size, self._shuffle)

    def end_of_pass(self, index: int) -> int:
        """Where the pass ends that this index is in."""
        return (index // self._size + 1) * self._size

    def steps(self, batch: Batch, start: int | None = None) -> Iterator[Step]:
        """The optimizer steps of the rest of the pass."""
        return steps(
            self.position if start is None else start,
            self._size,
            replicas=batch.replicas,
            batch_size=batch.total,
            micros=batch.accumulation + 1,
        )

    def __iter__(self) -> Iterator[int]:
        peers = collective.control()
        yield from map(int, self.order()[self.position + peers.rank :: peers.replicas])

    def __len__(self) -> int:
        peers = collective.control()
        return len(range(self.position + peers.rank, self._size, peers.replicas))


class AdaptiveDataLoaderHelper:
    """What makes a loader elastic, for AdaptiveDataLoader and for loaders of one's own.

    One of those:

        with self._elastic.context():
            if self._elastic.skipdone():
                return
            local_bsz = self._elastic._sync_local_bsz()
            while self._elastic.current_index < self._elastic.end_index: # both are the loader's
                with self._elastic.profile(commit=True):
                    yield ...                                            # one micro-batch
                self._elastic.current_index += ...

    `keep_index`: the index goes on in the next loop, instead of from 0.
    """

    def __init__(self, batch_size: int = 1, keep_index: bool = False) -> None:
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
        self._keep_index = keep_index
        self.micro = 0  # the micro-batch that is being computed,
        self._micros = 1  # of so many of this step
        self._passes_of_loop = 0
        self._epoch_entered: int | None = None
        self._loops_entered = 0  # in that epoch, by this process
        self._skip = False
        self._state = _LoaderState(epochs().name_of("dataloader"))
        epochs().forget_after(self._state)

    @property
    def current_index(self) -> int:
        """Where the loop is, in whatever the loader counts; survives a restart."""
        return self._state.index

    @current_index.setter
    def current_index(self, index: int) -> None:
        self._state.index = index

    @property
    def end_index(self) -> int:
        """Where the loop ends; survives a restart."""
        return self._state.end_index

    @end_index.setter
    def end_index(self, index: int) -> None:
        self._state.end_index = index

    @property
    def batch(self) -> Batch:
        """The size in use; the initial one before the first loop with these replicas."""
        batch = self._state.batch
        if batch is None or batch.replicas != collective.control().replicas:
            return self._initial()
        return batch

    @property
    def current_local_bsz(self) -> int:
        """Records of one replica's micro-batch; where they do not divide, of the largest."""
        return self.batch.atomic

    @property
    def current_batch_size(self) -> int:
        """Records of an optimizer step, over all replicas and micro-batches."""
        return self.batch.total

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches of the current step before the one that synchronises."""
        return self._micros - 1

    def is_sync_step(self) -> bool:
        """Whether the current micro-batch is the last one of its optimizer step."""
        return self.micro == self._micros - 1

    is_optim_step = is_sync_step

    def is_accum_step(self) -> bool:
        """Whether the current micro-batch only accumulates."""
        return not self.is_sync_step()

    def train(self) -> None:
        """Call it in a loop that trains: its passes are timed, its batch is the job's."""
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
        if not isinstance(max_batch_size, int) or max_batch_size < self.batch_size:
            raise ValueError(
                f"max_batch_size is {max_batch_size!r}: give a whole number of at least the batch "
                f"size, {self.batch_size}"
            )
        low, high = local_bsz_bounds or (None, None)
        if (low is not None and not 1 <= low <= self.batch_size) or (
            high is not None and high < self.batch_size
        ):
            raise ValueError(
                f"local_bsz_bounds are {local_bsz_bounds!r}: they must include the batch size, "
                f"{self.batch_size}; either may be None"
            )
        self.max_batch_size = max_batch_size
        self.local_bsz_bounds = (low, high)
        self.gradient_accumulation = gradient_accumulation

    @contextmanager
    def context(self) -> Iterator[None]:
        """Around a loop. Raises RuntimeError where another loop is running."""
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
            self.boundary()
            self._act(collective.control().settle())

    def skipdone(self) -> bool:
        """Whether this loop was done before a restart; the body of the loop is then left out."""
        return self._skip

    def boundary(self, done: bool = False) -> bool:
        """Between two steps: leave if a replica is preempted, save if that is due.

        Gives whether a replica said `done` at the boundary before.
        """
        flags = (collective.preemption().requested, checkpoint.states().due(), done)
        verdict = collective.control().exchange(flags)
        self._act(verdict)
        return verdict[2]

    def begin(self, step: Step, micro: int) -> None:
        """The next micro-batch is this one of the step."""
        peers = collective.control()
        self._micros = step.micros
        self.weight = step.share(micro, peers.rank, peers.replicas).weight

    @contextmanager
    def profile(self, commit: bool) -> Iterator[None]:
        """Around the body of the loop, one micro-batch. Its time counts if `commit`."""
        if self.micro == 0:
            self.boundary()
            self._micros = self.batch.accumulation + 1
        with self.micro_batch(commit):
            yield

    @contextmanager
    def micro_batch(self, commit: bool) -> Iterator[None]:
        """The same without the boundary, and without a say in the number of micro-batches."""
        sync, first = self.is_sync_step(), self._passes_of_loop == 0
        self._passes_of_loop += 1
        with profile.current().timed(
            self.batch.atomic, sync, lambda: commit and self.training and not first
        ):
            yield
        self.micro = 0 if sync else self.micro + 1
        self.steps_of_loop += sync

    def _enter(self) -> int:
        """The number of this loop within its epoch."""
        state, epoch = self._state, epochs().current
        if self._epoch_entered != epoch:
            self._epoch_entered, self._loops_entered = epoch, 0
        if state.epoch != epoch:
            state.epoch, state.loops_done = epoch, 0
        number = self._loops_entered
        self._loops_entered += 1
        self._skip = number < state.loops_done
        self.micro = self._passes_of_loop = self.steps_of_loop = 0
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
        peers = collective.control()
        if self.max_batch_size is None:
            self._state.batch = self._initial()
        else:
            chosen = dataclasses.astuple(self._choose()) if peers.rank == 0 else ()
            self._state.batch = Batch(*peers.broadcast(chosen))
        profile.current().global_batch_size = self.batch.total
        return self.batch.atomic

    def _choose(self) -> Batch:
        """The batch of the best goodput, if it is much better than the one in use."""
        replicas = collective.control().replicas
        nodes = min(env.num_nodes(), replicas)
        used, goodput = self._state.batch, profile.current().goodput()
        if goodput is None or self.max_batch_size is None:
            return self.batch
        _, atomic, accumulation = goodput.optimize(
            nodes,
            replicas,
            max_batch_size=self.max_batch_size,
            atomic_bsz_range=self.local_bsz_bounds,
            accumulation=self.gradient_accumulation,
        )
        passes = replicas * (accumulation + 1)
        total = max(passes, min(passes * atomic, self.max_batch_size))
        best = Batch(replicas, atomic, accumulation, total)
        if used is None or used.replicas != replicas:
            return best
        now = goodput.evaluate(nodes, replicas, used.atomic, used.accumulation)
        then = goodput.evaluate(nodes, replicas, atomic, accumulation)
        if then <= MIN_GAIN * now:
            return used
        log.info("batch=%d -> %d gain=%.2f", used.total, best.total, then / now)
        return best

    def _initial(self) -> Batch:
        replicas = collective.control().replicas
        low = (self.local_bsz_bounds or (None, None))[0] or 1
        total = max(self.batch_size, replicas * low)
        if self.max_batch_size is not None:
            total = min(total, self.max_batch_size)
        total = max(total, replicas)  # none has nothing to compute
        return Batch(replicas, math.ceil(total / replicas), 0, total)


class AdaptiveDataLoaderMixin:
    """The attributes of an elastic loader, for one that has an AdaptiveDataLoaderHelper."""

    def __init__(self, batch_size: int, keep_index: bool = False) -> None:
        self._elastic = AdaptiveDataLoaderHelper(batch_size, keep_index)

    @property
    def current_local_bsz(self) -> int:
        """Records of one replica's micro-batch; where they do not divide, of the largest."""
        return self._elastic.current_local_bsz

    @property
    def current_batch_size(self) -> int:
        """Records of an optimizer step, over all replicas and micro-batches."""
        return self._elastic.current_batch_size

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches of the current step before the one that synchronises."""
        return self._elastic.accumulation_steps

    @property
    def training(self) -> bool:
        """Whether its loops train."""
        return self._elastic.training

    @property
    def weight(self) -> float:
        """What this replica's micro-batch counts in the mean over all: 1 but where it is uneven."""
        return self._elastic.weight

    def autoscale_batch_size(
        self,
        max_batch_size: int,
        local_bsz_bounds: Bounds | None = None,
        gradient_accumulation: bool = False,
    ) -> None:
        """See AdaptiveDataLoaderHelper.autoscale_batch_size."""
        self._elastic.autoscale_batch_size(max_batch_size, local_bsz_bounds, gradient_accumulation)

    def to_tensorboard(
        self, writer: Scalars, global_step: int | None = None, tag_prefix: str = ""
    ) -> None:
        """Write the batch size as scalars; `tag_prefix` with or without its slash."""
        prefix = tag_prefix if not tag_prefix or tag_prefix.endswith("/") else f"{tag_prefix}/"
        batch = self._elastic.batch
        writer.add_scalar(f"{prefix}Total_Batch_Size", batch.total, global_step)
        writer.add_scalar(f"{prefix}Local_Batch_Size", batch.atomic, global_step)
        writer.add_scalar(f"{prefix}Accumulation_Steps", batch.accumulation, global_step)


class AdaptiveDataLoader(DataLoader[T], AdaptiveDataLoaderMixin):
    """torch's DataLoader over the records of this replica, elastic.

    `batch_size` is the total of an optimizer step over all replicas; `seed` that of the shuffling, the same
    on all of them. All else are torch's arguments. Raises ValueError for those that contradict it: a
    sampler of one's own, and `drop_last`, for every record is read. TypeError for an IterableDataset.
    """

    def __init__(
        self,
        dataset: Dataset[T],
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        seed: int = 0,
        **dataloader_kwargs: Any,
    ) -> None:
        for name in ("sampler", "batch_sampler", "drop_last"):
            if dataloader_kwargs.pop(name, None):
                raise ValueError(
                    f"{name} cannot be given to an AdaptiveDataLoader, which itself decides who "
                    "reads which records, each once: leave it out"
                )
        if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
            raise TypeError("an AdaptiveDataLoader needs a dataset with a length and an index")
        AdaptiveDataLoaderMixin.__init__(self, batch_size, keep_index=True)
        self._epoch_of_birth = epochs().current or 0
        self._size = len(dataset)
        self._order = ElasticSampler(dataset, shuffle, seed)
        peers = collective.control()
        if dataloader_kwargs.get("generator") is None:
            # Out of it come the seeds of the workers: of the same user's seed, others on each replica.
            own = torch.initial_seed() + peers.rank * max(
                1, dataloader_kwargs.get("num_workers", 0)
            )
            dataloader_kwargs["generator"] = torch.Generator().manual_seed(own & (2**63 - 1))
        shares = _Shares(self._order, self._elastic)
        super().__init__(dataset, batch_sampler=shares, **dataloader_kwargs)
        # torch has None here with a batch_sampler, and lets nobody set it.
        self.__dict__["batch_size"] = batch_size

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        elastic = self._elastic
        with elastic.context():
            if elastic.skipdone() or not self._size:
                return
            elastic._sync_local_bsz()
            over = collective.control().broadcast(self._is_reached())
            try:
                while not over:
                    over = yield from self._pass()
            except GeneratorExit:  # broken off: the next loop begins a pass of its own
                elastic.current_index = self._order.end_of_pass(elastic.current_index)
                raise

    def _pass(self) -> Generator[Any, None, bool]:
        """The rest of the pass. Gives (as a generator does) whether the loop is over with it."""
        elastic = self._elastic
        end = self._order.end_of_pass(elastic.current_index)
        while elastic.current_index < end:
            batch = elastic.batch
            self._order.set_epoch(self._epoch_of_birth, elastic.current_index)
            batches = super().__iter__()
            for step in self._order.steps(batch):
                if elastic.boundary(done=self._is_reached()):
                    return True
                whole = step.stop - step.start == batch.total
                for micro in range(step.micros):
                    elastic.begin(step, micro)
                    data = next(batches)
                    with elastic.micro_batch(commit=whole):
                        yield data
                elastic.current_index += step.stop - step.start
                if elastic.steps_of_loop % RETUNE_STEPS == 0:
                    elastic._sync_local_bsz()
                    if elastic.batch != batch:
                        break
        return self._model() is None

    def _is_reached(self) -> bool:
        """Whether the optimizer has progressed as far as this epoch is to bring it."""
        epoch, model = epochs().current, self._model()
        if epoch is None or model is None:
            return False
        target = self._size * (epoch + 1) / self._elastic.batch_size
        return bool(model.progress >= target)

    def _model(self) -> AdaptiveDataParallel | None:
        """Whose progress ends the epoch: of a loop that trains, within an epoch, and autoscales."""
        elastic = self._elastic
        if epochs().current is None or elastic.max_batch_size is None or not elastic.training:
            return None
        from . import data_parallel  # which imports this module

        return data_parallel.current_model()


class _Shares(Sampler[list[int]]):
    """This replica's records of the rest of the pass, by micro-batch."""

    def __init__(self, order: ElasticSampler, elastic: AdaptiveDataLoaderHelper) -> None:
        self._order = order
        self._elastic = elastic

    def __iter__(self) -> Iterator[list[int]]:
        rank, replicas = collective.control().rank, collective.control().replicas
        records = self._order.order()
        for step in self._order.steps(self._elastic.batch):
            for micro in range(step.micros):
                yield records[step.share(micro, rank, replicas).positions].tolist()

    def __len__(self) -> int:
        """Micro-batches of a whole pass with the batch in use."""
        return sum(step.micros for step in self._order.steps(self._elastic.batch, start=0))


class _LoaderState(checkpoint.State):
    """Where a loader stands. The same on all replicas."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.epoch: int | None = None
        self.loops_done = 0  # in that epoch
        self.index = 0
        self.end_index = 0
        self.batch: Batch | None = None
        checkpoint.load_state(self)

    def save(self, fileobj: BinaryIO) -> None:
        values = {
            "epoch": self.epoch,
            "loops_done": self.loops_done,
            "index": self.index,
            "end_index": self.end_index,
            "batch": dataclasses.asdict(self.batch) if self.batch else None,
        }
        fileobj.write(json.dumps(values).encode())

    def load(self, fileobj: BinaryIO) -> None:
        values = json.loads(fileobj.read())
        self.epoch, self.loops_done = values["epoch"], values["loops_done"]
        self.index, self.end_index = values["index"], values["end_index"]
        self.batch = Batch(**values["batch"]) if values["batch"] else None


class _Running:
    """The loop that is running, if one is."""

    def __init__(self) -> None:
        self.loop: AdaptiveDataLoaderHelper | None = None


def current_dataloader() -> AdaptiveDataLoaderHelper | None:
    """The loop over a data loader that is running; None outside of one."""
    return only(_Running).loop

"""Measurements of an adaptive job's steps, the choice of its minibatch, and its way to each round.

Of every two steps the first measures noise and the second times, so that neither is in the way of
the other; edl.adaptive's `is_due` says which pairs. All else costs nothing, nor does a round with
latecomers, who cannot know what is due: it measures nothing.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ...adaptive.inner_products import adam_product, inner_product
from ...adaptive.step_times import Key, Times, fit
from ...adaptive.stopwatch import Moment, Stopwatch
from ...common import background
from ...common.clock import Clock
from ...common.listen import host_of
from ...goodput.model import MIN_GAIN, GoodputFunction, PerfParams
from ...proto import master_pb2 as pb
from .adaptive_batch import AdaptiveBatch, Measured
from .allreduce import AllReduceTrainer
from .slices import Slice, SliceReader
from .state import GroupState

log = logging.getLogger(__name__)

_MOST_GROWTH = 2  # at once: the model of the times knows sizes near those that were measured
_REFIT_S = 30.0  # Pollux's interval of reports (section 4.1)
_WARM_STEPS = 2  # of a round, not timed: DDP makes its buckets anew after the first


def best(
    goodput: GoodputFunction,
    among: Sequence[int],
    *,
    nodes: int,
    members: int,
    present: int,
    local: int,
) -> tuple[int, float]:
    """Return the minibatch of the best goodput, and that goodput relative to the present one's.

    It is of `among`, not above twice the present one, which stays (with 1.0) unless another
    promises more than MIN_GAIN. `local`: most records of one forward and backward pass; 0: no
    bound. Pollux (OSDI '21), section 4.1, eqn 13.
    """
    totals = np.array([present, *(s for s in among if s <= _MOST_GROWTH * present)])
    shares = np.ceil(totals / members)
    passes = np.ceil(shares / local) if local else np.ones_like(shares)
    found = goodput.evaluate(nodes, members, np.ceil(shares / passes), passes - 1)
    gains = found / found[0]
    winner = int(gains.argmax())
    if gains[winner] <= MIN_GAIN:
        return present, 1.0
    return int(totals[winner]), float(gains[winner])


class Chooser:
    """The choice of a minibatch in the background, with a model of the times, fitted now and then.

    The first fit of a process takes a second, for scipy is imported; nobody waits for it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._fitted: tuple[float, frozenset[Key], PerfParams] | None = None
        self._asked: tuple[int, int, int] | None = None
        self._answer: Future[int] = Future()

    def ask(self, batch: AdaptiveBatch, nodes: int, members: int) -> int:
        """Return the minibatch that `choose` finds; 0 while that is not known: then ask again."""
        asked = (batch.minibatch, nodes, members)
        if self._asked is None:
            twin = copy.deepcopy(batch)  # it goes on changing while this thinks
            self._asked = asked
            self._answer = background.begin("minibatch", lambda: self.choose(twin, nodes, members))
        if not self._answer.done():
            return 0
        was, self._asked = self._asked, None
        return self._answer.result() if was == asked else 0

    @property
    def fitted(self) -> PerfParams | None:
        """The newest model of the times."""
        return None if self._fitted is None else self._fitted[2]

    def choose(self, batch: AdaptiveBatch, nodes: int, members: int) -> int:
        """Return the minibatch, as `best` does; 0 while nothing was timed."""
        perf = self._perf(batch.times)
        if perf is None:
            return 0
        chosen, gain = best(
            batch.goodput(perf),
            batch.sizes,
            nodes=nodes,
            members=members,
            present=batch.minibatch,
            local=batch.local,
        )
        if chosen != batch.minibatch:
            log.info("minibatch=%d -> %d goodput=x%.2f", batch.minibatch, chosen, gain)
        return chosen

    def _perf(self, times: Mapping[Key, Times]) -> PerfParams | None:
        """Return the model of the times.

        It is fitted anew where the group has run otherwise than before, or after a while.
        """
        now, keys = self._clock.now(), frozenset(times)
        if self._fitted is not None:
            at, known, perf = self._fitted
            if known == keys and now < at + _REFIT_S:
                return perf
        fitted = fit(times)
        if fitted is not None:
            self._fitted = now, keys, fitted
        return fitted


class Meter:
    """A meter of the steps of a round whose members all have the state, and call it alike."""

    def __init__(
        self,
        state: GroupState,
        chooser: Chooser,
        clock: Clock,
        *,
        rank: int,
        members: int,
        nodes: int,
    ) -> None:
        assert state.batch is not None, "nothing is to be measured"
        self._state, self._batch, self._chooser = state, state.batch, chooser
        self._rank, self._members, self._nodes = rank, members, nodes
        self._first = state.version
        self._stopwatch = Stopwatch(clock)
        self._times = Times()  # since the last exchange, on this member
        self._local: list[Tensor] = []  # parts of L, on this member
        self._count = 0  # its gradients of the step
        self._begun: Moment | None = None  # the last pass of a step that is timed

    @property
    def minibatch(self) -> int:
        """The minibatch of the round's steps."""
        return self._batch.minibatch

    def splits(self, number: int) -> bool:
        """Tell whether the round's slice of that number, from 0, is split to measure noise alone.

        Asked ahead of the steps, so it may be wrong now and then; then nothing is measured.
        """
        return self._members == 1 and self._batch.measures_noise(self._first + number)

    @contextmanager
    def watch(self, piece: Slice, weight: float, last: bool) -> Iterator[None]:
        """Watch one pass forward and backward, whose gradients are `weight` of the mean."""
        version = self._state.version
        if self._batch.measures_noise(version):
            with self._lengths(weight):
                yield
        elif self._is_timed(version, piece):
            with self._timed(last):
                yield
        else:
            yield

    def exchange(self) -> Measured | None:
        """Return what a step is worth, if it is measured; its mean gradients are in `.grad`."""
        batch, version = self._batch, self._state.version
        if not batch.measures_noise(version):
            return None
        self._stopwatch.collect()
        times = torch.tensor(dataclasses.astuple(self._times), dtype=torch.float64)
        words = torch.zeros(4 + len(times), dtype=torch.float64, device=self._device)
        words[0] = sum(self._local, words[0])
        words[1] = self._count
        words[2] = self._total()
        if self._rank == 0 and batch.is_to_choose(version, self._members):
            words[3] = self._chooser.ask(batch, self._nodes, self._members)
            batch.fitted = self._chooser.fitted
        words[4:] = times
        self._local, self._count, self._times = [], 0, Times()
        dist.all_reduce(words)
        local, count, total, chosen, *sums = words.tolist()
        shares = math.ceil(batch.minibatch / self._members)
        passes = math.ceil(shares / batch.local) if batch.local else 1
        return Measured(
            local,
            total,
            round(count),
            round(chosen),
            Times(*sums),
            (self._nodes, self._members, math.ceil(shares / passes)),
        )

    def committed(self) -> None:
        """Note that the step was applied."""
        begun, self._begun = self._begun, None
        if begun is not None:
            self._stopwatch.measure(
                begun, self._stopwatch.mark(), lambda seconds: self._times.add_optim(seconds)
            )

    @property
    def _device(self) -> torch.device:
        return self._state.parameters[0].device

    def _is_timed(self, version: int, piece: Slice) -> bool:
        warm = version - self._first >= _WARM_STEPS
        return warm and piece.total == self._batch.minibatch and self._batch.times_step(version)

    @contextmanager
    def _lengths(self, weight: float) -> Iterator[None]:
        """Measure the squared length of this pass's gradient.

        The loss was multiplied by weight x members. With each squared length weighted by the
        gradient's share of the records, E[L] = |G|^2 + n tr(cov) / N holds for n gradients of N
        records in all however uneven they are: just what the estimator takes for granted.
        """
        parts: list[Tensor] = []

        def add(parameter: Tensor) -> Callable[[Tensor], None]:
            return lambda gradient: parts.extend(self._product(parameter, gradient))

        parameters = self._state.parameters
        hooks = [p.register_hook(add(p)) for p in parameters]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        if weight and parts:
            length = torch.stack(parts).double().sum()
            self._local.append(length / (weight * self._members**2))
            self._count += 1

    def _total(self) -> Tensor:
        """Return T, of the mean gradient: this member's share, for all hold it."""
        parts: list[Tensor] = []
        for parameter in self._state.parameters:
            if parameter.grad is not None:
                parts += self._product(parameter, parameter.grad, (self._rank, self._members))
        return torch.stack(parts).double().sum()

    def _product(
        self, parameter: Tensor, gradient: Tensor, share: tuple[int, int] = (0, 1)
    ) -> list[Tensor]:
        if not self._batch.adam:
            return inner_product(gradient, gradient, share=share)
        optimizer = self._state.optimizer
        (group,) = optimizer.param_groups
        state = optimizer.state.get(parameter, {})
        return adam_product(state, group, gradient, gradient, share)

    @contextmanager
    def _timed(self, last: bool) -> Iterator[None]:
        mark, measure = self._stopwatch.mark, self._stopwatch.measure
        computed: list[Moment] = []
        hooks = []
        if last and self._members > 1:

            def note(_gradient: Tensor) -> None:
                computed[:] = [mark()]  # of the last gradient, in the end

            parameters = self._state.parameters
            hooks = [p.register_hook(note) for p in parameters]  # type: ignore[no-untyped-call]
        begun = mark()
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        if not last:
            measure(begun, mark(), lambda seconds: self._times.add_accum(seconds))
            return
        self._begun = begun  # until it is committed
        if computed:
            measure(computed[0], mark(), lambda seconds: self._times.add_sync(seconds))


class Follower:
    """The minibatch of each round that a member enters, and the meter of its steps."""

    def __init__(self, trainer: AllReduceTrainer, clock: Clock) -> None:
        self._trainer = trainer
        self._clock = clock
        self._chooser = Chooser(clock)

    def enter(self, reader: SliceReader, reply: pb.JoinReply, shares: int) -> None:
        """Begin a round, in torch's default process group.

        Nothing was read yet.
        """
        state = self._trainer.state
        assert state.batch is not None, "the minibatch of this job does not change"
        word = torch.tensor([state.batch.minibatch])
        dist.broadcast(word, 0)
        reader.train_minibatch = int(word)
        log.info("round=%d -> minibatch=%d", reply.round, reader.train_minibatch)
        if shares < len(reply.peers):
            return
        nodes = len({host_of(peer.address) for peer in reply.peers})
        self._trainer.meter = meter = Meter(
            state, self._chooser, self._clock, rank=reply.rank, members=shares, nodes=nodes
        )
        reader.splits = meter.splits

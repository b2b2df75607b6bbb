"""The backward passes of a model, as the hooks of its parameters see them.

What happens in a backward pass hangs on hooks of the parameters: the first one to fire looks up the
loop, all of them tell their micro-gradient, and the end of the pass comes after the averaging, for
its callback is queued by a callback that was queued before DDP's own. Where shares are uneven, a
micro-gradient is multiplied by the loop's `weight`, so that the mean over replicas is that over
records.

Most passes have nothing to tell: the step is not measured, has one micro-batch, and the batch is
that of the step before. The forward pass knows, and takes the hooks off: each costs some 10 us of a
busy machine. Of such passes one in _TIMED is heard nevertheless, for how long it synchronises.

A micro-batch may have several passes; its gradient is their sum, as plain torch has it:

    zero_grad   pass   pass   step   pass           a pass after the step counts for nothing: it is
    |<---- of the micro-batch --->|  |<- stray ->|  another model's, through this one (a GAN's)

The first averaging of a step divides by its micro-batches, and what comes after it is divided as it
comes. Which pass is the last of a step nobody knows, so each that averages ends it anew: lengths
are then measured again, of the sums of the micro-batch at hand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed, nn

from ..common.clock import MonotonicClock
from ..common.errors import UsageError
from . import data, profile
from .gradient_noise_scale import GradientNoiseScale
from .stopwatch import Moment, Stopwatch

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from .data import AdaptiveDataLoaderHelper

_TIMED = 32  # passes: of so many one is timed; a guess, for each of them costs about 2 % more


class Backward:
    """A model's backward passes, as the hooks of its parameters see them.

    `accumulating`: gradients of some micro-batches of a step stand in `.grad`, not of all yet.
    """

    def __init__(
        self,
        gns: GradientNoiseScale,
        parameters: list[nn.Parameter],
        process_group: distributed.ProcessGroup,
    ) -> None:
        self.accumulating = False
        self.init_batch_size = 1
        self._gns = gns
        self._parameters = parameters
        self._process_group = process_group
        self._replicas = process_group.size()
        self._stopwatch = Stopwatch(MonotonicClock())
        self._running = False
        self._weight = 1.0
        self._measures = False
        self._newest: Tensor | None = None  # whose gradient came last,
        self._last: Tensor | None = None  # and in the pass before
        self._computed: Moment | None = None  # when the last gradient of this pass came
        self._untimed = _TIMED  # passes since one was timed
        self._measured_before = False  # in the pass before
        self._hooks: list[RemovableHandle] = []
        self._first: int | None = None  # the number of the first micro-batch that was heard,
        self._number: int | None = None  # and of the newest:
        self._passes = 0  # so many of it began,
        self._zeroed = False  # and gradients of it were to be zeroed before its step
        self._begun = False  # a step of the optimizer: its first pass was heard
        self._divided = False  # `.grad` is of the mean over its micro-batches
        self._sums: dict[Tensor, Tensor] = {}  # of the micro-batch, where passes are several
        self._stepped: int | None = None  # the micro-batch in which the optimizer was called,
        self._strayed = False  # and a pass of that one came later
        self._stray = False  # the pass at hand is such a one
        self._came: set[Tensor] = set()  # who had a gradient since the last forward pass
        self._misses = False  # some passes, DistributedDataParallel
        self._listen()

    def expect(self, loop: AdaptiveDataLoaderHelper | None) -> None:
        """Prepare for a pass, which may follow. One that failed in its middle is forgotten."""
        self._running = False
        self._came.clear()
        self._measured_before = self._measures and bool(self._hooks)
        self._untimed += 1
        if loop is None:
            self._drop()
        if not self._is_quiet(loop):
            self._listen()
        elif self._hooks:
            self._ignore()

    def zeroes(self) -> bool:
        """Note a call of `zero_grad`; tell whether it does its work.

        Gradients that still add up stay.
        """
        if self.accumulating:
            self._zeroed |= self._passes > 0 and self._stepped != self._number
            return False
        self._begun, self._stepped = False, None
        return True

    def stepped(self, loop: AdaptiveDataLoaderHelper) -> None:
        """Note that the optimizer is called, or was to be.

        Raises UsageError where that is the second step of a micro-batch, of several that make one.
        """
        again = self._stepped == loop.number and self._strayed
        if again and loop.accumulation_steps:
            raise UsageError(
                "optimizer.step() comes twice for one batch of the loop, several of which make one "
                "step with gradient_accumulation: leave that out of autoscale_batch_size(), or "
                "make one step for each batch"
            )
        self._stepped, self._strayed = loop.number, False
        self._begun &= not loop.is_sync_step()

    def _drop(self) -> None:
        """Forget gradients that still add up: a loop was left in the middle of a step."""
        self._sums.clear()
        if self.accumulating:
            self.accumulating = False
            for parameter in self._parameters:
                parameter.grad = None

    def _is_quiet(self, loop: AdaptiveDataLoaderHelper | None) -> bool:
        """Tell whether there is nothing to learn and nothing to do in a pass of this loop."""
        return loop is None or (
            (self._replicas == 1 or self._untimed < _TIMED)
            and not self.accumulating
            and loop.training
            and loop.weight == 1.0
            and loop.accumulation_steps == 0
            and loop.batch_size == self.init_batch_size
            and self._first not in (None, loop.number)  # all passes of one are known
            and not self._misses
            and self._gns.is_quiet(max(1.0, loop.step_records / loop.batch_size))
        )

    def _listen(self) -> None:
        if not self._hooks:
            for parameter in self._parameters:
                hook = functools.partial(self._gradient, parameter)
                self._hooks.append(parameter.register_hook(hook))  # type: ignore[no-untyped-call]

    def _ignore(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for parameter in self._parameters:
            if not parameter._backward_hooks:  # an empty dictionary costs nearly what a hook does
                parameter._backward_hooks = None

    def _gradient(self, parameter: Tensor, gradient: Tensor) -> Tensor | None:
        """Take in a micro-gradient, which is not in `.grad` yet."""
        if not self._running:
            loop = data.current_dataloader()
            if loop is None:  # the forward pass was in one, or there was none that knew
                return None
            self._begin(loop, parameter)
        self._came.add(parameter)
        counted = gradient * self._weight if self._weight != 1.0 else gradient
        if self._measures:
            self._measure(parameter, counted)
        self._newest = parameter
        if parameter is self._last:
            self._computed = self._stopwatch.mark()
        if self._stray and self.accumulating:
            return torch.zeros_like(gradient)  # `zero_grad` would have forgotten it
        if self._divided and self._gns.accum_count > 1:
            counted = counted / self._gns.accum_count
        return None if counted is gradient else counted

    def _measure(self, parameter: Tensor, gradient: Tensor) -> None:
        if not self._gns.in_parts:
            self._gns.add(parameter, gradient)
        elif parameter in self._sums:
            self._sums[parameter] += gradient
        else:
            self._sums[parameter] = gradient.clone()

    def _begin(self, loop: AdaptiveDataLoaderHelper, first: Tensor) -> None:
        loop.train()
        if loop.number != self._number:
            self._begin_micro_batch(loop)
        elif self._zeroed:
            raise UsageError(
                "zero_grad() comes between two backward passes of one batch of the loop, several "
                "of which make one step with gradient_accumulation: call it before the first of "
                "them, or leave gradient_accumulation out of autoscale_batch_size()"
            )
        self._running = True
        self._weight, self._computed = loop.weight, None
        missed = self._replicas > 1 and first in self._came
        self._misses |= missed
        self._passes += 1
        if self._passes > 1:
            self._gns.come_in_parts()
        self._stray = self._stepped == loop.number
        self._strayed |= self._stray
        if not self._stray and not self._begun:
            self._begin_step(loop)
        self._measures = self._gns.measures and not self._stray
        _after_backward(lambda: _after_backward(lambda: self._end(loop, missed)))

    def _begin_micro_batch(self, loop: AdaptiveDataLoaderHelper) -> None:
        if self._first is None:
            self._first = loop.number
        self._number = loop.number
        self._passes, self._zeroed = 0, False
        if loop.micro == 0:
            self._drop()
        if not self.accumulating:
            self._begun = False
        for parameter, gradient in self._sums.items():
            self._gns.add(parameter, gradient)
        self._sums.clear()

    def _begin_step(self, loop: AdaptiveDataLoaderHelper) -> None:
        self._begun, self._divided = True, False
        self._sums.clear()
        self.init_batch_size = loop.batch_size
        micros = loop.accumulation_steps + 1
        whole = loop.current_batch_size / loop.batch_size
        scale = max(1.0, loop.step_records / loop.batch_size)
        self._gns.start(scale / micros, micros, whole)

    def _end(self, loop: AdaptiveDataLoaderHelper, missed: bool) -> None:
        """End a pass: `.grad` is complete.

        After the last micro-batch of a step it is the replicas' mean; `missed` by
        DistributedDataParallel, which averages one pass for each forward pass, it becomes that
        here.
        """
        self._running = False
        self._last = self._newest
        if not loop.is_sync_step():
            self.accumulating = True
            return
        self.accumulating = False
        usual = self._measured_before or not self._measures  # measuring hides some averaging
        if missed:
            self._average()
        elif self._replicas > 1 and self._computed is not None and usual:
            ended = self._stopwatch.mark()
            self._stopwatch.measure(self._computed, ended, profile.record_sync)
            self._untimed = 0
        if self._stray:
            return
        if self._gns.accum_count > 1 and not self._divided:
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self._gns.accum_count)
        self._divided = True
        self._gns.finish(self._sums)

    def _average(self) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                distributed.all_reduce(parameter.grad, group=self._process_group)
                parameter.grad.div_(self._replicas)


def _after_backward(callback: Callable[[], None]) -> None:
    """Have the callback called at the end of the backward pass, after what was queued before.

    To be called from a backward pass or such a callback.
    """
    torch.autograd.Variable._execution_engine.queue_callback(callback)

"""The backward passes of a model, as the hooks of its parameters see them.

What happens in a backward pass hangs on hooks of the parameters: the first one to fire looks up the
loop, all of them tell their micro-gradient, and the end of the pass comes after the averaging, for
its callback is queued by a callback that was queued before DDP's own. Where shares are uneven, a
micro-gradient is multiplied by the loop's `weight`, so that the mean over replicas is that over
records.

Most passes have nothing to tell: the step is not measured, has one micro-batch, and the batch is
that of the step before. The forward pass knows, and takes the hooks off: each costs some 10 us of a
busy machine. Of such passes one in _TIMED is heard nevertheless, for how long it synchronises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..common.clock import MonotonicClock
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
        self, gns: GradientNoiseScale, parameters: list[nn.Parameter], replicas: int
    ) -> None:
        self.accumulating = False
        self.init_batch_size = 1
        self._gns = gns
        self._parameters = parameters
        self._replicas = replicas
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
        self._listen()

    def expect(self, loop: AdaptiveDataLoaderHelper | None) -> None:
        """Prepare for a pass, which may follow. One that failed in its middle is forgotten."""
        self._running = False
        self._measured_before = self._measures and bool(self._hooks)
        self._untimed += 1
        if loop is None:
            self._drop()
        if not self._is_quiet(loop):
            self._listen()
        elif self._hooks:
            self._ignore()

    def _drop(self) -> None:
        """Forget gradients that still add up: a loop was left in the middle of a step."""
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
            self._begin(loop)
        changed = gradient * self._weight if self._weight != 1.0 else None
        if self._measures:
            self._gns.add(parameter, gradient if changed is None else changed)
        self._newest = parameter
        if parameter is self._last:
            self._computed = self._stopwatch.mark()
        return changed

    def _begin(self, loop: AdaptiveDataLoaderHelper) -> None:
        loop.train()
        self._running = True
        self._weight, self._computed = loop.weight, None
        if loop.micro == 0:
            self._drop()
        if not self.accumulating:
            self.init_batch_size = loop.batch_size
            micros = loop.accumulation_steps + 1
            whole = loop.current_batch_size / loop.batch_size
            scale = max(1.0, loop.step_records / loop.batch_size)
            self._gns.start(scale / micros, micros, whole)
        self._measures = self._gns.measures
        _after_backward(lambda: _after_backward(lambda: self._end(loop)))

    def _end(self, loop: AdaptiveDataLoaderHelper) -> None:
        """End a pass: `.grad` is complete.

        After the last micro-batch of a step it is the replicas' mean.
        """
        self._running = False
        self._last = self._newest
        self.accumulating = not loop.is_sync_step()
        if self.accumulating:
            return
        usual = self._measured_before or not self._measures  # measuring hides some averaging
        if self._replicas > 1 and self._computed is not None and usual:
            ended = self._stopwatch.mark()
            self._stopwatch.measure(self._computed, ended, profile.record_sync)
            self._untimed = 0
        if self._gns.accum_count > 1:
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self._gns.accum_count)
        self._gns.finish()


def _after_backward(callback: Callable[[], None]) -> None:
    """Have the callback called at the end of the backward pass, after what was queued before.

    To be called from a backward pass or such a callback.
    """
    torch.autograd.Variable._execution_engine.queue_callback(callback)

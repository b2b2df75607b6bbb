"""The minibatch of a group that follows the goodput: `--batch_rule adaptive`.

While the group trains it measures how noisy its gradients are and how long its steps take, by
edl.adaptive's estimator and edl.goodput's model. At fixed points it moves to the minibatch that
promises the best goodput, from the initial size M0 to the largest that is allowed; the learning
rate follows by AdaScale, or AdamScale for Adam and AdamW, and its schedule by the records.

All members have the same minibatch at the same step, whoever dies when:

  AdaptiveBatch is a part of the group's state. Only a commit changes it, by numbers that all
  members of the round have from one all-reduce (`Measured`), no member by its own arithmetic: so
  where the versions are equal, so is this, and what a lost step has chosen is lost with it.
  The choice is the first member's, since a fit may end elsewhere on another machine. It travels in
  that all-reduce, and the round ends with the step, for slices are read ahead.
  A round begins with the minibatch that its first member, who has the newest state, broadcasts: a
  latecomer reads slices before it has the state. The master need know nothing of it.

follower.py measures and chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...adaptive.inner_products import WARM
from ...adaptive.noise_estimator import EVERY, FEW, NoiseEstimator, is_due
from ...adaptive.scaling_rules import ada_factors, adam_factors
from ...adaptive.step_times import Key, Times, rows_of, times_of
from ...common.settings import JobSettings
from ...goodput.model import GoodputFunction, GradParams, PerfParams
from ...nn import optimizers

DECIDE_STEPS = 100  # between two choices; AdaptDL chooses once an epoch


def sizes(task_records: int, least: int, most: int) -> list[int]:
    """Return the minibatches that may be chosen: they split a task of so many records evenly."""
    even = {-(-task_records // parts) for parts in range(1, task_records // least + 1)}
    return sorted({least, *(size for size in even if least <= size <= most)})


@dataclass(frozen=True)
class Measured:
    """The measurements of a step: the same numbers on all members.

    `local` and `total`: L and T of the noise estimator, of `count` gradients. `times`: summed over
    the members, since the last of these. `chosen`: the minibatch from the next step on; 0: nothing
    was decided. `key`: where they were measured.
    """

    local: float
    total: float
    count: int
    chosen: int
    times: Times
    key: Key

    @property
    def members(self) -> int:
        return self.key[1]


class AdaptiveBatch:
    """The group's minibatch, and all that is known for its choice: a part of every member's state.

    `least`: M0. `most`: the largest minibatch. `local`: most records of a pass, 0: no bound.
    `adam`: noise is measured in the space in which Adam steps.
    """

    def __init__(
        self, *, least: int, most: int, task_records: int, local: int = 0, adam: bool = False
    ) -> None:
        self.least, self.most, self.local, self.adam = least, most, local, adam
        self.sizes = sizes(task_records, least, most)
        self.fitted: PerfParams | None = None  # by this member, to be shown: no part of the state
        self.begin(0)

    def begin(self, version: int) -> None:
        """Begin anew, with nothing known, in a state of so many steps."""
        self.minibatch = self.least
        self.steps = float(version)  # of M0 that are worth as many records
        self.estimator = NoiseEstimator()
        self.times: dict[Key, Times] = {}
        self._seen = 0  # the version after the newest step that is in the estimate
        self._decided = 0, 0  # at which version, for how many members

    # -- what follows from it

    @property
    def scale(self) -> float:
        return self.minibatch / self.least

    @property
    def gain(self) -> float:
        """The number of steps of M0 that a step of this minibatch is worth."""
        return self.estimator.gains(self.scale)[0]

    def scalars(self) -> dict[str, float]:
        """Return the minibatch, its gain and, of who has fitted one, the model, to be shown."""
        told = {"minibatch": float(self.minibatch), "gain": self.gain}
        if self.fitted is None:
            return told
        noise = {"noise_sqr": self.estimator.sqr, "noise_var": self.estimator.var}
        return told | noise | {f"step_{n}": s for n, s in self.fitted._asdict().items()}

    def lr_factor(self, records: int) -> float:
        """Return the learning rate's factor for a step of so many records; 1 for M0 and less."""
        factors = adam_factors if self.adam else ada_factors
        return factors(self.estimator, max(1.0, records / self.least))[0]

    @property
    def schedule_step(self) -> int:
        """The steps of M0 so far, by records: the place in a schedule of the learning rate."""
        return int(self.steps + 1e-9)

    def measures_noise(self, version: int) -> bool:
        """Tell whether the step after so many measures noise.

        The answer is the same on all members that have the state.
        """
        warm = version >= WARM or not self.adam
        return version % 2 == 0 and warm and self._is_due(version)

    def times_step(self, version: int) -> bool:
        return version % 2 == 1 and self._is_due(version)

    def is_to_choose(self, version: int, members: int) -> bool:
        """Tell whether it is time to choose.

        It is after so many steps, or where the group is another one.
        """
        at, for_members = self._decided
        due = version - at >= DECIDE_STEPS or members != for_members
        return due and self.estimator.samples >= FEW

    def goodput(self, perf: PerfParams) -> GoodputFunction:
        noise = GradParams(self.estimator.sqr, self.estimator.var)
        return GoodputFunction(perf, noise, self.least)

    def _is_due(self, version: int) -> bool:
        return is_due(version // 2, self.estimator.samples, 2 * self.scale, EVERY)

    # -- what changes it

    def advance(self, version: int, records: int, measured: Measured | None) -> None:
        """Note that a step of so many records was applied to the state of that version."""
        self.steps += max(1.0, records / self.least)
        if measured is None:
            return
        if measured.count > 1 and self.estimator.observe(
            [measured.local],
            [measured.total],
            count=measured.count,
            scale=records / self.least,
            steps=version + 1 - self._seen if self._seen else 1,
        ):
            self._seen = version + 1
        if measured.times.optims:
            self.times.setdefault(measured.key, Times()).add(measured.times)
        if measured.chosen:
            self._decided = version, measured.members
            self.minibatch = measured.chosen

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "least": self.least,
            "minibatch": self.minibatch,
            "steps": self.steps,
            "noise": self.estimator.state_dict(),
            "times": rows_of(self.times),
            "seen": self._seen,
            "decided": self._decided,
        }

    def load(self, saved: Mapping[str, Any] | None, version: int) -> None:
        """Take over what `state_dict` told.

        Nothing is known where that is None, or of another M0.
        """
        self.begin(version)
        if saved is None or saved["least"] != self.least:
            return
        self.minibatch = min(saved["minibatch"], self.most)
        self.steps = saved["steps"]
        self.estimator.load_state_dict(saved["noise"])
        self.times = times_of(saved["times"])
        self._seen = saved["seen"]
        at, members = saved["decided"]
        self._decided = at, members


def make(settings: JobSettings, optimizer: optimizers.Optimizer) -> AdaptiveBatch:
    """Return the minibatch of a job whose rule is adaptive."""
    return AdaptiveBatch(
        least=settings.minibatch_size,
        most=settings.max_minibatch_size,
        task_records=settings.minibatch_size * settings.minibatches_per_task,
        local=settings.local_batch_size,
        adam=isinstance(optimizer, optimizers.Adam | optimizers.AdamW),
    )

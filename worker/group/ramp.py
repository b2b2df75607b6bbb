"""The way of the learning rate from one factor to another, over some steps.

Pure.
"""

from __future__ import annotations


class Ramp:
    """The learning rate's factor, a part of the state.

    `factors`: from, to, since which step.
    """

    def __init__(self) -> None:
        self.factors: tuple[float, float, int] = (1.0, 1.0, 0)

    def at(self, version: int, warmup_steps: int) -> float:
        """Return the factor of the step that follows on so many."""
        old, new, since = self.factors
        done = min(1.0, (version - since + 1) / max(1, warmup_steps))
        return old + (new - old) * done

    def follow(self, factor: float, version: int, warmup_steps: int) -> None:
        """Go to another factor over so many steps, from this version on."""
        if factor != self.factors[1]:
            old = self.at(version, warmup_steps) if version else factor
            self.factors = (old, factor, version)

"""Rules for the minibatch and the learning rate when the number of workers changes.

    constant   the minibatch stays as it is
    linear     it grows and shrinks with the workers, and the learning rate with it (Goyal et al.
               2017, "Accurate, Large Minibatch SGD", section 2.1: "When the minibatch size is
               multiplied by k, multiply the learning rate by k")
    a definition's own batch_rule(workers, wanted, minibatch_size) -> (minibatch, factor)

`wanted` is the number of workers that the job began with: there the minibatch is `minibatch_size`
and the factor of the learning rate 1.
"""

from __future__ import annotations

from collections.abc import Callable

from ...common.settings import JobSettings
from ...model_zoo.spec import Definition

BatchRule = Callable[[int], tuple[int, float]]  # of the workers that train: records, factor


def make_rule(definition: Definition, settings: JobSettings) -> BatchRule:
    """Return the job's rule.

    Calling it raises DefinitionError where the definition's own is wrong.
    """
    size, wanted = settings.minibatch_size, settings.num_workers
    if definition.has("batch_rule"):
        return lambda workers: definition.batch_rule(workers, wanted, size)
    if settings.batch_rule == "linear":
        return lambda workers: (max(1, round(size * workers / wanted)), workers / wanted)
    return lambda _workers: (size, 1.0)

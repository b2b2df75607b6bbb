"""`python -m edl.ps.prepare`: compile what servers need, of every optimizer, as an image is built.

It takes a minute or two, which the first job on the image would wait for otherwise. Where the machine
code is kept, kernels/compile.py says.
"""

from __future__ import annotations

import numpy as np

from ..kernels.ids import finite, sum_by_id
from ..nn import optimizers as specs
from ..nn.model_spec import TableSpec
from .books.slots import SlotMap
from .rows.optimizers import make_rule
from .rows.passes import Rows
from .wire.pulls import prepare

_DIMS = (16, 7)  # a usual one, which has kernels of its own, and any other
OPTIMIZERS = (
    specs.SGD(lr=0.1),
    specs.SGD(lr=0.1, momentum=0.9),
    specs.SGD(lr=0.1, momentum=0.9, nesterov=True),
    specs.Adagrad(lr=0.1),
    specs.Adam(lr=0.1),
    specs.Adam(lr=0.1, amsgrad=True),
    specs.AdamW(lr=0.1),
    specs.FTRL(lr=0.1),
)


def main() -> None:
    prepare(encrypted=True)
    ids = np.arange(8, dtype=np.int64)
    SlotMap(2).partition("", ids)
    values = np.zeros((8, 16), np.float32)
    sum_by_id([(ids, values), (ids, values)])
    finite(values)
    for spec in OPTIMIZERS:
        rule = make_rule(spec)
        for dim in _DIMS:
            Rows(TableSpec("t", dim), rule)


if __name__ == "__main__":
    main()

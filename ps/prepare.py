"""Compile ahead what servers and workers need: `edl kernels`, here and in an image.

The first job would wait for it otherwise. Where the machine code is kept, kernels/cache.py says.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import numpy as np

from ..common import cores
from ..kernels.ids import finite, sum_by_id
from ..nn import optimizers as specs
from ..nn.model_spec import TableSpec
from .books.slots import SlotMap
from .rows.optimizers import make_rule
from .rows.table import Table
from .wire.pulls import prepare

DIMS = (16, 7)  # a usual one, which has kernels of its own, and any other
OPTIMIZERS: dict[str, specs.Optimizer] = {
    "sgd": specs.SGD(lr=0.1),
    "momentum": specs.SGD(lr=0.1, momentum=0.9),
    "nesterov": specs.SGD(lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": specs.Adagrad(lr=0.1),
    "adagrad_decay": specs.Adagrad(lr=0.1, lr_decay=0.1),
    "adam": specs.Adam(lr=0.1),
    "amsgrad": specs.Adam(lr=0.1, amsgrad=True),
    "adamw": specs.AdamW(lr=0.1),
    "ftrl": specs.FTRL(lr=0.1),
    "rmsprop": specs.RMSprop(),
    "rmsprop_momentum": specs.RMSprop(momentum=0.9),
    "rmsprop_centered": specs.RMSprop(centered=True),
    "rmsprop_centered_momentum": specs.RMSprop(centered=True, momentum=0.9),
    "adadelta": specs.Adadelta(),
    "adamax": specs.Adamax(),
    "nadam": specs.NAdam(),
    "radam": specs.RAdam(),
    "lion": specs.Lion(),
    "row_wise_adagrad": specs.RowWiseAdagrad(),
    "lamb": specs.LAMB(),
    "group_adam": specs.GroupAdam(),
}
_WIRE, _WORKERS = "connections", "workers"
_LIMIT_S = 1200.0  # a hundred times what it takes
_PROCESSES = 2  # the longest part, connections, takes as long as the others for one optimizer


def compile_ahead(optimizers: Sequence[str], dims: Sequence[int]) -> Iterator[tuple[str, float]]:
    """Compile all that is not kept yet, in two processes side by side.

    Yields each part as it is done: its name and the seconds that it took. Raises TimeoutError after
    20 minutes.
    """
    parts = [_WIRE, *optimizers, _WORKERS]
    processes = min(_PROCESSES, cores.usable())
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        under_way = [pool.submit(_compile, part, tuple(dims)) for part in parts]
        for each in as_completed(under_way, timeout=_LIMIT_S):
            yield each.result()


def _compile(part: str, dims: tuple[int, ...]) -> tuple[str, float]:
    began = time.monotonic()
    if part == _WIRE:
        prepare(encrypted=True)
    elif part == _WORKERS:
        ids, values = np.arange(8, dtype=np.int64), np.zeros((8, 16), np.float32)
        SlotMap(2).partition("", ids)
        sum_by_id([(ids, values), (ids, values)])
        finite(values)
    else:
        rule = make_rule(OPTIMIZERS[part])
        for dim in dims:
            Table(TableSpec("t", dim), 0, rule)
    return part, time.monotonic() - began

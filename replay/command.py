"""The command `edl replay`: replay, compare with the last checkpoint, or show a moment's state."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from ..common import paths, storage
from ..common.errors import UsageError
from ..ps.books.store import Store
from .compare import Checkpoint, dense_of, rows_of
from .recording import Computed
from .run import Replay, open_replay
from .shards import Difference, Shard, pin

_UNTIL = "until"
Say = Callable[[str], None]


def replay(job: str, until: str, output: str, losses: str, say: Say) -> int:
    """Replay a job; returns the exit code: 0 identical (or shown), 1 not."""
    here = Path(job) if Path(job).is_dir() else paths.job_folder(job)
    job_dir = paths.named_job(job) or here
    paths.check_file(output, "--output")
    paths.check_file(losses, "--losses")
    moment = Moment(*_moment(until)) if until else None
    if output and moment is None:
        raise UsageError("--output writes the state at a moment: name it with --until.")
    told: list[tuple[Computed, float | None]] = []
    checkpoint: Checkpoint | None = None

    def on_state(shard: Shard) -> None:
        if moment is not None:
            moment.watch(shard)
        elif checkpoint is not None:
            checkpoint.watch(shard)

    settings, run = open_replay(
        job_dir, on_state=on_state, on_loss=lambda computed, loss: told.append((computed, loss))
    )
    if moment is None:
        found = storage.latest(settings.checkpoint_dir or job_dir / "checkpoints")
        checkpoint = Checkpoint(found) if found is not None else None
    try:
        run.run(until=lambda: moment is not None and len(moment.stores) == settings.num_ps)
        code = _show(moment, output, say) if moment else _compare(run, checkpoint, say)
    except Difference as error:
        say(f"different: {error}")
        code = 1
    finally:
        run.close()
        if losses:
            _write_losses(losses, told)
    return code


class Moment:
    """The state of each server as soon as it has applied a task up to a position."""

    def __init__(self, task: int, position: int) -> None:
        self._task = task
        self._position = position
        self.stores: dict[int, Store] = {}

    def watch(self, shard: Shard) -> None:
        index = shard.timeline.index
        if index in self.stores:
            return
        applied = {entry.task: entry.applied for entry in shard.store.ledger()}
        if applied.get(self._task, 0) >= self._position:
            pin(shard.store, _UNTIL)
            self.stores[index] = shard.store


def _moment(until: str) -> tuple[int, int]:
    task, _, position = until.partition(":")
    try:
        return int(task), int(position)
    except ValueError:
        raise UsageError(f"--until is TASK:POSITION, two numbers, not {until!r}.") from None


def _compare(run: Replay, checkpoint: Checkpoint | None, say: Say) -> int:
    for number, epoch in run.epochs().items():
        mean = f" · mean loss {statistics.fmean(epoch.losses):.6g}" if epoch.losses else ""
        say(f"epoch {number}: {epoch.records:,} records · {len(epoch.losses):,} minibatches{mean}")
    steps = sum(len(shard.timeline.steps) for shard in run.shards)
    say(f"replayed {run.computed:,} minibatches, {steps:,} steps of {len(run.shards)} servers")
    if checkpoint is None:
        say("there is no checkpoint to compare with: the gradients were those that were applied")
        return 0
    where = checkpoint.manifest.place
    compared = checkpoint.compare()
    if compared.difference:
        say(f"different from {where}: {compared.difference}")
        return 1
    say(f"identical: {compared.tensors:,} tensors, {compared.rows:,} rows ({where})")
    return 0


def _show(moment: Moment, output: str, say: Say) -> int:
    stores = [moment.stores[index] for index in sorted(moment.stores)]
    versions = ", ".join(str(store.pins.books(_UNTIL)[1].version) for store in stores)
    say(f"versions of the servers: {versions}")
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for name, values in dense_of(stores, _UNTIL):
        tensors[name] = values
        say(f"{name}  {list(values.shape)}  norm {float(np.linalg.norm(values)):.9g}")
    for table in stores[0].pins.books(_UNTIL)[0].tables:
        parts = [rows_of(store, table.name, _UNTIL) for store in stores]
        parts = [part for part in parts if len(part["ids"])]
        count = sum(len(part["ids"]) for part in parts)
        say(f"{table.name}  {count:,} rows of {table.dim}")
        if parts:
            tensors[f"{table.name}.ids"] = np.concatenate([part["ids"] for part in parts])
            tensors[f"{table.name}.rows"] = np.concatenate([part["weight"] for part in parts])
    if output:
        save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, output)
        say(f"wrote {output}")
    return 0


def _write_losses(path: str, told: list[tuple[Computed, float | None]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", "task", "start", "end", "attempt", "version", "loss"])
        for computed, loss in told:
            span = computed.span
            version = max(computed.pulls[0].versions)
            writer.writerow(
                [computed.epoch, span.task, span.start, span.end, span.attempt, version, loss]
            )

"""The definition's own functions, called for a task: metrics, predictions, callbacks, the export.

Metric states travel as opaque bytes: the master collects one per evaluation task, and whoever gets
the EVALUATE_END task merges them (nn/metrics.py: states add, so the merge is exact).
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file

from ..common.errors import DefinitionError, JobError
from ..data.exact import Values
from ..data.schema import NO_SCHEMA, Schema
from ..model_zoo.spec import Definition
from ..nn import metrics as streamed
from ..nn.arrays import Array
from ..nn.outputs import arrays_of
from ..proto import master_pb2 as pb
from . import id_columns, predictions
from .group.checkpoint import portable
from .task_reader import Lease
from .trainer import Trainer

Columns = Mapping[str, Values]
_OF_STEPS = ("on_epoch_begin", "on_step_begin", "on_step_end", "on_log", "on_epoch_end")


class DefinitionTasks:
    """The definition's metrics, `process_predictions` and `Callbacks`, called when it is time."""

    def __init__(
        self,
        definition: Definition,
        *,
        output: str,
        worker: int,
        form: str = "npy",
        schema: Schema = NO_SCHEMA,
    ) -> None:
        """Prepare to call the definition's functions when it is time.

        `form`: of the predictions (predictions.py); `schema`: of the data, for the columns that
        they carry.
        """
        self.definition_file = definition.file
        self._definition = definition
        self._output = Path(output) if output else None
        self._form = form
        self._schema = schema
        self._worker = worker
        self._epoch: int | None = None  # of the last step
        # Of tasks that are not ended: the attempt that began it, and what it has so far.
        self._metrics: dict[int, tuple[int, dict[str, streamed.Metric]]] = {}
        self._predictions: dict[int, tuple[int, list[dict[str, Array]], list[Columns]]] = {}

    def evaluate(self, lease: Lease, outputs: Any, labels: Any, features: Any = None) -> None:
        """Have the metrics count a minibatch, as feed and the model gave it."""
        streamed.count_batch(self._of(lease), outputs, labels, features)

    def evaluated(self, lease: Lease) -> bytes:
        """Return the states of the task's metrics."""
        states = streamed.pack(self._of(lease))
        del self._metrics[lease.task.id]
        return states

    def merge(self, payload: bytes) -> dict[str, Any]:
        """Return the values of the merged states; `payload` is as the master packs it."""
        values = streamed.merge(unpack_results(payload), self._new_metrics())
        self._call("on_evaluate", values)
        self._call("on_evaluate_end", values)
        return values

    def predict(self, lease: Lease, outputs: Any, records: int, ids: Columns | None = None) -> None:
        """Take the outputs of the next so many records of the task, and columns of these."""
        if self._definition.process_predictions is not None:
            self._definition.process_predictions(outputs, self._worker)
        if self._output is None:
            return
        begun = self._predictions.get(lease.task.id)
        if begun is None or begun[0] != lease.task.attempt:  # an attempt begins at position 0
            begun = self._predictions[lease.task.id] = lease.task.attempt, [], []
        begun[1].append(arrays_of(outputs, records))
        if ids:
            begun[2].append(ids)

    def predicted(self, lease: Lease) -> None:
        """Write the task's outputs, in record order: again is the same files."""
        task = lease.task
        attempt, parts, ids = self._predictions.pop(task.id, (0, [], []))
        if self._output is None:
            return
        arrays = predictions.joined(parts if attempt == task.attempt else [])
        skipped = set(task.skips)  # positions, which are in the order of the records
        numbers = [task.start + place for place in range(lease.size) if place not in skipped]
        if len(numbers) != len(next(iter(arrays.values()))):
            raise JobError(f"the predictions of task {task.id} are not those of its records")
        records = np.array(numbers, np.int64)
        carried = id_columns.Ids(id_columns.joined(ids), self._schema)
        predictions.write(self._output, task.id, task.source, records, arrays, self._form, carried)

    def train_end(self, trainer: Trainer) -> None:
        """Export the dense model and call on_train_end, both with the final values."""
        self.epochs_end()
        trainer.refresh()
        if self._output is not None:
            folder = self._output / "model"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                partial = folder / f".model.{os.getpid()}"
                save_file(portable(trainer.state_dict()), partial)
                os.replace(partial, folder / "model.safetensors")
            except OSError as error:
                raise JobError(f"cannot export the model into {folder}: {error}") from error
        self._call("on_train_end", trainer.model)

    def task_end(self, lease: Lease) -> None:
        self._call("on_task_end", pb.TaskKind.Name(lease.task.kind).lower())

    @functools.cached_property  # each step asks
    def follows_steps(self) -> bool:
        """Whether the definition wants to be told of steps, or of their epochs."""
        return any(hasattr(self._definition.callbacks, name) for name in _OF_STEPS)

    def step_begin(self, epoch: int, version: int) -> None:
        if epoch != self._epoch:
            self.epochs_end()
            self._epoch = epoch
            self._call("on_epoch_begin", epoch)
        self._call("on_step_begin", version)

    def step_end(self, version: int, loss: float, logs: dict[str, float] | None) -> None:
        """Tell of a step that was applied. `logs`: what of it goes to the log; None: nothing."""
        self._call("on_step_end", version, loss)
        if logs is not None:
            self._call("on_log", logs)

    def epochs_end(self) -> None:
        """Tell that this worker has done its last step of the epoch."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            self._call("on_epoch_end", epoch)

    def train_begin(self, model: object) -> None:
        self._call("on_train_begin", model)

    def _new_metrics(self) -> dict[str, streamed.Metric]:
        return self._definition.metrics()

    def _of(self, lease: Lease) -> dict[str, streamed.Metric]:
        begun = self._metrics.get(lease.task.id)
        if begun is None or begun[0] != lease.task.attempt:  # an attempt begins at position 0
            begun = self._metrics[lease.task.id] = lease.task.attempt, self._new_metrics()
        return begun[1]

    def _call(self, name: str, *arguments: object) -> None:
        method = getattr(self._definition.callbacks, name, None)
        if method is not None:
            method(*arguments)


def unpack_results(payload: bytes) -> list[bytes]:
    """Return the byte strings that the master packed.

    uint32 count, then uint64 length and bytes each.
    """
    try:
        (count,) = struct.unpack_from("<I", payload)
        parts, at = [], 4
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", payload, at)
            parts.append(payload[at + 8 : at + 8 + length])
            at += 8 + length
    except struct.error as error:
        raise DefinitionError("the payload of an evaluation is torn") from error
    return parts

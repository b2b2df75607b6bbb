"""The evaluations of a job. Pure.

An evaluation is the validation data, split into EVALUATE tasks that read one cut of the parameters.
When the last has brought its metric states, one EVALUATE_END task gets them all and answers with
the values. The queue lets a result pass only from the lease that is current, and a task is done
once: so no state is counted twice.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..common.errors import JobError
from ..durable.schema import Json


@dataclass
class Evaluation:
    """An evaluation of `version`; `tasks` of the data, and the end's when it is due."""

    name: str
    version: int
    epoch: int
    cut: str
    tasks: list[int] = field(default_factory=list)
    end_task: int | None = None
    metrics: Json = None  # values by name, once it has ended


@dataclass(frozen=True)
class EvaluationsState:
    """The content of Evaluations, for the journal."""

    count: int
    running: dict[str, Evaluation]
    finished: list[Evaluation]


class Evaluations:
    """The evaluations of a job; `finished` are those that have values, oldest first."""

    def __init__(self) -> None:
        self._count = 0
        self.running: dict[str, Evaluation] = {}
        self.finished: list[Evaluation] = []

    def state(self) -> EvaluationsState:
        """Return what other Evaluations need to become as these. Nothing is copied."""
        return EvaluationsState(self._count, self.running, self.finished)

    def restore(self, state: EvaluationsState) -> None:
        """Become as the Evaluations whose state this is."""
        self._count, self.running, self.finished = state.count, state.running, state.finished

    def begin(self, version: int, epoch: int, cut: str) -> Evaluation:
        self._count += 1
        name = f"evaluation-{self._count}"
        self.running[name] = Evaluation(name, version, epoch, cut)
        return self.running[name]

    def end(self, name: str, result: bytes) -> Evaluation:
        """Take the result of an evaluation's EVALUATE_END task.

        Raises JobError where it is no JSON object.
        """
        evaluation = self.running[name]
        evaluation.metrics = metrics_of(name, result)
        self.finished.append(self.running.pop(name))
        return evaluation

    @property
    def latest(self) -> dict[str, Any]:
        """The metrics of the newest finished evaluation."""
        return self.finished[-1].metrics or {} if self.finished else {}


def metrics_of(name: str, result: bytes) -> dict[str, Any]:
    """Return the result of an EVALUATE_END task. Raises JobError where it is no JSON object."""
    metrics = json.loads(result or b"{}")
    if not isinstance(metrics, dict):
        raise JobError(f"metrics of {name} are {metrics!r}, not values by name")
    return metrics


def pack(states: Iterable[bytes]) -> bytes:
    """Pack byte strings into one.

    That is: uint32 count, then uint64 length and bytes of each (little-endian).
    """
    parts = list(states)
    packed = [struct.pack("<I", len(parts))]
    for part in parts:
        packed += [struct.pack("<Q", len(part)), part]
    return b"".join(packed)

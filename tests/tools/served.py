"""Models to serve that say which version has answered, and when they may answer."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl.common.errors import UsageError
from edl.serve.servable import Column

FAR_S = 30.0


class Adding:
    """A model whose `sum` is x[0] + x[1] + its number; `number` is that for each row."""

    def __init__(self, number: int = 1, *, name: str = "adding") -> None:
        self.name, self.version, self.number = name, str(number), number
        self.inputs: tuple[Column, ...] = (Column("x", "FP32", (2,)), Column("day", "INT64", ()))
        self.outputs: tuple[Column, ...] = (
            Column("sum", "FP32", ()),
            Column("number", "INT64", ()),
        )
        self.about: dict[str, Any] = {"cut": number}
        self.example = {"x": np.zeros((2, 2), np.float32), "day": np.zeros(2, np.int64)}
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.computing = threading.Event()
        self.batches: list[int] = []
        self.closed = 0

    def infer(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        assert not self.closed, "a version that is closed was asked"
        self.computing.set()
        assert self.may_answer.wait(FAR_S)
        x, day = inputs["x"], inputs["day"]
        if (day < 0).any():
            raise UsageError("day is below 0: days begin with 0")
        if (day > 1000).any():
            raise ZeroDivisionError("a mistake of the model's")
        self.batches.append(len(x))
        return {
            "sum": (x.sum(axis=1) + self.number).astype(np.float32),
            "number": np.full(len(x), self.number),
        }

    def close(self) -> None:
        self.closed += 1


def asked(rows: int = 1, day: int = 0) -> dict[str, NDArray[Any]]:
    """Return inputs for an Adding."""
    x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    return {"x": x, "day": np.full(rows, day, np.int64)}

"""Models to serve that say which version has answered, and when they may answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl.common.errors import UsageError
from edl.serve.batcher import Rules
from edl.serve.kserve.asking import Asking
from edl.serve.kserve.http import App, Limits
from edl.serve.repository import Repository
from edl.serve.servable import Column

from . import asgi

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

    def infer(self, inputs: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
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


INFER = "/v2/models/adding/infer"


@contextlib.contextmanager
def serving(
    *served: Adding,
    rules: Rules | None = None,
    keep: int = 1,
    token: str = "",
    limits: Limits | None = None,
    timeout_s: float = FAR_S,
    ready: bool = True,
) -> Iterator[tuple[Repository, Callable[..., Any]]]:
    """Yield a repository and a function that asks its application, each time in a loop of its own.

    A function that is given is run in the loop.
    """
    repository = Repository(rules, keep=keep)
    repository.add("adding")
    for each in served or ([Adding()] if ready else []):
        repository.swap("adding", each)
    app = App(repository, Asking(repository, timeout_s), token=token, limits=limits)

    def run(method: Any, path: str = "", *more: Any, **how: Any) -> Any:
        if callable(method):
            return asyncio.run(method(app))
        return asyncio.run(asgi.ask(app, method, path, *more, **how))

    try:
        yield repository, run
    finally:
        for each in served:
            each.may_answer.set()
        repository.close()


def request(rows: int = 1, day: int = 0, **more: Any) -> bytes:
    """Return the JSON of a request to an Adding."""
    inputs = [
        {"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.tolist()}
        for (name, array), datatype in zip(asked(rows, day).items(), ("FP32", "INT64"), strict=True)
    ]
    return json.dumps({"inputs": inputs, **more}).encode()

"""The part that HTTP and gRPC share: a question is read, waits for its answer, and is counted."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ...common.errors import DefinitionError, EdlError, UsageError
from ..batcher import Asked
from ..metrics import ANSWERED
from ..repository import Model, Repository
from ..servable import Column
from . import config, tensors
from .refused import Refused, Why
from .tensors import Arrays, Question

EXTENSIONS = ["binary_tensor_data", config.EXTENSION, "statistics"]
_PLATFORM = "edl"

Read = Callable[[Sequence[Column], Sequence[Column]], Question]


class Asking:
    """The way of requests to models, from one event loop."""

    def __init__(self, repository: Repository, timeout_s: float, version: str = "") -> None:
        """`timeout_s`: for an answer. `version`: of this software."""
        self.repository = repository
        self._timeout_s, self._version = timeout_s, version

    async def infer(
        self, name: str, version: str, read: Read, *, large: bool = False
    ) -> tuple[Question, Arrays, str]:
        """Return a question, its answer and the version that has answered. Raises Refused.

        `read` returns the question, of a model of these inputs and outputs; one that is `large` is
        read by another thread.
        """
        model = self.repository.model(name)
        began = time.perf_counter()
        said, outcome = "", "failed"
        try:
            held = model.hold(version)
            said = held.version
            with contextlib.ExitStack() as undo:
                undo.callback(model.release, held)
                columns = held.served.inputs, held.served.outputs
                if large:
                    question = await asyncio.to_thread(read, *columns)
                else:
                    question = read(*columns)
                undo.pop_all()
            answer = await self._answer(model, held, question)
            outcome = ANSWERED
        except Refused as error:
            outcome = error.why.name.lower()
            raise
        except EdlError as error:
            told = isinstance(error, UsageError) and not isinstance(error, DefinitionError)
            why = Why.INVALID if told else Why.FAILED  # it says what was expected, or is broken
            outcome = why.name.lower()
            raise Refused(why, str(error)) from error
        finally:
            model.metrics.ended(outcome, time.perf_counter() - began)
        return question, answer, said

    async def _answer(self, model: Model, held: Any, question: Question) -> Arrays:
        loop, here = asyncio.get_running_loop(), threading.get_ident()
        answered: asyncio.Future[Asked] = loop.create_future()

        def settle(asked: Asked) -> None:
            if not answered.done():
                answered.set_result(asked)

        def over(asked: Asked) -> None:
            if threading.get_ident() == here:
                settle(asked)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(settle, asked)

        asked = model.ask(held, question.inputs, question.rows, over)
        if asked.wants_help:
            loop.call_soon(model.help)  # when all that has come by now is queued too
        timer = loop.call_later(self._timeout_s, self._too_late, model, asked, answered)
        try:
            return (await answered).answer
        except asyncio.CancelledError:  # whoever asked has hung up
            model.give_up(asked)
            raise
        finally:
            timer.cancel()

    def _too_late(self, model: Model, asked: Asked, answered: asyncio.Future[Asked]) -> None:
        if not answered.done():
            answered.set_exception(
                Refused(Why.LATE, f"the model has not answered within {self._timeout_s:g} s")
            )
        model.give_up(asked)

    # -- what is told of the server and its models

    def server(self) -> dict[str, Any]:
        """Return the server's metadata."""
        return {
            "name": "edl",
            "version": self._version,
            "extensions": EXTENSIONS,
            "models": self.repository.names,
        }

    def model(self, name: str, version: str) -> dict[str, Any]:
        """Return a model's metadata. Raises Refused."""
        model = self.repository.model(name)
        held = model.hold(version)
        try:
            served, told = held.served, model.told()
            return {
                "name": name,
                "versions": told.pop("versions"),
                "platform": _PLATFORM,
                "inputs": tensors.as_metadata(served.inputs),
                "outputs": tensors.as_metadata(served.outputs),
                "parameters": {"version": served.version, **served.about, **told},
            }
        finally:
            model.release(held)

    def config(self, name: str, version: str) -> dict[str, Any]:
        """Return a model's configuration, as Triton says it. Raises Refused."""
        model = self.repository.model(name)
        held = model.hold(version)
        try:
            served = held.served
            return config.as_json(
                name, _PLATFORM, served.inputs, served.outputs, self.repository.rules
            )
        finally:
            model.release(held)

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Return the sums of a model, or of all, as Triton says them. Raises Refused.

        They are of all versions together, and told of the one that is asked for, or the newest.
        """
        found = []
        for each in [name] if name else self.repository.names:
            model = self.repository.model(each)
            if version:
                model.release(model.hold(version))
            newest = version or next(reversed(model.told()["versions"]), "")
            found.append({"name": each, "version": newest, **model.metrics.statistics()})
        return {"model_stats": found}

    def index(self, only_ready: bool) -> list[dict[str, str]]:
        """Return the versions of all models, those that could not be opened too."""
        found = []
        for name in self.repository.names:
            told = self.repository.model(name).told()
            states = [(each, "READY", "") for each in told["versions"]]
            states += [(each, "UNAVAILABLE", why) for each, why in told["failed"].items()]
            for each, state, why in states or [("", "LOADING", "")]:
                found.append({"name": name, "version": each, "state": state, "reason": why})
        return [each for each in found if each["state"] == "READY" or not only_ready]

    def unready(self, name: str, version: str) -> str:
        """Return why a model is not ready; "": it is. Raises Refused where there is no such."""
        model = self.repository.model(name)
        try:
            model.release(model.hold(version))
        except Refused as error:
            if error.why is Why.UNKNOWN:
                raise
            return str(error)
        return "the server is ending" if self.repository.is_ending else model.unready()

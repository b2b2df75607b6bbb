"""Work in a daemon thread, whose outcome belongs to whoever began it: its result or its error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def begin(name: str, work: Callable[[], Result]) -> Future[Result]:
    """Return the result that `work` will have in a thread of this name, or the error it raises."""
    future, thread = prepare(name, work)
    thread.start()
    return future


def prepare(name: str, work: Callable[[], Result]) -> tuple[Future[Result], threading.Thread]:
    """Return the future of what `work` returns, and its thread, which the caller is to start.

    The thread is a daemon: unlike those of an executor it does not keep the process from ending.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - of any kind: its owner waits for it
            future.set_exception(error)
        else:
            future.set_result(result)

    return future, threading.Thread(target=run, name=name, daemon=True)

"""Drive a store's threads one decision at a time.

A stage knows when all of them stand still, and holds each step where its dense half is applied and
its rows are not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from edl.common.errors import EdlError
from edl.ps.books.ledger import Span
from edl.ps.books.store import Store

from .counting import push


class Call:
    """A call on a thread of its own."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.at_gate = False
        self.done = False
        self.waits, self.told_waits = 0, 0  # in the store, and those that it told before
        self.result = None
        self.error: BaseException | None = None


class Stage:
    """Threads in a store, each of them running, waiting in the store, or held amid its step."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls: list[Call] = []
        self.pushes: list[Call] = []
        self._of_thread: dict[int, Call] = {}
        self._running: set[Call] = set()
        self._still = threading.Condition()
        stage = self

        class Watched(threading.Condition):
            def __init__(self):
                super().__init__(store._state.lock)
                self.calls: list[Call] = []  # that wait, in the order in which they are woken

            def wait(self, timeout=None):
                if call := stage._of_thread.get(threading.get_ident()):
                    call.waits += 1
                stage._pause(self.calls)
                return super().wait(timeout)

            def notify(self, n=1):  # notify_all calls it, too
                stage._resume(self.calls, n)
                super().notify(n)

        store._state.changed, store._state.stepped, store._state.thawed = (
            Watched(),
            Watched(),
            Watched(),
        )
        dense = store._state.parameters.dense
        apply = dense.apply

        def half(grads, lr):
            apply(grads, lr)
            if not grads:
                return
            call = self._of_thread[threading.get_ident()]
            call.at_gate = True
            self._pause([])
            assert call.opened.wait(300)

        dense.apply = half

    def call(self, function: Callable, *args) -> Call:
        """Begin a call, and let it go as far as it can."""
        call = Call()
        self.calls.append(call)
        self._running.add(call)

        def run():
            self._of_thread[threading.get_ident()] = call
            try:
                call.result = function(*args)
            except (EdlError, MemoryError, ValueError, KeyError) as error:
                call.error = error
            call.done = True
            self._pause([])

        threading.Thread(target=run, daemon=True).start()
        self.settle()
        return call

    def push(self, *span, version=0) -> Call:
        def tell_wait():
            self._of_thread[threading.get_ident()].told_waits += 1

        told = partial(push, self.store, Span(*span), version, before_wait=tell_wait)
        call = self.call(told)
        self.pushes.append(call)
        return call

    def open(self, call: Call) -> None:
        """End the step that is held."""
        with self._still:
            call.at_gate = False
            self._running.add(call)
        call.opened.set()
        self.settle()

    def settle(self) -> None:
        """Wait until no thread runs."""
        with self._still:
            assert self._still.wait_for(lambda: not self._running, 30)

    def held(self) -> list[Call]:
        return [call for call in self.calls if call.at_gate]

    def _pause(self, where: list[Call]) -> None:
        call = self._of_thread.get(threading.get_ident())
        with self._still:
            if call is not None:
                self._running.discard(call)
                where.append(call)
            self._still.notify_all()

    def _resume(self, waiting: list[Call], count: int) -> None:
        with self._still:
            self._running.update(waiting[:count])
            del waiting[:count]

    def end(self) -> None:
        """Let go of everybody: all calls end."""
        while (freeze := self.store.pins.frozen) is not None or self.held():
            for call in self.held():
                self.open(call)
            if freeze is not None:
                self.store.pins.unpin(freeze.cut)
                self.settle()
        assert all(call.done for call in self.calls), "a call waits for ever"
        for call in self.pushes:
            assert call.told_waits == call.waits


def outcome(call):
    if call.error is not None:
        raise call.error
    return call.result.outcome if call.done else None

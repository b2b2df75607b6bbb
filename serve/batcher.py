"""Requests of one model become batches, which a few threads compute.

What is queued when a thread is free becomes one batch (distill/batching.py): under load batches
grow, and without load nobody waits. A request is never split, so that all of its rows are answered
by one call of the model; those of two versions are never in one batch. Lists of any length are
joined as they are: nothing is filled up.

A batch that takes no longer than two changes of threads is better computed by whoever has brought
it: `Quick` learns up to how many rows that is so, and `help` is the call.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..common.clock import Clock, MonotonicClock
from ..common.errors import EdlError
from ..common.ragged import Ragged
from ..data.exact import Values
from ..distill.batching import Piece, Queue, Request
from .kserve.refused import Refused, Why
from .kserve.taken import Inputs
from .kserve.tensors import Arrays
from .servable import Servable
from .versions import Held

log = logging.getLogger("edl.serve")

_TOO_LATE = "nobody waits for this answer any more"
_END_S = 30.0  # for a batch that is being computed
_QUICK_S = 0.002  # for which an event loop may compute and do nothing else


@dataclass(frozen=True)
class Rules:
    """The rules by which requests become batches, as Triton says it.

    `max_batch_size`: rows of a batch; a larger request is one of its own. `max_queue_delay_s`: how
    long a batch that is not full waits for more. `max_queued`: rows that may wait. `threads`: that
    compute.
    """

    max_batch_size: int = 256
    max_queue_delay_s: float = 0.0
    max_queued: int = 1 << 14
    threads: int = 1


class Quick:
    """Up to how many rows a batch is quick, by those that were computed. Pure.

    It begins with none. A quick batch allows the double; two slow ones in a row, of no more rows
    than are allowed, the half of theirs: one alone may be the machine's doing.
    """

    def __init__(self, limit_s: float = _QUICK_S) -> None:
        self._limit_s = limit_s
        self._slow = 0
        self.rows = 0

    def note(self, rows: int, took_s: float) -> None:
        """Note a batch."""
        if took_s <= self._limit_s:
            self.rows, self._slow = max(self.rows, 2 * rows), 0
        elif rows <= self.rows:
            self._slow += 1
            if self._slow > 1:
                self.rows, self._slow = rows // 2, 0


@dataclass(eq=False)
class Asked(Request[Any]):
    """A request, which holds its version until `over` is called: once, by any thread.

    What it asks about are Inputs, and its pieces Arrays.
    """

    held: Held[Servable] = field(kw_only=True)
    over: Callable[[Asked], None] = field(kw_only=True)
    failure: Exception | None = None
    computing: bool = False
    wants_help: bool = False  # of whoever asks: no thread was told of it

    @property
    def answer(self) -> Arrays:
        """The outputs. Raises what went wrong."""
        if self.failure is not None:
            raise self.failure
        found: Arrays = self.pieces[0]
        return found


class Watched(Protocol):
    """A counter that a batcher tells of its batches."""

    def computed(self, rows: int, took_s: float, requests: int, waited_s: float) -> None: ...


class Batcher:
    """A queue and the threads that empty it, until `close`."""

    def __init__(
        self, name: str, rules: Rules, *, watched: Watched | None = None, clock: Clock | None = None
    ) -> None:
        self._rules, self._watched = rules, watched
        self._clock = clock or MonotonicClock()
        self._queue = Queue[Asked](rules.max_batch_size, rules.max_queue_delay_s, rules.max_queued)
        self._changed = threading.Condition()
        self._closed = False
        self._computing = 0  # batches
        self._quick = Quick()
        self._threads = [
            threading.Thread(target=self._compute, name=f"serve-{name}-{n}", daemon=True)
            for n in range(rules.threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def queued(self) -> int:
        """The rows that wait."""
        return self._queue.queued

    def ask(
        self,
        held: Held[Servable],
        inputs: Inputs,
        rows: int,
        over: Callable[[Asked], None],
        *,
        helps: bool = False,
    ) -> Asked:
        """Queue a request. Raises Refused where there is no room; `over` is not called then.

        `helps`: whoever asks calls `help` soon where the request says so.
        """
        asked = Asked(
            rows, self._kind(held, inputs, rows), self._clock.now(), inputs, held=held, over=over
        )
        with self._changed:
            if self._closed:
                raise Refused(Why.AWAY, "the server is ending")
            if not self._queue.add(asked):
                raise Refused(
                    Why.FULL,
                    f"{self._queue.queued} rows wait already, and with these {rows} they were more "
                    f"than {self._rules.max_queued}: ask again, or another server",
                )
            may_wait = self._rules.max_queue_delay_s > 0
            if helps and not may_wait and self._queue.queued <= self._quick.rows:
                asked.wants_help = True
            else:
                self._changed.notify()
        return asked

    def help(self) -> None:
        """Compute what waits, in the caller's thread, unless another one computes already."""
        with self._changed:
            if self._computing or self._queue.queued > self._quick.rows:
                self._changed.notify()  # who computes looks at the queue again; others may as well
                return
            batch = self._taken()
        if batch:
            self._run(batch)

    def give_up(self, asked: Asked) -> None:
        """Forget a request that nobody waits for; where it is being computed, it is over later."""
        with self._changed:
            if asked.is_over or asked.computing:
                return
            self._fail(asked, Refused(Why.LATE, _TOO_LATE))
        asked.over(asked)

    def close(self) -> None:
        """Answer nothing more; what waits is told so."""
        with self._changed:
            self._closed = True
            left = []
            while (first := self._queue.first) is not None:
                self._fail(first, Refused(Why.AWAY, "the server is ending"))
                left.append(first)
            self._changed.notify_all()
        for asked in left:
            asked.over(asked)
        for thread in self._threads:
            thread.join(_END_S)

    def _kind(self, held: Held[Servable], inputs: Inputs, rows: int) -> Any:
        """Return what requests of one batch have in common; None: this one is a batch."""
        if rows > self._rules.max_batch_size:
            return None
        shapes = tuple(inputs[column.name].shape[1:] for column in held.served.inputs)
        return id(held), shapes  # `held` lives as long as the request

    def _fail(self, asked: Asked, failure: Exception) -> None:
        asked.failure = failure
        self._queue.drop(asked, str(failure) or type(failure).__name__)

    # -- the threads

    def _compute(self) -> None:
        while batch := self._next_batch():
            self._run(batch)

    def _run(self, batch: Sequence[Piece[Asked]]) -> None:
        began = self._clock.now()
        rows = sum(asked.rows for asked, _, _ in batch)
        outputs, failure = self._computed(batch, rows)
        took_s = self._clock.now() - began
        with self._changed:
            self._quick.note(rows, took_s)
        if self._watched is not None:  # before the answers: who has one finds it counted
            waited_s = sum(began - asked.came for asked, _, _ in batch)
            self._watched.computed(rows, took_s, len(batch), waited_s)
        if failure is not None and len(batch) > 1:
            self._one_by_one(batch)
        else:
            self._settle(batch, outputs, failure)
        with self._changed:
            self._computing -= 1

    def _computed(
        self, batch: Sequence[Piece[Asked]], rows: int
    ) -> tuple[Arrays, Exception | None]:
        """Return the outputs of a batch, or what has kept the model from them."""
        try:
            outputs = _outputs(batch)
            _check(outputs, rows)
        except EdlError as error:
            return {}, error
        except Exception as error:  # of the user's code: told to whoever asked
            log.exception("model=%s -> failed rows=%d", batch[0][0].held.served.name, rows)
            told = f"the model failed: {type(error).__name__}: {error}"
            return {}, Refused(Why.FAILED, told)
        return outputs, None

    def _one_by_one(self, batch: Sequence[Piece[Asked]]) -> None:
        """Compute each request alone: one that the model refuses is no fault of its neighbours."""
        for piece in batch:
            self._settle([piece], *self._computed([piece], piece[0].rows))

    def _settle(
        self, batch: Sequence[Piece[Asked]], outputs: Arrays, failure: Exception | None
    ) -> None:
        place = 0
        with self._changed:
            for asked, start, stop in batch:
                end = place + stop - start
                if failure is not None:
                    self._fail(asked, failure)
                elif len(batch) == 1:
                    asked.pieces[0] = outputs
                else:
                    asked.pieces[0] = {n: array[place:end] for n, array in outputs.items()}
                asked.answered, place = asked.rows, end
                asked.computing = False
        for asked, _, _ in batch:
            asked.over(asked)

    def _next_batch(self) -> list[Piece[Asked]]:
        """Wait for a batch; []: this is closed."""
        with self._changed:
            while not self._closed:
                ready_at = self._queue.ready_at()
                left_s = None if ready_at is None else ready_at - self._clock.now()
                if left_s is not None and left_s <= 0:
                    return self._taken()
                self._changed.wait(left_s)
        return []

    def _taken(self) -> list[Piece[Asked]]:
        batch = self._queue.take()
        for asked, _, _ in batch:
            asked.computing = True
        self._computing += bool(batch)
        return batch


def _outputs(batch: Sequence[Piece[Asked]]) -> Arrays:
    """Return the outputs of a batch, whose requests are of one version and shape."""
    served = batch[0][0].held.served
    if len(batch) == 1:
        return served.infer(batch[0][0].asked)
    inputs = {
        column.name: _joined([asked.asked[column.name] for asked, _, _ in batch])
        for column in served.inputs
    }
    return served.infer(inputs)


def _joined(parts: Sequence[Values]) -> Values:
    """Return the rows of a column of all requests, one after the other."""
    ragged = [part for part in parts if isinstance(part, Ragged)]
    if ragged:
        return Ragged.concatenated(ragged)
    return np.concatenate([part for part in parts if not isinstance(part, Ragged)])


def _check(outputs: Arrays, rows: int) -> None:
    for name, array in outputs.items():
        if array.shape[:1] != (rows,):
            raise ValueError(f"the output {name!r} has the shape {array.shape} for {rows} rows")

"""A teacher's end: takes requests of students, computes them in batches, answers.

A thread for each connection, which has one request at a time; one thread computes. Whoever asks
when there is no room is told so at once (BUSY): what waits is bounded here, and the student asks
another teacher, or reads on later.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.clock import Clock, MonotonicClock
from ..common.errors import EdlError, PeerError, Unreachable, UsageError
from ..common.identity import Identity
from ..wire.listener import Listener
from ..wire.regions import map_region
from ..wire.stream import Stream
from . import frames, tree
from .batching import Piece, Queue, Rate, Request, best_size
from .frames import Head, Part

log = logging.getLogger(__name__)

STALL_S = 60.0  # a peer that does not move in the midst of a frame for so long is given up
_LEAST_SEARCHED_NBYTES = 1 << 28  # of a batch that is tried at most, in and out
_TOO_LATE = "nobody waits for this answer any more"
Teach = Callable[[Sequence[Part], int], list[Part]]


@dataclass(eq=False)
class _Asked(Request[Sequence[Part]]):
    """A request that a connection waits for."""

    over: threading.Event = field(default_factory=threading.Event)


class Teacher:
    """A model that answers students, from `begin` until `close`."""

    def __init__(
        self,
        *,
        identity: Identity,
        host: str = "127.0.0.1",
        port: int = 0,
        max_queued: int = 1 << 14,
        clock: Clock | None = None,
    ) -> None:
        """Listen, and tell all who ask that there is no room yet.

        `port` 0: any. `max_queued`: rows. Raises UsageError where the port is not to be had.
        """
        self._teach: Teach | None = None
        self._about: dict[str, Any] = {}
        self._clock = clock or MonotonicClock()
        self._changed = threading.Condition()
        self._queue = Queue[_Asked](0, 0.0, max_queued)
        self._closed = self._busy = False
        self._rate = Rate()
        self.rows = 0  # computed in all
        self._busy_s = self._began = 0.0  # computing, and since when the batch of now is
        self._peers = set[Stream]()
        self._asked = set[_Asked]()  # that connections wait for
        try:
            self._listener = Listener(
                self._serve,
                name="teacher",
                identity=identity,
                host=host,
                stall_s=STALL_S,
                port=port,
            )
        except OSError as error:
            raise UsageError(f"port {port} of {host} is not to be had: {error}") from error
        self.listening = self._listener.listening
        self._listener.start()

    def begin(
        self,
        teach: Teach,
        about: Mapping[str, Any],
        *,
        max_batch_size: int = 0,
        max_queue_delay_s: float = 0.0,
    ) -> None:
        """Answer from now on.

        `teach(parts, rows)` returns its answers for arrays of so many rows; it is called by one
        thread at a time. `about` is told to whoever asks who this is. `max_batch_size` 0: the size
        that computes the most rows a second, searched at the first request.
        """
        with self._changed:
            self._teach, self._about = teach, dict(about)
            self._queue.max_batch_size = max_batch_size
            self._queue.max_queue_delay_s = max_queue_delay_s
        threading.Thread(target=self._compute, name="teacher-compute", daemon=True).start()

    @property
    def queued(self) -> int:
        """The rows that wait."""
        return self._queue.queued

    @property
    def busy_s(self) -> float:
        """The seconds in which it has computed, those of the batch of now among them."""
        with self._changed:
            return self._busy_s + (self._clock.now() - self._began if self._busy else 0.0)

    @property
    def max_batch_size(self) -> int:
        """The most rows of a batch; 0: not known yet."""
        return self._queue.max_batch_size

    def drain(self, timeout_s: float) -> None:
        """Wait until those who have asked are answered, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue.queued and not self._busy, timeout_s)

    def close(self) -> None:
        """Hang up on everybody."""
        self._listener.close()
        with self._changed:
            self._closed = True
            for stream in self._peers:
                stream.abort()
            for request in self._asked:
                self._queue.drop(request, _TOO_LATE)
                request.over.set()
            self._changed.notify_all()

    # -- connections

    def _serve(self, stream: Stream) -> None:
        with self._changed:
            if self._closed:
                stream.close()
                return
            self._peers.add(stream)
        session = _Session(stream, self._answered, self._told)
        try:
            while session.next():
                pass
        except (OSError, PeerError, frames.Malformed) as error:
            self._listener.tell(error)
        finally:
            with self._changed:
                self._peers.discard(stream)
            stream.close()

    def _told(self) -> dict[str, Any]:
        listening = self.listening
        return {**self._about, "unix": listening.unix_name, "host": listening.host_id}

    def _answered(self, head: Head, parts: Sequence[Part]) -> tuple[Head, list[Part]]:
        """Queue a request, wait until it is computed, and return the reply's head and arrays.

        Raises EdlError where the model refuses it, Unreachable where nobody waits any more.
        """
        kind = None if head.flags & frames.WHOLE else tree.kind_of(parts)
        now = self._clock.now()
        request = _Asked(head.rows, kind, now, parts)
        until = now + head.limit_ms / 1e3
        with self._changed:
            if self._closed or self._teach is None or not self._queue.add(request):
                return self._head(frames.BUSY, head.rows), []
            self._asked.add(request)
            self._changed.notify()
        if not request.over.wait(until - self._clock.now()):
            with self._changed:
                self._queue.drop(request, _TOO_LATE)
        with self._changed:
            self._asked.discard(request)
            if self._closed or not request.is_over or request.error == _TOO_LATE:
                raise Unreachable(_TOO_LATE)
            if request.error:
                raise EdlError(request.error)
            answer = tree.joined([request.pieces[start] for start in sorted(request.pieces)])
            return self._head(frames.TAUGHT, head.rows), answer

    def _head(self, op: int, rows: int) -> Head:
        return Head(op, rows=rows, rate=int(self._rate.value), queued=self._queue.queued)

    # -- the model

    def _compute(self) -> None:
        while (batch := self._next_batch()) is not None:
            rows = sum(stop - start for _, start, stop in batch)
            answers: list[Part] = []
            error = ""
            try:
                answers = self._run(batch, rows)
            except EdlError as failure:  # of what it answers
                log.warning("a batch of %d rows -> refused error=%r", rows, str(failure))
                error = str(failure)
            except Exception as failure:  # of the user's model: told to whoever asked
                log.exception("a batch of %d rows failed", rows)
                error = f"{type(failure).__name__}: {failure}"
            with self._changed:
                took_s = max(self._clock.now() - self._began, 1e-9)
                self.rows, self._busy_s = self.rows + rows, self._busy_s + took_s
                self._rate.note(rows, took_s)
                place = 0
                for request, start, stop in batch:
                    if error:
                        self._queue.drop(request, error)
                        continue
                    end = place + stop - start
                    alone = request.kind is None
                    request.pieces[start] = answers if alone else tree.cut(answers, place, end)
                    request.answered += stop - start
                    place = end
                self._busy = False
                for request, _, _ in batch:
                    if request.is_over:
                        request.over.set()
                self._changed.notify_all()  # for `drain`

    def _next_batch(self) -> list[Piece[_Asked]] | None:
        """Wait for a batch; None: this is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._queue.first)
            first = self._queue.first
        if first is not None and not self.max_batch_size:
            size = self._searched(first)
            with self._changed:
                self._queue.max_batch_size = size
        with self._changed:
            while not self._closed:
                ready_at = self._queue.ready_at()
                left_s = None if ready_at is None else ready_at - self._clock.now()
                if left_s is not None and left_s <= 0:
                    self._busy, self._began = True, self._clock.now()
                    return self._queue.take()
                self._changed.wait(left_s)
        return None

    def _run(self, batch: list[Piece[_Asked]], rows: int) -> list[Part]:
        asked = [
            request.asked if request.kind is None else tree.cut(request.asked, start, stop)
            for request, start, stop in batch
        ]
        assert self._teach is not None
        answers = self._teach(tree.joined(asked), rows)
        if batch[0][0].kind is not None:
            for each in answers:
                if each.values.shape[:1] != (rows,):
                    shape = list(each.values.shape)
                    raise ValueError(
                        f"teach gave {each.name!r} as {shape} for {rows} records: the first "
                        "dimension must be these"
                    )
        return answers

    def _searched(self, request: _Asked) -> int:
        """Return the batch size at which most rows a second are computed, of rows like these."""
        parts, rows = request.asked, request.rows
        if request.kind is None:
            return rows
        nbytes = sum(part.values.nbytes for part in parts) / rows

        def seconds(size: int) -> float:
            if size * nbytes > _LEAST_SEARCHED_NBYTES:
                raise MemoryError
            places = np.arange(size) % rows
            tiled = [Part(p.name, p.values[places], p.is_bfloat16) for p in parts]
            assert self._teach is not None
            began = self._clock.now()
            self._teach(tiled, size)
            return self._clock.now() - began

        try:
            seconds(1)  # the first call of a model is no measure
            size = max(best_size(seconds), rows)
        except Exception as error:  # noqa: BLE001 - of the user's model: the request will tell
            log.warning("no batch size could be searched: %s: %s", type(error).__name__, error)
            return rows
        log.info("max_batch_size=%d -> found", size)
        return size


class _Session:
    """One connection of a student."""

    def __init__(
        self,
        stream: Stream,
        answered: Callable[[Head, Sequence[Part]], tuple[Head, list[Part]]],
        about: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._stream, self._answered, self._about = stream, answered, about
        self._head = memoryview(bytearray(frames.HEAD_NBYTES))
        self._region: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._body: NDArray[np.uint8] = np.empty(0, np.uint8)

    def next(self) -> bool:
        """Serve one request. False: the student has hung up.

        Raises OSError, PeerError, Malformed: the connection has ended.
        """
        while (got := self._stream.receive_some(self._head)) < 0:
            pass  # idle: the kernel asks whether the peer is there
        if not got:
            return False
        if got < frames.HEAD_NBYTES:
            self._stream.receive(self._head[got:], None)
        head = frames.parse_head(self._head, frames.REQUESTS)
        told = memoryview(bytearray(head.told_nbytes))
        if told:
            self._stream.receive(told, None)
        if head.op == frames.ABOUT:
            self._say(frames.TOLD, json.dumps(self._about()))
        elif head.op == frames.SHARE:
            self._share(head.body_nbytes)
        else:
            self._teach(head, told)
        return True

    def _share(self, nbytes: int) -> None:
        fd = self._stream.receive_descriptor()
        if fd is None:
            raise Unreachable("a descriptor was announced and did not come")
        try:
            self._region = map_region(fd, nbytes)
        finally:
            os.close(fd)
        self._say(frames.SHARED)

    def _teach(self, head: Head, told: memoryview) -> None:
        arrays = frames.parse_arrays(head, told)
        if head.flags & frames.IN_REGION:
            if len(self._region) < head.body_nbytes:
                raise frames.Malformed(f"the shared region has no {head.body_nbytes} bytes")
            body = self._region
        else:
            if len(self._body) < head.body_nbytes:
                self._body = np.empty(head.body_nbytes, np.uint8)
            body = self._body
            if head.body_nbytes:
                self._stream.receive(memoryview(body)[: head.body_nbytes], None)  # type: ignore[arg-type]
        whole = bool(head.flags & frames.WHOLE)
        if not whole and any(each.shape[:1] != (head.rows,) for each in arrays):
            raise frames.Malformed(f"arrays of a request of {head.rows} rows have others")
        try:
            reply, parts = self._answered(head, frames.values_in(arrays, body))
            descriptors, nbytes = frames.describe(parts)
        except PeerError:
            raise
        except (EdlError, ValueError) as error:
            self._say(frames.ERROR, str(error))
            return
        reply = reply._replace(told_nbytes=len(descriptors), body_nbytes=nbytes)
        if 0 < nbytes <= len(self._region):
            frames.fill(parts, self._region)
            reply = reply._replace(flags=frames.IN_REGION)
            parts = []
        self._send(reply, descriptors, parts)

    def _say(self, op: int, text: str = "") -> None:
        told = text.encode()[: frames.MAX_TOLD_NBYTES]
        self._send(Head(op, told_nbytes=len(told)), told, [])

    def _send(self, head: Head, told: bytes, parts: Sequence[Part]) -> None:
        begins = frames.pack_head(head) + told
        if not parts:
            self._stream.write(begins, None)
            return
        self._stream.send([begins, *frames.buffers(parts)], len(begins) + head.body_nbytes, None)

"""One connection of the tensor plane, served: receives requests, asks the store, answers.

A push's body comes ids first: they are checked while the values are on the wire; then one
`Store.push`. A pull that compiled code has not answered (pulls.py) is planned by the store and
written by reply.py.

A request that fails is answered by an error (the rest of its body is read and dropped first); a
frame that is malformed, and a peer that stops in the midst of one, end the connection.
"""

from __future__ import annotations

import time

import numpy as np

from ...common import faults
from ...common.errors import EdlError, NotPinned, Unreachable
from ...kernels.malloc import fresh
from ...proto import ps_pb2 as pb
from ...wire.stream import Stream
from ..books.answers import NotYet, Outcome, PullPlan, Pushed
from ..books.parameters import Invalid
from . import frames, quantize
from .backend import Backend, Serving
from .board import Board
from .compiled_reply import REPLY_NBYTES
from .frames import Head
from .pulls import BROKEN, IDLE, SmallPulls
from .reply import ReplyWriter
from .request import FIRST_NBYTES, Receiver, span_named

_ANSWERED = -4  # beside what SmallPulls.serve returns: as if there had been nothing
_METHODS = {frames.PULL: "Pull", frames.PUSH: "Push"}
_CODES = {0: "OK"} | frames.STATUS
_FLOAT32 = np.dtype(np.float32)
_OUTCOMES = {outcome: pb.PushReply.Outcome.Value(outcome.name) for outcome in Outcome}


class Session:
    """One connection of a peer that is of the job."""

    def __init__(self, serving: Serving, stream: Stream) -> None:
        self.stream = stream
        self._serving = serving
        self._backend = serving.backend
        self._turns = serving.turns
        self._calls = serving.calls
        self._received = Receiver(stream, serving)
        self._reply = ReplyWriter(stream, serving.parts, self._received.regions)
        self._is_idle = False
        self._told = b""  # a reply that is still to be sent

    def fileno(self) -> int:
        return self.stream.fileno()

    def run(self) -> bool:
        """Serve until the peer hangs up, or, True, is idle: it may be run again.

        Raises OSError, Unreachable, Malformed.
        """
        bounds, counters = self._calls.begin_compiled()
        memory = fresh(FIRST_NBYTES + REPLY_NBYTES)
        first, reply = memory[:FIRST_NBYTES], memory[FIRST_NBYTES:]
        self._received.begin(first)
        pulls = SmallPulls(self.stream.plain_fd, first, reply, bounds, counters, self._turns)
        try:
            while self._next(pulls):
                pass
            return self._is_idle
        finally:
            self._turns.end()
            self._calls.end_compiled(counters)
            self._received.end()
            self.stream.rest()

    def _next(self, pulls: SmallPulls) -> bool:
        """Serve one request, and all small pulls before it. False: there are no more."""
        store = self._backend()
        board = None if store is None else store.watch(Board)
        told, self._told = self._told, b""
        if board is not None and pulls.fd is not None:
            pulls.reply[: len(told)] = told
            got = pulls.serve(board, len(self._received.window), len(told))
            if got == BROKEN:
                raise Unreachable("the peer takes nothing")
            if got == -1:
                got = self._received_some()
        else:
            self._turns.end()
            if told:
                self.stream.write(told, None)
            if board is not None:
                got = self._first_encrypted(pulls, board)
            else:
                got = self._received_some()
        if got == _ANSWERED:
            return True
        if got <= 0:
            self._is_idle = got == IDLE  # or hung up
            return False
        began = time.perf_counter()
        if got < frames.HEAD_NBYTES:
            self.stream.receive(self._received.view[got : frames.HEAD_NBYTES], None)
            got = frames.HEAD_NBYTES
        try:
            head = frames.parse_head(self._received.view, frames.REQUESTS)
            code = self._answered(head, got)
        except frames.Malformed as error:
            self._received.left = 0  # where the next frame begins, nobody can say: this is the end
            self._refuse(frames.INVALID, str(error))
            raise
        if method := _METHODS.get(head.op):
            took = time.perf_counter() - began
            self._calls.observe(method, _CODES[code], took, self._received.frame_nbytes)
        return True

    def _received_some(self) -> int:
        """Return how many first bytes of a request have been received; 0: hung up; IDLE."""
        got = self.stream.receive_some(self._received.window)
        return got if got >= 0 else IDLE

    def _first_encrypted(self, pulls: SmallPulls, board: Board) -> int:
        """Receive as `_received_some`; a small pull is _ANSWERED, anything else awaits its turn."""
        self._received.window = self._received.view
        got = self._received_some()
        if got <= 0:
            return got
        began = time.perf_counter()
        nbytes = pulls.answer(board, got)
        if nbytes < 0:
            self.stream.receive(self._received.view[got : got - nbytes], None)
            self._turns.end()
            got -= nbytes
            nbytes = pulls.answer(board, got)
        if nbytes == 0:
            self._turns.take()
            return got
        self.stream.write(pulls.reply[:nbytes], None)
        self._calls.observe("Pull", "OK", time.perf_counter() - began, got)
        return _ANSWERED

    def _answered(self, head: Head, got: int) -> int:
        """Answer one request; return the status code."""
        op = head.op
        self._reply.begun = False
        try:
            if op == frames.PULL:
                self._pull(head, got)
            elif op == frames.PUSH:
                self._push(head, got)
            else:
                self._share(head, got)
            return 0
        except (Unreachable, frames.Malformed):
            raise
        except NotYet as error:
            return self._refuse(frames.UNAVAILABLE, str(error))
        except Invalid as error:
            return self._refuse(frames.INVALID, str(error))
        except NotPinned as error:
            return self._refuse(frames.NOT_FOUND, str(error))
        except EdlError as error:
            return self._refuse(frames.PRECONDITION, str(error))
        except MemoryError:
            text = f"server {self._serving.index} is out of memory: use more servers"
            return self._refuse(frames.EXHAUSTED, text)
        finally:
            if self._received.lent is not None:
                self._received.give_back()
            if self._reply.lent is not None:
                self._reply.give_back()

    def _refuse(self, code: int, text: str) -> int:
        if self._reply.begun:
            raise Unreachable(f"a reply broke off: {text}")
        self._received.refuse()
        self.stream.write(frames.pack_error(code, text), None)
        return code

    # -- Pull

    def _pull(self, head: Head, got: int) -> None:
        received = self._received
        arrays, body = received.opened(head, got)
        if received.left:
            received.fill(body, head.body_nbytes, head.body_nbytes)
        store = self._store()
        faults.point("ps.pull")
        if store.slot_map.is_other(head.code):
            self._tell(frames.pack_reply(frames.PULLED, pb.PullReply.MOVED))
            return
        ids, _ = frames.ids_of(arrays, body)
        flags = head.flags
        plan = store.plan_pull(
            dense=flags & frames.DENSE != 0,
            known_version=head.known if flags & frames.KNOWN else None,
            tables=ids.items(),
            cut=arrays[-1].name if len(ids) < len(arrays) else "",
        )
        self._turns.end()
        if plan is None:
            self._tell(frames.pack_reply(frames.PULLED, pb.PullReply.UNINITIALIZED))
            return
        told = []
        for array, rows in zip(arrays, plan.tables, strict=False):
            plain = rows.dtype == _FLOAT32
            wire = frames.FLOAT32 if plain else _narrow(store, array.name)
            told.append((frames.ROWS, wire, "", rows.dim, array.count))
        self._reply.send(frames.PULLED, 0, 0, 0, told, plan, head.reply_region)

    # -- Push

    def _push(self, head: Head, got: int) -> None:
        received = self._received
        arrays, body = received.opened(head, got)
        ids, values_at = frames.ids_of(arrays, body)
        if received.left and not head.body_region:
            received.fill(body, values_at, head.body_nbytes)
        store = self._store()
        moved = store.slot_map.is_other(head.code)
        checked = store.initialized and not moved
        if checked:
            for array in arrays:
                if array.kind == frames.ROWS:
                    store.check_rows(array.name, ids[array.name], array.number)
        # All that can be done before the values are here: what receives them empties the caches.
        span = span_named(head)
        update, coded = received.update(arrays, ids, body, values_at)
        if received.left and head.body_region:
            received.receive(received.view[:1])
        elif received.left:
            received.fill(body, head.body_nbytes, head.body_nbytes)
        if moved:
            self._tell(frames.pack_reply(frames.PUSHED, pb.PushReply.MOVED))
            return
        for codes, scales, values in coded:
            quantize.decode(codes, scales, values)
        faults.point("ps.push", task=span.task, start=span.start)
        if not received.short:
            self._turns.end()
        pushed = store.push(
            span, head.version, update, checked=checked, before_wait=self._turns.end
        )
        if pushed.outcome is Outcome.APPLIED:
            faults.point("ps.applied", task=span.task, start=span.start)
        self._calls.pushed(pushed)
        code = _OUTCOMES[pushed.outcome]
        plan = None
        if head.flags & frames.THEN:
            del update, coded, body
            received.give_back()  # others may need it before the version is made
            plan = self._then(store, head, pushed)
        if plan is None:
            # Sent by the code that waits for the next request: each call that lets go of the GIL
            # may lose it to another connection.
            self._told = frames.pack_reply(
                frames.PUSHED, code, pushed.version, applied=pushed.applied
            )
            return
        region = head.reply_region
        self._reply.send(frames.PUSHED, frames.THEN, code, pushed.applied, [], plan, region)

    def _then(self, store: Backend, head: Head, pushed: Pushed) -> PullPlan | None:
        """Plan the chunks of the version that the push is part of, if it comes in time."""
        if pushed.outcome not in (Outcome.APPLIED, Outcome.DUPLICATE):
            return None
        self._turns.end()
        if store.wait_version(pushed.part_of - 1, head.timeout_ms / 1e3) < pushed.part_of:
            return None
        known = head.known if head.flags & frames.KNOWN else None
        return store.plan_pull(dense=True, known_version=known, tables=(), cut="")

    # -- Shared regions

    def _share(self, head: Head, got: int) -> None:
        """Map or forget a region of the client's, which it owns."""
        received = self._received
        received.opened(head, got)
        if not self.stream.shares_memory or head.descriptors_nbytes or not head.body_region:
            raise frames.Malformed("regions are shared by number, over a unix socket")
        received.regions.pop(head.body_region, None)
        if head.op == frames.MAP:
            self._tell(frames.pack_reply(frames.DONE))
            received.map_region(head.body_region, head.body_nbytes)
        self._tell(frames.pack_reply(frames.DONE))

    def _store(self) -> Backend:
        store = self._backend()
        if store is None:
            raise NotYet(f"server {self._serving.index} is starting")
        return store

    def _tell(self, frame: bytes) -> None:
        self.stream.write(frame, None)


def _narrow(store: Backend, table: str) -> int:
    assert store.spec is not None
    return frames.PLAIN[next(t.dtype for t in store.spec.tables if t.name == table)]

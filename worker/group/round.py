"""One round, as a member sees it: who is in it, whether it is to end, and what the master says."""

from __future__ import annotations

import logging
import threading

import torch

from ...common.errors import EdlError
from ...master.client import MasterClient
from ...proto import master_pb2 as pb
from ..task_stream import TaskStream
from .orders import OrderSink
from .process_group import ProcessGroup

log = logging.getLogger(__name__)

_WAIT_S = 10.0  # of a long poll


class Broken(Exception):
    """The end of a round in the midst of something."""


class Round:
    """A round's group and stream, and a thread that hears the master.

    `draining` is set once this member is to leave. `minibatch`: records.
    """

    def __init__(
        self,
        master: MasterClient,
        reply: pb.JoinReply,
        group: ProcessGroup,
        stream: TaskStream,
        orders: OrderSink,
        draining: threading.Event,
    ) -> None:
        self.number, self.rank, self.peers = reply.round, reply.rank, list(reply.peers)
        self.stream = stream
        self.draining = draining
        self.is_to_change = False
        self.is_broken = False
        self.minibatch = 0  # until it is known
        self.has_stepped = False
        self._master = master
        self._group = group
        self._orders = orders
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="watch-round", daemon=True)

    def start(self) -> None:
        """Begin to hear the master."""
        self._thread.start()

    def close(self) -> None:
        """End the round."""
        self._closed = True
        self.stream.close()

    def break_(self) -> None:
        """Free whoever waits for another member, or for a task."""
        self.is_broken = True
        self._group.abort()
        self.stream.wake()

    def confirm(self) -> None:
        """Return when all members have all of what was exchanged so far (process_group.py)."""
        self._group.confirm()

    def _watch(self) -> None:
        try:
            while not self._closed and not self.is_broken:
                self._hear()
        except EdlError as error:  # the loop meets the same silence, and reports it
            log.warning("round=%d -> the master is silent error=%r", self.number, str(error))

    def _hear(self) -> None:
        request = pb.WatchRoundRequest(
            round=self.number,
            told_to_change=self.is_to_change,
            orders=self._orders.known,
            wait_s=_WAIT_S,
        )
        reply = self._master.watch_round(request)
        if self._closed:
            return
        for order in reply.orders:
            self._orders.put(order)
        if reply.signal == pb.WatchRoundReply.CHANGE:
            self.is_to_change = True
        elif reply.signal == pb.WatchRoundReply.BROKEN:
            self.break_()
        if reply.orders:
            self.stream.wake()


def is_of_group(error: BaseException) -> bool:
    """Tell whether an operation of the process group failed, so that a member must be gone."""
    if isinstance(error, torch.distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and "gloo" in str(error)

"""The cuts of the state that a member holds for the master: orders to take and to write them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from ...common import background
from ...common.errors import EdlError
from ...common.storage import FileRecord
from ...master.client import MasterClient
from ...nn.model_spec import ModelSpec
from ...proto import master_pb2 as pb

log = logging.getLogger(__name__)


class Held(Protocol):
    """A state, as far as the master is told of it."""

    spec: ModelSpec
    version: int
    applied: dict[int, int]


State = TypeVar("State", bound=Held)


class Cuts(Generic[State]):
    """The cuts that a member holds, and the carrying out of orders about them.

    Orders come between two steps; cuts are written in a thread.
    """

    def __init__(
        self,
        master: MasterClient,
        take: Callable[[], State],
        write: Callable[[State, pb.Order], Sequence[FileRecord]],
        take_all: Callable[[str], State | None] | None = None,
    ) -> None:
        """Hold no cut yet.

        `take()`: a copy of the state of now. `take_all(cut)`: the same with a cut of the servers of
        that name; None: they do not stand together. It is given where there are servers. `write`
        may run in another thread.
        """
        self._master = master
        self._take = take
        self._write_files = write
        self._take_all = take_all
        self._cuts: dict[str, State] = {}

    def get(self, name: str) -> State | None:
        """Return a cut that is held.

        May be called from any thread.
        """
        return self._cuts.get(name)

    def carry_out(self, order: pb.Order) -> None:
        """Do what the order says, and report it."""
        log.info("order=%d -> %s cut=%s", order.id, pb.Order.Kind.Name(order.kind), order.cut)
        match order.kind:
            case pb.Order.TAKE:
                self._hold(order, self._take())
            case pb.Order.TAKE_ALL:
                assert self._take_all is not None, "there are no servers"
                self._hold(order, self._take_all(order.cut))
            case pb.Order.DROP:
                self._cuts.pop(order.cut, None)
                self._master.report_order(pb.ReportOrderRequest(id=order.id))
            case pb.Order.WRITE:
                name = f"write-{order.cut}"
                writing = background.begin(name, lambda: self._write(order))
                writing.add_done_callback(lambda done: self._written(order, done))

    def _hold(self, order: pb.Order, cut: State | None) -> None:
        taken = pb.ReportOrderRequest(id=order.id, version=-1)
        if cut is not None:
            self._cuts[order.cut] = cut
            taken = pb.ReportOrderRequest(id=order.id, version=cut.version, applied=cut.applied)
        self._master.report_order(taken)

    def _write(self, order: pb.Order) -> pb.ReportOrderRequest:
        cut = self._cuts[order.cut]
        files = _told(self._write_files(cut, order))
        return pb.ReportOrderRequest(id=order.id, files=files, model_json=cut.spec.to_json())

    def _written(self, order: pb.Order, writing: Future[pb.ReportOrderRequest]) -> None:
        """Report how the writing of a cut ended; the master waits, and tells the user of errors."""
        error = writing.exception(0)
        if error is None:
            report = writing.result(0)
        else:
            report = pb.ReportOrderRequest(id=order.id, error=f"{order.directory}: {error}")
        with contextlib.suppress(EdlError):  # the job is over, or the loop meets the same silence
            self._master.report_order(report)


def saved(directory: str, state: Held, files: Sequence[FileRecord]) -> pb.ReportOrderRequest:
    """Return the report to the master of a state that was written without an order."""
    return pb.ReportOrderRequest(
        directory=directory,
        version=state.version,
        applied=state.applied,
        files=_told(files),
        model_json=state.spec.to_json(),
    )


def _told(files: Sequence[FileRecord]) -> list[pb.ReportOrderRequest.File]:
    return [
        pb.ReportOrderRequest.File(name=f.name, nbytes=f.nbytes, sha256=f.sha256) for f in files
    ]

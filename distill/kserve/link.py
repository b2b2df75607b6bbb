"""A student's end of a model of somebody else's server, by KServe's v2 protocol.

The server is asked once what the model takes, and features that do not fit it are refused here, by
a sentence that names both. After a refusal it is asked anew: the model may be another by then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ...common.errors import Unreachable, UsageError
from ...common.identity import Identity
from ...common.teacher_address import Served, parse, served_at
from ..frames import Part
from ..link import Answer, Busy, Link, Refused, TeacherLink
from .carrier import Carrier, Said, headers_of_teachers
from .grpc import GrpcCarrier
from .http import HttpCarrier
from .tensors import Model, answer_of, in_spans, inputs_of


class KserveLink:
    """A way to a model. Any thread may call; `close` wakes whoever waits."""

    def __init__(self, served: Served, headers: Mapping[str, str]) -> None:
        self.address = served.address
        self._carrier: Carrier
        if served.carrier == "grpc":
            self._carrier = GrpcCarrier(served, headers)
        else:
            self._carrier = HttpCarrier(served, headers)
        self._model: Model | None = None

    def teach(self, parts: Sequence[Part], rows: int, timeout_s: float, whole: bool) -> Answer:
        """Ask about so many rows, and wait for the answer; 0 rows wait there for all we know.

        Raises Busy, Refused, Unreachable.
        """
        deadline = time.monotonic() + timeout_s
        try:
            return Answer(self._taught(parts, rows, deadline, whole), 0, 0)
        except Said as error:
            self._model = None
            # A server that is still loading its models says the same as one that has no such.
            if not self._is_ready(deadline):
                raise Unreachable(f"{self.address} is not ready: {error}") from error
            raise Refused(f"{self.address}: {error}") from error
        except Refused as error:
            self._model = None
            raise Refused(f"{self.address}: {error}") from error
        except Unreachable as error:
            raise Unreachable(f"the teacher at {self.address}: {error}") from error

    def close(self) -> None:
        self._carrier.close()

    def _taught(self, parts: Sequence[Part], rows: int, deadline: float, whole: bool) -> list[Part]:
        model = self._model = self._model or self._carrier.model(deadline)

        def ask(asked: Sequence[Part]) -> list[Part]:
            try:
                inputs = inputs_of(asked, model)
            except ValueError as error:
                raise Refused(str(error)) from error
            return self._carrier.infer(inputs, model, deadline)

        try:
            return answer_of(in_spans(parts, rows, 0 if whole else model.most_rows, ask))
        except ValueError as error:
            raise Refused(f"of its answer: {error}") from error

    def _is_ready(self, deadline: float) -> bool:
        try:
            return self._carrier.is_ready(deadline)
        except Busy:
            return False


def check_addresses(addresses: Sequence[str]) -> None:
    """Check that these can be asked: what they are, and the headers that foreign ones are sent.

    Raises UsageError.
    """
    for each in addresses:
        try:
            found = parse(each)
        except ValueError as error:
            raise UsageError(f"the teacher {each!r} {error}") from error
        if isinstance(found, Served):
            headers_of_teachers()


def connect(address: str, identity: Identity) -> Link:
    """Return a way to a teacher: one of ours, which asks for an identity, or a foreign one.

    Raises UsageError where the headers for the latter are none.
    """
    served = served_at(address)
    if served is None:
        return TeacherLink(address, identity)
    return KserveLink(served, headers_of_teachers())

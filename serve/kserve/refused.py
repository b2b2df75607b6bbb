"""The reasons not to answer a request, each with the status that both carriers have for it."""

from __future__ import annotations

from enum import Enum
from http import HTTPStatus

import grpc

from ...common.errors import EdlError


class Why(Enum):
    """The kinds of refusals; the value is HTTP's status."""

    INVALID = HTTPStatus.BAD_REQUEST
    NO_TOKEN = HTTPStatus.UNAUTHORIZED
    UNKNOWN = HTTPStatus.NOT_FOUND
    NO_SUCH_METHOD = HTTPStatus.METHOD_NOT_ALLOWED
    SLOW = HTTPStatus.REQUEST_TIMEOUT  # whoever asks has not said all of it in time
    TOO_LARGE = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    FAILED = HTTPStatus.INTERNAL_SERVER_ERROR  # the model's own code
    UNSERVED = HTTPStatus.NOT_IMPLEMENTED  # others of the protocol have it
    FULL = (HTTPStatus.SERVICE_UNAVAILABLE, "full")
    AWAY = (HTTPStatus.SERVICE_UNAVAILABLE, "away")  # not ready yet, or ending
    LATE = HTTPStatus.GATEWAY_TIMEOUT  # the model has not answered in time

    @property
    def status(self) -> int:
        """HTTP's status."""
        return int(self.value[0] if isinstance(self.value, tuple) else self.value)

    @property
    def code(self) -> grpc.StatusCode:
        """The status of gRPC."""
        return _CODES[self]


_CODES = {
    Why.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Why.NO_TOKEN: grpc.StatusCode.UNAUTHENTICATED,
    Why.UNKNOWN: grpc.StatusCode.NOT_FOUND,
    Why.NO_SUCH_METHOD: grpc.StatusCode.UNIMPLEMENTED,
    Why.SLOW: grpc.StatusCode.DEADLINE_EXCEEDED,
    Why.TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Why.FAILED: grpc.StatusCode.INTERNAL,
    Why.UNSERVED: grpc.StatusCode.UNIMPLEMENTED,
    Why.FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Why.AWAY: grpc.StatusCode.UNAVAILABLE,
    Why.LATE: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class Refused(EdlError):
    """A request that is not answered, and why, for whoever asked."""

    def __init__(self, why: Why, what: str) -> None:
        super().__init__(what)
        self.why = why


def invalid(what: str) -> Refused:
    """Return the refusal of a request that does not fit its model."""
    return Refused(Why.INVALID, what)

"""Find the address by which the other nodes of a job reach this machine."""

from __future__ import annotations

import os
import socket

from ..common.errors import UsageError
from ..common.listen import HOST_VARIABLE, family, host_of, own_host


def host_towards(address: str) -> str:
    """Return EDL_HOST, or the address of this machine on the way to the coordinator at HOST:PORT.

    Raises UsageError where that host is unknown.
    """
    if os.environ.get(HOST_VARIABLE):
        return own_host()
    host, port = host_of(address), address.rpartition(":")[2]
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0][4]
        with socket.socket(family(str(found[0])), socket.SOCK_DGRAM) as way:
            way.connect(found)  # of a datagram socket: sends nothing, chooses the way
            return str(way.getsockname()[0])
    except OSError as error:
        raise UsageError(
            f"{host} is not known here ({error.strerror or error}): give the address that the "
            "coordinator said."
        ) from error

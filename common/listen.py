"""The addresses where a process of a job listens: EDL_HOST, EDL_METRICS_PORT, EDL_HEALTH_PORT.

A process binds EDL_HOST (127.0.0.1 unless set; a pod its own IP) and tells it to the others. Ports
are any free ones, but for those that somebody outside of the job must know: of the metrics, and of
the health service that a kubelet asks (rpc.serve_health).
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from .errors import UsageError
from .process import is_starved

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry

HOST_VARIABLE = "EDL_HOST"
HEALTH_PORT_VARIABLE = "EDL_HEALTH_PORT"
METRICS_PORT_VARIABLE = "EDL_METRICS_PORT"
_METRICS_CONNECTIONS = 32  # at a time; a scraper needs one
_CALL_S = 1.0  # to oneself: it is there at once, or never
_METRICS_S = 10.0  # for a request, and of silence
_HEADER_NBYTES = 64 << 10
ANY_PORTS = {HEALTH_PORT_VARIABLE: "", METRICS_PORT_VARIABLE: ""}  # one port is of one process


def own_host() -> str:
    """Return the address that this process binds and tells others.

    Raises UsageError where it cannot, or where not even this process can be called there.
    """
    told = os.environ.get(HOST_VARIABLE, "")
    host = told or "127.0.0.1"
    why = _unreachable(host)
    if not why:
        return host
    if told:
        raise UsageError(
            f"{HOST_VARIABLE}={host}: {why}. Set it to one address of this host, by which the "
            "others of the job reach it (in a pod: its IP)."
        )
    raise UsageError(
        f"The processes of a job call each other at {host}, which cannot be called here ({why}): "
        "give this machine, container or network namespace its loopback (`ip link set lo up`), or "
        f"set {HOST_VARIABLE} to another address of this host."
    )


def _unreachable(host: str) -> str:
    """Return why nobody can be called at this address of this host; "" where one can.

    It is tried: a network namespace whose loopback is down lets one bind it, and calls hang.
    """
    try:
        with (
            socket.create_server((host, 0), family=family(host)) as bound,
            socket.socket(family(host)) as caller,
        ):
            if ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_unspecified:
                return "others cannot call there"
            caller.settimeout(_CALL_S)
            caller.connect(bound.getsockname())
    except OSError as error:
        return error.strerror or str(error)
    return ""


def fixed_port(variable: str) -> int:
    """Return the port that a variable names; 0: none. Raises UsageError."""
    value = os.environ.get(variable, "") or "0"
    if not (value.isdecimal() and int(value) < 1 << 16):
        raise UsageError(f"{variable}={value} is no port: give a number up to 65535, 0 for any.")
    return int(value)


def own_machine() -> str:
    """Return the name of the machine that this process is on: in a pod that of its node."""
    return os.environ.get("EDL_NODE") or socket.gethostname()


def family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def joined(host: str, port: int) -> str:
    """Return HOST:PORT, as gRPC and browsers have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(address: str) -> str:
    """Return the host of HOST:PORT."""
    return address.rpartition(":")[0].strip("[]")


def is_loopback(host: str) -> bool:
    """Return whether an address is of this host only; of names, `localhost` alone is known."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


class Strangers:
    """Connections of peers who have proved nothing yet.

    There are `most` at a time, a new one ends the oldest.

    So however many somebody holds open, they cost little, and whoever belongs here gets through: he
    needs a moment, and is the newest of them. Each has `moment_s` in any case, where many of those
    who belong here come at once: meanwhile a new one waits for room.
    """

    def __init__(self, most: int, moment_s: float = 0.0) -> None:
        self._most, self._moment_s = most, moment_s
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        self._held: dict[socket.socket, float] = {}  # since when; oldest first

    def __len__(self) -> int:
        return len(self._held)

    def add(self, sock: socket.socket) -> None:
        with self._lock:
            while len(self._held) >= self._most:
                oldest, since = next(iter(self._held.items()))
                left_s = since + self._moment_s - time.monotonic()
                if left_s <= 0:
                    del self._held[oldest]
                    hang_up(oldest)
                else:
                    self._left.wait(left_s)
            self._held[sock] = time.monotonic()

    def remove(self, sock: socket.socket) -> bool:
        """Forget a connection that is gone, or no stranger any more. False: it was hung up on."""
        with self._lock:
            self._left.notify()
            return self._held.pop(sock, None) is not None

    def hang_up(self) -> None:
        """Hang up on all strangers."""
        with self._lock:
            for sock in self._held:
                hang_up(sock)


def hang_up(sock: socket.socket) -> None:
    """Wake whoever waits on the socket, who then closes it."""
    with contextlib.suppress(OSError):  # the peer was first
        sock.shutdown(socket.SHUT_RDWR)


class _Header(io.RawIOBase):
    """A request's header on its way: of so many bytes, whole within so many seconds."""

    def __init__(self, sock: socket.socket, within_s: float) -> None:
        self._sock, self._until = sock, time.monotonic() + within_s
        self._left = _HEADER_NBYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the header was not there in time")
        before = self._sock.gettimeout()
        self._sock.settimeout(left_s)
        try:
            count = self._sock.recv_into(buffer)
        finally:
            self._sock.settimeout(before)
        self._left -= count
        if self._left < 0:
            raise ConnectionAbortedError(f"the header has more than {_HEADER_NBYTES} bytes")
        return count


def header_of(sock: socket.socket, within_s: float) -> io.BufferedReader:
    """Return what reads the one request of a connection, which has no body.

    It raises OSError where the header has more than 64 KiB, or is not whole within `within_s`; by
    a socket's timeout alone it may come a byte at a time, for ever.
    """
    return io.BufferedReader(_Header(sock, within_s))


def serve_metrics(registry: CollectorRegistry | None = None) -> tuple[WSGIServer, str]:
    """Serve /metrics; the server and its address. Raises UsageError where the port is taken.

    Anybody may ask; who says nothing, or comes with many, is hung up on.
    """
    from socketserver import ThreadingMixIn
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

    from prometheus_client import REGISTRY, make_wsgi_app  # the command line does without

    host, port = own_host(), fixed_port(METRICS_PORT_VARIABLE)
    strangers = Strangers(_METRICS_CONNECTIONS)

    class Handler(WSGIRequestHandler):
        timeout = _METRICS_S

        def setup(self) -> None:
            super().setup()
            self.rfile.close()
            self.rfile = header_of(self.connection, _METRICS_S)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Write nothing: nobody reads it."""

    class Server(ThreadingMixIn, WSGIServer):
        address_family = family(host)
        daemon_threads = True

        def process_request(self, request: Any, client_address: Any) -> None:
            strangers.add(request)
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            strangers.remove(request)
            super().shutdown_request(request)

        def handle_error(self, _request: object, _client_address: object) -> None:
            """Ignore the error, unless there are no threads: a peer that goes away is no news."""
            error = sys.exception()
            if error is not None and is_starved(error):
                raise error

    try:
        server = make_server(host, port, make_wsgi_app(registry or REGISTRY), Server, Handler)
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    except OSError as error:
        raise UsageError(
            f"cannot serve metrics on {joined(host, port)}: {error.strerror}. Set "
            f"{METRICS_PORT_VARIABLE} to a port that is free, or to 0 for any."
        ) from error
    return server, joined(host, server.server_port)

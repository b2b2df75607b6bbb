"""A server of HTTP within an event loop, by uvicorn: its socket, its TLS, its end.

uvicorn is an extra: it is imported only where something is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import listen
from .errors import UsageError
from .listen import joined

if TYPE_CHECKING:
    import uvicorn


@dataclass(frozen=True)
class Tls:
    """Files of a certificate and its key; `client_ca`: whoever asks must have one of that."""

    certificate: str = ""
    key: str = ""
    client_ca: str = ""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key) or (self.client_ca and not self.key):
            raise UsageError("TLS needs both --tls_cert and --tls_key.")

    def read(self) -> tuple[bytes, bytes, bytes | None]:
        """Return key, certificate and the clients' authority. Raises UsageError."""
        try:
            key, certificate = Path(self.key).read_bytes(), Path(self.certificate).read_bytes()
            ca = Path(self.client_ca).read_bytes() if self.client_ca else None
        except OSError as error:
            raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from error
        return key, certificate, ca


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the fastest event loop that is installed; None: asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None  # slower, and right
    return uvloop.new_event_loop


def bound(host: str, port: int, flag: str) -> socket.socket:
    """Return a socket that listens. Raises UsageError, which names the flag of the port."""
    try:
        return socket.create_server((host, port), family=listen.family(host), backlog=2048)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {joined(host, port)}: {error.strerror}. Choose another {flag}."
        ) from error


@contextlib.asynccontextmanager
async def serving(
    app: Any, sock: socket.socket, tls: Tls, *, lifespan: Literal["on", "off"], end_s: float
) -> AsyncIterator[None]:
    """Serve an ASGI application on a socket meanwhile; `end_s`: for requests under way at the end.

    Raises UsageError where the TLS files cannot be used.
    """
    import uvicorn

    config = uvicorn.Config(
        app,
        loop="none",
        interface="asgi3",
        lifespan=lifespan,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=int(end_s),
    )
    if tls.key:
        tls.read()  # names a file that is not there
        config.ssl_certfile, config.ssl_keyfile = tls.certificate, tls.key
        config.ssl_ca_certs = tls.client_ca or None
        config.ssl_cert_reqs = ssl.CERT_REQUIRED if tls.client_ca else ssl.CERT_NONE
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        sock.close()
        raise UsageError(f"the TLS files cannot be used: {error}") from error
    server = _uvicorn(config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield
    finally:
        server.should_exit = True
        await task


def _uvicorn(config: uvicorn.Config) -> uvicorn.Server:
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Leave signals to this process."""
            yield

    return Server(config)

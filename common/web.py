"""A server of HTTP within an event loop, by uvicorn: its socket, its TLS, its end.

uvicorn is an extra: it is imported only where something is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import listen
from .errors import UsageError
from .listen import joined
from .web_connections import Bounds, Guarded, Listener, guarded

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
        return socket.create_server((host, port), family=listen.family(host), backlog=4096)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {joined(host, port)}: {error.strerror}. Choose another {flag}."
        ) from error


@contextlib.asynccontextmanager
async def serving(
    app: Any,
    sock: socket.socket,
    tls: Tls,
    *,
    lifespan: Literal["on", "off"],
    end_s: float,
    bounds: Bounds | None = None,
) -> AsyncIterator[None]:
    """Serve an ASGI application on a socket meanwhile; `end_s`: for requests under way at the end.

    `bounds`: of what a connection may cost before and between its requests.

    Raises UsageError where the TLS files cannot be used.
    """
    import uvicorn

    bounds = bounds or Bounds()
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
        h11_max_incomplete_event_size=bounds.header_nbytes,
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
    # What it warns of are mistakes of strangers, a line each: `Told` counts them.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    server = _uvicorn(config, bounds)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield
    finally:
        server.should_exit = True
        await task


def _uvicorn(config: uvicorn.Config, bounds: Bounds) -> uvicorn.Server:
    import uvicorn

    class Server(uvicorn.Server):
        """A server whose connections are accepted by a `Listener`, and within bounds."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Leave signals to this process."""
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            assert sockets, "it is given its socket"
            await self.lifespan.startup()
            kind, loop = guarded(config.http_protocol_class), asyncio.get_running_loop()

            def make() -> Guarded:
                made: Guarded = kind(
                    config=config,
                    server_state=self.server_state,
                    app_state=self.lifespan.state,
                    _loop=loop,
                )
                return made

            self.servers = []
            self._listener = Listener(sockets[0], make, config.ssl, bounds)
            self._listener.begin()
            self.started = True

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            self._listener.close()
            await super().shutdown(sockets)

    return Server(config)

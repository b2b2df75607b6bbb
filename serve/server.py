"""The process of `edl serve`: a loop for HTTP and gRPC, threads that compute, one that looks.

It listens first and is ready once all models are whole. At SIGTERM it is not ready any more, and
answers on for `linger_s`, in which whoever shares out requests learns of it; then it takes none and
ends when what is under way has been answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio

from .. import __version__
from ..common import web
from ..common.errors import EdlError, UsageError
from ..common.extras import install
from ..common.listen import is_loopback, joined
from ..common.process import allow_many_files, leave
from ..common.web import Tls
from ..common.web_connections import most_connections
from .batcher import Rules
from .kserve.asking import Asking
from .kserve.http import App, Limits
from .kserve.rpc import Service, TokenCheck, bounds
from .repository import Repository
from .sources import Bringer

log = logging.getLogger("edl.serve")

_END_S = 30.0  # for requests that are under way
# The thread that answers must not wait for the one that computes in Python for 5 ms, as by default.
_SWITCH_S = 0.0005
_EXTRA = f"edl serve needs uvicorn: {install('serve')}"


@dataclass(frozen=True)
class Place:
    """The place where a server listens, and who may ask. `plain`: off loopback without TLS too."""

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    token: str = field(default="", repr=False)
    tls: Tls = field(default_factory=Tls)
    plain: bool = False

    def __post_init__(self) -> None:
        safe = self.tls.key and (self.token or self.tls.client_ca)
        if not is_loopback(self.host) and not safe and not self.plain:
            raise UsageError(
                f"{self.host} is not on loopback: give --tls_cert, --tls_key and a token "
                "(--token_file), or --plain, by which whoever reaches the port may ask."
            )


@dataclass(frozen=True)
class Terms:
    """The terms on which requests are served.

    `keep`: versions of a model; `watch_s`: seconds between two looks for newer ones, 0: none;
    `linger_s`: after SIGTERM; `timeout_s`: for an answer.
    """

    rules: Rules = field(default_factory=Rules)
    limits: Limits = field(default_factory=Limits)
    keep: int = 1
    watch_s: float = 5.0
    timeout_s: float = 30.0
    linger_s: float = 0.0


def check_installed() -> None:
    """Check that what serves HTTP is there. Raises UsageError."""
    try:
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError(_EXTRA) from error


def serve(
    bringers: Sequence[Bringer], place: Place, terms: Terms, say: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or SIGINT.

    `say` is told where, once all models answer. Raises EdlError: a model that is not there.
    """
    check_installed()
    allow_many_files()
    sys.setswitchinterval(_SWITCH_S)
    server = _Server(bringers, place, terms, say)
    with asyncio.Runner(loop_factory=web.loop_factory()) as runner:
        runner.run(server.run())
    if server.is_opening:
        leave(0)  # by no teardown, which would take from that thread what it uses


class _Server:
    def __init__(
        self, bringers: Sequence[Bringer], place: Place, terms: Terms, say: Callable[[str], None]
    ) -> None:
        self._bringers, self._place, self._terms, self._say = bringers, place, terms, say
        self._repository = Repository(terms.rules, keep=terms.keep)
        for bringer in bringers:
            self._repository.add(bringer.name, bringer.max_age_s)
        self._over = asyncio.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_opening(self) -> bool:
        """Tell whether a model is still being opened."""
        if self._thread is not None:
            self._thread.join(_SWITCH_S)
        return self._thread is not None and self._thread.is_alive()

    async def run(self) -> None:
        """Serve until a signal. Raises EdlError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._over.set)
        asking = Asking(self._repository, self._terms.timeout_s, __version__)
        async with contextlib.AsyncExitStack() as undo:
            undo.callback(self._repository.close)
            for bringer in self._bringers:
                undo.callback(bringer.close)  # may wait for a thread: once nobody asks any more
            http = await self._begin_http(asking, undo)
            rpc = await self._begin_grpc(asking, undo)
            undo.callback(self._ended.set)
            loaded: asyncio.Future[None] = loop.create_future()
            # A daemon: an end must not wait for a model that takes minutes to open.
            self._thread = threading.Thread(
                target=self._bring, args=(loop, loaded), name="serve-watch", daemon=True
            )
            self._thread.start()
            over = asyncio.create_task(self._over.wait())
            undo.callback(over.cancel)
            await asyncio.wait((loaded, over), return_when=asyncio.FIRST_COMPLETED)
            if loaded.done():
                loaded.result()
                self._tell(http, rpc)
                await over  # its whole work
            self._repository.is_ending = True
            self._say("ending: not ready any more, what is under way is answered")
            await asyncio.sleep(self._terms.linger_s)

    def _bring(self, loop: asyncio.AbstractEventLoop, loaded: asyncio.Future[None]) -> None:
        """Open the models, and what comes after them, until the end."""
        failure: EdlError | None = EdlError("a model could not be opened: its traceback is above")
        try:
            for bringer in self._bringers:
                bringer.begin(self._repository)
            failure = None
        except EdlError as error:
            failure = error
        finally:
            gc.collect()
            gc.freeze()  # models and modules live for ever: no collection looks at them again
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_settle, loaded, failure)
        while failure is None and self._terms.watch_s and not self._ended.wait(self._terms.watch_s):
            for bringer in self._bringers:
                bringer.look()

    def _tell(self, http: str, rpc: str) -> None:
        scheme = "https" if self._place.tls.key else "http"
        for name in self._repository.names:
            versions = ", ".join(self._repository.model(name).told()["versions"])
            self._say(f"serving {scheme}://{http}/v2/models/{name} (version {versions})")
        self._say(f"gRPC at {rpc}, metrics at {scheme}://{http}/metrics")

    # -- the two carriers

    async def _begin_http(self, asking: Asking, undo: contextlib.AsyncExitStack) -> str:
        place = self._place
        app = App(self._repository, asking, token=place.token, limits=self._terms.limits)
        sock = web.bound(place.host, place.http_port, "--http_port")
        await undo.enter_async_context(
            web.serving(app, sock, place.tls, lifespan="off", end_s=_END_S)
        )
        return joined(place.host, sock.getsockname()[1])

    async def _begin_grpc(self, asking: Asking, undo: contextlib.AsyncExitStack) -> str:
        place = self._place
        server = grpc.aio.server(
            interceptors=[TokenCheck(place.token)] if place.token else [],
            options=bounds(self._terms.limits.body_nbytes, most_connections() // 2),
        )
        server.add_generic_rpc_handlers((Service(asking).handler(),))
        where = joined(place.host, place.grpc_port)
        try:
            if place.tls.key:
                port = server.add_secure_port(where, _credentials(place.tls))
            else:
                port = server.add_insecure_port(where)
        except RuntimeError as error:
            raise UsageError(f"cannot listen on {where}: choose another --grpc_port.") from error
        await server.start()
        undo.push_async_callback(server.stop, _END_S)
        return joined(place.host, port)


def _settle(loaded: asyncio.Future[None], failure: EdlError | None) -> None:
    if loaded.done():
        return
    if failure is None:
        loaded.set_result(None)
    else:
        loaded.set_exception(failure)


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    key, certificate, ca = tls.read()
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=ca, require_client_auth=ca is not None
    )

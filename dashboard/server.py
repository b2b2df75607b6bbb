"""The process of `edl dashboard`: it serves until it is told to end, and says by which address."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..common import web
from ..common.errors import UsageError
from ..common.listen import is_loopback, joined
from ..common.process import allow_many_files
from ..common.web import Tls
from ..jobs.job import Jobs
from .actions import Actions
from .app import Dashboard
from .asides import Asides
from .single_file import single_file
from .sources import model_of

_END_S = 2.0  # for requests that are under way; streams end at once


@dataclass(frozen=True)
class Place:
    """The place where it listens. `plain`: off loopback without TLS too; `hosts`: its names.

    `token_known`: whoever may look has the token, so that it is not told (a log has other readers).
    """

    token: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 0
    tls: Tls = field(default_factory=Tls)
    plain: bool = False
    hosts: tuple[str, ...] = ()
    token_known: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.~-]{16,}", self.token, re.ASCII):
            raise UsageError(
                "A token of the dashboard is at least 16 letters, digits, or any of `-._~`, since "
                "it stands in an address."
            )
        if not is_loopback(self.host) and not self.tls.key and not self.plain:
            raise UsageError(
                f"{self.host} is not on loopback: give --tls_cert and --tls_key, or --plain, by "
                "which whoever listens to the network reads the token. Or stay on loopback, and "
                "come by `ssh -L` or `kubectl port-forward`."
            )


def serve(
    jobs: Jobs,
    job: str,
    place: Place,
    actions: Actions,
    say: Callable[[str], None],
    prices: str = "",
) -> None:
    """Serve until SIGTERM or SIGINT; `say` is told the address, of this job's page if one is named.

    Raises UsageError where it cannot listen.
    """
    allow_many_files()
    with asyncio.Runner(loop_factory=web.loop_factory()) as runner:
        runner.run(_serve(jobs, job, place, actions, say, prices))


async def _serve(
    jobs: Jobs,
    job: str,
    place: Place,
    actions: Actions,
    say: Callable[[str], None],
    prices: str,
) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    sock = web.bound(place.host, place.port, "--port")
    port = int(sock.getsockname()[1])
    # A cookie is of a host and all its ports: another dashboard's must not take its place.
    dashboard = Dashboard(
        jobs,
        place.token,
        actions,
        prices=prices,
        hosts=(place.host, *place.hosts),
        cookie=f"edl-{port}",
    )
    async with contextlib.AsyncExitStack() as undo:
        await undo.enter_async_context(
            web.serving(dashboard.asgi, sock, place.tls, lifespan="off", end_s=_END_S)
        )
        await undo.enter_async_context(dashboard.open())
        scheme = "https" if place.tls.key else "http"
        where = f"#/{job}" if job else ""
        token = "TOKEN" if place.token_known else place.token
        say(f"{scheme}://{joined(place.host, port)}/?token={token}{where}")
        await over.wait()


def export(jobs: Jobs, job: str | None, path: Path, prices: str = "") -> str:
    """Write a job's page as one file; return the job's name. Raises UsageError: there is none."""
    found = jobs.find(job)
    snapshot = model_of(found, Asides(jobs, prices)).snapshot(time.time())
    path.write_text(single_file(snapshot), encoding="utf-8")
    return found.name

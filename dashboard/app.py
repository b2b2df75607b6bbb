"""The routes of the dashboard (docs/dashboard.md): pure answers to requests, behind the guard."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ..common.errors import EdlError, UsageError
from ..jobs.job import Jobs
from . import page_files
from .actions import Actions
from .asides import Asides
from .feed import encode
from .guard import Guard
from .listing import JobList
from .model import SCHEMA
from .openapi import openapi
from .watch import COMMENT_S, RETRY_MS, Watches

_LINES, _MOST_LINES = 500, 20_000
_MOST_BODY, _BODY_S = 1 << 14, 10.0  # of an action
_ROLES = ("master", "worker", "server", "teacher")


class Dashboard:
    """The application of one place of jobs: `asgi` is what a server calls.

    `hosts`: names by which it is asked, beside loopback's; `cookie`: the name of the token's;
    `prices`: a file by which the cost of a job is told; `body_s`: for an action to be there.
    """

    def __init__(
        self,
        jobs: Jobs,
        token: str,
        actions: Actions,
        *,
        prices: str = "",
        hosts: tuple[str, ...] = (),
        cookie: str = "edl",
        body_s: float = _BODY_S,
    ) -> None:
        self._jobs = jobs
        self._actions, self._body_s = actions, body_s
        self._watches = Watches(jobs, Asides(jobs, prices), actions.on)
        self._list = JobList(jobs)
        table: dict[str, Callable[[Request], Any]] = {
            "/": self.page,
            "/page/{name}": self.file,
            "/api/openapi.json": self.openapi,
            "/api/stream": self.list_stream,
            "/api/jobs": self.list,
            "/api/jobs/{job}": self.job,
            "/api/jobs/{job}/logs": self.logs,
            "/api/jobs/{job}/stream": self.stream,
        }
        routes = [Route(path, answer, methods=["GET"]) for path, answer in table.items()]
        routes.append(Route("/api/jobs/{job}/actions", self.act, methods=["POST"]))
        errors: Mapping[Any, Any] = {EdlError: _error}
        self.asgi = Guard(Starlette(routes=routes, exception_handlers=errors), token, hosts, cookie)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Look after the watches meanwhile; at the end all streams end."""
        sweeping = asyncio.create_task(self._watches.sweep())
        try:
            yield
        finally:
            sweeping.cancel()
            self._list.close()
            await self._watches.close()

    async def page(self, _request: Request) -> Response:
        return Response(page_files.index(self.asgi.csrf), media_type="text/html")

    async def file(self, request: Request) -> Response:
        found = page_files.read(request.path_params["name"])
        if found is None:
            return _told({"error": "The page has no such file."}, 404)
        return Response(found[0], headers={"content-type": found[1]})

    async def openapi(self, _request: Request) -> Response:
        return _told(openapi())

    async def list(self, _request: Request) -> Response:
        return _told({"schema": SCHEMA, "jobs": await self._list.now()})

    async def job(self, request: Request) -> Response:
        return _told(await self._watches.snapshot(request.path_params["job"]))

    async def stream(self, request: Request) -> Response:
        watch = await self._watches.of(request.path_params["job"])
        return _events(watch.messages(request.headers.get("last-event-id", "")))

    async def list_stream(self, _request: Request) -> Response:
        return _events(self._list_messages())

    async def _list_messages(self) -> AsyncIterator[str]:
        yield f"retry: {RETRY_MS}\n\n"
        async for found in self._list.changes(COMMENT_S):
            if found is None:
                yield ": still here\n\n"
            else:
                yield f"event: jobs\ndata: {encode({'schema': SCHEMA, 'jobs': found})}\n\n"

    async def logs(self, request: Request) -> Response:
        job = await asyncio.to_thread(self._jobs.find, request.path_params["job"])
        role, index, tail = _chosen(request.query_params)

        def read() -> str:
            lines = job.lines(role=role, index=index, tail=tail, follow=False)
            return "\n".join(itertools.islice(lines, _MOST_LINES))

        return PlainTextResponse(await asyncio.to_thread(read))

    async def act(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(self._body_s):
                body = b""
                async for part in request.stream():
                    body += part
                    if len(body) > _MOST_BODY:
                        return _told({"error": "An action is a few words of JSON."}, 413)
        except TimeoutError:
            return _told({"error": f"The action was not there in {self._body_s:g} s."}, 408)
        try:
            asked = json.loads(body)
        except ValueError:
            asked = None
        if not isinstance(asked, dict):
            raise UsageError("An action is a JSON object with `action`.")
        job = await asyncio.to_thread(self._jobs.find, request.path_params["job"])
        if asked.get("action") not in self._actions.on(job):
            return _told({"error": _not_allowed(self._actions.on(job))}, 403)
        return _told({"message": await asyncio.to_thread(self._actions.act, job, asked)})


def _told(values: Any, code: int = 200) -> Response:
    return Response(encode(values), code, media_type="application/json")


def _events(messages: AsyncIterator[str]) -> Response:
    return StreamingResponse(
        messages, media_type="text/event-stream", headers={"x-accel-buffering": "no"}
    )


async def _error(_request: Request, error: EdlError) -> Response:
    code = 400 if isinstance(error, UsageError) else 409
    missing = isinstance(error, UsageError) and str(error).startswith("There is no job")
    return _told({"error": str(error)}, 404 if missing else code)


def _not_allowed(allowed: tuple[str, ...]) -> str:
    if not allowed:
        return "This dashboard only shows: start it with --allow-actions."
    return f"What may be done to this job: {', '.join(allowed)}."


def _chosen(query: Mapping[str, str]) -> tuple[str | None, int | None, int]:
    """Return role, index and number of lines of a log. Raises UsageError."""
    role = query.get("role") or None
    if role is not None and role not in _ROLES:
        raise UsageError(f"role is one of {', '.join(_ROLES)}.")
    try:
        index = int(query["index"]) if query.get("index") else None
        tail = int(query.get("tail") or _LINES)
    except ValueError as error:
        raise UsageError("index and tail are whole numbers.") from error
    return role, None if role == "master" else index, min(max(tail, 0), _MOST_LINES)

"""A server that plays jobs to the page by the dashboard's contract: the standard library only."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = Path(__file__).parents[2] / "dashboard" / "page"
CSRF = "of-this-session"
CSP = (
    "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "object-src 'none'"
)
TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".html": "text/html",
}


class _Server(ThreadingHTTPServer):
    """A server that knows its connections, which a browser keeps from test to test."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self.connections: set[Any] = set()
        super().__init__(("127.0.0.1", 0), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)


class PageServer:
    """The page and the jobs that were put in, at `url`."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, str] = {}  # by "role-index"
        self.posted: list[dict[str, Any]] = []
        self.refuses: str | None = None  # what an action is answered with
        self.is_down = False
        self.streams = 0  # that were begun
        self._number = 0
        self._listeners: list[tuple[str, SimpleQueue[bytes | None]]] = []
        self._lock = threading.Lock()
        self._server = _Server(self._handler())
        self._server.daemon_threads = False  # close joins them
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="page-server"
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def put(self, snapshot: dict[str, Any]) -> None:
        """Let a job be as it is in the snapshot, for those who come from now on."""
        self.jobs[snapshot["status"]["job_name"]] = snapshot

    def push(self, snapshot: dict[str, Any], told: dict[str, Any], name: str = "change") -> None:
        """Tell all pages of the job what has changed in it."""
        self.put(snapshot)
        job = snapshot["status"]["job_name"]
        self._send(job, name, told)

    def push_jobs(self) -> None:
        self._send("", "jobs", self._listed())

    def forget(self) -> None:
        """Be as new: without jobs, and without whoever has listened."""
        self.cut()
        self.jobs, self.logs, self.posted, self.refuses = {}, {}, [], None
        self.is_down, self.streams = False, 0

    def cut(self) -> None:
        """End all streams and refuse others, until `is_down` is false again."""
        self.is_down = True
        with self._lock:
            for _, queue in self._listeners:
                queue.put(None)

    def close(self) -> None:
        self.cut()
        for connection in [*self._server.connections]:
            with contextlib.suppress(OSError):  # it is closed by now
                connection.shutdown(socket.SHUT_RDWR)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()  # which joins the threads of requests

    def _send(self, job: str, name: str, told: dict[str, Any]) -> None:
        with self._lock:
            self._number += 1
            message = f"id: {self._number}\nevent: {name}\ndata: {json.dumps(told)}\n\n".encode()
            for of, queue in self._listeners:
                if of == job:
                    queue.put(message)

    def _listed(self) -> dict[str, Any]:
        jobs = [snapshot["status"] for snapshot in self.jobs.values()]
        return {"schema": "edl-dashboard-1", "jobs": jobs}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # one line for a page's dozen modules
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                # The page may go away in the midst of an answer.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    server._get(self)

            def do_POST(self) -> None:
                server._post(self)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _get(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        if url.path == "/" or parts[0] == "page":
            self._file(request, parts[1] if parts[0] == "page" else "index.html")
        elif self.is_down:
            _answer(request, 503, b"down", "text/plain")
        elif parts == ["api", "stream"]:
            self._stream(request, "", "jobs", self._listed())
        elif parts == ["api", "jobs"]:
            _answer(request, 200, json.dumps(self._listed()).encode(), "application/json")
        elif parts[:2] == ["api", "jobs"] and parts[2] not in self.jobs:
            _answer(request, 404, json.dumps({"error": f"No job {parts[2]}."}).encode())
        elif parts[3:] == ["stream"]:
            self._stream(request, parts[2], "snapshot", self.jobs[parts[2]])
        elif parts[3:] == ["logs"]:
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            text = self.logs.get(f"{query['role']}-{query['index']}", "")
            lines = text.splitlines()[-int(query["tail"]) :]
            _answer(request, 200, "\n".join(lines).encode(), "text/plain; charset=utf-8")
        else:
            _answer(request, 200, json.dumps(self.jobs[parts[2]]).encode(), "application/json")

    def _file(self, request: BaseHTTPRequestHandler, name: str) -> None:
        content = (PAGE / name).read_bytes()
        if name == "index.html":
            content = content.replace(
                b'"edl-csrf" content=""', f'"edl-csrf" content="{CSRF}"'.encode()
            )
        # A browser keeps the modules from test to test: what is tested is what they do.
        keep = "no-store" if name == "index.html" else "max-age=3600"
        _answer(request, 200, content, f"{TYPES[Path(name).suffix]}; charset=utf-8", keep)

    def _stream(
        self, request: BaseHTTPRequestHandler, job: str, name: str, first: dict[str, Any]
    ) -> None:
        queue: SimpleQueue[bytes | None] = SimpleQueue()
        with self._lock:
            self.streams += 1
            queue.put(f"retry: 200\nevent: {name}\ndata: {json.dumps(first)}\n\n".encode())
            self._listeners.append((job, queue))
        request.close_connection = True
        _head(request, 200, "text/event-stream", Connection="close")
        try:
            while (message := queue.get()) is not None:
                request.wfile.write(message)
                request.wfile.flush()
        finally:
            with self._lock:
                self._listeners.remove((job, queue))

    def _post(self, request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        if request.headers["X-EDL-CSRF"] != CSRF:
            _answer(request, 403, b'{"error": "no CSRF token"}')
        elif self.refuses:
            _answer(request, 409, json.dumps({"error": self.refuses}).encode())
        else:
            self.posted.append(body)
            _answer(request, 200, json.dumps({"message": f"{body['action']}: asked for"}).encode())


def _head(request: BaseHTTPRequestHandler, code: int, kind: str, **more: str) -> None:
    request.send_response(code)
    request.send_header("Content-Type", kind)
    request.send_header("Content-Security-Policy", CSP)
    for name, value in {"Cache-Control": "no-store", **more}.items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()


def _answer(
    request: BaseHTTPRequestHandler,
    code: int,
    content: bytes,
    kind: str = "application/json",
    keep: str = "no-store",
) -> None:
    _head(request, code, kind, Content_Length=str(len(content)), **{"Cache-Control": keep})
    request.wfile.write(content)

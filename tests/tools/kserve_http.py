"""KServe's v2 protocol over HTTP/1.1, as the stand-in serves it."""

from __future__ import annotations

import contextlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from .kserve_model import DTYPES, Fault, Model, Spec, tensor_of


class Server(ThreadingHTTPServer):
    """A server that can end the connections of its clients."""

    daemon_threads = False
    block_on_close = True

    def __init__(self, *arguments: Any) -> None:
        self.open = set[Any]()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        super().shutdown_request(request)

    def end(self) -> None:
        for each in [*self.open]:
            with contextlib.suppress(OSError):  # it has ended by itself
                each.shutdown(2)

    def handle_error(self, *_: Any) -> None:
        """Say nothing of a client that is gone."""


def handler_of(server: Model) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            server.connections += 1
            super().setup()

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, body: bytes) -> None:
            server.headers = {name.lower(): value for name, value in self.headers.items()}
            path = [unquote(each) for each in self.path.split("/")[1:]]
            server.calls.append("/".join(path))
            try:
                told, raw = _routed(server, self.command, path, body, self.headers)
                self._send(200, told, raw)
            except Fault as fault:
                self._send(fault.http, {"error": str(fault)}, b"")

        def _send(self, status: int, told: Any, raw: bytes) -> None:
            head = json.dumps(told).encode()
            self.send_response(status)
            if raw:
                self.send_header("Inference-Header-Content-Length", str(len(head)))
            self.send_header(
                "Content-Type", "application/octet-stream" if raw else "application/json"
            )
            self.send_header("Content-Length", str(len(head) + len(raw)))
            self.end_headers()
            self.wfile.write(head + raw)

    return Handler


def _routed(
    server: Model, verb: str, path: list[str], body: bytes, headers: Any
) -> tuple[Any, bytes]:
    """Return the JSON of an answer, and the bytes behind it. Raises Fault."""
    match verb, path:
        case "GET", ["v2"]:
            name = {"name": "stand-in", "version": "1", "extensions": [*server.extensions]}
            return name, b""
        case "GET", ["v2", "health", "live"]:
            return {"live": True}, b""
        case "GET", ["v2", "health", "ready"]:
            if not server.is_ready:
                raise Fault("INVALID_ARG", "not ready")
            return {"ready": True}, b""
        case _, ["v2", "models", model, "versions", version, *rest]:
            pass
        case _, ["v2", "models", model, *rest]:
            version = ""
        case _:
            raise Fault("NOT_FOUND", f"no such path: {'/'.join(path)}")
    version = server.known(model, version)
    match verb, rest:
        case "GET", []:
            return {
                "name": model,
                "versions": [*server.versions],
                "platform": "stand-in",
                "inputs": [spec.json() for spec in server.inputs],
                "outputs": [spec.json() for spec in server.outputs],
            }, b""
        case "GET", ["ready"]:
            return {"name": model, "ready": server.is_ready}, b""
        case "GET", ["config"] if "model_configuration" in server.extensions:
            return {"name": model, "max_batch_size": server.max_batch_size}, b""
        case "POST", ["infer"]:
            return _inferred(server, version, body, headers)
    raise Fault("NOT_FOUND", f"no such path: {'/'.join(path)}")


def _inferred(server: Model, version: str, body: bytes, headers: Any) -> tuple[Any, bytes]:
    nbytes = int(headers.get("Inference-Header-Content-Length", len(body)))
    if nbytes < len(body) and "binary_tensor_data" not in server.extensions:
        raise Fault("INVALID_ARG", "this server takes JSON alone")
    asked, place, given = json.loads(body[:nbytes]), nbytes, []
    for told in asked["inputs"]:
        size, raw = told.get("parameters", {}).get("binary_data_size"), None
        if size is not None:
            raw, place = body[place : place + size], place + size
        given.append(tensor_of(told, raw, told.get("data")))
    if place != len(body):
        raise Fault("INVALID_ARG", f"{len(body) - place} bytes of no input")
    server.rows.append(len(given[0].values) if given else 0)
    all_raw = asked.get("parameters", {}).get("binary_data_output", False)
    wanted = {each["name"]: each.get("parameters", {}) for each in asked.get("outputs", [])}
    outputs, bodies = [], []
    for each in server.infer(given, [*wanted]):
        told = Spec(each.name, each.datatype, each.values.shape).json()
        values = each.values.astype(DTYPES[each.datatype])
        is_raw = wanted.get(each.name, {}).get("binary_data", all_raw)
        if is_raw and server.writes_raw:
            bodies.append(values.tobytes())
            told["parameters"] = {"binary_data_size": len(bodies[-1])}
        else:
            told["data"] = values.reshape(-1).tolist()
        outputs.append(told)
    told = {"model_name": server.model, "model_version": version, "outputs": outputs}
    if "id" in asked:
        told["id"] = asked["id"]
    return told, b"".join(bodies)

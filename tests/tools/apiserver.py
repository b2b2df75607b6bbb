"""A Kubernetes API server for tests, in this process, with faults that a test asks for.

Its objects are of one namespace (or none), with list, watch, bookmarks, merge patches,
preconditions, graceful deletion, logs, access reviews, 403, 404, 409 and 410.

What it does not do is decide: no scheduler, no kubelet; a test moves its pods (`set_status`). The
real one is in tests/k8s.
"""

from __future__ import annotations

import contextlib
import copy
import http.server
import json
import re
import socket
import threading
import time
import urllib.parse
import uuid
from dataclasses import dataclass, field
from typing import Any

from edl.k8s.connection import Connection

WAIT_S = 20.0
_MANAGER = re.compile(r"[?&]fieldManager=[^&]*$")
_ITEM = re.compile(
    r"/(?:api|apis)/(?:[^/]+/)?v[^/]+(?:/namespaces/(?P<ns>[^/]+))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?"
)


@dataclass
class Fault:
    """A fault: the next `times` requests of a method and path get this status (0: are cut off)."""

    method: str
    path: str
    status: int
    times: int
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "asked for by a test"
    do_it_first: bool = False  # the answer is lost, not the request


def connect(address: str) -> Connection:
    """Return a connection to the API server at this address, without credentials."""
    from kubernetes.client import Configuration

    configuration = Configuration()
    configuration.host = address
    return Connection(configuration)


class _Http(http.server.ThreadingHTTPServer):
    """A server that ends with its connections, which clients keep open, and all its threads."""

    daemon_threads = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        for each in list(self._open):
            with contextlib.suppress(OSError):  # it has hung up itself
                each.shutdown(socket.SHUT_RDWR)


class ApiServer:
    """An API server, what it holds, and what a test may do to it."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}  # plural, name
        self.log: list[tuple[int, str, str, dict[str, Any]]] = []  # version, plural, type, object
        self.oldest = 0  # versions up to this are forgotten: 410
        self.version = 100
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.hold_watches = False  # events are not sent
        self.cut_watches = 0  # a count that every watch compares
        self.is_closed = False
        self.kueue_versions: list[str] = []  # of kueue.x-k8s.io/...
        self.now = "2027-01-15T08:00:00Z"  # tools.scheduled.NOW
        self.git_version = "v1.37.2"
        self.unknown: set[str] = set()  # resources that this cluster lacks: 404
        self.forbidden: set[tuple[str, str]] = set()  # (verb, resource): 403
        self.of_others: set[tuple[str, str]] = set()  # what a review says that others may not
        self.logs: dict[str, bytes] = {}  # by pod, or POD/CONTAINER
        self.skew_s = 0.0  # of its clock
        server = self

        class Handler(_Handler):
            api = server

        self._http = _Http(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        with self.lock:
            self.is_closed = True
            self.lock.notify_all()
        self._http.shutdown()
        self._http.hang_up()
        self._http.server_close()

    # -- for tests

    def pods(self) -> list[dict[str, Any]]:
        with self.lock:
            return [copy.deepcopy(o) for (plural, _), o in self.objects.items() if plural == "pods"]

    def wait_for_pods(self, count: int) -> list[dict[str, Any]]:
        """Return the pods as soon as there are so many (not being deleted)."""

        def alive() -> list[tuple[str, str]]:
            return [
                key
                for key, o in self.objects.items()
                if key[0] == "pods" and "deletionTimestamp" not in o["metadata"]
            ]

        with self.lock:
            assert self.lock.wait_for(lambda: len(alive()) == count, WAIT_S), self.objects
        return self.pods()

    def wait_until(self, true: Any) -> None:
        with self.lock:
            assert self.lock.wait_for(true, WAIT_S), self.objects

    def add(self, plural: str, name: str, **more: Any) -> dict[str, Any]:
        """Hold an object that somebody else has made."""
        with self.lock:
            about = {"name": name, "uid": str(uuid.uuid4()), **more.pop("metadata", {})}
            found = self.objects[plural, name] = {"metadata": about, **more}
            self._note(plural, "ADDED", found)
        return found

    def set_status(self, name: str, **status: Any) -> None:
        with self.lock:
            found = self.objects["pods", name]
            found["status"] = {**found.get("status", {}), **status}
            self._note("pods", "MODIFIED", found)

    def remove(self, name: str, tell: bool = True, plural: str = "pods") -> None:
        """Remove an object; `tell`: with an event."""
        with self.lock:
            gone = self.objects.pop((plural, name))
            if tell:
                self._note(plural, "DELETED", gone)

    def forget_history(self) -> None:
        """Be as after a restart of the API server: old versions are 410 Gone, watches are cut."""
        with self.lock:
            self.version += 1
            self.oldest = self.version
            self.cut_watches += 1
            self.lock.notify_all()

    def fail(self, method: str, path: str, status: int, times: int = 1, **more: Any) -> None:
        with self.lock:
            self.faults.append(Fault(method, path, status, times, **more))

    # -- under the lock

    def _note(self, plural: str, kind: str, found: dict[str, Any]) -> None:
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        self.log.append((self.version, plural, kind, copy.deepcopy(found)))
        self.lock.notify_all()


class _Handler(http.server.BaseHTTPRequestHandler):
    api: ApiServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for the client's acknowledgement

    def _serve(self) -> None:
        url = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        api = self.api
        with api.lock:
            path = _MANAGER.sub("", self.path)  # who writes it: tests/unit/k8s/test_connection.py
            api.requests.append((self.command, path))
            api.lock.notify_all()
            fault = next(
                (
                    f
                    for f in api.faults
                    if f.times and f.method == self.command and re.search(f.path, path)
                ),
                None,
            )
            if fault:
                fault.times -= 1
            api.lock.notify_all()
        if fault and not fault.do_it_first:
            return self._fault(fault)
        if url.path == "/apis/kueue.x-k8s.io" and api.kueue_versions:
            versions = [{"version": each} for each in api.kueue_versions]
            return self._send(200, {"kind": "APIGroup", "versions": versions})
        if url.path == "/version":
            return self._send(200, {"gitVersion": api.git_version})
        found = _ITEM.fullmatch(url.path)
        if found is None:
            return self._refuse(404, "NotFound", "no such path")
        plural, name = found["plural"], found["name"]
        group = url.path.split("/")[2] if url.path.startswith("/apis/") else ""
        if group == "metrics.k8s.io":
            plural = "podmetrics"
        if plural in api.unknown:
            return self._refuse(404, "NotFound", "the server could not find the requested resource")
        verb = self._verb(name, query)
        resource = f"{plural}/{found['sub']}" if found["sub"] == "log" else plural
        if (verb, resource) in api.forbidden:
            where = f' in the namespace "{found["ns"]}"' if found["ns"] else " at the cluster scope"
            return self._refuse(
                403,
                "Forbidden",
                f'{plural} is forbidden: User "anna" cannot {verb} resource "{resource}" in API '
                f'group "{group}"{where}',
            )
        if plural.endswith("accessreviews"):
            return self._send(201, self._review(plural, body))
        if found["sub"] == "log":
            return self._log(name, query)
        if query.get("watch"):
            return self._watch(plural, found["ns"], query)
        with api.lock:
            status, answer = self._do(plural, found["ns"], name, found["sub"], query, body)
        if fault:
            return self._fault(fault)
        if status >= 400:
            return self._refuse(status, *answer)
        return self._send(status, answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _fault(self, fault: Fault) -> None:
        if fault.status == 0:
            self.close_connection = True
            self.connection.close()
            return
        self._refuse(fault.status, "Fault", fault.message, fault.headers)

    def _verb(self, name: str | None, query: Any) -> str:
        if self.command == "GET":
            return "watch" if query.get("watch") else "get" if name else "list"
        verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
        return verbs[self.command]

    def _review(self, plural: str, body: Any) -> Any:
        about = body["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        mine = plural.startswith("self")
        refused = self.api.forbidden if mine else self.api.of_others
        known = (
            mine
            or body["spec"].get("user") == f"system:serviceaccount:{about['namespace']}:edl-master"
        )
        return {"status": {"allowed": known and (about["verb"], resource) not in refused}}

    def _log(self, name: str, query: Any) -> None:
        """Send the log of a container, which has to be named where a pod has several."""
        spec = self.api.objects.get(("pods", name), {}).get("spec") or {}
        there = [*spec.get("initContainers", ()), *spec.get("containers", ())]
        container = query.get("container", "")
        if not container and len(there) > 1:
            words = f"a container name must be specified for pod {name}"
            self._refuse(400, "BadRequest", words)
            return
        found = self.api.logs.get(f"{name}/{container}", self.api.logs.get(name, b""))
        lines = found.splitlines(keepends=True)
        tail = int(query.get("tailLines", len(lines)))
        data = b"".join(lines[len(lines) - min(tail, len(lines)) :])
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def date_time_string(self, _timestamp: float | None = None) -> str:
        return super().date_time_string(time.time() + self.api.skew_s)

    def _do(
        self, plural: str, space: str, name: str | None, sub: str, query: Any, body: Any
    ) -> Any:
        """Answer a request; names are of one namespace: no test has the same one in two."""
        api = self.api
        if self.command == "GET" and name is None:
            items = [
                o
                for (p, _), o in api.objects.items()
                if p == plural
                and _fits(o, space, query.get("labelSelector", ""))
                and query.get("fieldSelector") in (None, f"metadata.name={o['metadata']['name']}")
            ]
            return 200, {
                "items": copy.deepcopy(items),
                "metadata": {"resourceVersion": str(api.version)},
            }
        if self.command == "POST" and sub != "eviction":
            name = body["metadata"]["name"]
            if (plural, name) in api.objects:
                return 409, ("AlreadyExists", f"{name} already exists")
            body["metadata"] |= {"uid": str(uuid.uuid4()), "namespace": space}
            if plural == "edljobs":
                body.pop("status", None)
                body["metadata"]["generation"] = 1
            if plural == "workloads":
                body["metadata"]["creationTimestamp"] = api.now
            if plural == "pods":
                body["status"] = {"phase": "Pending"}
            api.objects[plural, name] = body
            api._note(plural, "ADDED", body)
            return 201, copy.deepcopy(body)
        name = name or ""
        found = api.objects.get((plural, name))
        if found is None or not _fits(found, space, ""):
            return 404, ("NotFound", f"{plural} {name} not found")
        if self.command == "GET":
            return 200, copy.deepcopy(found)
        if self.command == "PUT":
            if body["metadata"].get("resourceVersion") != found["metadata"]["resourceVersion"]:
                return 409, ("Conflict", "the object has been modified")
            api.objects[plural, name] = body
            api._note(plural, "MODIFIED", body)
            return 200, copy.deepcopy(body)
        if self.command == "PATCH":
            version = body.get("metadata", {}).pop("resourceVersion", None)
            if version not in (None, found["metadata"]["resourceVersion"]):
                return 409, ("Conflict", "the object has been modified")
            if plural == "edljobs":  # its status is another resource
                body = {k: v for k, v in body.items() if (k == "status") == (sub == "status")}
                before = copy.deepcopy(found)
                _merge(found, body)
                if found == before:
                    return 200, copy.deepcopy(found)
                found["metadata"]["generation"] += found["spec"] != before["spec"]
            else:
                _merge(found, body)
            api._note(plural, "MODIFIED", found)
            return 200, copy.deepcopy(found)
        assert self.command == "DELETE" or sub == "eviction"
        wanted = (body or {}).get("preconditions", {}).get("uid")
        if wanted not in (None, found["metadata"]["uid"]):
            return 409, ("Conflict", "another uid")
        grace = (body or {}).get("gracePeriodSeconds", 30)
        phase = found.get("status", {}).get("phase")
        if found["metadata"].get("finalizers"):  # it stays, until they are taken out
            found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            api._note(plural, "MODIFIED", found)
            return 200, copy.deepcopy(found)
        if plural != "pods" or grace == 0 or phase in ("Pending", "Succeeded", "Failed"):
            api.objects.pop((plural, name))
            api._note(plural, "DELETED", found)
        else:
            found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            found["metadata"]["deletionGracePeriodSeconds"] = grace
            api._note(plural, "MODIFIED", found)
        return 200, copy.deepcopy(found)

    def _watch(self, plural: str, space: str, query: Any) -> None:
        api = self.api
        since = int(query["resourceVersion"])
        until = time.monotonic() + min(float(query.get("timeoutSeconds", 60)), WAIT_S)
        with api.lock:
            if since < api.oldest:
                self._refuse(410, "Expired", "too old resource version")
                return
            cut = api.cut_watches
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while True:
                events, ended, newest = self._news(since, cut, until)
                for version, of, kind, found in events:
                    since = version
                    if of == plural and _fits(found, space, query.get("labelSelector", "")):
                        self._chunk({"type": kind, "object": found})
                if events:
                    self._chunk(
                        {
                            "type": "BOOKMARK",
                            "object": {"metadata": {"resourceVersion": str(since)}},
                        }
                    )
                    since = max(since, newest)
                if ended:
                    self.wfile.write(b"0\r\n\r\n")
                    return
        except OSError:
            self.close_connection = True

    def _news(self, since: int, cut: int, until: float) -> tuple[list[Any], bool, int]:
        """Wait for events after `since`, or the watch's end; return both, and the newest version.

        `until`: in seconds of the monotonic clock, when the watch ends at the latest.
        """
        api = self.api
        with api.lock:
            while True:
                events = [] if api.hold_watches else [e for e in api.log if e[0] > since]
                left_s = until - time.monotonic()
                ended = api.cut_watches != cut or api.is_closed or left_s <= 0
                if events or ended:
                    return events, ended, api.version
                api.lock.wait(left_s)

    def _chunk(self, event: dict[str, Any]) -> None:
        data = json.dumps(event).encode() + b"\n"
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _refuse(self, status: int, reason: str, message: str, headers: Any = None) -> None:
        about = {"kind": "Status", "code": status, "reason": reason, "message": message}
        self._send(status, about, headers)

    def _send(self, status: int, answer: Any, headers: Any = None) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        pass


def _fits(found: dict[str, Any], space: str, selector: str) -> bool:
    """Tell whether an object fits a namespace ("": any) and a selector: a=b and a in (b,c)."""
    if space and found["metadata"].get("namespace", space) != space:
        return False
    labels = found["metadata"].get("labels", {})
    for part in filter(None, re.split(r",(?![^(]*\))", selector)):
        if " in " in part:
            key, _, values = part.partition(" in ")
            if labels.get(key) not in values.strip("()").split(","):
                return False
        else:
            key, _, value = part.partition("=")
            if labels.get(key) != value:
                return False
    return True


def _merge(into: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value

"""A connection asks again where an answer broke off, and reads what is whole."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from email.message import Message
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from tools.apiserver import connect

import edl
from edl.common.errors import Unreachable
from edl.k8s import connection as module
from edl.k8s.connection import Connection

BODY = b'{"kind": "Pod"}'
LONG = b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n"
OPEN = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


@contextmanager
def answering(*answers: bytes) -> Iterator[Connection]:
    """Answer one request each with these bytes, then hang up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                line, _ = listener.accept()
                with line:
                    line.recv(1 << 16)
                    line.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        with closing(connect(f"http://127.0.0.1:{listener.getsockname()[1]}")) as connection:
            yield connection


@pytest.mark.parametrize("half", [LONG + BODY[:5], LONG, OPEN + BODY[:5], OPEN])
def test_half_an_answer_is_asked_for_again(half):
    with answering(half, LONG + BODY) as connection:
        found = connection.request("GET", "/api/v1/pods/a")

    assert {"kind": "Pod"} == found


def test_half_an_answer_to_whom_does_not_wait_is_no_answer():
    with answering(OPEN + BODY[:5]) as connection, pytest.raises(Unreachable, match="broke off"):
        connection.request("GET", "/api/v1/pods/a", patience_s=0.0)


UNASKED = """Internal error occurred: failed calling webhook "pods.mesh": failed to call webhook: \
Post "https://mesh.svc:443/inject": connection refused"""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            UNASKED,
            'the webhook pods.mesh cannot be asked: Post "https://mesh.svc:443/inject": '
            + "connection refused",
        ),
        ("Internal error occurred: no endpoints\navailable", "no endpoints available"),
        ('admission webhook "a" denied the request: no',) * 2,
    ],
)
def test_a_refusal_begins_with_what_refused(said, words):
    """Broken once: it begins with "Internal error occurred", where a line is cut off."""
    assert words == module.refusal(500, {"message": said}).message


@contextmanager
def recording(*statuses: int) -> Iterator[tuple[str, list[tuple[str, Message]]]]:
    """Answer requests with these statuses, the last one for ever; yield address and requests."""
    left, seen = list(statuses), []

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            seen.append((self.path, self.headers))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(left.pop(0) if len(left) > 1 else left[0])
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", seen
        server.shutdown()
        thread.join()


def kubeconfig(path: Path, address: str, token: str) -> None:
    user = {"name": "me", "user": {"token": token}}
    cluster = {"name": "c", "cluster": {"server": address}}
    context = {"name": "x", "context": {"cluster": "c", "user": "me"}}
    made = {"apiVersion": "v1", "kind": "Config", "current-context": "x"}
    made |= {"users": [user], "clusters": [cluster], "contexts": [context]}
    path.write_text(json.dumps(made))


@pytest.fixture
def config(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


def test_requests_and_what_they_write_are_of_a_component(config):
    """Broken once: all are of "python-urllib3"."""
    with recording(200) as (address, seen):
        kubeconfig(config, address, "a")
        connection, _ = Connection.find(client="edl-controller")
        with closing(connection):
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
                connection.request(method, "/api/v1/pods/a", body={}, query={"a": 1})

    managers = [parse_qs(urlparse(path).query).get("fieldManager") for path, _ in seen]
    assert [None, ["edl-controller"], ["edl-controller"], ["edl-controller"], None] == managers
    assert {f"edl-controller/{edl.__version__}"} == {each["User-Agent"] for _, each in seen}


def test_credentials_that_are_refused_are_read_anew(config):
    """Broken once: the kubeconfig is read once, and the old token is sent for ever."""
    with recording(401, 200) as (address, seen):
        kubeconfig(config, address, "old")
        connection, _ = Connection.find()
        with closing(connection):
            kubeconfig(config, address, "new")
            found = connection.request("GET", "/version")

    assert {} == found
    assert ["Bearer old", "Bearer new"] == [each["Authorization"] for _, each in seen]


def test_a_pods_token_that_is_refused_is_read_anew(tmp_path, monkeypatch):
    with recording(401, 200) as (address, seen):
        (tmp_path / "token").write_text("old")
        (tmp_path / "namespace").write_text("lab\n")
        (tmp_path / "ca.crt").write_text("-----BEGIN CERTIFICATE-----")
        host, port = address.removeprefix("http://").split(":")
        monkeypatch.setattr(module, "_SERVICE_ACCOUNT", tmp_path)
        loader = "kubernetes.config.incluster_config"
        monkeypatch.setattr(f"{loader}.SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
        monkeypatch.setattr(f"{loader}.SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        plain(monkeypatch, address)
        connection, own = Connection.find()
        with closing(connection):
            (tmp_path / "token").write_text("new")
            connection.request("GET", "/version")

    assert "lab" == own
    assert ["bearer old", "bearer new"] == [each["authorization"].lower() for _, each in seen]


def plain(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Let a pod's configuration speak HTTP to this address."""
    read = module._of_pod

    def found() -> Any:
        configuration, own = read()
        configuration.host, configuration.ssl_ca_cert = address, None
        return configuration, own

    monkeypatch.setattr(module, "_of_pod", found)


def test_credentials_that_are_refused_for_good_end_whoever_runs_on(config, monkeypatch):
    """One sentence, told once, after a bound. Broken once: a warning each 4 s, for ever."""
    now, ended = [1000.0], Queue()
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with recording(401) as (address, seen):
        kubeconfig(config, address, "old")
        connection, _ = Connection.find()
        connection.on_end = ended.put
        with closing(connection):
            for passed in (0.0, 1.0, module.REFUSED_S / 2, module.REFUSED_S, module.REFUSED_S * 2):
                now[0] = 1000.0 + passed
                with pytest.raises(module.Refused, match=r"refuses the credentials of .*config"):
                    connection.request("GET", "/version")
                if passed == module.REFUSED_S / 2:
                    assert ended.empty()
        told = ended.get(timeout=60.0)

    assert isinstance(told, module.Refused)
    assert ended.empty()
    assert 9 == len(seen)  # not read anew where that was done a second ago


def test_credentials_that_are_taken_again_end_nobody(config, monkeypatch):
    now, ended = [1000.0], Queue()
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with recording(401, 401, 200, 401, 401) as (address, _):
        kubeconfig(config, address, "old")
        connection, _ = Connection.find()
        connection.on_end = ended.put
        with closing(connection):
            for passed in (0, 50, 100):
                now[0] = 1000.0 + passed
                with contextlib.suppress(module.Refused):
                    connection.request("GET", "/version")

    assert ended.empty()

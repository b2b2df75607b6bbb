"""A connection asks again where an answer broke off, and reads what is whole."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from tools.apiserver import connect

from edl.common.errors import Unreachable
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

"""KServe's v2 protocol over HTTP/1.1: JSON, and behind it tensors' bytes where a server takes them.

A connection has one request at a time and is used again. Reads and writes of any size end at the
request's deadline, which `http.client` alone, with a limit for each read, could not promise.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import math
import socket
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from ...common import finite, foreign
from ...common.errors import EdlError, Unreachable
from ...common.listen import joined
from ...common.teacher_address import Served
from ...wire.pool import Pool
from ..frames import MAX_BODY_NBYTES, Part
from ..link import CONNECT_S, Busy, Refused
from .carrier import CONFIG_EXTENSION, MAY_NOT, RAW_EXTENSION, Said, left_until, short
from .tensors import RAW_ONLY, Input, Model, Tensor, listed_part, raw_part

_JSON_NBYTES = "Inference-Header-Content-Length"  # of the JSON, where tensors' bytes follow it
_STEP_NBYTES = 1 << 20
_TENSORS = [{"name": str, "datatype": str, "shape": list}]


class HttpCarrier:
    """A model behind HTTP. Any thread may call."""

    def __init__(self, served: Served, headers: Mapping[str, str]) -> None:
        self._served, self._headers = served, dict(headers)
        version = f"/versions/{quote(served.version, safe='')}" if served.version else ""
        self._path = f"/v2/models/{quote(served.model, safe='')}{version}"
        self._tls = ssl.create_default_context() if served.encrypts else None
        self._pool = Pool[_Connection]()

    def model(self, deadline: float) -> Model:
        """Return what the server tells of the model. Raises Said, Busy, Unreachable."""
        try:
            extensions = self._told("/v2", {}, deadline).get("extensions")
        except Said:
            extensions = None  # a server that tells nothing of itself has none
        if not isinstance(extensions, list):
            extensions = []
        told = self._told(self._path, {"inputs": _TENSORS, "outputs": _TENSORS}, deadline)
        most = 0
        if CONFIG_EXTENSION in extensions:
            most = self._told(f"{self._path}/config", {}, deadline).get("max_batch_size", 0)
        return Model(
            _tensors(told["inputs"]),
            _tensors(told["outputs"]),
            most if type(most) is int and most > 0 else 0,
            RAW_EXTENSION in extensions,
        )

    def infer(self, inputs: Sequence[Input], model: Model, deadline: float) -> list[Part]:
        """Return the model's outputs.

        Raises ValueError for what are none, Refused, Busy, Unreachable.
        """
        raw = model.takes_raw or any(each.datatype in RAW_ONLY for each in inputs)
        head, bodies = _request(inputs, raw)
        headers = {"Content-Type": "application/json"}
        if raw:
            headers = {"Content-Type": "application/octet-stream", _JSON_NBYTES: str(len(head))}
        answer = self._ask("POST", f"{self._path}/infer", headers, [head, *bodies], deadline)
        if answer.status != 200:
            raise _failure(answer)
        return _outputs(answer)

    def is_ready(self, deadline: float) -> bool:
        return self._ask("GET", "/v2/health/ready", {}, [], deadline).status == 200

    def close(self) -> None:
        self._pool.close()

    def _told(self, path: str, kind: Any, deadline: float) -> dict[str, Any]:
        """Return a JSON object of this kind that the server tells."""
        answer = self._ask("GET", path, {}, [], deadline)
        if answer.status != 200:
            raise _failure(answer)
        try:
            told = foreign.parse(answer.body)
            foreign.must_be(told, kind or dict)
        except ValueError as error:
            raise Said(f"{path} is not as the protocol has it: {error}") from error
        return dict(told)

    # -- connections

    def _ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        bodies: Sequence[Any],
        deadline: float,
    ) -> _Answer:
        """Send a request and return what comes back, whatever its status. Raises Unreachable."""
        nbytes = sum(len(each) for each in bodies)
        lines = {"Host": joined(self._served.host, self._served.port), **self._headers, **headers}
        if method == "POST":
            lines["Content-Length"] = str(nbytes)
        told = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        request = [f"{method} {path} HTTP/1.1\r\n{told}\r\n".encode("latin-1"), *bodies]
        while True:
            there, is_used = self._take(deadline)
            try:
                answer = there.asked(method, request, deadline)
            except (OSError, http.client.HTTPException) as error:
                self._pool.drop(there)
                # A server may close what was idle just as it is used again: it has read nothing.
                if is_used and isinstance(error, ConnectionError | ssl.SSLEOFError):
                    continue
                raise Unreachable(f"no answer: {str(error) or type(error).__name__}") from error
            except BaseException:
                self._pool.drop(there)
                raise
            if answer.stays:
                self._pool.give(there)
            else:
                self._pool.drop(there)
            return answer

    def _take(self, deadline: float) -> tuple[_Connection, bool]:
        """Return a connection, and whether it has been used before."""
        if (idle := self._pool.take()) is not None:
            return idle, True
        try:
            there = _Connection(self._served, self._tls, min(CONNECT_S, left_until(deadline)))
        except (OSError, ValueError) as error:
            raise Unreachable(f"nobody answers there: {error}") from error
        return self._pool.add(there), False


class _Answer:
    """A response. `stays`: the connection may be used again."""

    def __init__(self, response: http.client.HTTPResponse, deadline: float) -> None:
        self.status, self.stays = response.status, not response.will_close
        self.json_nbytes = response.headers.get(_JSON_NBYTES, "")
        self.body = _body(response, deadline)


def _body(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """Read the body. Raises HTTPException, OSError, Said where it is too large."""
    if response.length is not None and response.length <= MAX_BODY_NBYTES:
        return response.read()
    found = io.BytesIO()
    while response.length is None and found.tell() <= MAX_BODY_NBYTES:
        left_until(deadline)
        if not (piece := response.read(_STEP_NBYTES)):
            return found.getvalue()
        found.write(piece)
    raise Said(f"it answers more than {MAX_BODY_NBYTES >> 30} GiB")


class _Connection:
    """A connection, with at most one request under way."""

    def __init__(self, served: Served, tls: ssl.SSLContext | None, limit_s: float) -> None:
        """Connect. Raises OSError."""
        sock = socket.create_connection((served.host, served.port), limit_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock = tls.wrap_socket(sock, server_hostname=served.host) if tls else sock
        except BaseException:
            sock.close()
            raise

    def asked(self, method: str, request: Iterable[Any], deadline: float) -> _Answer:
        """Send a request and return its response. Raises OSError, HTTPException, EdlError."""
        for each in request:
            self._sock.settimeout(left_until(deadline))
            self._sock.sendall(each)
        with contextlib.closing(
            http.client.HTTPResponse(_Timed(self._sock, deadline), method=method)  # type: ignore[arg-type]
        ) as response:
            response.begin()
            return _Answer(response, deadline)

    def abort(self) -> None:
        """Wake whoever waits for an answer."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()


class _Timed(io.RawIOBase):
    """A stream that reads a socket until a deadline, and leaves it open."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self, 1 << 16)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)
        return self._sock.recv_into(buffer)


def _request(inputs: Sequence[Input], raw: bool) -> tuple[bytes, list[NDArray[np.uint8]]]:
    """Return the JSON of a request, and the bytes behind it. Raises Refused for NaN in JSON."""
    told: list[dict[str, Any]] = []
    bodies: list[NDArray[np.uint8]] = []
    for each in inputs:
        tensor: dict[str, Any] = {
            "name": each.name,
            "shape": list(each.values.shape),
            "datatype": each.datatype,
        }
        told.append(tensor)
        if raw:
            body = each.raw()
            tensor["parameters"] = {"binary_data_size": body.nbytes}
            bodies.append(body)
        else:
            tensor["data"] = each.values.reshape(-1).tolist()
            if each.datatype.startswith("FP") and not all(map(math.isfinite, tensor["data"])):
                raise Refused(
                    f"the feature {each.name!r} has NaN or infinity, and the server takes JSON, "
                    "which has neither"
                )
    request: dict[str, Any] = {"inputs": told}
    if raw:
        request["parameters"] = {"binary_data_output": True}
    return json.dumps(request).encode(), bodies


def _outputs(answer: _Answer) -> list[Part]:
    """Return the outputs of a response. Raises ValueError for what is none."""
    nbytes = len(answer.body)
    if answer.json_nbytes:
        if not answer.json_nbytes.isdecimal() or int(answer.json_nbytes) > nbytes:
            raise ValueError(f"it has {_JSON_NBYTES} {answer.json_nbytes[:40]} of {nbytes} bytes")
        nbytes = int(answer.json_nbytes)
    told = foreign.parse(answer.body[:nbytes])
    foreign.must_be(told, {"outputs": _TENSORS})
    raw = memoryview(answer.body)[nbytes:]
    found = []
    for each in told["outputs"]:
        more = each.get("parameters")
        more = more if isinstance(more, dict) else {}
        size = more.get("binary_data_size")
        name, datatype, shape = each["name"], each["datatype"], each["shape"]
        if size is None:
            said = more.get(finite.NOT_FINITE)
            found.append(listed_part(name, datatype, shape, each.get("data", []), said))
            continue
        if type(size) is not int or not 0 <= size <= len(raw):
            raise ValueError(f"the output {name!r} has {size!r} bytes of {len(raw)} that are there")
        found.append(raw_part(name, datatype, shape, raw[:size]))
        raw = raw[size:]
    if len(raw):
        raise ValueError(f"it has {len(raw)} bytes that are of no output")
    return found


def _tensors(told: Sequence[Mapping[str, Any]]) -> tuple[Tensor, ...]:
    """Return tensors of metadata. Raises Said for a shape that is none."""
    for each in told:
        if not all(type(size) is int for size in each["shape"]):
            raise Said(f"its metadata has the shape {str(each['shape'])[:80]} of {each['name']!r}")
    return tuple(Tensor(t["name"], t["datatype"], tuple(t["shape"])) for t in told)


def _failure(answer: _Answer) -> EdlError:
    """Return the error that a status other than 200 is."""
    try:
        text = foreign.parse(answer.body)["error"]
    except (ValueError, TypeError, KeyError):
        text = answer.body[:4096].decode(errors="replace")
    told = short(f"it says {answer.status}: {text}")
    if answer.status in (429, 503):
        return Busy(told)
    if answer.status in (408, 502, 504):
        return Unreachable(told)
    return Said(told + MAY_NOT if answer.status in (401, 403) else told)

"""ElasticDL's own parameter server, the Go binary of its wheel, over its own gRPC service.

    python -m benchmarks.peers.elasticdl BINARY rows|dense

The binary wants a master to connect to, and a Kubernetes API to ask for the master's pod: it gets a
gRPC server without services, a service account's token that says nothing and an address where
nobody listens (it logs a line every 30 s and goes on). The token's place is fixed, and it listens
on every interface, so all of this runs in mount and network namespaces of its own (no root
needed). Messages are encoded here, in bytes and by numpy: at least as fast as its Python client.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from benchmarks.peers import micro
from benchmarks.peers.work import Floats, Ids, answer

PORT, MASTER_PORT = 2222, 50001  # its defaults; the network is ours alone
DEADLINE_S = 60.0
FLOAT = 1  # TensorFlow's DataType
NAMESPACES = ("unshare", "--mount", "--net", "--map-root-user", "--kill-child", "--")
INSIDE = "EDL_BENCHMARK_NAMESPACES"
_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def main(binary: str, what: str) -> None:
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        os.execvp(NAMESPACES[0], [*NAMESPACES, sys.executable, "-m", __spec__.name, binary, what])
    furnish()
    master = grpc.server(ThreadPoolExecutor(1))
    master.add_insecure_port(f"127.0.0.1:{MASTER_PORT}")
    master.start()
    flags = {
        "port": PORT,
        "master_addr": f"127.0.0.1:{MASTER_PORT}",
        "use_async": "true",
        "opt_type": "Adagrad" if what == "rows" else "SGD",
        "opt_args": f"learning_rate={micro.LR};epsilon=1e-10;"
        if what == "rows"
        else f"learning_rate={micro.LR};momentum=0.0;nesterov=false;",
    }
    api = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    command = [binary, *(f"-{name}={value}" for name, value in flags.items())]
    server = subprocess.Popen(command, env={**os.environ, **api}, stderr=subprocess.DEVNULL)
    try:
        client = Client()
        rows(client) if what == "rows" else dense(client)
    finally:
        server.kill()
        server.wait()
        master.stop(None)


def rows(client: Client) -> None:
    work = micro.Rows()
    client.describe_table("t", micro.DIM)
    for ids in work.everything:
        client.push(rows={"t": (ids, work.grads)})
    _check(client, work.everything[0], work.grads)
    turn = itertools.cycle(work.batches)

    def cycles() -> None:
        for ids in itertools.islice(turn, micro.CYCLES):
            assert client.pull_rows("t", ids).shape == (len(ids), micro.DIM)
            client.push(rows={"t": (ids, work.grads)})

    answer(cycles, micro.CYCLES * micro.BATCH)


def dense(client: Client) -> None:
    tensors = micro.tensors()
    client.push_model({name: np.zeros_like(values) for name, values in tensors.items()})

    def cycles() -> None:
        for _ in range(micro.CYCLES):
            assert len(client.pull_dense()) == len(tensors)
            client.push(dense=tensors)

    answer(cycles, micro.CYCLES)


def _check(client: Client, ids: Ids, grads: Floats) -> None:
    """Check that it works: rows that the same gradients are pushed for move as Adagrad says."""
    before = client.pull_rows("t", ids)
    client.push(rows={"t": (ids, grads)})
    moved = client.pull_rows("t", ids) - before
    np.testing.assert_allclose(moved, -micro.LR / np.sqrt(2) * np.sign(grads), rtol=0.01)


def furnish() -> None:
    """Set loopback up, and put a token where the binary looks for one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up = struct.pack("16sh14x", b"lo", 1)  # struct ifreq with IFF_UP
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
    account = "/run/secrets/kubernetes.io/serviceaccount"  # /var/run is a link to /run
    os.makedirs(account)
    with open(f"{account}/token", "w") as token:
        token.write("none")


class Client:
    """The calls of service proto.Pserver that a worker makes (elasticdl.proto in the wheel)."""

    def __init__(self, port: int = PORT) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS)
        grpc.channel_ready_future(self._channel).result(DEADLINE_S)

    def describe_table(self, name: str, dim: int) -> None:
        """Describe a table, whose rows begin as zeros.

        With "uniform" its Adagrad state would begin uniform as well, so that a small gradient makes
        the square root's argument negative and the row NaN.
        """
        info = text(1, name) + number(2, dim) + text(3, "zeros") + number(4, FLOAT)
        self._call("push_embedding_table_infos", blob(2, info))

    def push_model(self, dense: Mapping[str, Floats]) -> None:
        self._call("push_model", model(dense, {}))

    def pull_rows(self, name: str, ids: Ids) -> Floats:
        reply = self._call("pull_embedding_vectors", text(1, name) + packed(2, ids))
        return content(reply).reshape(len(ids), -1)

    def pull_dense(self) -> dict[str, Floats]:
        reply = self._call("pull_dense_parameters", number(1, -1))
        entries = [dict(fields(entry)) for key, entry in fields(reply) if key == 3]
        return {bytes(entry[1]).decode(): content(entry[2]) for entry in entries}

    def push(
        self,
        dense: Mapping[str, Floats] | None = None,
        rows: Mapping[str, tuple[Ids, Floats]] | None = None,
    ) -> None:
        learning_rate = struct.pack("<Bf", 2 << 3 | 5, micro.LR)
        reply = self._call(
            "push_gradients", blob(1, model(dense or {}, rows or {})) + learning_rate
        )
        assert dict(fields(reply)).get(1) == 1, "the gradients were not accepted"

    def _call(self, method: str, request: bytes) -> bytes:
        call = self._channel.unary_unary(f"/proto.Pserver/{method}")
        return call(request, timeout=DEADLINE_S)  # type: ignore[no-any-return]


# -- Protocol buffers' encoding


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes((*parts, value))


def number(key: int, value: int) -> bytes:
    return varint(key << 3) + varint(value)


def blob(key: int, *parts: bytes) -> bytes:
    return b"".join((varint(key << 3 | 2), varint(sum(map(len, parts))), *parts))


def text(key: int, value: str) -> bytes:
    return blob(key, value.encode())


def packed(key: int, ids: Ids) -> bytes:
    """Encode `repeated int64` of numbers that are not negative."""
    shifts = np.arange(0, 63, 7)[: max(1, -(-int(ids.max()).bit_length() // 7))]
    left = ids[:, None] >> shifts
    groups = (left & 127 | np.where(left > 127, 128, 0)).astype(np.uint8)
    return blob(key, groups[(left > 0) | (shifts == 0)].tobytes())


def tensor(values: Floats) -> bytes:
    shape = b"".join(blob(2, number(1, size)) for size in values.shape)
    return number(1, FLOAT) + blob(2, shape) + blob(4, values.tobytes())


def model(dense: Mapping[str, Floats], rows: Mapping[str, tuple[Ids, Floats]]) -> bytes:
    entries = [blob(3, text(1, name), blob(2, tensor(v))) for name, v in dense.items()]
    for name, (ids, values) in rows.items():
        slices = blob(1, tensor(values)) + packed(2, ids)
        entries.append(blob(4, text(1, name), blob(2, slices)))
    return b"".join(entries)


def fields(message: bytes | memoryview) -> Iterator[tuple[int, Any]]:
    """Yield key and value (an int or a memoryview) of each field."""
    view, at = memoryview(message), 0

    def read() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = view[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(view):
        tag = read()
        match tag & 7:
            case 0:
                yield tag >> 3, read()
            case 2:
                size = read()
                at += size
                yield tag >> 3, view[at - size : at]
            case wire:
                raise ValueError(f"field {tag >> 3} has wire type {wire}")


def content(message: bytes | memoryview) -> Floats:
    """Return the values of a TensorProto, flat."""
    return np.frombuffer(dict(fields(message))[4], np.float32)


if __name__ == "__main__":
    main(*sys.argv[1:3])

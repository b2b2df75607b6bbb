"""The load of benchmarks/serving.py: connections that stay open, each with a request at a time.

    echo json|bytes|plain|grpc PORT ROWS CONNECTIONS SECONDS | python -m benchmarks.serving_load

For each such line it prints JSON: requests a second, and the median and 99th percentile of the time
until an answer. With 0 connections the answer to one request, for whoever compares them.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import grpc.aio
import numpy as np

from edl.model_zoo.deepfm import COLUMNS
from edl.proto import kserve_pb2 as pb

WARM_S = 0.5
_INFER = "/inference.GRPCInferenceService/ModelInfer"


def columns(rows: int, seed: int) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    random = np.random.default_rng(seed)
    return {name: random.integers(0, 300, rows) for name in COLUMNS}


def http_request(form: str, rows: int, seed: int) -> bytes:
    """Return a whole request."""
    inputs = columns(rows, seed)
    raw, extra, path = b"", "", "/v2/models/flights/infer"
    if form == "plain":
        path = "/predict"
        body = json.dumps({name: values.tolist() for name, values in inputs.items()}).encode()
    else:
        told: list[dict[str, Any]] = []
        for name, values in inputs.items():
            tensor: dict[str, Any] = {"name": name, "datatype": "INT64", "shape": [rows]}
            if form == "bytes":
                tensor["parameters"] = {"binary_data_size": values.nbytes}
                raw += values.tobytes()
            else:
                tensor["data"] = values.tolist()
            told.append(tensor)
        request: dict[str, Any] = {"inputs": told}
        if form == "bytes":
            request["parameters"] = {"binary_data_output": True}
        body = json.dumps(request).encode()
        extra = f"Inference-Header-Content-Length: {len(body)}\r\n" if raw else ""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{extra}"
    return f"{head}Content-Length: {len(body) + len(raw)}\r\n\r\n".encode() + body + raw


async def http_asker(port: int, form: str, rows: int, seed: int) -> Any:
    """Return a coroutine function that asks once and returns the head and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = http_request(form, rows, seed)

    async def ask() -> tuple[bytes, bytes]:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head)
        lower = head.lower()
        start = lower.index(b"content-length: ", lower.index(b"\r\ncontent-length") + 2) + 16
        return head, await reader.readexactly(int(head[start : head.index(b"\r", start)]))

    return ask


async def grpc_asker(port: int, rows: int, seed: int) -> Any:
    """Return the same over gRPC, on a channel of its own."""
    channel = grpc.aio.insecure_channel(
        f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]
    )
    call = channel.unary_unary(
        _INFER,
        request_serializer=lambda each: each.SerializeToString(),
        response_deserializer=pb.InferReply.FromString,
    )
    inputs = columns(rows, seed)
    request = pb.InferRequest(
        model_name="flights",
        inputs=[pb.InferTensor(name=n, datatype="INT64", shape=[rows]) for n in inputs],
        raw_input_contents=[values.tobytes() for values in inputs.values()],
    )

    async def ask() -> tuple[bytes, bytes]:
        reply = await call(request)
        return b"", reply.raw_output_contents[0]

    return ask


def values_of(form: str, head: bytes, body: bytes) -> list[float]:
    if form == "plain":
        return list(json.loads(body)["output"])
    if form == "json":
        return list(json.loads(body)["outputs"][0]["data"])
    if form == "bytes":
        lower = head.lower()
        start = lower.index(b"inference-header-content-length: ") + 33
        body = body[int(head[start : head.index(b"\r", start)]) :]
    return [float(value) for value in np.frombuffer(body, np.float32)]


async def load(form: str, port: str, rows: str, connections: str, seconds: str) -> Any:
    """Ask; return what was seen."""

    async def asker(seed: int) -> Any:
        if form == "grpc":
            return await grpc_asker(int(port), int(rows), seed)
        return await http_asker(int(port), form, int(rows), seed)

    if connections == "0":
        return values_of(form, *await (await asker(0))())
    askers = [await asker(seed) for seed in range(int(connections))]
    begins = time.perf_counter() + WARM_S
    ends = begins + float(seconds)
    took: list[float] = []

    async def work(ask: Any) -> None:
        while (now := time.perf_counter()) < ends:
            await ask()
            if now >= begins:
                took.append(time.perf_counter() - now)

    await asyncio.gather(*map(work, askers))
    p50, p99 = np.percentile(took, [50, 99]) * 1e3
    return {"rate": len(took) / float(seconds), "p50_ms": p50, "p99_ms": p99}


def main() -> None:
    """Do as each line says."""
    for line in sys.stdin:
        print(json.dumps(asyncio.run(load(*line.split()))), flush=True)


if __name__ == "__main__":
    main()
